"""One plan per set of input shapes: dispatch, shared weights, one device, save and load, the command line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.devices import opening
from tilewright.devices.opening import open_device
from tilewright.ir import InputError, Module, parse
from tilewright.running.buckets import Buckets
from tilewright.running.shaped import ShapedExecutable
from tilewright.tools.cli import main

BATCHES = (1, 2, 8)


@pytest.fixture(scope="module")
def mlp_path() -> Path:
    return Path(__file__).parents[2] / "data" / "relay" / "mlp.relay"


@pytest.fixture(scope="module")
def mlp(mlp_path) -> Module:
    return tw.frontends.relay.load(str(mlp_path), params="random")


def of_batch(n: int) -> tuple[int, ...]:
    return n, 1, 28, 28


def images(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal(of_batch(n)).astype(np.float32)


@pytest.fixture(scope="module")
def exe(mlp):
    with tw.compile(mlp, "opencl", shapes=[of_batch(n) for n in BATCHES]) as made:
        yield made


def wanted(mlp: Module, x: np.ndarray) -> np.ndarray:
    return tw.interpret(tw.with_input_shapes(mlp, {"data": x.shape}), x)[0]


def test_each_batch_runs_its_own_plan(mlp, exe):
    assert isinstance(exe, ShapedExecutable)
    assert exe.buckets == tuple({"data": of_batch(n)} for n in BATCHES)
    assert exe.input_types[0].shape == of_batch(1)
    for n in (8, 1, 2, 1, 8):
        (y,) = exe(images(n))
        np.testing.assert_allclose(y, wanted(mlp, images(n)), rtol=1e-5, atol=1e-5)
        assert exe.select({"data": of_batch(n)}).output_types[0].shape == (n, 10)
        assert exe.select(of_batch(n)) is exe.select_for([images(n)])


def test_shapes_without_a_plan_are_refused(exe):
    with pytest.raises(InputError, match=r"no plan for inputs data \[3, 1, 28, 28\].*data \[8, 1, 28, 28\]"):
        exe(images(3))
    with pytest.raises(InputError, match=r"expected 1 inputs \(data\), got 2"):
        exe(images(1), images(1))
    with pytest.raises(InputError, match="expected a NumPy or DLPack array, got list"):
        exe([1.0])
    with pytest.raises(InputError, match=r"got data \[3, 1, 28, 28\]; 0 have them"):
        exe.select({"data": of_batch(3)})
    with pytest.raises(InputError, match="unknown input 'x'"):
        exe.select({"x": of_batch(1)})
    with pytest.raises(InputError, match="expected dtype float32"):
        exe(images(2).astype(np.float64))


class OnlyDlpack:
    """An array of another library that tells its shape through DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_shapes_are_read_through_dlpack(exe):
    np.testing.assert_array_equal(exe(OnlyDlpack(images(8)))[0], exe(images(8))[0])
    with pytest.raises(InputError, match="no plan for inputs"):
        exe(OnlyDlpack(images(3)))


def test_batches_of_several_shapes_stream_in_order(exe):
    order = (1, 1, 8, 2, 2, 1)
    got = list(exe.map(images(n) for n in order))
    assert [len(y[0]) for y in got] == list(order)
    np.testing.assert_array_equal(got[2][0], exe(images(8))[0])


def test_times_are_those_of_the_plan_for_the_shapes(exe):
    assert len(exe.time(images(2), repeats=3)) == 3
    assert [name for name, _ in exe.time_kernels(images(8), repeats=1)] == [
        launch.kernel for launch in exe.select(of_batch(8)).plan.launches
    ]


def test_weights_are_stored_once_on_one_device(mlp, monkeypatch):
    opened = []

    def open_and_keep(target):
        opened.append(open_device(target))
        return opened[-1]

    monkeypatch.setattr(opening, "open_device", open_and_keep)
    with tw.compile(mlp, "opencl", shapes=[of_batch(n) for n in BATCHES]) as exe:
        exe.load()
        (device,) = opened
        pool = device.pool
        report = exe.report()
        assert pool.bytes_in_use < report["constant_bytes"] * 2
        assert len(pool.weights) == len(exe.executables[0].artifact.constants)
        loads = []
        monkeypatch.setattr(device, "load", lambda *a, **k: loads.append(a))
        for n in (8, 1, 2, 8):
            exe(images(n))
        assert not loads
    assert pool.bytes_in_use == 0


def test_the_report_counts_shared_weights(exe):
    report = exe.report()
    one = report["buckets"][0]["constant_bytes"]
    assert [b["shapes"] for b in report["buckets"]] == [{"data": list(of_batch(n))} for n in BATCHES]
    assert [b["shared_constant_bytes"] for b in report["buckets"]] == [one] * 3
    assert [b["own_constant_bytes"] for b in report["buckets"]] == [0] * 3
    assert (report["constant_bytes"], report["shared_constant_bytes_saved"]) == (one, 2 * one)
    arrays = [list(e.artifact.constants.values()) for e in exe.executables]
    assert {id(a) for a in arrays[0]} == {id(a) for a in arrays[2]}


def test_a_weight_packed_otherwise_is_counted_as_the_bucket_s_own():
    text = """module @m { graph.func @main(%x: f32[1, 256]) -> f32[1, 512] {
      %w = graph.constant(name = "w") : f32[512, 256]
      %y = graph.dense(%x, %w) : f32[1, 512]
      graph.return(%y) } }"""
    w = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float32)
    m = parse(text, constants=tw.ir.Constants({"w": w}))
    report = tw.compile(m, "cuda:sm_90a", shapes=[(1, 256), (64, 256)]).report()
    first, second = report["buckets"]
    assert first["shared_constant_bytes"] == second["shared_constant_bytes"]
    assert first["shared_constant_bytes"] + first["own_constant_bytes"] == w.nbytes
    assert report["constant_bytes"] == w.nbytes + second["own_constant_bytes"]


