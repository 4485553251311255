"""Communication through the whole compile chain, run on OpenCL by ranks that are threads."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from thread_ranks import ThreadCommunicator, ThreadWorld

import tilewright as tw
from tilewright import distributed
from tilewright.distributed import DistributedExecutable
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.cuda.staged import StagedCommunicator
from tilewright.runtime.plan.hazards import check_hazards

Array = np.ndarray[Any, np.dtype[Any]]

NET = """
module @net {
  graph.func @main(%x: f32[2, 4, 8, 8], %w: f32[6, 4, 3, 3], %v: f32[4, 6, 3, 3]) -> f32[2, 4, 8, 8] {
    %0 = graph.conv2d(%x, %w, strides = [1, 1], padding = [1, 1, 1, 1], groups = 1) : f32[2, 6, 8, 8]
    %1 = graph.relu(%0) : f32[2, 6, 8, 8]
    %2 = graph.conv2d(%1, %v, strides = [1, 1], padding = [1, 1, 1, 1], groups = 1) : f32[2, 4, 8, 8]
    %3 = graph.relu(%2) : f32[2, 4, 8, 8]
    graph.return(%3)
  }
}
"""


def module_of(params: str, results: str, ops: Sequence[str]) -> tw.Module:
    lines = "\n".join(f"    {line}" for line in ops)
    return tw.parse(f"module @net {{\n  graph.func @main({params}) -> {results} {{\n{lines}\n  }}\n}}\n")


def random_inputs(module: tw.Module) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(t.shape).astype(t.dtype) for t in module.input_types]


def run_parts(modules: Sequence[tw.Module], calls: int = 2) -> list[DistributedExecutable]:
    """Compile and run all ranks' modules, compare every call with lockstep; the closed executables."""
    inputs = random_inputs(modules[0])
    wanted = interpret_ranks(modules, *inputs)

    def work(c: ThreadCommunicator) -> DistributedExecutable:
        exe = distributed.compile_part(modules[c.rank], c, target="opencl")
        check_hazards(exe.plan)
        with exe:
            for _ in range(calls):
                for got, want in zip(exe(*inputs), wanted[c.rank], strict=True):
                    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        return exe

    return ThreadWorld(len(modules), timeout_s=60).run(work)


def test_exchanges_and_collectives_of_every_form() -> None:
    """Halos that crop and overlap, gathers inside and outside, unequal and empty pieces, sums and maxima."""
    extents, owned, needed = [3, 0, 2], [[0, 3], [3, 3], [2, 5]], [[0, 2], [1, 4], [4, 5]]

    def part(rank: int) -> tw.Module:
        n, (a, b) = extents[rank], owned[rank]
        m, rows = b - a, needed[rank][1] - needed[rank][0]
        k, first = ((2, 0), (1, 2), (1, 3))[rank]
        group = f"rank = {rank}, ranks = [0, 1, 2]"
        results = f"f32[2, 5, 4], f32[2, {rows}, 4], f32[4, 4], f32[2, {n}, 4], f32[2, 5, 4]"
        return module_of("%x: f32[2, 5, 4]", results, [
            f"%0 = graph.strided_slice(%x, begin = [0, {sum(extents[:rank])}, 0], size = [2, {n}, 4], "
            f"strides = [1, 1, 1]) : f32[2, {n}, 4]",
            f"%1 = graph.all_gather(%0, axis = 1, {group}, extents = {extents}) : f32[2, 5, 4]",
            f"%2 = graph.strided_slice(%x, begin = [0, {a}, 0], size = [2, {m}, 4], strides = [1, 1, 1]) "
            f": f32[2, {m}, 4]",
            f"%3 = graph.exp(%2) : f32[2, {m}, 4]",
            f"%4 = graph.halo_exchange(%3, axis = 1, {group}, owned = {owned}, needed = {needed}, tag = 4) "
            f": f32[2, {rows}, 4]",
            f"%5 = graph.strided_slice(%x, begin = [0, {first}, 0], size = [1, {k}, 4], strides = [1, 1, 1]) "
            f": f32[1, {k}, 4]",
            f"%6 = graph.reshape(%5, newshape = [{k}, 4]) : f32[{k}, 4]",
            f"%7 = graph.tanh(%6) : f32[{k}, 4]",
            f"%8 = graph.all_gather(%7, axis = 0, {group}, extents = [2, 1, 1]) : f32[4, 4]",
            f"%9 = graph.reduce_scatter(%1, axis = 1, {group}, extents = {extents}) : f32[2, {n}, 4]",
            f'%10 = graph.all_reduce(%x, {group}, reduction = "max") : f32[2, 5, 4]',
            "graph.return(%1, %4, %8, %9, %10)",
        ])  # fmt: skip

    modules = [part(r) for r in range(3)]
    kinds = {k.kind for exe in run_parts(modules) for k in communications(exe.plan).values()}
    assert kinds == {"exchange", "all_gather", "all_reduce"}


