"""Pass write-state-apart: small new values of state come from kernels that nothing else waits for."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Ref, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.rewriting.values import needed

#: bytes that a kernel reads and writes, at most, for some of it to be computed twice
SMALL_BYTES = 1 << 16


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def write_state_apart(module: Module, ctx: PassContext) -> Module:
    """Compute the new value of a small state apart from what other kernels read of the same kernel.

    rewrite:  func @main(%step, ..., updates = [[0, 0]]) {
                  %m = call(%step, callee = @mask); %s, %c = call(%step, callee = @count);
                  %w = call(%g, %c, callee = @update); return(%s, %w) }
        -->   %m = call(%step, callee = @mask); %c = call(%step, callee = @count_0);
              %w = call(%g, %c, callee = @update); %s = call(%step, callee = @count_state_0); return(%s, %w)

    A kernel that writes state runs behind all that read the old value. The number of the step is read by the
    masks of dropout, of which a step that saves memory draws some anew at its very end; the corrections of an
    optimizer come from the same number, and with them all updates of weights would wait for that end, and all
    gradients stay until then. Both kernels are a few maps of scalars; only such are parted, and only where
    another kernel reads the state that need not run before.
    """
    main = module.main
    # Kernels about which another pass has decided something that would be lost, and calls, stay as they are.
    kernels = {f.name: f for f in module.funcs if f is not main and not f.attrs}
    names = {f.name for f in module.funcs}
    parted: dict[Op, tuple[Op, Op]] = {}
    funcs: list[Func] = []
    returned = main.body.ops[-1].operands
    state = {returned[r]: main.params[p] for p, r in main.updates}
    for call in main.body.ops[:-1]:
        if call.name != "tensor.call" or len(call.attrs) > 1 or callee_of(call) not in kernels:
            continue
        kernel = kernels[callee_of(call)]
        new = [r for r in call.results if r in state]
        if (
            new
            and _is_small(call, kernel)
            and _is_awaited(call, new, main)
            and _is_late(call, new, state, main)
        ):
            others = [r for r in call.results if r not in state]
            rest = _computing(call, kernel, others, numbered(kernel.name, names))
            last = _computing(call, kernel, new, numbered(f"{kernel.name}_state", names))
            parted[call] = rest[0], last[0]
            funcs += [rest[1], last[1]]
    if not parted:
        return module
    body = [parted[op][0] if op in parted else op for op in main.body.ops[:-1]]
    ends = [last for _, last in parted.values()]
    entry = main.with_body(main.body.with_ops((*body, *ends, main.body.ops[-1])))
    called = {callee_of(op) for op in entry.body.ops if op.name == "tensor.call"}
    kept = (f for f in module.funcs if f is not main and f.name in called)
    return module.with_funcs((*kept, *funcs, entry))


def _is_small(call: Op, kernel: Func) -> bool:
    nbytes = sum(v.tensor.nbytes for v in (*call.operands, *call.results))
    return nbytes <= SMALL_BYTES and all(op.name == "tensor.map" for op in kernel.body.ops[:-1])


def _is_awaited(call: Op, new: Sequence[Value], main: Func) -> bool:
    """Return whether kernels read what the call computes besides, and nothing reads the new state."""
    used = {v for op in main.body.ops[:-1] for v in op.operands}
    return used.isdisjoint(new) and not used.isdisjoint(call.results)


def _is_late(call: Op, new: Sequence[Value], state: dict[Value, Value], main: Func) -> bool:
    """Return whether another kernel reads the old state that the call does not depend on anyway."""
    old = {state[r] for r in new}
    ops = main.body.ops[:-1]
    before = set(needed(ops[: ops.index(call) + 1]))
    return any(op not in before and not old.isdisjoint(op.operands) for op in ops)


def _computing(call: Op, kernel: Func, results: Sequence[Value], name: str) -> tuple[Op, Func]:
    """A call for some of the results of another one, and its kernel."""
    inner = dict(zip(call.results, kernel.body.ops[-1].operands, strict=True))
    b = Builder()
    b.emit("tensor.return", [inner[r] for r in results])
    ops = live_ops(Block(kernel.params, (*kernel.body.ops[:-1], *b.ops)))
    used = {v for op in ops for v in op.operands}
    read = [(p, v) for p, v in zip(kernel.params, call.operands, strict=True) if p in used]
    body = Block(tuple(p for p, _ in read), ops)
    func = Func(Level.TENSOR, name, body, tuple(inner[r].type for r in results))
    new = Op(
        "tensor.call", tuple(v for _, v in read), (("callee", Ref(name)),), tuple(results), None, call.loc
    )
    return new, func
