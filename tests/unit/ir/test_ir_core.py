"""Types, nodes, builder and named constants."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.ir import (
    Builder,
    Constants,
    InputError,
    Module,
    Op,
    Pairs,
    Ref,
    ScalarType,
    Sym,
    TensorType,
    Value,
    define,
    dtype_name,
    load_constants,
    numpy_dtype,
    op_defs,
    save_constants,
    widened,
)
from tilewright.ir.opdef import AttrDef
from tilewright.ir.types import DTYPES, MAX_ELEMENTS, array_type, itemsize, parse_scalar


def test_tensor_types() -> None:
    t = TensorType("f16", (2, 3, 4), "shared")
    assert (t.size, t.nbytes, t.rank, t.strides) == (24, 48, 3, (12, 4, 1))
    assert str(t) == "f16[2, 3, 4] in shared"
    assert (TensorType("i8", ()).size, TensorType("i8", (0, 3)).size) == (1, 0)
    assert str(array_type(TensorType("bf16", (2,)))) == "bfloat16[2]"


@pytest.mark.parametrize(
    ("dtype", "shape", "space"),
    [("f33", (1,), "global"), ("index", (1,), "global"), ("f32", (-1,), "global"), ("f32", (1.0,), "global"),
     ("f32", (True,), "global"), ("f32", (1,), "rom"), ("f32", (MAX_ELEMENTS, 2), "global")],
)  # fmt: skip
def test_bad_tensor_types(dtype: str, shape: tuple[int, ...], space: str) -> None:
    with pytest.raises(InputError, match="expected"):
        TensorType(dtype, shape, space)


def test_scalar_types_survive_text() -> None:
    for dtype in [*DTYPES, "index"]:
        for lanes in (1, 4):
            t = ScalarType(dtype, lanes)
            assert parse_scalar(str(t)) == t
    for text in ("f32x3", "f32x", "x4", "float"):
        with pytest.raises(InputError):
            parse_scalar(text)


def test_dtype_names() -> None:
    for name in DTYPES:
        assert dtype_name(name) == dtype_name(numpy_dtype(name)) == name
        assert itemsize(name) == numpy_dtype(name).itemsize
    assert (dtype_name("float32"), dtype_name("bfloat16"), dtype_name("bool_")) == ("f32", "bf16", "bool")
    assert dtype_name(ml_dtypes.bfloat16) == "bf16"
    for bad in ("complex64", np.complex64, np.dtype("S4")):
        with pytest.raises(InputError):
            dtype_name(bad)


def test_widening_is_scoped_and_leaves_integers() -> None:
    with widened():
        assert (numpy_dtype("f16"), numpy_dtype("i8")) == (np.float64, np.int8)
        with widened(False):
            assert numpy_dtype("f16") == np.float16
    assert numpy_dtype("f16") == np.float16


def test_builder_fills_in_defaults_infers_types_and_keeps_locations() -> None:
    b = Builder("relay:a")
    x = b.const(1, "f32")
    with b.at("relay:b"):
        y = b.value("scalar.add", x, x)
        b.emit("scalar.neg", [y], loc="relay:c")
    assert y.type == ScalarType("f32")
    assert [o.loc for o in b.ops] == ["relay:a", "relay:b", "relay:c"]
    assert type(b.ops[0]["value"]) is float
    assert b.cast(x, "f32") is x
    assert b.cast(x, "i32").type == ScalarType("i32")


def test_builder_loops_and_conditions() -> None:
    b = Builder()
    with b.loop("i", 4, unroll=1) as inner, inner.when(((Sym("i"), 0, 2),)) as then, then.when(()) as same:
        assert same is then
        same.do("thread.barrier")
    (loop,) = b.ops
    assert loop.body is not None
    assert (loop["extent"], loop["unroll"], loop.body.ops[0].name) == (4, 1, "thread.if")


def test_builder_rejects_what_the_definition_does_not_allow() -> None:
    b, x = Builder(), Value(ScalarType("f32"))
    with pytest.raises(InputError, match="unknown attribute 'dtyp'"):
        b.value("scalar.cast", x, dtyp="f32")
    with pytest.raises(InputError, match="one dtype"):
        b.value("scalar.add", x, Value(ScalarType("f64")))
    with pytest.raises(InputError, match="cannot be inferred"):
        b.emit("tensor.call", [x], {"callee": Ref("k")})
    assert not b.ops


def test_nodes_keep_their_identity_when_nothing_changes() -> None:
    b = Builder()
    x = b.const(1.0, "f32")
    (op,) = b.ops
    block = b.block()
    assert op.with_operands(()) is op
    assert block.with_ops(block.ops) is block
    assert op.with_attrs(value=2.0)["value"] == 2.0
    assert op.with_attrs(value=2.0).result is x
    module = Module("m")
    assert module.with_funcs(()) is module
    assert module.with_constants(module.constants) is module
    with pytest.raises(InputError, match="no function @main"):
        module.input_names  # noqa: B018
    with pytest.raises(KeyError, match="no attribute 'q'"):
        op["q"]
    pairs = Pairs.of({"a": 1, "b": 2})
    assert (pairs["b"], "a" in pairs, "c" in pairs, pairs.as_dict()) == (2, True, False, {"a": 1, "b": 2})


def test_op_definitions_are_documented_and_defined_once() -> None:
    assert all(d.doc and d.name.count(".") == 1 for d in op_defs())
    with pytest.raises(ValueError, match="already defined"):
        define("scalar.add", ("a", "b"), "doc")
    with pytest.raises(ValueError, match="unknown attribute kind 'strin'"):
        define("scalar.never", (), "doc", attrs={"a": AttrDef("strin")})
    with pytest.raises(ValueError, match="needs a doc"):
        define("scalar.never", (), "")


#: NumPy has no such operation on bool
NOT_FOR_BOOL = {f"scalar.{n}" for n in ("neg", "sub", "sign", "truncdiv")}


def test_every_elementwise_scalar_op_evaluates_to_its_inferred_dtype() -> None:
    for d in op_defs():
        if not d.name.startswith("scalar.") or not d.elementwise or d.attrs:
            continue
        for dtype in ("f32", "f16", "bf16", "f64", "i32", "u8", "bool"):
            first = "bool" if d.name == "scalar.select" else dtype
            dtypes = [first, *[dtype] * (len(d.operands) - 1)]
            assert d.infer is not None
            assert d.evaluate is not None
            try:
                (t,) = d.infer([ScalarType(x) for x in dtypes], {})
            except InputError:
                continue
            if dtype == "bool" and d.name in NOT_FOR_BOOL:
                continue
            arrays = [np.ones(3).astype(numpy_dtype(x)) for x in dtypes]
            (out,) = d.evaluate(arrays, {})
            assert (d.name, np.asarray(out).dtype) == (d.name, numpy_dtype(t.dtype))


def test_constants_are_read_only_and_survive_files(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.float16(2),
        "c": np.zeros((0, 2), np.int8),
    }
    constants = Constants(arrays)
    with pytest.raises(ValueError, match="read-only"):
        constants["a"][0, 0] = 1
    assert constants.updated({}) is constants
    assert constants.only(frozenset("abc")) is constants
    assert set(constants.only(frozenset("a")).updated({"d": np.ones(1)})) == {"a", "d"}
    path = tmp_path / "c.safetensors"
    save_constants(constants, path)
    again = load_constants(path)
    assert {k: (v.dtype, v.shape, v.tobytes()) for k, v in again.items()} == {
        k: (v.dtype, v.shape, v.tobytes()) for k, v in constants.items()
    }


def test_bfloat16_constants_survive_files(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_constants({"a": np.ones(3, ml_dtypes.bfloat16)}, path)
    assert load_constants(path)["a"].dtype == ml_dtypes.bfloat16


def test_damaged_constants_are_input_errors(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_constants({"a": np.ones(64, np.float32)}, path)
    data = path.read_bytes()
    for damaged in (b"", data[:20], data[:-8], b"\xff" * 64, (1 << 60).to_bytes(8, "little") + data[8:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="safetensors"):
            load_constants(path)
    with pytest.raises(InputError):
        load_constants(tmp_path / "missing.safetensors")


def test_op_sugar() -> None:
    op = Op("scalar.const", (), (("value", 1.0), ("dtype", "f32")))
    assert (op.level, op.get("dtype"), op.get("nothing", 3)) == ("scalar", "f32", 3)
    with pytest.raises(InputError, match="expected a tensor value"):
        Value(ScalarType("f32")).tensor  # noqa: B018
