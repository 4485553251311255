"""Steps of modules with state on devices that are here, against the interpreter."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tilewright as tw
from tests.samples.state_programs import state_modules, step_inputs
from tilewright.devices.opening import OpenedDevice
from tilewright.ir import Builder, Constants, Func, Level, TensorType, Value
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.ir.types import storage_dtype
from tilewright.running.stateful import StatefulExecutable
from tilewright.runtime.plan.hazards import find_hazards

STEPS = 3


@pytest.fixture(scope="module")
def device():
    """One device for all examples: opening one takes longer than an example."""
    opened = OpenedDevice("opencl")
    opened.take()
    yield opened
    opened.give_back()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(module=state_modules())
def test_steps_of_random_programs_are_those_of_the_interpreter_bit_by_bit(device, module):
    compiled = tw.compile(module, "opencl", progress=False)
    assert find_hazards(compiled.plan) == []
    with StatefulExecutable(compiled.artifact, "opencl", device=device) as exe:
        state = initial_state(module)
        for step in range(STEPS):
            inputs = step_inputs(module, step)
            expected, state = interpret_step(module, inputs, state)
            got = exe(*inputs)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, b)
            for name, value in state.items():
                np.testing.assert_array_equal(exe.state[name], value)


#: state of every kind of element, of no element, and with names that no plan can hold
KINDS = {
    "enc/0 [weight]": ("f16", (3, 5)),
    "enc_0__weight_": ("f16", (3, 5)),
    "flag": ("bool", (4,)),
    "empty": ("f32", (0, 3)),
    "count": ("u32", ()),
    "half": ("bf16", (7,)),
    "bytes": ("u8", (3, 2)),
    "long": ("i64", (2,)),
    "wide": ("f64", (3,)),
}


def module_of_kinds() -> tw.Module:
    """The first two are swapped, the others doubled or turned round; two old values are results."""
    b, rng = Builder(), np.random.default_rng(0)
    state = [Value(TensorType(d, s), n) for n, (d, s) in KINDS.items()]
    x = Value(TensorType("f32", (3,)), "x y")
    new = [state[1], state[0], b.value("graph.logical_not", state[2])]
    new += [b.value("graph.add", v, v) for v in state[3:]]
    results = (*new, b.value("graph.add", x, x), state[2], state[3])
    b.do("graph.return", *results)
    updates = tuple((i + 1, i) for i in range(len(state)))
    types = tuple(v.type for v in results)
    main = Func(Level.GRAPH, "main", b.block((x, *state)), types, (("updates", updates),))
    arrays = {n: rng.integers(0, 2, s).astype(storage_dtype(d)) for n, (d, s) in KINDS.items()}
    return tw.Module("kinds", (main,), constants=Constants(arrays))


def test_state_of_every_kind_of_element_and_of_any_name(tmp_path):
    module = module_of_kinds()
    exe, state = tw.compile(module, "opencl"), initial_state(module)
    for number in range(3):
        x = np.full(3, number, np.float32)
        expected, state = interpret_step(module, [x], state)
        for got, wanted in zip(exe(x), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        for name, value in state.items():
            np.testing.assert_array_equal(exe.state[name], value)
            assert exe.state[name].dtype == value.dtype
    exe.save_state(tmp_path / "state")
    exe(x)
    exe.load_state(tmp_path / "state")
    exe.save(tmp_path / "kinds.tw")
    with tw.load(tmp_path / "kinds.tw") as other:
        for name, value in state.items():
            np.testing.assert_array_equal(other.state[name], value)
            np.testing.assert_array_equal(exe.state[name], value)
    exe.close()
