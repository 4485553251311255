"""Compile many CUDA sources in parallel through the disk cache; NVRTC runs without the interpreter lock."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, fields

from tqdm import tqdm

from tilewright.codegen.builders.cache import BinaryCache, cache_key
from tilewright.codegen.builders.cubin import Resources
from tilewright.codegen.builders.nvrtc import BASE_FLAGS, CudaBinary, check_arch, compile_cuda, nvrtc_version
from tilewright.ir.errors import WorkError
from tilewright.ir.machine import usable_cores

#: of stored entries; another version of this program may store other fields
_FORMAT = " ".join(("cubin", *(f.name for f in fields(Resources))))


def compile_many(
    sources: Sequence[tuple[str, str]],
    *,
    arch: str = "sm_90a",
    flags: Sequence[str] = (),
    cache: BinaryCache | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[CudaBinary]:
    """Compile `(kernel name, CUDA C text)` pairs; results come in the order of the input.

    `cache=None` uses the default folder. `jobs` threads work (default: one per usable core). `progress=None`
    draws a bar on stderr where that is a terminal. The first failure stops the rest; its `WorkError` names
    the kernel.
    """
    check_arch(arch)
    store = cache if cache is not None else BinaryCache()
    unique = {text: name for name, text in reversed(sources)}
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    bar = tqdm(total=len(unique), desc="compiling", unit="kernel", file=sys.stderr, disable=hidden)
    workers = max(1, min(jobs or usable_cores(), len(unique)))
    with bar, ThreadPoolExecutor(workers, thread_name_prefix="nvrtc") as pool:
        futures: dict[str, Future[CudaBinary]] = {}
        # The longest texts take longest to compile: begun last, they would leave one worker busy alone.
        for text, name in sorted(unique.items(), key=lambda item: -len(item[0])):
            future = pool.submit(_compile_named, name, text, arch, tuple(flags), store)
            future.add_done_callback(lambda _: bar.update())
            futures[text] = future
        done, pending = wait(futures.values(), return_when=FIRST_EXCEPTION)
        for future in pending:
            future.cancel()
        for future in done:
            future.result()
    return [futures[text].result() for _, text in sources]


def compile_cached(
    source: str, *, arch: str = "sm_90a", flags: Sequence[str] = (), cache: BinaryCache | None = None
) -> CudaBinary:
    """`compile_cuda`, but through the disk cache."""
    store = cache if cache is not None else BinaryCache()
    key = cache_key(_FORMAT, nvrtc_version(), arch, " ".join((*BASE_FLAGS, *flags)), source)
    stored = store.get(key)
    if stored is not None:
        return _decode(stored)
    binary = compile_cuda(source, arch=arch, flags=flags)
    store.put(key, _encode(binary))
    return binary


def _compile_named(name: str, text: str, arch: str, flags: tuple[str, ...], cache: BinaryCache) -> CudaBinary:
    try:
        return compile_cached(text, arch=arch, flags=flags, cache=cache)
    except WorkError as error:
        raise WorkError(f"kernel {name!r}: {error}") from None


def _encode(binary: CudaBinary) -> bytes:
    kernels = {entry: asdict(resources) for entry, resources in binary.kernels.items()}
    head = json.dumps({"arch": binary.arch, "log": binary.log, "kernels": kernels}).encode()
    return len(head).to_bytes(8, "little") + head + binary.cubin


def _decode(data: bytes) -> CudaBinary:
    end = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:end])
    kernels = {entry: Resources(**resources) for entry, resources in head["kernels"].items()}
    return CudaBinary(data[end:], head["arch"], kernels, head["log"])
