"""Steps of modules with state on devices that are here, against the interpreter."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tilewright as tw
from tests.samples.state_programs import state_modules, step_inputs
from tilewright.devices.opening import OpenedDevice
from tilewright.ir.interpreter.step import initial_state, interpret_step
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
