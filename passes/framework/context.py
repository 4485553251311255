"""Passes (`PassDef`, `Pass`), what they see (`PassContext`), and what watches them run (`Instrument`).

Each of these names the others, so they lie in one file.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast

from tilewright.ir.errors import InputError, WorkError
from tilewright.ir.nodes import Func, Level, Module, Op, Value
from tilewright.passes.framework.options import Option, OptionDef, check_options, show_option

if TYPE_CHECKING:
    from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware

P = ParamSpec("P")
S = TypeVar("S", Func, Module)
T = TypeVar("T")
#: the package of our passes
OWN_PACKAGE = "tilewright.passes."


@dataclass(frozen=True, eq=False)
class PassDef(Generic[P]):
    """A registered pass: a frozen record that is called with options to get a configured `Pass`.

    levels: the pass runs on functions of these levels (a module-scoped pass decides itself what it touches).
    to: the level its functions have afterwards, for a lowering.
    requires, establishes, breaks: names of invariants before, after, and no longer after it.
    scope: what `run` maps: each function, or the module.
    """

    name: str
    levels: tuple[Level, ...]
    to: Level | None
    requires: frozenset[str]
    establishes: frozenset[str]
    breaks: frozenset[str]
    scope: Literal["function", "module"]
    options: tuple[OptionDef, ...]
    doc: str
    origin: str
    run: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Pass:
        """The pass with these options, which are keyword-only; raises InputError on a bad one."""
        if args:
            raise InputError(f"expected options of pass '{self.name}' by keyword, got {args[0]!r}")
        return self.configure(dict(kwargs))

    def configure(self, options: Mapping[str, object]) -> Pass:
        """The pass with options given as a mapping."""
        try:
            return Pass(self, check_options(self.options, options))
        except InputError as e:
            raise InputError(f"pass '{self.name}': {e}") from None

    @property
    def newly_established(self) -> frozenset[str]:
        """What holds after it and need not before; a pass that keeps an invariant requires it, too."""
        return self.establishes - self.requires

    @property
    def file(self) -> str:
        """The file that defines it, as Python names it."""
        return str(self.run.__code__.co_filename)

    @property
    def own(self) -> bool:
        """Return whether it comes with Tilewright."""
        return self.origin.startswith(OWN_PACKAGE)

    @property
    def importable(self) -> str:
        """The argument of `--import` that registers it: a module of a package or a file; else empty."""
        if "." in self.origin:
            return self.origin
        return self.file if Path(self.file).is_file() else ""

    @property
    def place(self) -> str:
        """The module that defines it, and of a foreign one its file."""
        return self.origin if self.own else f"{self.origin} ({self.file})"

    @property
    def summary(self) -> str:
        """First line of the documentation."""
        return self.doc.splitlines()[0]

    @property
    def rewrite(self) -> str:
        """The part of the documentation after `rewrite:`, lines joined: `before --> after`."""
        _, _, text = self.doc.partition("rewrite:")
        return " ".join(text.split("\n\n")[0].split())

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


@dataclass(frozen=True, slots=True)
class Pass:
    """One configured pass: equal and hashable by name and options, printed as pipelines write it."""

    definition: PassDef[Any]
    options: tuple[tuple[str, Option], ...] = ()

    @property
    def name(self) -> str:
        return self.definition.name

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={show_option(v)}" for k, v in self.options)
        return f"{self.name}{{{inside}}}" if inside else self.name

    def spelled_out(self) -> str:
        """The text with defaults too, so that a changed default changes it."""
        options = dict(self.options)
        inside = ", ".join(
            f"{d.name}={show_option(options.get(d.name, d.default))}" for d in self.definition.options
        )
        return f"{self.name}{{{inside}}}"

    def apply(self, module: Module, ctx: PassContext) -> Module:
        """Run the function itself, without instruments; the same module when nothing changed.

        Raises WrongResult where it returns anything but what it takes.
        """
        d, options = self.definition, dict(self.options)
        if d.scope == "module":
            return _returned(d.run(module, ctx, **options), Module)
        return module.with_funcs(
            tuple(
                _returned(d.run(f, ctx, **options), Func) if f.level in d.levels else f for f in module.funcs
            )
        )

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run this pass with checks and instruments, as a pipeline of one."""
        return _run_alone[0](self, module, ctx or PassContext())


RunAlone = Callable[[Pass, Module, "PassContext"], Module]
_run_alone: list[RunAlone] = []


def run_single_passes_with(run: RunAlone) -> RunAlone:
    """Make `run` what calling a pass does; the runner, which stands above this file, hands it over."""
    _run_alone[:] = [run]
    return run


class WrongResult(WorkError):
    """The result of a pass is no IR; most often the pass has no `return`."""


def _returned(result: object, kind: type[S]) -> S:
    if not isinstance(result, kind):
        raise WrongResult(f"returned {type(result).__name__}, expected a {kind.__name__}")
    return result


@dataclass(frozen=True, slots=True)
class Step:
    """One pass at its place in the pipeline that runs: `position` counts from 1 to `total`."""

    configured: Pass
    position: int
    total: int

    def __str__(self) -> str:
        return f"{self.configured} ({self.position} of {self.total})"


