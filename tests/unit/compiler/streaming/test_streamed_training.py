"""Streamed training on OpenCL: the step's numbers under a cap, kept on storage whatever happens."""

import numpy as np
import pytest
from training_parts import drawn, mlp

import tilewright as tw
from tilewright import streaming
from tilewright.ir import InputError, WorkError
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.runtime.errors import StorageError
from tilewright.runtime.storage.generations import GenerationStore
from tilewright.streaming import training_executable
from tilewright.streaming.parts.schedule import SCHEDULES
from tilewright.streaming.parts.training_model import VisitCosts, predict_group
from tilewright.streaming.parts.training_visits import TrainingVisit

CAP = 60_000


@pytest.fixture(scope="module")
def step():
    return tw.train_step(mlp(), "mse", tw.optim.adam(lr=0.01), accumulate=2)


@pytest.fixture(scope="module")
def batches(step):
    return drawn(step, 6)


@pytest.fixture(scope="module")
def wanted(step, batches):
    losses, state = [], initial_state(step)
    for batch in batches:
        (loss,), state = interpret_step(step, batch, state, precision="fp64")
        losses.append(float(loss))
    return losses, state


@pytest.fixture(scope="module")
def compiled(step):
    with streaming.compile(step, "opencl", memory_cap=CAP, schedule="pr") as exe:
        yield exe, copied(exe)


@pytest.fixture
def exe(compiled):
    exe, first = compiled
    exe.schedule = "pr"
    for name, value in first.items():
        exe.state[name] = value
    return exe


def joined(batches):
    return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]


def copied(exe):
    return {n: np.array(a) for n, a in exe.state.items()}


def test_both_schedules_give_the_numbers_of_the_step(exe, batches, wanted):
    losses, state = wanted
    before = copied(exe)
    found = {}
    for schedule in SCHEDULES:
        for name, value in before.items():
            exe.state[name] = value
        exe.schedule = schedule
        got = [float(exe.step(*joined(batches[i : i + 2]))) for i in (0, 2, 4)]
        np.testing.assert_allclose(got, [(losses[i] + losses[i + 1]) / 2 for i in (0, 2, 4)], rtol=1e-5)
        found[schedule] = copied(exe)
    for name in ("w0", "w1", "w2", "w0.m", "w2.v", "step"):
        np.testing.assert_allclose(found["pr"][name], state[name], rtol=1e-3, atol=1e-5)
    for name, value in found["pr"].items():
        np.testing.assert_array_equal(found["ar"][name], value)  # bits
    report = exe.report()
    assert report["layers"] > 1
    assert report["slots"] == 2
    assert report["device_bytes_peak"] <= CAP
    network = exe.inference()
    x = batches[0][0]
    np.testing.assert_allclose(network(x)[0], tw.interpret(network_of(exe), x)[0], rtol=1e-4, atol=1e-6)
    exe.step(*joined(batches[:2]))
    assert network(x)[0].shape == x.shape
    network.close()


def network_of(exe):
    return tw.train_step(mlp(), "mse", tw.optim.adam(lr=0.01), accumulate=2).inference(exe.state)


def test_a_run_goes_on_bit_by_bit_after_whatever_ended_it(tmp_path, monkeypatch):
    step = tw.train_step(mlp(), "mse", tw.optim.adam(lr=0.01))
    batches = drawn(step, 2)
    exe = streaming.compile(step, "opencl", memory_cap=50_000, folder=tmp_path)
    assert exe.report()["layers"] > 1
    exe.step(*batches[0])
    write, calls = GenerationStore.write, []

    def failing(store, pieces, buffer):
        calls.append(pieces)
        if len(calls) == 2:
            raise StorageError("the drive is gone")
        return write(store, pieces, buffer)

    middle = copied(exe)
    monkeypatch.setattr(GenerationStore, "write", failing)
    with pytest.raises(WorkError, match="the drive is gone"):
        exe.step(*batches[1])
    monkeypatch.undo()
    assert_equal(copied(exe), middle)
    exe.step(*batches[1])
    after = copied(exe)
    for name, value in middle.items():
        exe.state[name] = value
    exe.close()
    with pytest.raises(InputError, match=r"holds the state of a training run .*: pass resume"):
        streaming.compile(step, "opencl", memory_cap=CAP, folder=tmp_path)
    # another cap cuts the step elsewhere; the state on storage is the same
    with streaming.compile(step, "opencl", memory_cap=3 * CAP, folder=tmp_path, resume=True) as again:
        assert again.report()["layers"] == 1
        assert_equal(copied(again), middle)
    with streaming.compile(step, "opencl", memory_cap=50_000, folder=tmp_path, resume=True) as again:
        again.step(*batches[1])
        assert_equal(copied(again), after)


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


