"""Case files: a pipeline, a reason, an input module and the module that must come out, as one `.ir` text.

Keys of the header, one `# key: value` a line:

pipeline, reason: the passes that run, and what the case shows.
target: the device of the context; `cuda:sm_90a` by default.
idempotent: `no` where a second run may change the module again.
tolerance: largest difference of results, as a share of their largest value; 0 by default.
invalid: `yes` where the verifier refuses the given module, which then has no results to compare with.
ranks: `3` where the pass makes the module of one of 3 ranks, which the pipeline names. All ranks run
  together, and each must have the results of the given module.
resized: `yes` where the pass makes inputs larger. The given module computes on the first elements of what the
  new one gets, and its results are the first elements of those of the new one.
retyped: `yes` where the pass changes types of inputs and results: its module gets the same numbers, rounded,
  and its results are compared as the types of the given module.
appends: `yes` where the pass gives results behind those of the given module. Parameters that it adds are
  state, which starts as the constant of its name.
numbers: `two=2, step=1`: what constants, state and inputs of these names are filled with; others get
  numbers by their names.
trains: `yes` where the pass makes the training form of the module, which computes something else.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from thread_kernels import outputs, run_calls

from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, Level, Module, equal, parse, show, verify, walk
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.ir.interpreter.rank_steps import interpret_rank_steps
from tilewright.ir.modules.divisions import divisions_of
from tilewright.ir.modules.verifier import VerifyError
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.running.interpreting import interpret

SEPARATOR = "# -----\n"
_HEADER = re.compile(r"# (\w+): (.*)\n")
KEYS = set(
    "pipeline reason target idempotent tolerance invalid ranks resized retyped appends numbers trains".split()  # noqa: SIM905
)
_RANK = re.compile(r"rank=\d+")


@dataclass(frozen=True)
class Case:
    """One case file. `given` holds its header and input as written, `expected` the output."""

    path: Path
    header: dict[str, str]
    given: str
    expected: str

    @classmethod
    def read(cls, path: Path) -> "Case":
        given, _, expected = path.read_text(encoding="utf-8").partition(SEPARATOR)
        header = dict(_HEADER.findall(given.partition("module ")[0]))
        assert {"pipeline", "reason"} <= set(header) <= KEYS, f"{path}: the header has {sorted(header)}"
        return cls(path, header, given, expected)

    def write(self, output: str) -> None:
        """Rewrite the expected output."""
        self.path.write_text(f"{self.given.rstrip()}\n{SEPARATOR}{output}", encoding="utf-8")

    @property
    def numbers(self) -> dict[str, int]:
        """What arrays are filled with, by name."""
        rows = [row.partition("=") for row in self.header.get("numbers", "").split(",") if row.strip()]
        return {name.strip(): int(number) for name, _, number in rows}

    @property
    def context(self) -> PassContext:
        target = resolve_target(self.header.get("target", "cuda:sm_90a"))
        return PassContext(str(target), target.hardware, verify_each=True, reproducer_folder=None)


def seeded_constants(module: Module) -> Module:
    """The module with an array for every constant it names; its values depend on the name only."""
    arrays = {}
    for f in module.funcs:
        for op in walk(f.body):
            if op.name.endswith(".constant"):
                t, name = op.result.tensor, str(op["name"])
                rng = np.random.default_rng(zlib.crc32(name.encode()))
                values = rng.uniform(0.25, 2, t.shape)  # positive: some of them are variances
                arrays[name] = (values if t.dtype.startswith("f") else rng.integers(0, 2, t.shape)).astype(
                    storage_dtype(t.dtype)
                )
    return module.with_constants(Constants(arrays))


def seeded_inputs(module: Module) -> list[np.ndarray]:
    """Numbers for the inputs of @main that depend on their shapes only."""
    rng = np.random.default_rng(17)
    inputs = []
    for p in module.main.params:
        t = p.tensor
        values = rng.standard_normal(t.shape) if t.dtype.startswith("f") else rng.integers(0, 3, t.shape)
        inputs.append(values.astype(storage_dtype(t.dtype)))
    return inputs


def with_numbers(module: Module, numbers: Mapping[str, int]) -> Module:
    """The module with constants and state of these names that are filled with their numbers."""
    values = [op.result for f in module.funcs for op in walk(f.body) if op.name == "graph.constant"]
    state = [p for p in module.main.params if p.hint in module.state_names] if numbers else []
    arrays = {
        v.hint: np.full(v.tensor.shape, numbers[v.hint], storage_dtype(v.tensor.dtype))
        for v in (*values, *state)
        if v.hint in numbers
    }
    return module.with_constants(Constants({**module.constants, **arrays})) if arrays else module


def results(module: Module, inputs: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
    """What a module computes; of kernels without an @main, what each leaves in memory."""
    names = {f.name for f in module.funcs}
    kernels = [f for f in module.funcs if f.level is Level.THREAD]
    if "main" not in names:
        return [a for f in kernels for a in outputs(f, races=False)]
    return run_calls(module, list(inputs)) if kernels else interpret(module, *inputs)


def compared(case: Case, before: Module, after: Module) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of arrays that have to agree: results before and after the passes."""
    ranks = int(case.header.get("ranks", "0"))
    if not any(f.name == "main" for f in before.funcs):
        return list(zip(results(before), results(after), strict=True))
    inputs = [
        np.full_like(a, case.numbers[p.hint]) if p.hint in case.numbers else a
        for a, p in zip(seeded_inputs(before), before.main.params, strict=True)
    ]
    if case.header.get("resized", "no") == "yes":
        larger = seeded_inputs(after)
        inputs = [common(a, p.tensor.shape) for a, p in zip(larger, before.main.params, strict=True)]
        pairs = zip(results(before, inputs), results(after, larger), strict=True)
        return [(a, common(b, a.shape)) for a, b in pairs]
    wanted = results(before, inputs)
    if case.header.get("retyped", "no") == "yes":
        types = [storage_dtype(p.tensor.dtype) for p in after.main.params]
        got = results(after, [a.astype(t) for a, t in zip(inputs, types, strict=True)])
        return [(a, b.astype(a.dtype)) for a, b in zip(wanted, got, strict=True)]
    if not ranks:
        more = case.header.get("appends", "no") == "yes"
        state = [after.constants[n] for n in after.input_names[len(inputs) :]]
        return list(zip(wanted, results(after, [*inputs, *state]), strict=not more))
    text = case.header["pipeline"]
    assert _RANK.search(text), f"{case.path}: the pipeline names no rank"
    modules = [
        run_pipeline(before, Pipeline.parse(_RANK.sub(f"rank={r}", text)), case.context) for r in range(ranks)
    ]
    assert any(show(m) == show(after) for m in modules), f"{case.path}: the pipeline is that of no rank"
    if any(map(divisions_of, modules)):
        return _step_pairs(before, modules, inputs, wanted)
    return [pair for got in interpret_ranks(modules, *inputs) for pair in zip(wanted, got, strict=True)]


