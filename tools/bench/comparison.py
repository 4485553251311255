"""One comparison: contenders are set up, checked and timed by turns; the result is plain data."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import tilewright as tw
from tilewright.compilation.option_values import TOLERANCE
from tilewright.ir import Module
from tilewright.measuring.budget import budget_seconds
from tilewright.running.checking import largest_error, relative_error
from tilewright.running.interpreting import interpret
from tilewright.tools.bench.contender import Contender, interleaved
from tilewright.tools.bench.kernel_cases import KernelCase
from tilewright.tools.bench.networks import random_batch, with_batch
from tilewright.tools.bench.ours import Ours
from tilewright.tools.bench.peers import Peers
from tilewright.tools.bench.rows import Row, contender_row, judged, one_line
from tilewright.tools.bench.side_by_side import TIMING
from tilewright.tools.commands.network import read_network

#: what the roundings of two right results may add up to, in tolerances
BETWEEN = 2.0
#: how long taking the times of one comparison takes about, how long a search without a budget, and what comes
#: to a budget: kernels are compiled before it, results checked after it; in seconds
_TIMES_S, _SEARCH_S, _AROUND_S = 4.0, 120.0, 15.0


@dataclass(frozen=True)
class Settings:
    """The way in which contenders are compared.

    ours: arguments of `tilewright.compile` by variant (the precision is that of the comparison where they
    name none), the first is the one judged. left_s: seconds until the
    whole run has to end.
    """

    ours: Mapping[str, Mapping[str, Any]]
    peers: tuple[str, ...]
    rounds: int
    replays: int
    cold: bool
    peer_limit_s: float
    seed: int
    left_s: Callable[[], float]
    all_variants: bool = False
    #: where peers run, cuda or cpu
    device: str = "cuda"
    #: around the timing of everybody, after all are set up and checked: where several comparisons are
    #: prepared at once, each waits here until it is the only one that works; around compiling as well where
    #: that measures
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    #: is told which peer is being prepared, and within how many seconds
    doing: Callable[[str, float], None] = lambda what, limit_s: None
    #: whether anything is run; else rows are compiled, for devices that are somewhere else
    measure: bool = True

    @property
    def searches(self) -> bool:
        """Return whether compiling measures on the device, which nothing else may use in the meantime."""
        return any(options.get("tune") == "measure" for options in self.ours.values())

    @property
    def turn_s(self) -> float:
        """About how many seconds a comparison is alone: times are taken, and before them searches."""
        searches = [o for o in self.ours.values() if o.get("tune") == "measure"]
        budgets = (budget_seconds(o.get("budget"), where="--budget") for o in searches)
        return _TIMES_S + sum(_SEARCH_S if budget is None else budget + _AROUND_S for budget in budgets)


class Exact(Protocol):
    """The exact results that contenders are compared with."""

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """The largest relative error of what is known exactly of the outputs, as `relative_error` has it."""
        ...


@dataclass
class Entrants:
    """Contenders beside ours: `checked` compute the same, `unchecked` only take time."""

    checked: Sequence[Contender] = ()
    unchecked: Sequence[Contender] = ()


def compare(
    module: Module,
    inputs: list[np.ndarray],
    precision: str,
    reference: Exact,
    settings: Settings,
    set_up: Callable[[Peers], Entrants],
) -> Row:
    """`status` (ok, wrong or compiled), rows of `ours` and of `peers`, the better peer and ratios.

    Who is wrong is not timed. Raises what compiling raises.
    """
    if not settings.measure:
        return _compiled_row(module, precision, settings)
    limit = TOLERANCE[precision]
    with Peers(
        settings.peers,
        precision,
        device=settings.device,
        cold=settings.cold,
        limit_s=settings.peer_limit_s,
        left_s=settings.left_s,
        all_variants=settings.all_variants,
        doing=settings.doing,
    ) as peers:
        own: list[Contender] = []
        others: list[Contender] = []
        entrants = Entrants()
        try:
            entrants = set_up(peers)
            results = []
            for c in entrants.checked:
                with peers.noting_failures(c.peer, c.variant):
                    results.append(c.outputs())
                    others.append(c)
            exact = [reference.error(inputs, o) for o in results]
            with ExitStack() as alone:
                if settings.searches:
                    alone.enter_context(settings.turn())
                    settings.doing(TIMING, settings.left_s())
                for variant, options in settings.ours.items():
                    arguments = {"precision": precision, **options}
                    own.append(Ours(module, inputs, arguments, peers.clock, variant))
                results[:0] = [c.outputs() for c in own]
                exact[:0] = [reference.error(inputs, o) for o in results[: len(own)]]
                everyone = [*own, *others, *entrants.unchecked]
                checks = [*errors(results, exact, limit), *({} for _ in entrants.unchecked)]
                right = [c for c, check in zip(everyone, checks, strict=True) if is_right(check, limit)]
                if not settings.searches:
                    alone.enter_context(settings.turn())
                rounds = interleaved(right, settings.rounds, settings.replays)
            timed = {id(t.contender): t for t in rounds}
            checked = zip(everyone, checks, strict=True)
            rows = [contender_row(c, check, timed.get(id(c))) for c, check in checked]
        finally:
            for c in (*own, *others, *entrants.unchecked):
                c.close()
    first, rest = rows[: len(own)], rows[len(own) :]
    return _as_row(first, [*rest, *peers.failures], judged(first, rest[: len(others)]))


def _compiled_row(module: Module, precision: str, settings: Settings) -> Row:
    """The row of a network that is compiled only."""
    rows = []
    for variant, options in settings.ours.items():
        begin = time.perf_counter()
        with tw.compile(module, progress=False, **{"precision": precision, **options}) as exe:
            facts = {"launches": len(exe.plan.launches), "kernels": len(exe.plan.kernels)}
        seconds = round(time.perf_counter() - begin, 3)
        rows.append({"peer": Ours.peer, "variant": variant, "prepare_s": seconds, **facts})
    return {"status": "compiled", "ratio": None, "ours": rows, "peers": []}


def _as_row(ours: Sequence[Row], peers: Sequence[Row], ratios: Row) -> Row:
    wrong = [f"{r['peer']} {r['variant']} (error {r['relative_error']:.3g})" for r in ours if "reason" in r]
    return {
        "status": "wrong" if wrong else "ok",
        **({"reason": f"wrong results of {', '.join(wrong)}"} if wrong else {}),
        **ratios,
        "ours": ours,
        "peers": peers,
    }


def errors(
    outputs: Sequence[Sequence[np.ndarray]], exact: Sequence[float], limit: float
) -> list[dict[str, float]]:
    """Per contender its error against what is exact, and its difference from a contender on everything.

    exact: the errors as the reference has them. The contender that others are compared with is the last
    (a peer, where there are any) whose exact part is right; there is none where only one is.
    """
    right = [i for i, error in enumerate(exact) if error <= limit]
    checks = []
    for i, error in enumerate(exact):
        check = {"relative_error": error}
        if right and right[-1] != i:
            check["difference"] = largest_error(outputs[i], outputs[right[-1]])
        checks.append(check)
    return checks


def is_right(check: Mapping[str, float], limit: float) -> bool:
    """Return whether errors are within what the precision allows."""
    return check.get("relative_error", 0.0) <= limit and check.get("difference", 0.0) <= BETWEEN * limit


class ExactReference:
    """Exact results, interpreted in float64 from the network as it was imported.

    batched: of a batch the first and the last sample. A network computes each sample of a batch by itself, so
    sample i of a batch equals the network at batch 1 on it; results are kept by sample, and batches that
    begin with the same samples share them. Otherwise everything: inputs need not share a batch.
    """

    def __init__(self, module: Module, *, batched: bool = True) -> None:
        self._module, self._batched = with_batch(module, 1) if batched else module, batched
        self._known: dict[bytes, list[np.ndarray]] = {}

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """The largest relative error of what is held against the outputs."""
        if not self._batched:
            return largest_error(outputs, self._exact(inputs))
        errors = []
        for sample in sorted({0, inputs[0].shape[0] - 1}):
            exact = self._exact([x[sample : sample + 1] for x in inputs])
            # Rows of a result may be more than one per sample.
            rows = [y[sample * len(e) : (sample + 1) * len(e)] for y, e in zip(outputs, exact, strict=True)]
            errors.append(largest_error(rows, exact))
        return max(errors)

    def _exact(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        key = b"".join(x.tobytes() for x in inputs)
        if key not in self._known:
            self._known[key] = interpret(self._module, *inputs, precision="fp64")
        return self._known[key]


#: rows of the result that are compared with float64
CHECKED_ROWS = 4


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a kernel's result, interpreted in float64."""

    case: KernelCase

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """Relative error of the first rows."""
        rows = min(CHECKED_ROWS, self.case.rows)
        module = self.case.module(rows)
        names = zip(module.input_names, inputs, strict=True)
        first = [x[:rows] if n in self.case.batched else x for n, x in names]
        (expected,) = interpret(module, *first, precision="fp64")
        return relative_error(outputs[0][:rows], expected)


