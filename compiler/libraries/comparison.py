"""A generated kernel beside all candidates of libraries for it: their seconds, and whether results agree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.compilation.planning import constants_of, library_kernels
from tilewright.ir import Block, Builder, Func, Module, Op, Value
from tilewright.libraries.candidates import LibraryDevice, library_candidates
from tilewright.libraries.matching.constants import with_true_constants
from tilewright.libraries.records import LibraryBook, Record
from tilewright.libraries.weights import with_constant_weights
from tilewright.measuring.budget import Budget
from tilewright.measuring.kernel_program import estimate_of
from tilewright.measuring.measurer import Measurer, RandomConstants
from tilewright.passes.kernels.registry import is_generated
from tilewright.passes.rewriting.values import replace_in_op
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import DeviceError, DeviceLostError

#: a program with a library kernel must be this much faster than the generated kernel to be taken
GAIN = 1.02
#: largest difference between two ways to compute one kernel, norm over norm, by element type of its factors;
#: rounded to TF32, factors have the 11 significant bits of float16
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "float16": 1e-2, "bfloat16": 5e-2}
#: random numbers of an input until they repeat; a prime, so that no two rows are alike
_PERIOD = 1_048_573
#: elements of one result that are compared
_SAMPLE = 1 << 20


@dataclass
class Compared:
    """What measuring said of one kernel: seconds generated, and with the fastest library kernel.

    fastest: seconds by library. candidates: how many were timed, all that there are if `whole`.
    """

    kernel: str
    occurrences: int
    generated_s: float
    library_s: float | None = None
    library: str = ""
    candidates: int = 0
    failed: list[str] = field(default_factory=list)
    program: Module | None = None
    whole: bool = True
    fastest: dict[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Plain data for reports."""
        return {
            "kernel": self.kernel,
            "occurrences": self.occurrences,
            "generated_s": self.generated_s,
            "library_s": self.library_s,
            "library": self.library,
            "fastest": self.fastest,
            "candidates": self.candidates,
            "cut_short": not self.whole,
            "failed": len(self.failed),
            "failures": sorted(set(self.failed))[:3],
            "chosen": self.library if self.program is not None else "generated",
        }


class LibraryComparisons:
    """Compares kernels with libraries on a device; what an earlier run came to is in `book`.

    missing: libraries that are not installed, and why; those found missing are added.
    """

    def __init__(
        self, measurer: Measurer, device: LibraryDevice, book: LibraryBook, missing: dict[str, str]
    ) -> None:
        self.measurer, self.device, self.book, self.missing = measurer, device, book, missing

    def compared(
        self,
        subject: str,
        kernel: Func,
        generated: Module,
        constants: Collection[int],
        calls: int,
        limit: Budget,
    ) -> Compared | None:
        """What measuring says of a kernel and its candidates; None where there are none, or no time.

        subject: what the kernel is known by. generated: the program that computes it without libraries.
        constants: positions of its parameters that are constants. calls: how often the network calls it.
        At least one candidate is timed where there is any time; what the limit cuts short counts until a run
        has time for it.
        """
        hardware = self.measurer.target.hardware
        known = self.book.recall(subject)
        if known is not None and (known.whole or limit.over):
            self.measurer.reused += known.candidates
            return _remembered(known, kernel.name, calls, known.program(kernel, hardware))
        if limit.over:
            return None
        candidates = library_candidates(kernel, hardware, self.device, missing=self.missing)
        first = next(candidates, None)
        if first is None:
            return None
        found = self._measured(kernel, generated, _with_first(first, candidates), constants, calls, limit)
        self.book.keep(subject, _record(found))
        return found

    def _measured(
        self,
        kernel: Func,
        generated: Module,
        candidates: Iterator[Module],
        constants: Collection[int],
        calls: int,
        limit: Budget,
    ) -> Compared:
        (generated_s,) = self.measurer.seconds([generated])
        result = Compared(kernel.name, calls, generated_s)
        timed: list[tuple[float, Module]] = []
        while not (limit.over and result.candidates):
            candidate = next(candidates, None)
            if candidate is None:
                break
            result.candidates += 1
            try:
                (seconds,) = self.measurer.seconds([standing_alone(candidate, constants)])
            except DeviceLostError:
                raise
            except DeviceError as error:
                result.failed.append(str(error))
                continue
            timed.append((seconds, candidate))
            who = _providers(candidate)
            result.fastest[who] = min(seconds, result.fastest.get(who, seconds))
        else:
            result.whole = False
        timed.sort(key=lambda t: t[0])
        self._choose(result, kernel, generated, timed, constants)
        return result

    def _choose(
        self,
        result: Compared,
        kernel: Func,
        generated: Module,
        ranking: Sequence[tuple[float, Module]],
        constants: Collection[int],
    ) -> None:
        """Take the fastest candidate that is faster than the generated kernel and gives the same results."""
        wanted: list[np.ndarray] | None = None
        for seconds, candidate in ranking:
            if result.library_s is None:
                result.library_s, result.library = seconds, _providers(candidate)
            if seconds * GAIN >= result.generated_s:
                return
            if wanted is None:
                wanted = _outputs(self.measurer, with_true_constants(generated, constants, kernel))
            alone = with_true_constants(standing_alone(candidate, constants), constants, kernel)
            fault = self._difference(wanted, alone)
            if fault is None:
                result.library_s, result.library = seconds, _providers(candidate)
                result.program = _on_record(candidate, seconds)
                return
            result.failed.append(fault)

    def _difference(self, wanted: Sequence[np.ndarray], candidate: Module) -> str | None:
        """What is wrong with the candidate's results on random inputs; None where they agree."""
        (kernel,) = library_kernels(candidate).values()
        tolerance = TOLERANCE["tf32" if kernel.problem.tf32 else kernel.problem.dtype]
        for one, other in zip(wanted, _outputs(self.measurer, candidate), strict=True):
            a, b = _sample(one), _sample(other)
            norm = float(np.linalg.norm(a)) or 1.0
            error = float(np.linalg.norm(a - b)) / norm
            if not error <= tolerance:
                return f"{kernel.provider} {kernel.operation}: results differ by {error:.2g} of their norm"
        return None


