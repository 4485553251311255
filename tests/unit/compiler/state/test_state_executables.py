"""Executables with state: what advances it, what leaves it alone, files of it, sharing, failures."""

import json
import threading

import numpy as np
import pytest
import safetensors.numpy

import tilewright as tw
from tests.unit.compiler.state.test_state_plans import MOMENTUM, module_of
from tilewright.devices.opening import OpenedDevice
from tilewright.ir import InputError, UnsupportedError
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes
from tilewright.running.stateful import StatefulExecutable
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.lazy import LazyArray, ready
from tilewright.runtime.null.device import NullPlan

X = np.arange(8, dtype=np.float32)
READER = module_of("%0 = graph.add(%a, %x) : T", "%0, %a, %b", "[[1, 1], [2, 2]]", 3)


@pytest.fixture(scope="module")
def compiled():
    """The artifact of one step; tests make executables of it, each with state of its own."""
    return tw.compile(MOMENTUM, "opencl", progress=False).artifact


@pytest.fixture
def exe(compiled):
    with StatefulExecutable(compiled, "opencl") as executable:
        yield executable


def all_state(exe) -> dict[str, bytes]:
    return {name: exe.state[name].tobytes() for name in exe.state}


def test_a_call_takes_the_inputs_and_gives_the_results_of_the_caller(exe):
    assert exe.input_names == ("x",)
    assert [t.shape for t in exe.output_types] == [(8,)]
    expected, state = interpret_step(MOMENTUM, [X])
    (got,) = exe(X)
    np.testing.assert_allclose(got, expected[0], rtol=1e-6)
    assert set(exe.state) == {"a", "b"}
    for name, value in state.items():
        np.testing.assert_array_equal(exe.state[name], value)
    (by_name,) = exe(x=X)
    assert by_name.shape == (8,)
    with pytest.raises(InputError, match=r"expected 1 inputs \(x\), got 3"):
        exe(X, X, X)


@pytest.mark.parametrize("target", ["reference", "emulator"])
def test_other_targets_step_as_the_interpreter(target):
    with tw.compile(MOMENTUM, target) as exe:
        state = initial_state(MOMENTUM)
        for _ in range(2):
            expected, state = interpret_step(MOMENTUM, [X], state)
            (got,) = exe(X)
            np.testing.assert_allclose(got, expected[0], rtol=1e-6)
        for name, value in state.items():
            np.testing.assert_array_equal(exe.state[name], value)
        if target == "emulator":
            before = all_state(exe)
            exe.time(X, repeats=2)
            exe.time_kernels(X, repeats=2)
            assert all_state(exe) == before


def test_times_and_profiles_leave_the_state_as_it_was(exe):
    exe(X)
    before = all_state(exe)
    exe.time(X, repeats=3)
    exe.time_kernels(X, repeats=2)
    exe.profile(X, repeats=2)
    assert all_state(exe) == before
    other = tw.compile(MOMENTUM, "opencl", streams="auto")
    assert all_state(other) == {n: a.tobytes() for n, a in initial_state(MOMENTUM).items()}


def test_results_of_steps_stay_what_they_are(exe):
    losses = [exe.step(X) for _ in range(6)]
    state = initial_state(MOMENTUM)
    for loss in losses:
        expected, state = interpret_step(MOMENTUM, [X], state)
        np.testing.assert_allclose(np.asarray(loss), expected[0], rtol=1e-5)
    exe.close()
    assert losses[0].numpy().shape == losses[0].shape == (8,)


def test_a_single_number_reads_as_one(compiled):
    asked = []

    def fetch() -> np.ndarray:
        asked.append(1)
        return np.asarray(2.5, np.float32)

    loss = LazyArray((), "float32", fetch)
    assert "not read yet" in repr(loss)
    assert not asked
    assert (float(loss), int(loss), f"{loss:.2f}", bool(loss), loss.item()) == (2.5, 2, "2.50", True, 2.5)
    assert len(asked) == 1
    assert np.asarray(loss, dtype=np.float64).dtype == np.float64
    assert ready(X).numpy() is X


def test_batches_advance_the_state_in_their_order(exe, compiled):
    with StatefulExecutable(compiled, "opencl") as other:
        expected = [other(X * i) for i in range(4)]
        got = list(exe.map([X * i for i in range(4)]))
        assert [[a.tobytes() for a in r] for r in got] == [[a.tobytes() for a in r] for r in expected]
        assert all_state(exe) == all_state(other)


def test_assigned_state_has_the_shape_and_dtype_of_the_old(exe):
    exe.state["a"] = np.ones(8, np.float32)
    exe(X)
    np.testing.assert_array_equal(exe.state["a"], X + 1)
    with pytest.raises(InputError, match=r"state 'a': expected shape \[8\], got \[3\]"):
        exe.state["a"] = np.ones(3, np.float32)
    with pytest.raises(InputError, match="state 'a': expected dtype float32, got float64"):
        exe.state["a"] = np.ones(8)
    with pytest.raises(InputError, match="unknown state 'z'; there is a, b"):
        exe.state["z"] = X
    with pytest.raises(KeyError):
        exe.state["z"]
    np.testing.assert_array_equal(exe.state["a"], X + 1)
    copy = exe.state["a"]
    copy[:] = 0
    np.testing.assert_array_equal(exe.state["a"], X + 1)


