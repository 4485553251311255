"""Parameters that a kernel may be given as one buffer: the proof against a walk through every thread."""

from collections.abc import Iterator, Mapping
from itertools import product

import pytest
from hypothesis import given, settings

from tests.samples.state_programs import state_modules
from tests.unit.compiler.state.test_state_plans import MOMENTUM, module_of
from tilewright.codegen import emit_cuda, emit_opencl
from tilewright.codegen.emit.in_place import may_overwrite
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Block, Func, Level, Module, Sym, Value, parse
from tilewright.ir.expr import evaluate
from tilewright.ir.thread.launch_ops import overwrites


def accesses(
    block: Block, env: Mapping[str, int], read: Value, written: Value
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What one thread does to two parameters, in its order: loads and stores of elements."""
    for op in block.ops:
        if op.name == "thread.loop":
            variable = op["var"]
            assert isinstance(variable, Sym)
            for i in range(op.integer("extent")):
                yield from accesses(op.body, {**env, variable.name: i}, read, written)
        elif op.name == "thread.if":
            if all(low <= evaluate(e, env) < high for e, low, high in op["mask"]):
                yield from accesses(op.body, env, read, written)
        elif read in op.operands or written in op.operands:
            if not all(low <= evaluate(e, env) < high for e, low, high in op.get("mask") or ()):
                continue
            assert op.name in ("thread.load", "thread.store")
            lanes = op["lanes"] if op.name == "thread.load" else op.operands[0].type.lanes
            at = [int(evaluate(e, env)) for e in op["at"]]
            yield op.name, tuple((*at[:-1], at[-1] + i) for i in range(lanes)) if at else ((),)


def is_safe(func: Func, read: int, written: int) -> bool:
    """Whether each element is read by the thread alone that writes it, and before that."""
    one, other = func.params[read], func.params[written]
    reads: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    writes: dict[tuple[int, ...], tuple[int, ...]] = {}
    grid, block = func["grid"], func["block"]
    for thread in product(range(block), *map(range, grid)):
        env = dict(zip(("tid", "bid.x", "bid.y", "bid.z"), thread, strict=True))
        for name, elements in accesses(func.body, env, one, other):
            for e in elements:
                if name == "thread.load":
                    reads.setdefault(e, set()).add(thread)
                    if e in writes:
                        return False
                elif e in writes:
                    return False
                else:
                    writes[e] = thread
    return all(threads <= {writes.get(e, next(iter(threads)))} for e, threads in reads.items())


def pairs_of(module: Module, target: str) -> Iterator[tuple[Func, int, int]]:
    for func in lower(module, resolve_target(target)).thread.funcs:
        if func.level is Level.THREAD:
            yield from ((func, i, j) for i, j in product(range(len(func.params)), repeat=2) if i != j)


@pytest.mark.parametrize("target", ["opencl", "cuda:sm_80", "cuda:sm_90a"])
@pytest.mark.parametrize("shape", ["10", "100, 3", "3, 3, 8, 8", "1"])
def test_what_may_be_one_buffer_is_safe_for_every_thread(target, shape):
    module = module_of(
        "%0 = graph.add(%a, %x) : T\n%1 = graph.subtract(%b, %0) : T\n%2 = graph.reverse(%b, axis = 0) : T",
        "%2, %0, %1",
        "[[1, 1], [2, 2]]",
        3,
        shape,
    )
    proven = 0
    for func, read, written in pairs_of(module, target):
        if may_overwrite(func, read, written):
            assert is_safe(func, read, written)
            proven += 1
    assert proven >= 2


@settings(max_examples=15, deadline=None)
@given(module=state_modules())
def test_what_may_be_one_buffer_in_random_kernels_is_safe_for_every_thread(module):
    for func, read, written in pairs_of(module, "cuda:sm_80"):
        if may_overwrite(func, read, written):
            assert is_safe(func, read, written)


KERNEL = """module @net {{
  thread.func @k(%x: f32[64], %y: f32[64], grid = [2, 1, 1], block = {block}) {{
    {body}
    thread.return()
  }}
}}"""


def copy(read: str, written: str = "", lanes: int = 1, before: str = "", between: str = "") -> str:
    """Lines that load at one index and store at another, by default the same."""
    kind = "f32" if lanes == 1 else f"f32x{lanes}"
    load = f"%0 = thread.load(%x, at = [{read}], lanes = {lanes}) : {kind}"
    return "\n".join((before, load, between, f"thread.store(%0, %y, at = [{written or read}])"))


ONE_THREAD = "thread.if(mask = [[tid, 0, 1]]) {"


@pytest.mark.parametrize(
    ("body", "block", "safe"),
    [
        (copy("bid.x * 32 + tid"), 32, True),
        (copy("63 - bid.x * 32 - tid", "bid.x * 32 + tid"), 32, False),  # another element
        (copy("bid.x * 31 + tid"), 32, False),  # two blocks have one element
        (copy("bid.x * 32"), 32, False),  # all threads of a block have one element
        (copy("bid.x * 32", before=ONE_THREAD) + "\n}", 32, True),
        (copy("bid.x * 32", between=ONE_THREAD) + "\n}", 32, False),  # all read what one of them writes
        (copy("bid.x * 32 + tid") + "\n%1 = thread.load(%x, at = [bid.x * 32 + tid]) : f32", 32, False),
        (copy("bid.x * 32 + tid * 4", lanes=4), 8, True),
        (copy("(bid.x * 32 + tid) // 8 * 8 + (bid.x * 32 + tid) % 8"), 32, True),
        (copy("bid.x * 32 + tid * 2", lanes=4), 15, False),  # vectors that overlap
    ],
)
def test_single_kernels(body, block, safe):
    func = parse(KERNEL.format(body=body, block=block))["k"]
    assert may_overwrite(func, 0, 1) is safe
    if safe:
        assert is_safe(func, 0, 1)


@pytest.mark.parametrize(("target", "emit"), [("opencl", emit_opencl), ("cuda:sm_80", emit_cuda)])
def test_the_text_promises_nothing_of_parameters_that_may_be_one_buffer(target, emit):
    marked = 0
    for func in lower(MOMENTUM, resolve_target(target)).thread.funcs:
        if func.level is not Level.THREAD:
            continue
        shared = {i for pair in overwrites(func) for i in pair}
        source = emit(func).source
        begin = source.index(f"{func.name}(") + len(func.name) + 1
        declared = source[begin : source.index(")", begin)].split(",")
        for i, text in enumerate(declared):
            assert ("restrict" in text) is (i not in shared)
        marked += bool(shared)
    assert marked
