"""A generated kernel beside all candidates of libraries for it: their seconds, and whether results agree."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from tilewright.codegen.builders.cache import cache_key
from tilewright.compilation.planning import library_kernels
from tilewright.ir import Func, Module
from tilewright.libraries.candidates import FINDERS, LibraryDevice, library_candidates, program_with
from tilewright.libraries.matching.constants import with_true_constants
from tilewright.libraries.weights import with_constant_weights
from tilewright.measuring.budget import Budget
from tilewright.measuring.kernel_program import with_random_constants
from tilewright.measuring.measurer import Measurer, sample_of
from tilewright.passes.kernels.decision import estimate_of, with_decision
from tilewright.passes.kernels.registry import is_generated
from tilewright.runtime.errors import DeviceError, DeviceLostError, DeviceMissingError, InputError
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.tuning.database.records import StoredChoice

#: a program with a library kernel must be this much faster than the generated kernel to be taken
GAIN = 1.02
#: largest difference between two ways to compute one kernel, norm over norm, by element type of its factors;
#: rounded to TF32, factors have the 11 significant bits of float16
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "float16": 1e-2, "bfloat16": 5e-2}
#: what a record of the database holds as it is
_FIELDS = ("generated_s", "library_s", "candidates", "library", "whole", "fastest")


@dataclass
class Compared:
    """The measurements of one kernel: seconds generated, and with the fastest library kernel.

    fastest: seconds by library. candidates: how many were timed, all that there are if `whole`, so that a run
    with more time need not look again. taken: the library kernel that is taken, and `program` with it; None
    where the generated kernel is. The database keeps all but the kernel's name, its calls, the reasons of
    failures and the program.
    """

    kernel: str
    occurrences: int
    generated_s: float
    library_s: float | None = None
    library: str = ""
    candidates: int = 0
    failed: list[str] = field(default_factory=list)
    taken: LibraryKernel | None = None
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

    def to_json(self) -> str:
        """The record of the database, one line."""
        data: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        return json.dumps({**data, "failed": len(self.failed), "kernel": self.taken and self.taken.to_json()})

    @staticmethod
    def from_json(text: str, kernel: str, occurrences: int) -> Compared | None:
        """Read what `to_json` wrote of a kernel; None for anything else."""
        try:
            data = json.loads(text)
            taken, failed = data.pop("kernel"), data.pop("failed")
            compared = Compared(kernel, occurrences, **data, taken=taken and LibraryKernel.from_json(taken))
        except (ValueError, TypeError, KeyError, AttributeError, InputError):
            return None
        if not set(data) <= set(_FIELDS) or not isinstance(compared.fastest, dict) or type(failed) is not int:
            return None
        numbers = [
            compared.generated_s,
            compared.library_s,
            compared.candidates,
            failed,
            *compared.fastest.values(),
        ]
        sound = all(x is None or (type(x) in (int, float) and math.isfinite(x) and x >= 0) for x in numbers)
        if not sound or not isinstance(compared.library, str) or not isinstance(compared.whole, bool):
            return None
        compared.failed = ["in an earlier run"] * failed
        return compared


class LibraryComparisons:
    """Compares kernels with libraries on a device, or recalls what an earlier run came to.

    missing: libraries that are not installed, and why; those found missing are added.
    """

    def __init__(self, measurer: Measurer, device: LibraryDevice) -> None:
        self.measurer, self.device = measurer, device
        self.missing: dict[str, str] = {}
        versions = {}
        for provider in FINDERS:
            try:
                versions[provider] = device.library_version(provider)
            except DeviceMissingError as error:
                self.missing[provider] = str(error)
        self._versions = json.dumps(versions, sort_keys=True)

    def compared(
        self,
        subject: str,
        kernel: Func,
        generated: Callable[[], Module],
        constants: Collection[int],
        calls: int,
        limit: Budget,
    ) -> Compared | None:
        """Measure a kernel and its candidates; None where there are none, or no time.

        subject: what the kernel is known by. generated: makes the program that computes it without libraries.
        constants: positions of its parameters that are constants. calls: how often the network calls it.
        At least one candidate is timed where there is any time; what the limit cuts short counts until a run
        has time for it.
        """
        hardware, database = self.measurer.target.hardware, self.measurer.database
        key = self.measurer.key("library:" + cache_key(self._versions, subject))
        choice = database.choice(key)
        known = None if choice is None else Compared.from_json(choice.record, kernel.name, calls)
        if known is not None and (known.whole or limit.over):
            self.measurer.reused += known.candidates
            program = None if known.taken is None else program_with(kernel, known.taken, hardware)
            if program is not None and known.library_s is not None:
                known.program = _with_seconds(program, known.library_s)
            return known
        if limit.over:
            return None
        candidates = library_candidates(kernel, hardware, self.device, missing=self.missing)
        first = next(candidates, None)
        if first is None:
            return None
        result = self._measured(kernel, generated(), chain([first], candidates), constants, calls, limit)
        if result.generated_s > 0.0:  # else the device tells no times
            database.put_choice(key, StoredChoice(result.to_json(), int(time.time())))
        return result

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
                (seconds,) = self.measurer.seconds([timed_program(candidate, constants)])
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
        expected: list[np.ndarray] | None = None
        for seconds, candidate in ranking:
            if result.library_s is None:
                result.library_s, result.library = seconds, _providers(candidate)
            if seconds * GAIN >= result.generated_s:
                return
            if expected is None:
                expected = _outputs(self.measurer, with_true_constants(generated, constants, kernel))
            program = with_true_constants(timed_program(candidate, constants), constants, kernel)
            fault = self._difference(expected, program)
            if fault is None:
                result.library_s, result.library = seconds, _providers(candidate)
                result.program = _with_seconds(candidate, seconds)
                (result.taken,) = library_kernels(candidate).values()
                return
            result.failed.append(fault)

    def _difference(self, expected: Sequence[np.ndarray], candidate: Module) -> str | None:
        """Say how the candidate's results differ on random inputs; None where they agree."""
        (kernel,) = library_kernels(candidate).values()
        tolerance = TOLERANCE["tf32" if kernel.problem.tf32 else kernel.problem.dtype]
        for one, other in zip(expected, _outputs(self.measurer, candidate), strict=True):
            a, b = sample_of(one), sample_of(other)
            norm = float(np.linalg.norm(a)) or 1.0
            error = float(np.linalg.norm(a - b)) / norm
            if not error <= tolerance:
                return f"{kernel.provider} {kernel.operation}: results differ by {error:.2g} of their norm"
        return None


def _outputs(measurer: Measurer, module: Module) -> list[np.ndarray]:
    """The results of a program for random inputs, the same for all programs with such inputs."""
    program = measurer.program(module)
    (plan,) = measurer.build([program])
    return measurer.outputs(program, plan)


def timed_program(program: Module, constants: Collection[int]) -> Module:
    """The program with random constants at these positions of its parameters, rearranged where kernels do."""
    return with_constant_weights(with_random_constants(program, constants))


def _providers(program: Module) -> str:
    return ", ".join(sorted({k.provider for k in library_kernels(program).values()}))


def _with_seconds(program: Module, seconds: float) -> Module:
    """The program whose library function has the seconds that are left of what its others should take."""
    rest = sum(estimate_of(f) for f in program.funcs if f.name != "main" and is_generated(f))
    own = max(seconds - rest, seconds / 4)
    return program.with_funcs(
        tuple(f if is_generated(f) else with_decision(f, measured_s=own) for f in program.funcs)
    )
