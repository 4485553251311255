"""Case files: a pipeline, a reason, an input module and the module that must come out, as one `.ir` text."""

import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from thread_kernels import outputs, run_calls

from tilewright.ir import Constants, Level, Module, equal, interpret, parse, show, verify, walk
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.targets import resolve_target

SEPARATOR = "# -----\n"
_HEADER = re.compile(r"# (\w+): (.*)\n")
KEYS = {"pipeline", "reason", "target", "idempotent", "tolerance"}


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


def results(module: Module) -> list[np.ndarray]:
    """What a module computes on seeded inputs; of kernels without an @main, what each leaves in memory."""
    names = {f.name for f in module.funcs}
    kernels = [f for f in module.funcs if f.level is Level.THREAD]
    if "main" not in names:
        return [a for f in kernels for a in outputs(f, races=False)]
    rng = np.random.default_rng(17)
    inputs = []
    for p in module.main.params:
        t = p.tensor
        values = rng.standard_normal(t.shape) if t.dtype.startswith("f") else rng.integers(0, 3, t.shape)
        inputs.append(values.astype(storage_dtype(t.dtype)))
    return run_calls(module, inputs) if kernels else interpret(module, *inputs)


def check(case: Case, *, update: bool = False) -> None:
    """Assert everything that must hold for a case; with `update`, rewrite its expected output first."""
    where = str(case.path)
    before = seeded_constants(parse(case.given, where=where))
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
    tolerance = float(case.header.get("tolerance", "0"))
    for a, b in zip(results(before), results(after), strict=True):
        assert a.dtype == b.dtype
        error = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)
        scale = np.abs(a.astype(np.float64)).max(initial=0)
        same = (
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            if tolerance == 0
            else error <= tolerance * scale
        )
        assert same, f"{where}: results differ by {error}"