def test_messages_both_ways_keep_their_order() -> None:
    """Sends whose results nobody reads stay; messages of one tag arrive in order; parts meet twice."""

    def part(rank: int) -> tw.Module:
        peer = 1 - rank
        return module_of("%x: f32[8], %y: f32[8]", "f32[8], f32[8]", [
            f"graph.send(%x, to = {peer}, tag = 7)",
            "%0 = graph.exp(%y) : f32[8]",
            f"graph.send(%0, to = {peer}, tag = 7)",
            f'%1 = graph.recv(source = {peer}, tag = 7, dtype = "f32", shape = [8]) : f32[8]',
            f'%2 = graph.recv(source = {peer}, tag = 7, dtype = "f32", shape = [8]) : f32[8]',
            f'%3 = graph.all_reduce(%2, rank = {peer}, ranks = [1, 0], reduction = "sum") : f32[8]',
            f"graph.send(%3, to = {peer}, tag = 8)",
            "%4 = graph.add(%1, %3) : f32[8]",
            f'%5 = graph.recv(source = {peer}, tag = 8, dtype = "f32", shape = [8]) : f32[8]',
            "graph.return(%4, %5)",
        ])  # fmt: skip

    for exe in run_parts([part(0), part(1)], calls=3):
        kernels = list(communications(exe.plan).values())
        assert [len(k.sends) for k in kernels] == [1, 1, 0, 0, 0, 1, 0]


def test_reduce_scatter_along_an_inner_axis() -> None:
    group = "ranks = [0, 1], extents = [3, 2]"
    modules = [
        module_of("%x: f32[3, 5]", f"f32[3, {n}]", [
            "%0 = graph.sin(%x) : f32[3, 5]",
            f"%1 = graph.reduce_scatter(%0, axis = 1, rank = {r}, {group}) : f32[3, {n}]",
            "graph.return(%1)",
        ])
        for r, n in enumerate((3, 2))
    ]  # fmt: skip
    for exe in run_parts(modules):
        assert [k.kind for k in communications(exe.plan).values()] == ["reduce_scatter"]


@pytest.mark.parametrize(("mode", "options"), [("space", "gather=late"), ("pipeline", "micro_batches=2")])
def test_modes_give_what_one_device_gives(mode: str, options: str) -> None:
    module = tw.parse(NET)
    inputs = random_inputs(module)
    (wanted,) = tw.interpret(module, *inputs, precision="fp64")

    def work(c: ThreadCommunicator) -> dict[str, Any]:
        with distributed.compile(module, mode=mode, options=options, target="opencl", communicator=c) as exe:
            check_hazards(exe.plan)
            outputs = [*exe(*inputs), *(y for ys in exe.map([inputs] * 3) for y in ys)]
            assert len(exe.time(*inputs, repeats=2)) == 2
            assert len(exe.time_kernels(*inputs, repeats=1)) == len(exe.plan.launches)
            for got in outputs:
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
            return exe.report()["distributed"]

    reports = ThreadWorld(2, timeout_s=60).run(work)
    assert [r["rank"] for r in reports] == [0, 1]
    assert all(r["communications"] and r["mode"] == mode for r in reports)
    assert reports[0]["agreed"] == reports[1]["agreed"]


