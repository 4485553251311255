"""Reference semantics: runs a module of the graph or the tensor level on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.errors import InputError, UnsupportedError, WorkError
from tilewright.ir.interpreter.indexed import (
    evaluate_gather,
    evaluate_join_updates,
    evaluate_scan,
    evaluate_scatter,
    evaluate_update_rows,
)
from tilewright.ir.interpreter.recurrence import evaluate_recur
from tilewright.ir.interpreter.structured import evaluate_structured
from tilewright.ir.modules.verifier import verify
from tilewright.ir.nodes import Func, Level, Module, Op, Ref, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.tensor.ops import STRUCTURED
from tilewright.ir.types import TensorType, array_type, numpy_dtype, storage_dtype, widened


def interpret(module: Module, *inputs: Any, precision: str = "native") -> list[np.ndarray]:
    """Results of @main on `inputs`, one array per parameter, with the parameter's shape and dtype.

    precision: "native" computes in the dtypes of the module; "fp64" holds every float as float64 (inputs may
      then be float64 too, and float results are float64).
    Raises InputError for a malformed module, wrong inputs or missing constant data, UnsupportedError for
    thread-level functions.
    """
    if precision not in ("native", "fp64"):
        raise InputError(f"expected precision 'native' or 'fp64', got '{precision}'")
    verify(module)
    with widened(precision == "fp64"), np.errstate(all="ignore"):
        arrays = bind_inputs(module, inputs)
        results = _run(module, module.main, arrays)
        shared = [*arrays, *module.constants.values()]
        return [own_array(r, shared) for r in results]


def bind_inputs(module: Module, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The inputs as arrays of the parameters of @main; raises InputError where they do not fit."""
    names, types = module.input_names, [p.tensor for p in module.main.params]
    if len(inputs) != len(names):
        expected = ", ".join(f"{n}: {array_type(t)}" for n, t in zip(names, types, strict=True))
        raise InputError(f"expected {len(names)} inputs ({expected}), got {len(inputs)}")
    return [_input(n, t, x) for n, t, x in zip(names, types, inputs, strict=True)]


def _input(name: str, t: TensorType, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as e:
        raise InputError(f"input '{name}': expected an array, got {type(value).__name__} ({e})") from e
    array = array.astype(
        array.dtype.newbyteorder("="), copy=False
    )  # the order of bytes is no part of the type
    dtypes = (storage_dtype(t.dtype), numpy_dtype(t.dtype))
    if array.shape != t.shape or array.dtype not in dtypes:
        got = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
        raise InputError(f"input '{name}': expected {array_type(t)}, got {got}")
    return array.astype(numpy_dtype(t.dtype), copy=False)


def own_array(result: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """A result the caller may write to: never a view of an input or a constant."""
    result = np.ascontiguousarray(result).reshape(result.shape)
    shared = not result.flags.writeable or any(np.may_share_memory(result, h) for h in arrays)
    return result.copy() if shared else result


def _run(module: Module, func: Func, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    if func.level not in (Level.GRAPH, Level.TENSOR):
        raise UnsupportedError(
            f"the interpreter covers the graph and the tensor level; "
            f"@{func.name} is a {func.level.value}.func"
        )
    env = dict(zip(func.params, arguments, strict=True))
    last = last_uses(func)
    for i, op in enumerate(func.body.ops[:-1]):
        operands = [env[v] for v in op.operands]
        results = evaluate_op(module, func, op, operands)
        env.update(zip(op.results, results, strict=True))
        for v in {*op.operands, *op.results}:
            if last.get(v, i) <= i:
                del env[v]
    return [env[v] for v in func.body.ops[-1].operands]


def last_uses(func: Func) -> Mapping[Value, int]:
    """The last place in a function at which each value is used."""
    return {v: i for i, op in enumerate(func.body.ops) for v in op.operands}


def evaluate_op(module: Module, func: Func, op: Op, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
    """Results of one op of `func`, of the types it declares; raises UnsupportedError without semantics."""
    results = _evaluate(module, op, operands)
    _check(func, op, results)
    return results


def _evaluate(module: Module, op: Op, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
    if op.name.endswith(".constant"):
        return [_constant(module, op)]
    if op.name == "tensor.call":
        return _call(module, op, operands)
    if op.name in STRUCTURED:
        return evaluate_structured(op, operands)
    if op.name == "tensor.scan":
        return [evaluate_scan(op, operands[0])]
    if op.name == "tensor.gather":
        return [evaluate_gather(op, operands)]
    if op.name == "tensor.recur":
        return [evaluate_recur(op, operands)]
    if op.name == "tensor.scatter":
        return [evaluate_scatter(op, operands)]
    if op.name == "tensor.update_rows":
        return evaluate_update_rows(op, operands)
    if op.name == "tensor.join_updates":
        return evaluate_join_updates(op, operands)
    definition = op_def(op.name)
    if "communicate" in definition.effects:
        raise UnsupportedError(
            f"{op.name} takes part in a communication between devices; interpret the modules of all ranks "
            "together (tilewright.ir.interpreter.lockstep.interpret_ranks)"
        )
    if definition.evaluate is None:
        raise UnsupportedError(f"{op.name} has no reference semantics")
    return [np.asarray(r) for r in definition.evaluate(operands, op.attributes)]


def _constant(module: Module, op: Op) -> np.ndarray:
    name = str(op["name"])
    if name not in module.constants:
        raise InputError(
            f"constant '{name}' ({op.result.type}) has no data in the constants of module @{module.name}"
        )
    return module.constants[name].astype(numpy_dtype(op.result.tensor.dtype), copy=False)


def _call(module: Module, op: Op, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a kernel; buffers are dense, so arguments and results are reshaped to what each side declares."""
    ref = op["callee"]
    assert isinstance(ref, Ref)
    callee = module[ref.name]
    arguments = [x.reshape(p.tensor.shape) for x, p in zip(operands, callee.params, strict=True)]
    results = _run(module, callee, arguments)
    return [r.reshape(v.tensor.shape) for r, v in zip(results, op.results, strict=True)]


def _check(func: Func, op: Op, results: Sequence[np.ndarray]) -> None:
    """Reference semantics and type inference must agree."""
    for array, value in zip(results, op.results, strict=True):
        t = value.tensor
        if array.shape != t.shape or array.dtype != numpy_dtype(t.dtype):
            got = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
            raise WorkError(f"{op.name} in @{func.name}: its semantics gave {got} for a result of type {t}")