def test_the_state_outlives_the_device(exe):
    exe(X)
    before = all_state(exe)
    exe.close()
    assert all_state(exe) == before
    exe.state["a"] = X
    (first,) = exe(X)
    np.testing.assert_array_equal(exe.state["a"], X + X)
    assert first.shape == (8,)


def test_resuming_from_a_file_is_bit_exact(exe, compiled, tmp_path):
    for _ in range(3):
        exe(X)
    exe.save_state(tmp_path / "state.safetensors")
    expected = [exe(X)[0].tobytes() for _ in range(3)]
    with StatefulExecutable(compiled, "opencl") as other:
        other.load_state(tmp_path / "state.safetensors")
        assert [other(X)[0].tobytes() for _ in range(3)] == expected
        assert all_state(other) == all_state(exe)
    arrays = safetensors.numpy.load_file(tmp_path / "state.safetensors")
    assert {n: a.shape for n, a in arrays.items()} == {"a": (8,), "b": (8,)}


def test_a_saved_executable_goes_on_where_it_was(exe, tmp_path):
    exe(X)
    exe.save(tmp_path / "step.tw")
    with tw.load(tmp_path / "step.tw") as other:
        assert isinstance(other, StatefulExecutable)
        assert all_state(other) == all_state(exe)
        assert other(X)[0].tobytes() == exe(X)[0].tobytes()


def _metadata(**changes: str) -> dict[str, str]:
    return {"format": "tilewright-state", "version": "1", **changes}