def test_the_local_part_of_a_halo_is_not_copied() -> None:
    """A convolution's epilogue writes into the array that the next one reads; what came is put beside it."""
    module = distributed.rank_module(tw.parse(NET), "space", 2, 0, "gather=late")
    world = ThreadWorld(2)
    exe = distributed.compile_part(module, world.communicators[0], target="opencl")
    (index,) = [i for i, k in communications(exe.plan).items() if len(k.results) == 1][:1]
    (received,) = [exe.plan.launches[index].args[p] for p in exe.plan.launches[index].writes]
    copies = [
        x for x in exe.plan.launches if received in x.args and not set(x.writes) & {x.args.index(received)}
    ]
    assert len(copies) == 1
    halo = exe.plan.locate(copies[0].args[-1])[0].name
    writers = {
        i
        for i, x in enumerate(exe.plan.launches)
        for p in x.writes
        if exe.plan.locate(x.args[p])[0].name == halo
    }
    assert len(writers) == 2  # the copy of what came, and the kernel that computes the rest


def test_a_saved_rank_runs_again(tmp_path: Any) -> None:
    module = tw.parse(NET)
    inputs = random_inputs(module)

    def work(c: ThreadCommunicator) -> None:
        exe = distributed.compile(module, options="gather=late", target="opencl", communicator=c)
        exe.save(tmp_path / f"net{c.rank}.tw")
        (wanted,) = exe(*inputs)
        exe.close()
        loaded = tw.load(tmp_path / f"net{c.rank}.tw")
        assert isinstance(loaded, DistributedExecutable)
        with DistributedExecutable(loaded.artifact, loaded.target, communicator=c) as again:
            np.testing.assert_array_equal(again(*inputs)[0], wanted)

    ThreadWorld(2, timeout_s=60).run(work)


def test_other_programs_are_refused_on_every_rank() -> None:
    module = tw.parse(NET)
    other = tw.parse(NET.replace("graph.relu(%2)", "graph.tanh(%2)"))
    inputs = random_inputs(module)
    told: list[str] = []

    def work(c: ThreadCommunicator) -> None:
        own = other if c.rank == 2 else module
        with distributed.compile(own, options="gather=late", target="opencl", communicator=c) as exe:
            with pytest.raises(tw.WorkError) as caught:
                exe(*inputs)
            told.append(str(caught.value))

    ThreadWorld(3, timeout_s=60).run(work)
    assert len(set(told)) == 1
    assert told[0].startswith("rank 2 runs another program: its network is ")
    assert "that of rank 0, 1 is" in told[0]


def test_what_one_device_alone_can_do_is_refused() -> None:
    module = tw.parse(NET)
    (c,) = ThreadWorld(1).communicators
    with pytest.raises(tw.UnsupportedError, match="tune='model'"):
        distributed.compile(module, tune="measure", communicator=c)
    with pytest.raises(tw.InputError, match="expected a mode among space, batch"):
        distributed.compile(module, mode="time", communicator=c)
    with pytest.raises(tw.UnsupportedError, match="reference target"):
        distributed.compile(module, target="reference", communicator=c)


@pytest.mark.parametrize(
    ("transport", "kind"), [("host", StagedCommunicator), ("device", ThreadCommunicator)]
)
def test_gpus_are_given_the_transport_that_is_asked_for(transport: Any, kind: type) -> None:
    """A rank without communications of its own as well: connecting GPUs takes all of them."""
    given: list[object] = []

    class Gpu:
        language, context = "cuda", None

        def load(self, plan: object, constants: object, *, communicator: object, progress: object) -> None:
            given.append(communicator)

    module = tw.parse(NET)

    def work(c: ThreadCommunicator) -> None:
        for options in ("gather=late", "gather=auto"):
            exe = distributed.compile(
                module, options=options, target="opencl", communicator=c, transport=transport
            )
            exe._load_on(cast("Any", Gpu()))

    ThreadWorld(2, timeout_s=60).run(work)
    assert [type(c) for c in given] == [kind] * 4


def test_an_unknown_transport_is_refused() -> None:
    module = tw.parse(NET)
    (c,) = ThreadWorld(1).communicators
    with pytest.raises(tw.InputError, match="expected transport among device, host, got 'air'"):
        distributed.compile(module, target="null", communicator=c, transport=cast("Any", "air"))