def _step_pairs(
    before: Module, modules: Sequence[Module], inputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of ranks that hold state and inputs in parts: the results of each, and the state that they join to."""
    names, updates = before.input_names, dict(before.main.updates)
    ranks, state = interpret_rank_steps(modules, dict(zip(names, inputs, strict=True)), {})
    own = [a for i, a in enumerate(wanted) if i not in updates.values()]
    pairs = [pair for got in ranks for pair in zip(own, got, strict=True)]
    return pairs + [(wanted[r], state[names[p]]) for p, r in updates.items()]


def common(a: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The first elements of `a` along every dimension, as many as `shape` has."""
    return a[tuple(slice(n) for n in shape)]


def check(case: Case, *, update: bool = False) -> None:
    """Assert everything that must hold for a case; with `update`, rewrite its expected output first."""
    where = str(case.path)
    before = with_numbers(seeded_constants(parse(case.given, where=where)), case.numbers)
    invalid = case.header.get("invalid", "no") == "yes"
    with pytest.raises(VerifyError) if invalid else nullcontext():
        verify(before)
    pipeline = Pipeline.parse(case.header["pipeline"], where=where)
    after = run_pipeline(before, pipeline, case.context)
    for m in (before, after):
        assert equal(parse(show(m), constants=m.constants), m), f"{where}: text and module differ"
    if update:
        case.write(show(after))
        case = Case.read(case.path)
    assert show(after) == case.expected, f"{where}: another output (pytest --update-golden rewrites it)"
    if case.header.get("idempotent", "yes") == "yes":
        assert run_pipeline(after, pipeline, case.context) is after, f"{where}: a second run changes it again"
    if invalid or case.header.get("trains", "no") == "yes":
        return
    tolerance = float(case.header.get("tolerance", "0"))
    for a, b in compared(case, before, after):
        assert a.dtype == b.dtype
        error = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)
        scale = np.abs(a.astype(np.float64)).max(initial=0)
        same = (
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            if tolerance == 0
            else error <= tolerance * scale
        )
        assert same, f"{where}: results differ by {error}"
