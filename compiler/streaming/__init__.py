"""Networks whose weights stay on storage and stream through device memory, step by step, under a cap."""

from tilewright.streaming.compiling import compile
from tilewright.streaming.executable import StreamedExecutable

__all__ = ["StreamedExecutable", "compile"]