def _with_first(first: Module, rest: Iterator[Module]) -> Iterator[Module]:
    yield first
    yield from rest


def _record(found: Compared) -> Record:
    kernels = library_kernels(found.program).values() if found.program is not None else ()
    return Record(
        found.generated_s,
        found.library_s,
        found.library,
        found.candidates,
        len(found.failed),
        next(iter(kernels), None),
        found.whole,
        found.fastest,
    )


def _remembered(known: Record, name: str, calls: int, program: Module | None) -> Compared:
    """What an earlier run measured; the reasons of failures are not kept."""
    chosen = None if program is None or known.library_s is None else _on_record(program, known.library_s)
    return Compared(
        name,
        calls,
        known.generated_s,
        known.library_s,
        known.library,
        known.candidates,
        ["in an earlier run"] * known.failed,
        chosen,
        known.whole,
        known.fastest,
    )


def _outputs(measurer: Measurer, module: Module) -> list[np.ndarray]:
    """What a program gives for random inputs, the same for all programs with such inputs."""
    program = measurer.program(module)
    (plan,) = measurer.build([program])
    rng = np.random.default_rng(2)
    buffers = [plan.buffer_by_name[name] for name in plan.inputs]
    arrays = [_random(rng, b.shape, DTYPES[b.dtype]) for b in buffers]
    with measurer.device.load(plan, constants_of(plan, program.module.constants)) as loaded:
        return loaded.run(arrays)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Normally distributed numbers; in large arrays they repeat."""
    size = int(np.prod(shape))
    block = rng.standard_normal(min(size, _PERIOD), np.float32).astype(dtype)
    return np.resize(block, shape)


def _sample(array: np.ndarray) -> np.ndarray:
    """A part of the elements of a large array, in float64; an odd step meets every row and column."""
    flat = array.reshape(-1)
    return flat[:: -(-flat.size // _SAMPLE) | 1].astype(np.float64)


def standing_alone(program: Module, constants: Collection[int]) -> Module:
    """The program with random constants at these positions of its parameters; see `alone` for kernels."""
    known = RandomConstants()
    b = Builder("measured")
    new: dict[Value, Value] = {}
    inputs: list[Value] = []
    for i, p in enumerate(program.main.params):
        if i in constants:
            new[p] = known.constant(b, p.tensor)
        else:
            new[p] = Value(p.type, f"x{i}")
            inputs.append(new[p])
    ops: list[Op] = [*b.ops, *(replace_in_op(op, new) for op in program.main.body.ops)]
    main = program.main.with_body(Block(tuple(inputs), tuple(ops)))
    whole = known.of(program.with_funcs(tuple(main if f.name == "main" else f for f in program.funcs)))
    return with_constant_weights(whole)


def _providers(program: Module) -> str:
    return ", ".join(sorted({k.provider for k in library_kernels(program).values()}))


def _on_record(program: Module, seconds: float) -> Module:
    """The program whose library function has the seconds that are left of what its others should take."""
    rest = sum(estimate_of(f) for f in program.funcs if f.name != "main" and is_generated(f))
    own = max(seconds - rest, seconds / 4)
    return program.with_funcs(
        tuple(f if is_generated(f) else f.with_attrs(measured_s=own) for f in program.funcs)
    )
