"""Choice by measurement between generated kernels and those of libraries, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from tilewright.budget import Budget, Turns
from tilewright.codegen.cache import cache_key
from tilewright.ir import Block, Builder, Func, Module, Op, Value
from tilewright.kernel_program import alone, constants_of, estimate_of, occurrences_of, subject_text
from tilewright.library_arbitration import arbitrated_libraries
from tilewright.library_candidates import FINDERS, LibraryDevice, library_candidates
from tilewright.library_facts import replacing, without_counts, won_by
from tilewright.library_known import Known, with_true_constants
from tilewright.library_program import inlined, library_kernels
from tilewright.library_records import LibraryBook, Record
from tilewright.library_weights import with_constant_weights
from tilewright.library_wholes import Whole, wholes_of, with_whole_kernels
from tilewright.measuring import Measurer, RandomConstants
from tilewright.passes.values import replace_in_op
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import DeviceError, DeviceLostError, DeviceMissingError

T = TypeVar("T")

#: of the budget, what the search among generated kernels takes where libraries compete
SEARCH_SHARE = 0.75
#: seconds that a kernel counts at least when comparisons share the budget
LEAST_S = 1e-6
#: a program with a library kernel must be this much faster than the generated kernel to be taken
GAIN = 1.02
#: largest difference between two ways to compute one kernel, norm over norm, by element type of its factors;
#: rounded to TF32, factors have the 11 significant bits of float16
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass
class Compared:
    """What measuring said of one kernel: seconds generated, and with the fastest library kernel."""

    kernel: str
    occurrences: int
    generated_s: float
    library_s: float | None = None
    library: str = ""
    candidates: int = 0
    failed: list[str] = field(default_factory=list)
    program: Module | None = None

    def row(self) -> dict[str, Any]:
        """Plain data for reports."""
        return {
            "kernel": self.kernel,
            "occurrences": self.occurrences,
            "generated_s": self.generated_s,
            "library_s": self.library_s,
            "library": self.library,
            "candidates": self.candidates,
            "failed": len(self.failed),
            "failures": sorted(set(self.failed))[:3],
            "chosen": self.library if self.program is not None else "generated",
        }


class LibraryChoice:
    """Puts library kernels in the place of generated ones where they are measured to be faster.

    streams: the policy with which the network is replayed with and without them; None compares kernels alone.
    `facts` says what was compared and won, once `choose` has run.
    """

    def __init__(
        self,
        measurer: Measurer,
        budget: Budget | None = None,
        *,
        progress: bool | None = None,
        streams: str | None = None,
    ) -> None:
        self.measurer, self.progress, self.streams = measurer, progress, streams
        self.budget = budget or Budget()
        self.facts: dict[str, Any] = {}

    @property
    def possible(self) -> bool:
        """Whether the device runs libraries at all."""
        return isinstance(self.measurer.device, LibraryDevice)

    def quietly(self, program: Module) -> Module:
        """A small program with the winners in it, without a bar and with facts of no interest."""
        other = LibraryChoice(self.measurer, self.budget, progress=False)
        return other.choose(program)

    def choose(self, module: Module) -> Module:
        """The module with the winners: tensor level, kernels outlined, parameters chosen.

        Devices that run no libraries, and libraries that are not installed, leave it as it is: see `facts`.
        """
        device = self.measurer.device
        if not isinstance(device, LibraryDevice):
            reason = f"{device.name} runs no libraries"
            self.facts = {"unavailable": dict.fromkeys(FINDERS, reason), "compared": [], **won_by(module)}
            return module
        missing: dict[str, str] = {}
        self._book = LibraryBook(self.measurer, _versions(device, missing))
        rows: list[Compared] = []
        groups, calls = list(wholes_of(module)), occurrences_of(module)
        weights = {f.name: max(estimate_of(f), LEAST_S) for f in module.funcs if f.name in calls}
        every = [_weight(w, weights) for w in groups] + [calls[name] * s for name, s in weights.items()]
        turns = Turns(self.budget, every)
        wholes = self._wholes(module, groups, device, missing, rows, turns, weights)
        module = with_whole_kernels(module, list(wholes))
        generated = {w.whole.name: w.program() for w in wholes}
        found = self._kernels(module, device, missing, rows, generated, turns, weights)
        found |= {w.whole.name: c for w, c in wholes.items()}
        sizes = {w.whole.name: len(w.sites[0]) for w in wholes}
        programs = {
            n: replacing(c.program, sizes.get(n, 1)) for n, c in found.items() if c.program is not None
        }
        told = self._in_network(module, programs, found, generated)
        chosen = with_constant_weights(inlined(module, {**generated, **programs}))
        self.facts = {"unavailable": missing, "compared": [c.row() for c in rows], **told, **won_by(chosen)}
        return without_counts(chosen)

    def _in_network(
        self,
        module: Module,
        programs: dict[str, Module],
        found: Mapping[str, Compared],
        generated: Mapping[str, Module],
    ) -> dict[str, Any]:
        """Take out of `programs` what the whole network is faster without; what was compared, for reports.

        generated: the programs of kernels that stand for several, where no library computes them.
        """
        alike: dict[int, list[str]] = {}
        for name in (n for n, c in found.items() if n in programs):
            alike.setdefault(id(found[name]), []).append(name)
        if self.streams is None or not alike:
            return {}
        groups = sorted(alike.values(), key=lambda g: -found[g[0]].occurrences * found[g[0]].generated_s)
        verdict = arbitrated_libraries(
            module,
            {n: programs[n] for g in groups for n in g},
            groups,
            lambda some: with_constant_weights(inlined(module, {**generated, **some})),
            self.measurer,
            self.budget,
            self.streams,
        )
        for name in verdict.refused:
            programs.pop(name)
            found[name].program = None
        return {
            "in_network": {
                "isolated_s": verdict.isolated_s,
                "arbitrated_s": verdict.arbitrated_s,
                "compared": verdict.compared,
                "refused": verdict.refused,
            }
        }

    def _bar(self, kernels: Sequence[T], unit: str) -> Iterable[T]:
        hidden = not (sys.stderr.isatty() if self.progress is None else self.progress)
        return tqdm(kernels, desc="libraries", unit=unit, file=sys.stderr, disable=hidden)

    def _wholes(
        self,
        module: Module,
        groups: Sequence[Whole],
        device: LibraryDevice,
        missing: dict[str, str],
        rows: list[Compared],
        turns: Turns,
        weights: Mapping[str, float],
    ) -> dict[Whole, Compared]:
        """What several kernels compute together, where one call of a library is faster than all of them."""
        constants = constants_of(module)
        by_subject: dict[str, Compared] = {}
        won: dict[Whole, Compared] = {}
        replaced: set[int] = set()
        for w in self._bar(groups, "group"):
            limit = turns.take(_weight(w, weights))
            calls = {id(op) for site in w.sites for op in site}
            if calls & replaced:
                continue
            at = w.constants(constants)
            subject = cache_key(subject_text(w.whole, at), w.chosen)
            if subject in by_subject:
                by_subject[subject].occurrences += len(w.sites)
            else:
                generated = standing_alone(w.program(), at)
                found = self._against(subject, w.whole, generated, at, len(w.sites), device, missing, limit)
                if found is None:
                    continue
                by_subject[subject] = found
                rows.append(found)
            if by_subject[subject].program is not None:
                won[w] = by_subject[subject]
                replaced |= calls
        return won

    def _kernels(
        self,
        module: Module,
        device: LibraryDevice,
        missing: dict[str, str],
        rows: list[Compared],
        done: Collection[str],
        turns: Turns,
        weights: Mapping[str, float],
    ) -> dict[str, Compared]:
        """By kernel name what was measured, those that take most time first.

        Kernels that are equal but for names are measured once.
        """
        constants, calls, known = constants_of(module), occurrences_of(module), Known(module)
        found: dict[str, Compared] = {}
        by_subject: dict[str, Compared] = {}
        kernels = [f for f in module.funcs if f.name in calls and f.name not in done]
        kernels.sort(key=lambda f: -calls[f.name] * weights[f.name])
        for f in self._bar(kernels, "kernel"):
            limit = turns.take(calls[f.name] * weights[f.name])
            at, told = constants[f.name], known.told(f)
            subject = cache_key(subject_text(told, at), str(f.get("params")))
            if subject in by_subject:
                by_subject[subject].occurrences += calls[f.name]
            else:
                apart = alone(f, at)
                compared = self._against(subject, told, apart, at, calls[f.name], device, missing, limit)
                if compared is None:
                    continue
                by_subject[subject] = compared
                rows.append(compared)
            found[f.name] = by_subject[subject]
        return found

    def _against(
        self,
        subject: str,
        kernel: Func,
        generated: Module,
        constants: Collection[int],
        calls: int,
        device: LibraryDevice,
        missing: dict[str, str],
        limit: Budget,
    ) -> Compared | None:
        """What measuring says of a kernel and of all its candidates; None where there are none."""
        hardware = self.measurer.target.hardware
        known = self._book.recall(subject)
        if known is not None and (known.whole or limit.over):
            self.measurer.reused += known.candidates
            return _compared(known, kernel.name, calls, known.program(kernel, hardware))
        if limit.over:
            return None
        candidates = library_candidates(kernel, hardware, device, missing=missing)
        if not candidates:
            return None
        found = self._measured(kernel, generated, candidates, constants, calls, limit)
        self._book.keep(subject, _record(found, whole=not limit.over))
        return found

    def _measured(
        self,
        kernel: Func,
        generated: Module,
        candidates: Sequence[Module],
        constants: Collection[int],
        calls: int,
        limit: Budget,
    ) -> Compared:
        (generated_s,) = self.measurer.seconds([generated])
        result = Compared(kernel.name, calls, generated_s, candidates=len(candidates))
        timed: list[tuple[float, int]] = []
        for i, candidate in enumerate(candidates):
            if limit.over:
                break
            try:
                (seconds,) = self.measurer.seconds([standing_alone(candidate, constants)])
            except DeviceLostError:
                raise
            except DeviceError as error:
                result.failed.append(str(error))
                continue
            timed.append((seconds, i))
        for seconds, i in sorted(timed):
            if result.library_s is None:
                result.library_s, result.library = seconds, _providers(candidates[i])
            if seconds * GAIN >= generated_s:
                break
            standing = (generated, standing_alone(candidates[i], constants))
            fault = self._difference(*(with_true_constants(m, constants, kernel) for m in standing))
            if fault is None:
                result.library_s, result.library = seconds, _providers(candidates[i])
                result.program = _on_record(candidates[i], seconds)
                break
            result.failed.append(fault)
        return result

    def _difference(self, generated: Module, candidate: Module) -> str | None:
        """What is wrong with the candidate's results on random inputs; None where they agree."""
        (kernel,) = library_kernels(candidate).values()
        tolerance = TOLERANCE["tf32" if kernel.problem.tf32 else kernel.problem.dtype]
        wanted, got = _outputs(self.measurer, generated), _outputs(self.measurer, candidate)
        for one, other in zip(wanted, got, strict=True):
            norm = float(np.linalg.norm(one.astype(np.float64))) or 1.0
            error = float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64))) / norm
            if not error <= tolerance:
                return f"{kernel.provider} {kernel.operation}: results differ by {error:.2g} of their norm"
        return None


