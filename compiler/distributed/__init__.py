"""One program on several processes: dividing a network, starting them, running and failing together."""

from tilewright.distributed.compilation import MODES, compile, compile_part, rank_module
from tilewright.running.rank_executable import DistributedExecutable, together, world

__all__ = ["MODES", "DistributedExecutable", "compile", "compile_part", "rank_module", "together", "world"]