GOOD = {"a": X, "b": X}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "damaged or other file"),
        (b"\x10\0\0\0\0\0\0\0{nonsense", "damaged or other file"),
        (safetensors.numpy.save(GOOD, _metadata())[:-5], "damaged or other file"),
        (safetensors.numpy.save(GOOD), r"saved state \(tilewright-state 1\), got a file of another kind"),
        (safetensors.numpy.save(GOOD, _metadata(version="7")), "got tilewright-state 7"),
        (safetensors.numpy.save({"a": X}, _metadata()), "'b' is missing"),
        (safetensors.numpy.save({**GOOD, "c": X}, _metadata()), "there is no 'c' here"),
        (
            safetensors.numpy.save({**GOOD, "b": X[:3].copy()}, _metadata()),
            r"state 'b': expected f32\[8\], got f32\[3\]",
        ),
        (
            safetensors.numpy.save({**GOOD, "b": X.astype(np.int32)}, _metadata()),
            r"state 'b': expected f32\[8\], got i32\[8\]",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence_and_changes_nothing(exe, tmp_path, content, fault):
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    for run in (False, True):  # on the host, and on the device
        if run:
            exe(X)
        before = all_state(exe)
        with pytest.raises(InputError, match=fault) as caught:
            exe.load_state(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert all_state(exe) == before
    with pytest.raises(InputError, match="No such file"):
        exe.load_state(tmp_path / "none")


def test_a_file_is_replaced_only_when_it_is_complete(exe, tmp_path):
    path = tmp_path / "state.safetensors"
    exe.save_state(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="cannot write the state"):
        exe.save_state(tmp_path / "no" / "such" / "folder")
    exe(X)
    exe.save_state(path)
    assert path.read_bytes() != before
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    header = json.loads(path.read_bytes()[8:].split(b"\0")[0].split(b"}}")[0] + b"}}")
    assert header["__metadata__"]["version"] == "1"


def test_two_executables_share_one_state(exe):
    reader = tw.compile(READER, "opencl")
    reader.share_state(exe)
    for _ in range(2):
        exe(X)
        (got,) = reader(X)
        np.testing.assert_array_equal(got, exe.state["a"] + X)
    reader.state["a"] = X
    np.testing.assert_array_equal(exe.state["a"], X)
    exe.close()
    (got,) = reader(X)  # the state stays on the device as long as one executable has it open
    np.testing.assert_array_equal(got, X + X)
    reader.close()
    np.testing.assert_array_equal(exe.state["a"], X)


def test_state_is_shared_only_where_shapes_dtypes_and_targets_agree(exe):
    other = tw.compile(
        module_of("%0 = graph.add(%a, %x) : T", "%0, %a, %b", "[[1, 1], [2, 2]]", 3, "4"), "opencl"
    )
    with pytest.raises(
        InputError, match=r"state 'a': expected float32 \[8\] as the others .* got float32 \[4\]"
    ):
        other.share_state(exe)
    with pytest.raises(InputError, match="expected an executable for opencl, got one for null"):
        exe.share_state(tw.compile(READER, "null"))
    with pytest.raises(InputError, match="expected a compiled network with state, got"):
        exe.share_state(tw.compile(module_of("%0 = graph.add(%x, %x) : T", "%0", "[]", 1), "null"))


def test_calls_of_several_threads_follow_one_another(exe):
    threads = [threading.Thread(target=lambda: [exe(X) for _ in range(5)]) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_allclose(exe.state["a"], MOMENTUM.constants["a"] + 15 * X, rtol=1e-5)


def test_a_run_that_fails_says_that_the_state_is_lost_until_it_is_loaded(tmp_path):
    opened = OpenedDevice("null")
    device = opened.take()
    exe = StatefulExecutable(tw.compile(MOMENTUM, "null").artifact, "null", device=opened)
    exe(X)
    exe.save_state(tmp_path / "state")
    before = all_state(exe)
    with pytest.raises(InputError):
        exe(np.zeros(3, np.float32))
    device.fail("copy-in")
    with pytest.raises(DeviceError):
        exe(X)
    assert all_state(exe) == before  # nothing had begun
    device.fail("launch", skip=1)
    with pytest.raises(DeviceError):
        exe(X)
    with pytest.raises(DeviceError, match=r"the state was lost when a run failed.*failed, as asked for"):
        exe.state["a"]
    with pytest.raises(DeviceError, match="the state was lost"):
        exe(X)
    with pytest.raises(DeviceError, match="the state was lost"):
        exe.save_state(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    exe.load_state(tmp_path / "state")
    assert all_state(exe) == before
    exe(X)


def test_a_plan_that_failed_takes_no_more_steps(monkeypatch):
    opened = OpenedDevice("null")
    device = opened.take()
    exe = StatefulExecutable(tw.compile(MOMENTUM, "null").artifact, "null", device=opened)
    monkeypatch.setattr(
        NullPlan, "step", lambda self, inputs: tuple(map(ready, self.run(inputs))), raising=False
    )
    exe.step(X)
    before = all_state(exe)
    device.fail("launch")
    with pytest.raises(DeviceError, match="failed, as asked for"):
        exe(X)
    for name, value in before.items():
        exe.state[name] = np.frombuffer(value, np.float32)
    exe.step(X)
    device.fail("launch")
    with pytest.raises(DeviceError, match="failed, as asked for"):
        exe.step(X)
    for name, value in before.items():
        exe.state[name] = np.frombuffer(value, np.float32)
    exe.step(X)
    assert all_state(exe) == before


def test_times_that_fail_bring_the_state_back():
    opened = OpenedDevice("null")
    device = opened.take()
    exe = StatefulExecutable(tw.compile(MOMENTUM, "null").artifact, "null", device=opened)
    exe(X)
    before = all_state(exe)
    device.fail("launch", skip=1)
    with pytest.raises(DeviceError):
        exe.time(X)
    assert all_state(exe) == before


def test_memory_that_runs_out_leaves_the_state_on_the_host():
    opened = OpenedDevice("null")
    device = opened.take()
    exe = StatefulExecutable(tw.compile(MOMENTUM, "null").artifact, "null", device=opened)
    exe.state["a"] = X
    device.memory_bytes = 40  # one array of state, not two
    with pytest.raises(DeviceError, match="null device has"):
        exe(X)
    np.testing.assert_array_equal(exe.state["a"], X)
    assert device.bytes_in_use == 0
    device.memory_bytes = None
    exe(X)
    exe.close()
    assert device.bytes_in_use == 0


def test_what_has_no_state_says_so():
    exe = tw.compile(module_of("%0 = graph.add(%x, %x) : T", "%0", "[]", 1), "null")
    asked = (lambda: exe.state, exe.step, lambda: exe.save_state("f"), lambda: exe.load_state("f"))
    for ask in asked:
        with pytest.raises(InputError, match="expected a network with state; this one has none"):
            ask()


def test_what_takes_no_state_says_so():
    with pytest.raises(InputError, match="expected one instance of a network with state"):
        tw.compile(MOMENTUM, "opencl", instances=2)
    with pytest.raises(InputError, match="expected one set of input shapes"):
        tw.compile(MOMENTUM, "opencl", shapes=[{"x": [8]}])
    with pytest.raises(InputError, match="expected a network without state"):
        with_input_shapes(MOMENTUM, {"x": [16]})
    from tilewright.passes.framework.context import PassContext
    from tilewright.passes.graph.distribute.split_space import split_space

    with pytest.raises(
        UnsupportedError, match="split-space takes networks without state; this one updates 'a'"
    ):
        split_space(devices=2, rank=0).apply(MOMENTUM, PassContext())
    from tilewright.streaming.compiling import compile_network

    with pytest.raises(UnsupportedError, match="expected a network without state; this one updates 'a'"):
        compile_network(MOMENTUM, "opencl", memory_cap="1GiB")
    from tilewright import streaming

    with pytest.raises(UnsupportedError, match="expected results that depend on the inputs"):
        streaming.compile(MOMENTUM, "opencl", memory_cap="1GiB")