class Instrument:
    """Watches passes; override what is needed. Calls nest where a pass runs other passes."""

    def before(self, step: Step, module: Module) -> None:
        """The pass is about to run on `module`."""

    def after(self, step: Step, before: Module, after: Module) -> None:
        """The pass has run; `after is before` means that it changed nothing."""

    def failed(self, step: Step, module: Module, error: BaseException) -> None:
        """The pass raised `error` on `module`."""


@dataclass(frozen=True)
class AlgorithmCost:
    """Seconds of all kernels of an algorithm, and the most bytes that one of them has at hand."""

    seconds: float
    working_bytes: int


class Estimator(Protocol):
    """Answers about the cost of a piece of a network: only here a pass sees kernels that come later.

    Estimates are of the cost model, for pieces on their own; times are in seconds. Equal questions about
    algorithms and products are answered from a memo.
    """

    def remembered(self, question: Hashable, answer: Callable[[], T]) -> T:
        """The answer that was given to an equal question, else that of the function, from now on.

        This is the one memo of costs: what a pass asks often it remembers here. A question holds all that its
        answer depends on, hardware included.
        """

    def number_of(self, structure: Hashable) -> int:
        """The number of a large structure, which then stands for it in questions."""

    def algorithm_cost(
        self,
        op: Op,
        algorithm: str,
        hardware: GpuHardware | CpuHardware,
        *,
        constant_weight: bool,
        factors: str = "",
    ) -> AlgorithmCost:
        """Cost of all kernels of graph.conv2d `op` by an algorithm that is legal for it.

        constant_weight: whether the kernel's transform is done at compile time. factors: as for `product_s`.
        """

    def product_s(self, op: Op, hardware: GpuHardware | CpuHardware, *, factors: str = "") -> float:
        """The kernels of a product of graph ops with a constant.

        factors: what float32 factors are allowed, as the attribute of tensor.contract.
        """

    def op_s(self, op: Op, hardware: GpuHardware | CpuHardware, *, factors: str = "") -> float:
        """The kernels of one graph op alone; factors: as for `product_s`, where it is a product."""

    def outlined_s(
        self, kernel: Func, hardware: GpuHardware | CpuHardware, bytes_per_s: float | None = None
    ) -> float:
        """An outlined kernel without parameters, as fast as the device allows, and the boundary behind it.

        bytes_per_s: of what it reads and stores; by default as for a kernel that is run alone, whose arrays
        may be in caches.
        """

    def program_s(
        self, params: Sequence[Value], ops: Sequence[Op], hardware: GpuHardware | CpuHardware
    ) -> float:
        """The kernels of tensor ops, the last of which returns."""

    def stored_kernels(
        self, module: Module, ctx: PassContext, *, factors: str = "", spares: bool = True
    ) -> Module:
        """A module of graph or tensor ops as kernels without parameters: what they store is in memory.

        factors: what float32 factors of products are allowed, as `allow-tf32` or `allow-split` would say.
        spares: whether arrays that make the peak are computed where they are read, as `fuse-kernels` lets
        them; without it all are stored that are for the sake of time.
        """

    def inlined(self, module: Module, ctx: PassContext, *, partitioner: str = "rules") -> Module:
        """A flat tensor program whose maps are computed where they are read, as far as they will be.

        Values that stay are those of the program. partitioner: what will choose which ops share a kernel.
        """

    def grouped(self, module: Module, ctx: PassContext, *, partitioner: str = "rules") -> Module:
        """Such a program in its present orders of dimensions as kernels, chains of them included.

        Ops keep the origins they had, which tells who shares a kernel.
        """

    def laid_out(
        self, module: Module, ctx: PassContext, *, chains: bool, partitioner: str = "rules"
    ) -> Module:
        """The same kernels with parameters and `cost`, and factors stored first where that pays.

        chains: whether to look for chains of kernels, which takes long.
        Raises InputError or UnsupportedError where no parameters of a kernel fit the device.
        """

    def kernel(self, func: Func, ctx: PassContext) -> Func:
        """An outlined kernel with the parameters and the `cost` that it would have alone.

        Raises InputError or UnsupportedError where no parameters fit the device.
        """

    def canonical(self, func: Func, ctx: PassContext) -> Func:
        """An outlined kernel in the dimensions that parameters are chosen for."""


def own_estimator() -> Estimator:
    """The service of `tilewright.passes.estimation`, loaded like passes by the name of its room.

    It stands above the passes it runs, and so above this file.
    """
    return cast(Estimator, importlib.import_module("tilewright.passes.estimation").ESTIMATOR)


def temporary_reproducers() -> Path:
    """The folder of reproducers of failing passes where the caller names none."""
    return Path(tempfile.gettempdir()) / "tilewright-reproducers"


@dataclass(frozen=True)
class PassContext:
    """Everything a pass may read beside the module and its options.

    target: `cuda:sm_90a`, `opencl`, ...
    hardware: the cost model's record of the device, where one is known.
    instruments: watch every pass that runs under this context.
    verify_each: after each pass, verify the module and check every fact that is claimed to hold.
    reproducer_folder: where a failing pass leaves a file that reruns it; None writes none.
    estimator: what passes ask of the cost of pieces that only later passes make kernels of.
    """

    target: str = "opencl"
    hardware: GpuHardware | CpuHardware | None = None
    instruments: tuple[Instrument, ...] = ()
    verify_each: bool = False
    reproducer_folder: Path | None = field(default_factory=temporary_reproducers)
    estimator: Estimator = field(default_factory=own_estimator, repr=False, compare=False)
