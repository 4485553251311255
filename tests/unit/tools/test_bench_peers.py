"""Peers without PyTorch: the clock's order of events, flags, failures as reasons, calls that are fused."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants, UnsupportedError
from tilewright.tools.bench import peers as peers_module
from tilewright.tools.bench.clocks import TorchClock
from tilewright.tools.bench.peers import Peers
from tilewright.tools.bench.torch_contenders import torch_flags, variants_of
from tilewright.tools.torch_peer.module import fused_calls

ATTENTION = """module @m { graph.func @main(%x: f32[2, 8, 16]) -> f32[2, 8, 16] {
  %w = graph.constant(name = "w") : f32[1, 16, 16]
  %b = graph.constant(name = "b") : f32[16]
  %s = graph.constant(name = "s") : f32[]
  %m = graph.constant(name = "m") : f32[1, 1, 8, 8]
  %p = graph.batch_matmul(%x, %w) : f32[2, 8, 16]
  %d = graph.dropout(%p, rate = 0.1) : f32[2, 8, 16]
  %y = graph.bias_add(%d, %b, axis = -1) : f32[2, 8, 16]
  %h = graph.reshape(%y, newshape = [2, 8, 4, 4]) : f32[2, 8, 4, 4]
  %q = graph.transpose(%h, axes = [0, 2, 1, 3]) : f32[2, 4, 8, 4]
  %t = graph.transpose(%q, axes = [0, 1, 3, 2]) : f32[2, 4, 4, 8]
  %q3 = graph.reshape(%q, newshape = [8, 8, 4]) : f32[8, 8, 4]
  %t3 = graph.reshape(%t, newshape = [8, 4, 8]) : f32[8, 4, 8]
  %a = graph.batch_matmul(%q3, %t3) : f32[8, 8, 8]
  %a4 = graph.reshape(%a, newshape = [2, 4, 8, 8]) : f32[2, 4, 8, 8]
  %c = graph.multiply(%a4, %s) : f32[2, 4, 8, 8]
  %e = graph.add(%c, %m) : f32[2, 4, 8, 8]
  %f = graph.softmax(%e) : f32[2, 4, 8, 8]
  %f3 = graph.reshape(%f, newshape = [8, 8, 8]) : f32[8, 8, 8]
  %v = graph.batch_matmul(%f3, %q3) : f32[8, 8, 4]
  %v4 = graph.reshape(%v, newshape = [2, 4, 8, 4]) : f32[2, 4, 8, 4]
  %r = graph.transpose(%v4, axes = [0, 2, 1, 3]) : f32[2, 8, 4, 4]
  %o = graph.reshape(%r, newshape = [2, 8, 16]) : f32[2, 8, 16]
  graph.return(%o) } }"""


def attention_module(mask):
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(1, 16, 16)), "b": rng.normal(size=16), "s": np.array(0.5)}
    arrays["m"] = np.full((1, 1, 8, 8), mask) * rng.normal(size=(1, 1, 8, 8))
    return tw.parse(ATTENTION).with_constants(Constants({n: a.astype(np.float32) for n, a in arrays.items()}))


def names(module, *, attention):
    return [name.removeprefix("graph.") for name, _, _ in fused_calls(module, attention=attention)[1].calls]


def test_products_take_their_bias_and_attention_is_one_call():
    found = names(attention_module(1.0), attention=True)
    assert found == ["linear", "reshape", "transpose", "transpose", "attention", "transpose", "reshape"]
    apart = names(attention_module(1.0), attention=False)
    assert apart.count("batch_matmul") == 2
    assert "softmax" in apart


def test_a_mask_of_zeros_is_none():
    for mask, operands in ((1.0, 4), (0.0, 3)):
        _, fused = fused_calls(attention_module(mask), attention=True)
        (call,) = [c for c in fused.calls if c[0] == "attention"]
        assert len(call[2]) == operands
        assert call[1]["scale"] == 0.5


def test_variants_are_those_that_differ(data_dir):
    assert variants_of(attention_module(1.0)) == ("contiguous", "attention")
    dqn = tw.frontends.relay.load(str(data_dir / "relay" / "dqn.relay"), params="random")
    assert variants_of(dqn) == ("contiguous", "channels_last")


def test_traced_modules_agree_with_the_reference():
    torch = pytest.importorskip("torch")
    from tilewright.tools.torch_peer.module import torch_module

    module = attention_module(1.0)
    x = np.random.default_rng(1).standard_normal((2, 8, 16)).astype(np.float32)
    (wanted,) = tw.interpret(module, x, precision="fp64")
    for attention in (True, False):
        (got,) = torch_module(module, attention=attention)(torch.from_numpy(x))
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


class FakeTorch:
    """As much of PyTorch as the clock and the flags use; notes what happens on the stream."""

    def __init__(self):
        self.log = log = []

        class Event:
            def __init__(self, enable_timing):
                self.at = None

            def record(self, stream):
                self.at = len(log)
                log.append("event")

            def elapsed_time(self, other):
                return other.at - self.at

        self.cuda = SimpleNamespace(
            Event=Event,
            Stream=lambda: SimpleNamespace(synchronize=lambda: log.append("wait"), cuda_stream=7),
            stream=lambda _: nullcontext(),
            _sleep=lambda _: log.append("sleep"),
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=100),
            empty_cache=lambda: None,
        )
        self.uint8 = "uint8"
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32="as it was")),
            cudnn=SimpleNamespace(allow_tf32="as it was", benchmark="as it was"),
        )
        self._dynamo = SimpleNamespace(reset=lambda: None)
        self.no_grad = nullcontext
        self.flushed = 0

    def empty(self, size, dtype, device):
        self.flushed = size
        return SimpleNamespace(zero_=lambda: self.log.append("flush"))


def test_warm_runs_are_queued_behind_a_kernel_that_waits():
    torch = FakeTorch()
    clock = TorchClock(torch, cold=False)
    assert clock.device_times(lambda: torch.log.append("run"), 2, ahead=True) == pytest.approx([2e-3] * 2)
    assert torch.log == ["run", "sleep", "event", "run", "event", "event", "run", "event", "wait"]
    assert clock.stream_handle == 7


def test_cold_runs_find_the_cache_flushed_outside_the_events():
    torch = FakeTorch()
    clock = TorchClock(torch, cold=True)
    assert torch.flushed == 400
    clock.device_times(lambda: torch.log.append("run"), 2, ahead=False)
    assert torch.log[1:] == ["flush", "wait", "event", "run", "event"] * 2 + ["wait"]
    torch.log.clear()
    clock.wall_times(lambda: torch.log.append("run"), 1)
    assert torch.log == ["flush", "wait", "run", "wait"]


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("fp16", False)])
def test_flags_are_those_of_the_precision_and_come_back(precision, allowed):
    torch = FakeTorch()
    flags = torch.backends
    with torch_flags(torch, precision):
        assert flags.cuda.matmul.allow_tf32 is flags.cudnn.allow_tf32 is allowed
        assert flags.cudnn.benchmark is True
    assert {flags.cuda.matmul.allow_tf32, flags.cudnn.allow_tf32, flags.cudnn.benchmark} == {"as it was"}


def opened(monkeypatch, torch, left_s=60.0):
    monkeypatch.setattr(peers_module, "gpu_torch", lambda: torch)
    return Peers(("torch-graph",), "fp32", cold=False, limit_s=5.0, left_s=lambda: left_s)


def test_what_a_peer_raises_is_a_reason(monkeypatch):
    def fail(*_):
        raise ValueError("out of\nluck")

    monkeypatch.setattr(peers_module, "torch_network", fail)
    with opened(monkeypatch, FakeTorch()) as peers:
        assert peers.contenders(attention_module(1.0), []) == []
    assert peers.failures == [
        {"peer": "torch-graph", "variant": v, "reason": "ValueError: out of luck"}
        for v in ("contiguous", "attention")
    ]


def test_no_peer_is_set_up_once_time_is_over(monkeypatch):
    with opened(monkeypatch, FakeTorch(), left_s=0.0) as peers:
        assert peers.contenders(attention_module(1.0), []) == []
    assert {f["reason"] for f in peers.failures} == {"the time of the whole run was over"}


def test_without_pytorch_every_peer_has_a_reason(monkeypatch):
    with opened(monkeypatch, None) as peers:
        assert peers.clock is None
        assert peers.contenders(attention_module(1.0), []) == []
        assert peers.copies(1000) == []
    assert len(peers.failures) == 2


def test_ops_without_a_rule_are_a_reason(monkeypatch):
    module = tw.parse(
        "module @m { graph.func @main(%x: f32[2, 3]) -> f32[2, 3] {"
        " %y = graph.cumsum(%x, axis = 1) : f32[2, 3] graph.return(%y) } }"
    )
    with pytest.raises(UnsupportedError, match=r"graph\.cumsum"):
        fused_calls(module, attention=True)
    with opened(monkeypatch, FakeTorch()) as peers:
        assert peers.contenders(module, []) == []
    assert "graph.cumsum" in peers.failures[0]["reason"]


@pytest.mark.parametrize(
    ("all_variants", "compiled"), [(False, ["attention"]), (True, ["contiguous", "attention"])]
)
def test_peers_are_compiled_in_the_fastest_variant(monkeypatch, all_variants, compiled):
    def set_up(self, peer, variant, network_of):
        seconds = {"contiguous": 2.0, "attention": 1.0}[variant]
        return SimpleNamespace(peer=peer, variant=variant, device_times=lambda n: [seconds] * n)

    monkeypatch.setattr(peers_module, "gpu_torch", FakeTorch)
    monkeypatch.setattr(Peers, "_set_up", set_up)
    limits = {"cold": False, "limit_s": 5.0, "left_s": lambda: 60.0}
    with Peers(("torch-graph", "torch-compile"), "fp32", **limits, all_variants=all_variants) as peers:
        made = peers.contenders(attention_module(1.0), [])
    assert [c.variant for c in made if c.peer == "torch-graph"] == ["contiguous", "attention"]
    assert [c.variant for c in made if c.peer == "torch-compile"] == compiled
