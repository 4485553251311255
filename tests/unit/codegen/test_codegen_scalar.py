"""Every scalar op on every dtype, alone and in vectors, on OpenCL and the emulator against NumPy."""

from itertools import product

import numpy as np
import pytest
from codegen_samples import DEVICES, kernel, run

from tilewright.ir import InputError, op_def, op_defs
from tilewright.ir.types import DTYPES, FLOAT8, FLOATS, ScalarType, converted, storage_dtype

pytestmark = pytest.mark.emulator

N = 32
TOLERANCE = {"f64": (1e-13, 1e-13), "f32": (5e-6, 2e-6), "f16": (2e-3, 1e-4), "bf16": (1.6e-2, 1e-4)}
ELEMENTWISE = [
    d.name.removeprefix("scalar.")
    for d in op_defs()
    if d.name.startswith("scalar.")
    and d.elementwise
    and d.name not in ("scalar.cast", "scalar.const", "scalar.select", "scalar.piece", "scalar.join_pieces")
    and d.name != "scalar.narrow_gelu"  # of positive scales, as exact as 16 bits need: test_erf.py
]


#: arithmetic that NumPy does on truth values by way of int8; there is no code for it
NOT_ON_BOOL = {"div", "mod", "truncdiv", "truncmod", "pow", "shl", "shr", "sub", "neg", "abs", "sign"}


def samples(dtype: str) -> list[np.ndarray]:
    """Three operands with the corner cases of the dtype among random values."""
    rng, t = np.random.default_rng(3), storage_dtype(dtype)
    if dtype in FLOATS:
        a, b, c = (rng.uniform(-3, 3, N) for _ in range(3))
        a[:8] = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, 2.5, -2.5]
        b[2:6] = [1.0, 1.0, np.inf, np.nan]
        return [x.astype(t) for x in (a, b, c)]
    if dtype == "bool":
        return [rng.integers(0, 2, N).astype(t) for _ in range(3)]
    info = np.iinfo(t)
    a, b, c = (rng.integers(max(info.min, -9), 10, N).astype(t) for _ in range(3))
    a[:4], b[:4] = [info.min, info.max, info.min, 7], [np.array(-1).astype(t), 3, 0, 0]
    return [a, b, c]


