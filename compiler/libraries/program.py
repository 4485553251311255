"""One kernel as a program of several: what a library computes, generated kernels before and behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Ref, Value, backward_slice
from tilewright.libraries.matching.library_call import LibraryCall
from tilewright.passes.kernels.decision import DECISION, KernelCost, KernelDecision
from tilewright.passes.kernels.library.template import LIBRARY, LibraryParameters
from tilewright.passes.rewriting.values import replace_in_op, resolve
from tilewright.runtime.libraries.kernel import LibraryKernel


def program_around(kernel: Func, call: LibraryCall) -> Module:
    """A module whose @main computes what the kernel does, one of its functions being @NAME_library.

    The other functions (@NAME_weights, @NAME_before, @NAME_after) hold the ops that the library leaves, and
    have no parameters yet. Parameters and results of @main are those of the kernel.
    """
    ops = [op for op in kernel.body.ops if op.name != "tensor.return"]
    needed = set(backward_slice(ops, call.operands))
    inside = {*call.ops, *call.weights}
    before = [op for op in ops if op in needed and op not in inside]
    after = [op for op in ops if op not in needed and op not in inside]
    returned = kernel.body.ops[-1].operands
    parts = (
        ("before", before),
        ("weights", list(call.weights)),
        ("library", list(call.ops)),
        ("after", after),
    )
    main = Builder()
    new: dict[Value, Value] = {p: Value(p.type, p.hint) for p in kernel.params}
    params = tuple(new.values())
    funcs: list[Func] = []
    for position, (suffix, part) in enumerate(parts):
        if not part:
            continue
        later = [op for _, ops_of in parts[position + 1 :] for op in ops_of]
        used = {v for op in later for v in op.operands} | set(returned)
        if suffix in ("before", "weights"):
            used.update(call.operands)
        made = call.results if suffix == "library" else [r for op in part for r in op.results]
        results = [r for r in made if r in used]
        operands = call.operands if suffix == "library" else _free(part)
        func = outlined(f"{kernel.name}_{suffix}", part, operands, results)
        values = main.emit(
            "tensor.call", [new[v] for v in operands], {"callee": Ref(func.name)}, types=func.result_types
        )
        new.update(zip(results, values, strict=True))
        funcs.append(func)
    main.emit("tensor.return", [new[v] for v in returned])
    entry = Func(Level.TENSOR, "main", Block(params, tuple(main.ops)), kernel.result_types)
    return Module(kernel.name, (*funcs, entry))


def outlined(name: str, ops: Sequence[Op], operands: Sequence[Value], results: Sequence[Value]) -> Func:
    """A kernel of these ops with the operands as its parameters; one may occur twice."""
    params = tuple(Value(v.type, v.hint) for v in operands)
    copies: dict[Value, Value] = dict(zip(operands, params, strict=True))
    body: list[Op] = []
    for op in ops:
        fresh = tuple(Value(r.type, r.hint) for r in op.results)
        body.append(replace(replace_in_op(op, copies), results=fresh))
        copies.update(zip(op.results, fresh, strict=True))
    b = Builder()
    b.emit("tensor.return", [resolve(v, copies) for v in results])
    types = tuple(v.type for v in results)
    return Func(Level.TENSOR, name, Block(params, (*body, *b.ops)), types)


def _free(ops: Sequence[Op]) -> list[Value]:
    """The values that the ops read and do not compute, in the order of first use."""
    made = {r for op in ops for r in op.results}
    return list(dict.fromkeys(v for op in ops for v in op.operands if v not in made))


def with_kernel(program: Module, kernel: LibraryKernel, cost: KernelCost | None) -> Module:
    """The program with this algorithm for its library function."""
    return program.with_funcs(
        tuple(library_func(f, kernel, cost) if f.name.endswith("_library") else f for f in program.funcs)
    )


def library_func(f: Func, kernel: LibraryKernel, cost: KernelCost | None) -> Func:
    """A function that a library computes: the pass to the thread level leaves it as it is."""
    parameters = LibraryParameters(
        provider=kernel.provider, operation=kernel.operation, kernel=kernel.to_json()
    )
    return f.with_attrs(**{DECISION: KernelDecision(LIBRARY.name, parameters, cost)})


def inlined(module: Module, programs: Mapping[str, Module]) -> Module:
    """The module with every call of these kernels replaced by what their programs call.

    Functions of the programs get names that the module does not have yet.
    """
    funcs: list[Func] = []
    renamed = _renamed(module, programs, funcs)
    ops: list[Op] = []
    new: dict[Value, Value] = {}
    for op in module.main.body.ops:
        ref = op.get("callee")
        op = replace_in_op(op, new)
        if not isinstance(ref, Ref) or ref.name not in programs:
            ops.append(op)
            continue
        main = programs[ref.name].main
        copies = dict(zip(main.params, op.operands, strict=True))
        # The caller may see results in another shape than the kernel: it goes on with its own.
        types = {v: r.type for v, r in zip(main.body.ops[-1].operands, op.results, strict=True)}
        for inner in main.body.ops[:-1]:
            callee = inner["callee"]
            assert isinstance(callee, Ref)
            results = tuple(Value(types.get(r, r.type), r.hint) for r in inner.results)
            call = replace_in_op(inner, copies).with_attrs(callee=Ref(renamed[ref.name][callee.name]))
            ops.append(replace(call, results=results, loc=op.loc))
            copies.update(zip(inner.results, results, strict=True))
        returned = main.body.ops[-1].operands
        new.update((old, resolve(v, copies)) for old, v in zip(op.results, returned, strict=True))
    entry = module.main.with_body(module.main.body.with_ops(tuple(ops)))
    others = [f for f in module.funcs if f.name not in programs and f.name != "main"]
    return module.with_funcs((*others, *funcs, entry))


def _renamed(module: Module, programs: Mapping[str, Module], funcs: list[Func]) -> dict[str, dict[str, str]]:
    """Per kernel the names that the functions of its program get; the functions so named go to `funcs`."""
    taken = {f.name for f in module.funcs}
    names: dict[str, dict[str, str]] = {name: {} for name in programs}
    for name, program in programs.items():
        for f in program.funcs:
            if f.name != "main":
                fresh = next(n for i in count() if (n := f"{f.name}_{i}" if i else f.name) not in taken)
                taken.add(fresh)
                names[name][f.name] = fresh
                funcs.append(replace(f, name=fresh))
    return names