def _versions(device: LibraryDevice, missing: dict[str, str]) -> dict[str, str]:
    """Versions of the libraries that are installed; why others do not compete goes to `missing`."""
    found = {}
    for provider in FINDERS:
        try:
            found[provider] = device.library_version(provider)
        except DeviceMissingError as error:
            missing[provider] = str(error)
    return found


def _weight(w: Whole, weights: Mapping[str, float]) -> float:
    """Seconds that the kernels of a group take at all its sites, by the model."""
    callees: list[Any] = [op["callee"] for site in w.sites for op in site]
    return sum(weights[callee.name] for callee in callees)


def _record(found: Compared, *, whole: bool) -> Record:
    kernels = library_kernels(found.program).values() if found.program is not None else ()
    return Record(
        found.generated_s,
        found.library_s,
        found.library,
        found.candidates,
        len(found.failed),
        next(iter(kernels), None),
        whole,
    )


def _compared(known: Record, name: str, calls: int, program: Module | None) -> Compared:
    """What an earlier run measured; the reasons of failures are not kept."""
    failed = ["in an earlier run"] * known.failed
    chosen = None if program is None or known.library_s is None else _on_record(program, known.library_s)
    return Compared(
        name, calls, known.generated_s, known.library_s, known.library, known.candidates, failed, chosen
    )


def _outputs(measurer: Measurer, module: Module) -> list[np.ndarray]:
    """What a program gives for random inputs, the same for all programs with such inputs."""
    program = measurer.program(module)
    (plan,) = measurer.build([program])
    rng = np.random.default_rng(2)
    buffers = [plan.buffer_by_name[name] for name in plan.inputs]
    arrays = [rng.standard_normal(b.shape, np.float32).astype(DTYPES[b.dtype]) for b in buffers]
    names = {b.name for b in plan.buffers if b.kind == "constant"}
    constants = {n: a for n, a in program.module.constants.items() if n in names}
    with measurer.device.load(plan, constants) as loaded:
        return loaded.run(arrays)


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
    rest = sum(estimate_of(f) for f in program.funcs if f.name != "main" and f.get("skeleton") != "library")
    own = max(seconds - rest, seconds / 4)
    return program.with_funcs(
        tuple(f.with_attrs(measured_s=own) if f.get("skeleton") == "library" else f for f in program.funcs)
    )