def test_it_can_be_closed_and_called_again(mlp):
    exe = tw.compile(mlp, "opencl", shapes=[of_batch(1), of_batch(2)])
    before = exe(images(2))[0]
    exe.close()
    np.testing.assert_array_equal(exe(images(2))[0], before)
    assert exe.device == exe.select(of_batch(2)).device
    exe.close()


def test_the_reference_target_has_buckets_too(mlp):
    exe = tw.compile(mlp, "reference", shapes=[of_batch(1), of_batch(2)])
    np.testing.assert_array_equal(exe(images(2))[0], wanted(mlp, images(2)))
    assert exe.buckets[1] == {"data": of_batch(2)}
    assert exe.select(of_batch(2)).output_types[0].shape == (2, 10)
    with pytest.raises(InputError, match="no plan"):
        exe(images(3))


def test_arguments_are_checked(mlp):
    for shapes, message in [
        ([], "at least one"),
        ({"data": of_batch(2)}, "expected a list of shapes"),
        ([{"x": of_batch(2)}], "unknown input 'x'"),
        ([of_batch(2), {"data": of_batch(2)}], "twice"),
        ([(2, 28)], "expected 4 dimensions"),
        ([(2, 1, 30, 28)], "graph.dense"),
        ([(2, 1.5, 28, 28)], "positive integers"),
    ]:
        with pytest.raises(InputError, match=message):
            tw.compile(mlp, "null", shapes=shapes)


def test_several_inputs_are_told_apart_by_all_their_shapes():
    text = """module @m { graph.func @main(%a: f32[1, 4], %b: f32[4]) -> f32[1, 4] {
      %y = graph.add(%a, %b) : f32[1, 4]
      graph.return(%y) } }"""
    shapes = [{}, {"a": (3, 4)}, {"a": (3, 6), "b": (6,)}]
    with tw.compile(parse(text), "opencl", shapes=shapes) as exe:
        assert exe(np.ones((3, 6), np.float32), np.ones(6, np.float32))[0].shape == (3, 6)
        assert exe(np.ones((1, 4), np.float32), np.ones(4, np.float32))[0].shape == (1, 4)
        with pytest.raises(InputError, match=r"no plan for inputs a \[3, 6\], b \[4\]"):
            exe(np.ones((3, 6), np.float32), np.ones(4, np.float32))
        assert exe.select({"b": (6,)}) is exe.executables[2]
        with pytest.raises(InputError, match="2 have them"):
            exe.select({"b": (4,)})
        with pytest.raises(InputError, match="by input name"):
            exe.select((3, 6))


def test_a_shape_may_be_any_sequence():
    buckets = Buckets(["x"], [[(1, 2)], [(3, 2)]])
    assert buckets.of_shapes([3, 2]) == buckets.of_arrays([np.zeros((3, 2))]) == 1


def test_one_file_holds_all_plans_and_each_weight_once(exe, tmp_path):
    path = tmp_path / "net.tw"
    exe.save(path)
    assert path.stat().st_size < 2 * exe.report()["constant_bytes"]
    with tw.load(path) as again:
        assert isinstance(again, ShapedExecutable)
        assert again.buckets == exe.buckets
        assert again.report() == exe.report()
        for n in BATCHES:
            np.testing.assert_array_equal(again(images(n))[0], exe(images(n))[0])
        again.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == path.read_bytes()


def test_a_single_plan_is_saved_as_before(exe, tmp_path):
    exe.select(of_batch(2)).save(tmp_path / "two.tw")
    with tw.load(tmp_path / "two.tw") as two:
        assert not isinstance(two, ShapedExecutable)
        np.testing.assert_array_equal(two(images(2))[0], exe(images(2))[0])


def test_the_commands_take_shapes(mlp_path, tmp_path, capsys):
    net, saved = str(mlp_path), str(tmp_path / "mlp.tw")
    buckets = ["--shapes", "data=1,1,28,28", "--shapes", "data=4,1,28,28"]
    common = ["--params", "random", "--target", "opencl"]
    assert main(["compile", net, *common, *buckets, "-o", saved]) == 0
    out = capsys.readouterr().out
    assert "data=4,1,28,28: 4 kernels" in out
    assert "sharing saves 0.4 MB" in out
    assert main(["compile", net, *common, *buckets, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["buckets"]) == 2
    for source in (saved, net):
        shape = ["--shape", "data=4,1,28,28", "--repeats", "1", "--json"]
        assert main(["run", source, "--target", "opencl", *shape]) == 0
        assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [4, 10]
    assert main(["explain", net, "--target", "opencl", "--shape", "data=4,1,28,28", "--json"]) == 0
    capsys.readouterr()
    for arguments, message in [
        (["run", saved, "--shape", "data=5,1,28,28"], "0 have them"),
        (["run", net, "--shape", "x=5"], "unknown input 'x'"),
        (["compile", net, *common, "--shapes", "data=4,"], "--shapes: expected NAME=N"),
        (["compile", net, *common, "--shapes", "data=4,1,28,28;"], "--shapes: expected NAME=N"),
    ]:
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_a_plan_of_one_shape_has_no_other(mlp, tmp_path, capsys):
    tw.compile(mlp, "opencl").save(tmp_path / "one.tw")
    assert main(["run", str(tmp_path / "one.tw"), "--shape", "data=1,1,28,28"]) == 2
    assert "one plan keeps its shapes" in capsys.readouterr().err


def test_documentation_is_true():
    page = (Path(__file__).parents[3] / "docs" / "shapes.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
