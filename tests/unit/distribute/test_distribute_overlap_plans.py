"""Plans of ranks that compute their inner rows while halos are under way, run by threads on OpenCL."""

import numpy as np
import pytest
from distributed_networks import Graph, inputs_of
from thread_ranks import ThreadWorld

import tilewright as tw
from tilewright import distributed
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.null.device import NullDevice

OPTIONS = "overlap=always, gather=late"


def network(layers=3, batch=2):
    """Convolutions with batch norm and relu, between which halos are exchanged."""
    g = Graph()
    y = g.input(batch, 3, 24, 8)
    for _ in range(layers):
        y = g.conv(y, 4, 3)
    return g.module(y)


def waits_for(plan, index):
    """Launches that must be finished before launch `index` begins."""
    found, left = set(), [index]
    while left:
        for d in plan.launches[left.pop()].deps:
            if d not in found:
                found.add(d)
                left.append(d)
    return found


def products(plan):
    """Launches of convolutions, in order."""
    return [i for i, x in enumerate(plan.launches) if "contract" in x.kernel]


@pytest.fixture(scope="module")
def plan():
    part = distributed.rank_module(network(), "space", 3, 1, OPTIONS)
    return distributed.compile_part(part, ThreadWorld(3).communicators[1], target="null").plan


def test_the_interior_waits_for_no_message(plan):
    """First layer, then interior and two borders of the second and third one, all in one array each."""
    exchanges = [i for i, k in communications(plan).items() if len(k.receives) == 2][:2]
    _, *later = products(plan)
    assert len(later) == 6
    for exchange, (inner, *borders) in zip(exchanges, (later[:3], later[3:]), strict=True):
        assert exchange not in waits_for(plan, inner)
        assert all(exchange in waits_for(plan, b) for b in borders)
        written = {
            plan.locate(plan.launches[i].args[p])[0].name for i in later for p in plan.launches[i].writes
        }
        assert len(written) == 2
    assert not waits_for(plan, later[0]) & set(exchanges)


def test_the_interior_is_launched_between_start_and_finish(plan):
    with NullDevice() as device, device.load(plan, plan_constants(plan)) as loaded:
        device.log.clear()
        loaded.run([np.zeros((2, 3, 24, 8), np.float32)])
        log = [(o.action, o.launch) for o in device.log if o.action in ("start", "finish", "launch")]
    exchanges = list(communications(plan))[:2]
    _, *later = products(plan)
    for exchange, (inner, *borders) in zip(exchanges, (later[:3], later[3:]), strict=True):
        times = [log.index(e) for e in (("start", exchange), ("launch", inner), ("finish", exchange))]
        assert times == sorted(times)
        assert all(log.index(("launch", b)) > times[-1] for b in borders)


def plan_constants(plan):
    """Zeros for the constants of a plan."""
    return {b.name: np.zeros(b.shape, b.dtype) for b in plan.buffers if b.kind == "constant"}


def test_every_border_is_one_kernel_more(plan):
    """Nothing else is: the parts are written where their join lies."""
    part = distributed.rank_module(network(), "space", 3, 1, "overlap=never, gather=late")
    at_once = distributed.compile_part(part, ThreadWorld(3).communicators[1], target="null").plan
    assert len(plan.launches) == len(at_once.launches) + 4


@pytest.mark.parametrize("policy", ["never", "always"])
def test_one_sample_is_not_copied_beside_its_halo(policy):
    """Where the batch has one sample, messages have a dimension more than the arrays that they are put in."""
    part = distributed.rank_module(network(2, batch=1), "space", 3, 1, f"overlap={policy}, gather=late")
    plan = distributed.compile_part(part, ThreadWorld(3).communicators[1], target="null").plan
    (halo, *_) = communications(plan).items()
    received = [plan.launches[halo[0]].args[p] for p in plan.launches[halo[0]].writes]
    copies = [x for i, x in enumerate(plan.launches) if set(x.args) & set(received) and i != halo[0]]
    assert [len(x.args) for x in copies] == [4]  # both borders in one launch
    sizes = {b.name: b.shape for b in plan.buffers}
    written = [x.args[p] for x in copies for p in x.writes]
    assert [np.prod(sizes[name]) for name in written] == [4 * 8] * 2  # one row of four channels each


def test_results_on_threads():
    module = network(layers=2)
    inputs = [x.astype(np.float32) for x in inputs_of(module)]
    (wanted,) = tw.interpret(module, *inputs, precision="fp64")

    def work(c):
        with distributed.compile(module, options=OPTIONS, target="opencl", communicator=c) as exe:
            assert len(products(exe.plan)) == 3
            for _ in range(3):
                np.testing.assert_allclose(exe(*inputs)[0], wanted, rtol=1e-4, atol=1e-4)

    ThreadWorld(2, timeout_s=60).run(work)


def test_ranks_as_compiled_agree_in_lockstep():
    module = network()
    inputs = inputs_of(module)
    parts = [distributed.rank_module(module, "space", 3, r, OPTIONS) for r in range(3)]
    (wanted,) = tw.interpret(module, *inputs, precision="fp64")
    for (got,) in interpret_ranks(parts, *inputs, precision="fp64"):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