def applicable(dtype: str, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Expected results of every op NumPy itself admits for the dtype."""
    expected = {}
    for name in ELEMENTWISE:
        if dtype == "bool" and name in NOT_ON_BOOL:
            continue
        definition = op_def(f"scalar.{name}")
        operands = arrays[: len(definition.operands)]
        if name == "pow" and dtype not in FLOATS:
            operands = [operands[0], np.abs(operands[1] % np.array(5, operands[1].dtype))]
        try:
            definition.infer([ScalarType(dtype)] * len(operands), {})
            with np.errstate(all="ignore"):
                expected[name] = np.asarray(definition.evaluate(operands, {})[0])
        except (InputError, TypeError, ValueError):
            continue
    return expected


def body_of(name: str, dtype: str, result: str, lanes: int) -> str:
    count = len(op_def(f"scalar.{name}").operands)
    suffix, place = ("", "tid") if lanes == 1 else (f"x{lanes}", f"tid * {lanes}")
    used = ["a", "p" if name == "pow" and dtype not in FLOATS else "b", "c"][:count]
    tag = f"{name}{lanes}"
    loads = "\n".join(
        f"%{tag}_{x} = thread.load(%{x}, at = [{place}], lanes = {lanes}) : {dtype}{suffix}" for x in used
    )
    operands = ", ".join(f"%{tag}_{x}" for x in used)
    text = f"""{loads}
      %{tag}_r = scalar.{name}({operands}) : {result}{suffix}
      thread.store(%{tag}_r, %y_{tag}, at = [{place}])"""
    return text if lanes == 1 else f"thread.if(mask = [[tid, 0, {N // lanes}]]) {{ {text} }}"


@pytest.mark.parametrize(
    ("dtype", "target"),
    [*product(sorted(DTYPES - {*FLOAT8}), DEVICES), ("f32", "opencl:pocl"), ("i32", "opencl:pocl")],
)
def test_elementwise_ops_follow_numpy(dtype, target):
    arrays = samples(dtype)
    if dtype not in FLOATS:
        arrays.append(np.abs(arrays[1] % np.array(5, arrays[1].dtype)) if dtype != "bool" else arrays[1])
    expected = applicable(dtype, arrays)
    assert len(expected) > 10
    names = ["a", "b", "c", "p"][: len(arrays)]
    params = dict.fromkeys(names, f"{dtype}[{N}]")
    body = ""
    for name, want in expected.items():
        result = "bool" if want.dtype == np.bool_ else dtype
        for lanes in (1, 4):
            params[f"y_{name}{lanes}"] = f"{result}[{N}]"
            body += "\n" + body_of(name, dtype, result, lanes)
    got = run(kernel(body, params), target, arrays)
    rtol, atol = TOLERANCE.get(dtype, (0, 0))
    for name, want in expected.items():
        for lanes in (1, 4):
            have = got[f"y_{name}{lanes}"]
            if dtype in FLOATS and want.dtype != np.bool_:
                have, want = have.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(have, want, rtol, atol, equal_nan=True, err_msg=f"{name} x{lanes}")


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("lanes", [1, 4])
def test_casts_between_all_dtypes(lanes, target):
    dtypes, body, params = sorted(DTYPES), "", {}
    suffix, place = ("", "tid") if lanes == 1 else ("x4", "tid * 4")
    for d in dtypes:
        params[f"x_{d}"] = f"{d}[16]"
    for d in dtypes:
        body += f"%l_{d} = thread.load(%x_{d}, at = [{place}], lanes = {lanes}) : {d}{suffix}\n"
        for to in dtypes:
            params[f"y_{d}_{to}"] = f"{to}[16]"
            body += f'%c_{d}_{to} = scalar.cast(%l_{d}, dtype = "{to}") : {to}{suffix}\n'
            body += f"thread.store(%c_{d}_{to}, %y_{d}_{to}, at = [{place}])\n"
    values = np.array([0, 1, 2, 3.75, 5, 100.5, 7, 8, 9, 10, 64, 96, 0.5, 33, 1.25, 2.75])
    arrays = {d: values.astype(storage_dtype(d)) for d in dtypes}
    got = run(kernel(body, params, block=16 // lanes), target, list(arrays.values()))
    for d in dtypes:
        for to in dtypes:
            want = converted(arrays[d], to)
            np.testing.assert_array_equal(got[f"y_{d}_{to}"], want, err_msg=f"{d} -> {to}")


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_16_bit_float_converts_exactly_and_back(dtype, target):
    body = """
      %h = thread.load(%x, at = [bid.x * 64 + tid]) : DT
      %f = scalar.cast(%h, dtype = "f32") : f32
      thread.store(%f, %y, at = [bid.x * 64 + tid])
      %g = thread.load(%z, at = [bid.x * 64 + tid]) : f32
      %n = scalar.cast(%g, dtype = "DT") : DT
      thread.store(%n, %w, at = [bid.x * 64 + tid])""".replace("DT", dtype)
    params = {"x": f"{dtype}[65536]", "z": "f32[65536]", "y": "f32[65536]", "w": f"{dtype}[65536]"}
    t = storage_dtype(dtype)
    x = np.arange(65536, dtype=np.uint16).view(t)
    rng = np.random.default_rng(0)
    z = (rng.standard_normal(65536) * 10.0 ** rng.uniform(-9, 5, 65536)).astype(np.float32)
    with np.errstate(all="ignore"):
        # halfway cases: the mean of two neighbours
        z[: 1 << 15] = (x[: 1 << 15].astype(np.float32) + x[1 : (1 << 15) + 1].astype(np.float32)) / 2
        want = z.astype(t)
    got = run(kernel(body, params, grid="[1024, 1, 1]", block=64), target, [x, z])
    np.testing.assert_array_equal(got["y"], x.astype(np.float32))
    nan = np.isnan(z)
    np.testing.assert_array_equal(got["w"].view(np.uint16)[~nan], want.view(np.uint16)[~nan])
    assert np.isnan(got["w"][nan].astype(np.float32)).all()


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i64", "f16", "u16", "bool"])
def test_selection_constants_and_lanes(dtype, target):
    body = f"""
      %a = thread.load(%x, at = [tid * 4], lanes = 4) : {dtype}x4
      %b = thread.load(%z, at = [tid * 4], lanes = 4) : {dtype}x4
      %c = thread.load(%m, at = [tid * 4], lanes = 4) : boolx4
      %s = scalar.select(%c, %a, %b) : {dtype}x4
      thread.store(%s, %y, at = [tid * 4])
      %one = scalar.const(value = 1, dtype = "{dtype}") : {dtype}
      %ones = scalar.broadcast(%one, lanes = 4) : {dtype}x4
      %d = scalar.extract(%c, lane = 2) : bool
      %t = scalar.select(%d, %a, %ones) : {dtype}x4
      thread.store(%t, %w, at = [tid * 4])
      %e = scalar.extract(%b, lane = 3) : {dtype}
      %u = scalar.select(%d, %e, %one) : {dtype}
      thread.store(%u, %v, at = [tid])"""
    params = dict.fromkeys(("x", "z", "y", "w"), f"{dtype}[32]") | {"m": "bool[32]", "v": f"{dtype}[8]"}
    x, z, _ = samples(dtype)
    m = np.arange(32) % 3 == 0
    got = run(kernel(body, params, block=8), target, [x, z, m])
    np.testing.assert_array_equal(got["y"], np.where(m, x, z))
    third = m.reshape(8, 4)[:, 2]
    one = np.ones(1, x.dtype)
    np.testing.assert_array_equal(got["w"], np.where(np.repeat(third, 4), x, one))
    np.testing.assert_array_equal(got["v"], np.where(third, z.reshape(8, 4)[:, 3], one))


@pytest.mark.parametrize("target", DEVICES)
def test_extreme_constants_survive_as_literals(target):
    values = {
        "f32": [np.inf, -np.inf, np.nan, 1e-45, -3.4028235e38, 0.1, 16777217.0],
        "f64": [np.inf, -np.inf, np.nan, 5e-324, 0.1, -1.7976931348623157e308],
        "i32": [-(2**31), 2**31 - 1], "i64": [-(2**63), 2**63 - 1], "u64": [2**64 - 1],
        "u8": [255], "i8": [-128],
        "f16": [65504.0, -np.inf, 6e-8], "bf16": [3e38, 0.1],
    }  # fmt: skip
    body, params = "", {}
    for dtype, numbers in values.items():
        params[dtype + "_"] = f"{dtype}[{len(numbers)}]"
        for i, number in enumerate(numbers):
            text = repr(float(number)) if dtype in FLOATS else str(number)
            body += f'%{dtype}_{i} = scalar.const(value = {text}, dtype = "{dtype}") : {dtype}\n'
            body += f"thread.store(%{dtype}_{i}, %{dtype}_, at = [{i}])\n"
    got = run(kernel(body, params, block=1), target, [])
    for dtype, numbers in values.items():
        want = np.array(numbers, dtype=object).astype(storage_dtype(dtype))
        np.testing.assert_array_equal(got[dtype + "_"], want, err_msg=dtype)