def compare_kernel(case: KernelCase, settings: Settings) -> Row:
    """The row as plain data, as `compare_network` gives it; rates and `of_copy` where they could be taken."""
    row: Row = {"kernel": case.name, "precision": case.precision}

    def compared() -> Row:
        module = case.module()
        inputs = random_batch(module, settings.seed)
        stored, entrants = _as_stored(case, settings), _entrants(case, inputs)
        return _with_rates(case, compare(module, inputs, case.precision, FirstRows(case), stored, entrants))

    return guarded(row, settings, compared)


def guarded(row: Row, settings: Settings, compared: Callable[[], Row]) -> Row:
    """The row with what a comparison gives; a fault is a row with a reason, and the other rows go on."""
    if settings.left_s() <= 0:
        return row | {"status": "failed", "reason": "the time limit was over"}
    try:
        return row | compared()
    except Exception as e:  # noqa: BLE001 - see above
        return row | {"status": "failed", "reason": one_line(e)}
    finally:
        gc.collect()


def _as_stored(case: KernelCase, settings: Settings) -> Settings:
    """The module has the types of its precision: nothing is left for the compiler to convert."""
    precision = "tf32" if case.precision == "tf32" else "fp32"
    return replace(settings, ours={v: {**o, "precision": precision} for v, o in settings.ours.items()})


