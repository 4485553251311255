"""Resources of the machine that this process may use, for all that stands above the IR.

They are defined in the runtime, at the very bottom, as the errors are.
"""

from tilewright.runtime.machine import cache_folder, usable_cores

__all__ = ["cache_folder", "usable_cores"]
