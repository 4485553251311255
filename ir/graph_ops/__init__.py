"""Graph ops: Relay's operators on whole tensors, with schema, inference and NumPy reference semantics.

Every module of this package defines one family of ops; importing the package defines them all.
"""

import pkgutil
from importlib import import_module

from tilewright.ir import scalar_ops  # noqa: F401  (tables of graph ops look up scalar ops)

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