def _entrants(case: KernelCase, inputs: list[np.ndarray]) -> Callable[[Peers], Entrants]:
    return lambda peers: Entrants(
        peers.kernel_contenders(case.torch_call, inputs),
        peers.copies(case.moved_bytes) if not case.flops else (),
    )


def _with_rates(case: KernelCase, row: Row) -> Row:
    """Rates of everything that was timed, and the copy's time over ours."""
    for r in (*row["ours"], *row["peers"]):
        if "median_ms" in r:
            seconds = 1e-3 * r["median_ms"]
            if case.flops:
                r["tflop_per_s"] = float(f"{case.flops / seconds / 1e12:.4g}")
            else:
                r["gbyte_per_s"] = float(f"{case.moved_bytes / seconds / 1e9:.4g}")
    copies = [r["median_ms"] for r in row["peers"] if r["peer"] == "copy"]
    if copies and "median_ms" in row["ours"][0]:
        row["of_copy"] = round(copies[0] / row["ours"][0]["median_ms"], 4)
    return row


@dataclass(frozen=True)
class NetworkCase:
    """A network in a file to be compared, with shapes and constants as given, at a batch and precision.

    batch: the first extent of all inputs; None leaves every shape as it is.
    """

    path: Path
    batch: int | None
    precision: str
    shapes: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """The network's name: that of its file."""
        return self.path.stem

    def module(self) -> Module:
        """The network as imported, with random weights scaled by fan-in where the file has none."""
        return read_network(str(self.path), params="random", shapes=self.shapes, constants=self.constants)

    def row(self) -> Row:
        """The cells that name the row; no batch where the shapes say it."""
        return {"network": self.network, "batch": self.batch, "precision": self.precision}


def compare_network(case: NetworkCase, imported: Module, reference: Exact, settings: Settings) -> Row:
    """The row as plain data: `status` is ok, wrong or failed, with a `reason` where it is not ok.

    imported: the module of the case. Its batch, where none is given, is the first extent of the first input.
    """
    batch = case.batch
    row: Row = case.row()
    if batch is None:
        shape = imported.input_types[0].shape
        row["batch"] = shape[0] if shape else 1

    def compared() -> Row:
        module = with_batch(imported, batch)
        inputs = random_batch(module, settings.seed)

        def entrants(peers: Peers) -> Entrants:
            return Entrants(peers.contenders(module, inputs))

        return compare(module, inputs, case.precision, reference, settings, entrants)

    return guarded(row, settings, compared)