def test_values_wait_on_the_host_or_on_storage(exe, batches, monkeypatch):
    before, found = copied(exe), []
    exe.schedule = "ar"
    for where in ("device", "host", "storage"):
        for name, value in before.items():
            exe.state[name] = value
        monkeypatch.setattr(type(exe), "_where", lambda *_, where=where: where)
        exe.step(*joined(batches[:2]))
        found.append(copied(exe))
    for other in found[1:]:
        assert_equal(other, found[0])


def test_bad_input_changes_nothing(step, exe, batches, tmp_path):
    before = copied(exe)
    x, y = joined(batches[:2])
    for inputs, text in [
        ((x,), "expected 2 inputs"),
        ((x[:3], y), r"expected \[8, 32\] \(2 micro-batches\), or \[4, 32\] for all of them, got \[3, 32\]"),
        ((x.astype(np.int8), y), "float32"),
    ]:
        with pytest.raises(InputError, match=text):
            exe.step(*inputs)
    with pytest.raises(InputError, match="expected a schedule among pr, ar, auto"):
        exe.run([batches[0], batches[1]], "dfs")
    with pytest.raises(InputError, match="part of a sum of gradients"):
        exe.state["w0.gradient"] = np.ones((32, 32), np.float32)
    exe.state["step"] = np.uint32(1)
    with pytest.raises(InputError, match="expected the state to be between two updates"):
        exe.step(x, y)
    exe.state["step"] = before["step"]
    assert_equal(copied(exe), before)
    with pytest.raises(InputError, match="to share their state"):
        exe.share_state(exe)
    with pytest.raises(WorkError, match=r"does not fit under a memory cap of .*: the least that would do"):
        streaming.compile(step, "opencl", memory_cap=9000)
    with pytest.raises(InputError, match="no training run to resume"):
        streaming.compile(step, "opencl", memory_cap=CAP, folder=tmp_path, resume=True)
    with pytest.raises(InputError, match="a temporary folder holds nothing"):
        streaming.compile(step, "opencl", memory_cap=CAP, resume=True)
    path = tmp_path / "s.safetensors"
    exe.save_state(path)
    exe.step(x, y)
    exe.load_state(path)
    assert_equal(copied(exe), before)


def test_components_are_predicted_and_measured(exe, batches, monkeypatch):
    monkeypatch.setattr(training_executable, "RATE_S", 0.02)
    before = copied(exe)
    exe.step(*joined(batches[:2]))
    after = copied(exe)
    compared = exe.compare()
    assert_equal(copied(exe), after)  # measuring changes no state
    assert not np.array_equal(after["w0"], before["w0"])
    assert set(compared) >= {"total", "read", "write", "compute", "wait", "commit", "relative_error"}
    assert all(compared[n]["predicted_s"] > 0 for n in ("total", "read", "write", "compute", "commit"))


def visits(count, leaving=(), after=()):
    links = dict(after)
    return [
        TrainingVisit((), (), (), (), ("w",) if i in leaving else (), tuple(links.get(i, ())))
        for i in range(count)
    ]


def test_the_model_of_slots_and_storage():
    def total(costs, slots, **links):
        made = visits(len(costs), **links)
        return predict_group("parameter-resident", made, costs, batches=1, slots=slots, commit_s=0.5)

    one = VisitCosts(1.0, 0.0, 2.0)
    assert total([one], 1).total_s == pytest.approx(3.5)
    # two slots: reads hide behind kernels, but for the first; both slots are read at once at the beginning
    assert total([one] * 3, 2).total_s == pytest.approx(2 + 3 * 2 + 0.5)
    # one slot: nothing hides
    assert total([VisitCosts(1.0, 1.0, 2.0)] * 2, 1).total_s == pytest.approx(8.5)
    # copies to a device and back stand between reading, computing and writing
    copied = total([VisitCosts(1.0, 1.0, 2.0, 0.25)] * 2, 1)
    assert (copied.total_s, copied.copy_s, copied.compute_s) == pytest.approx((9.0, 0.5, 4.0))
    # a read that waits for what an earlier visit writes
    late = total([VisitCosts(1.0, 1.0, 1.0)] * 2, 2, leaving=(0,), after=((1, (0,)),))
    assert late.total_s == pytest.approx(1 + 1 + 1 + 1 + 1 + 1 + 0.5)
    assert (late.read_s, late.write_s) == (2, 2)
    assert late.wait_s == pytest.approx(4)
