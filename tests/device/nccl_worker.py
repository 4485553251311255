"""What one rank does in the tests of communication between GPUs: `nccl_worker.py CASE...`, under mpirun."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import distributed
from tilewright.ir import Constants
from tilewright.runtime.communication.communicator import TIMEOUT_S
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.cuda.staged import StagedCommunicator
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import CommunicationError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

RELAY = Path(__file__).parents[1] / "data" / "relay"
#: seconds that a rank waits for one that hangs
HUNG_S = 3.0
KINDS = ("graph", "capture", "eager", "checked")
SUMS = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8")


def collective(kind, dtype, members, rank, counts, reduction="sum"):
    position = members.index(rank)
    part, whole = (counts[position % len(counts)],), (sum(counts),)
    operands, results = {
        "all_gather": (part, whole), "reduce_scatter": (whole, part), "all_reduce": (whole, whole)
    }[kind]  # fmt: skip
    kept = () if kind == "all_reduce" else counts
    return CommunicationKernel(
        kind, dtype, operands, results, members=members, position=position, counts=kept, reduction=reduction
    )


def ring(dtype, rank, size, count):
    """Two messages to the next rank, with tags against their order, and one to the rank before."""
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = (Message(after, 9, 0), Message(after, 4, 1), Message(before, 2, 2))
    receives = (Message(before, 4, 1), Message(before, 9, 0), Message(after, 2, 2))
    sizes = (count, count + 3, 5)
    return CommunicationKernel("exchange", dtype, sizes, sizes, sends, receives)


def program(rank, size, dtype):
    """All kinds of communication that a rank takes part in."""
    everyone, uneven = tuple(range(size)), tuple(17 * r for r in range(size))
    backwards = everyone[::-1]
    found = [
        ring(dtype, rank, size, 1000),
        collective("all_gather", dtype, everyone, rank, (40,) * size),
        collective("all_gather", dtype, backwards, rank, uneven),
        collective("all_gather", dtype, (rank,), rank, (9,)),
    ]
    if dtype in SUMS:
        found += [
            collective("all_reduce", dtype, everyone, rank, (100_003,)),
            collective("all_reduce", dtype, backwards, rank, (77,), "max"),
            collective("reduce_scatter", dtype, everyone, rank, (64,) * size),
            collective("reduce_scatter", dtype, backwards, rank, uneven),
        ]
    if size > 2:
        low = tuple(range(size // 2))
        group = low if rank in low else tuple(r for r in everyone if r not in low)
        found.append(collective("all_gather", dtype, group, rank, (12,) * len(group)))
    return found


def arrays_of(kernels, dtype, rank):
    """The operands of each communication on a rank; small whole numbers, so that sums are exact."""
    rng = np.random.default_rng(rank)
    return [[rng.integers(0, 5, n).astype(DTYPES[dtype]) for n in k.operands] for k in kernels]


def wanted_of(programs, arrays, rank):
    """What each communication gives on a rank, by NumPy, from the operands of all ranks."""
    wanted = []
    for number, kernel in enumerate(programs[rank]):
        if kernel.kind == "exchange":
            found = []
            for m in sorted(kernel.receives, key=lambda m: m.buffer):
                sent = next(s for s in programs[m.peer][number].sends if (s.peer, s.tag) == (rank, m.tag))
                found.append(arrays[m.peer][number][sent.buffer])
            wanted.append(found)
            continue
        parts = [arrays[m][number][0] for m in kernel.members]
        if kernel.kind == "all_gather":
            wanted.append([np.concatenate(parts)])
            continue
        total = (
            np.maximum.reduce(parts)
            if kernel.reduction == "max"
            else np.add.reduce(parts).astype(parts[0].dtype)
        )
        if kernel.kind == "reduce_scatter":
            total = np.split(total, np.cumsum(kernel.counts)[:-1])[kernel.position]
        wanted.append([total])
    return wanted


def plan_of(kernels):
    """A plan of communications alone; those on odd places of a stream of their own."""
    buffers, launches, inputs, outputs = [], [], [], []
    for number, kernel in enumerate(kernels):
        names = []
        for kind, listed, sizes in (("input", inputs, kernel.operands), ("output", outputs, kernel.results)):
            for i, n in enumerate(sizes):
                nbytes = max(1, n * DTYPES[kernel.dtype].itemsize)
                buffers.append(Buffer(f"{kind}{number}.{i}", kernel.dtype, (n,), kind, nbytes))
                names.append(buffers[-1].name)
                listed.append(names[-1])
        deps = (number - 1,) if number else ()
        launches.append(
            Launch(
                f"k{number}", tuple(names), (1, 1, 1), 1, deps=deps, stream=number % 2, writes=kernel.writes
            )
        )
    codes = tuple(KernelCode(f"k{n}", f"k{n}", "communication", k.to_json()) for n, k in enumerate(kernels))
    plan = ExecutionPlan("cuda", tuple(buffers), codes, tuple(launches), tuple(inputs), tuple(outputs), 0)
    return validate(plan)


def task(world, dtypes):
    """One plan with all communications in all these types: the plan, its inputs, what it gives by NumPy."""
    kernels, inputs, wanted = [], [], []
    for dtype in dtypes:
        programs = [program(rank, world.size, dtype) for rank in range(world.size)]
        arrays = [arrays_of(p, dtype, rank) for rank, p in enumerate(programs)]
        kernels += programs[world.rank]
        inputs += [a for given in arrays[world.rank] for a in given]
        wanted += [a for found in wanted_of(programs, arrays, world.rank) for a in found]
    return plan_of(kernels), inputs, wanted


def check(loaded, inputs, wanted):
    for number, (got, array) in enumerate(zip(loaded.run(inputs), wanted, strict=True)):
        assert got.dtype == array.dtype
        told = f"output {number}"
        np.testing.assert_array_equal(got.astype(np.float64), array.astype(np.float64), err_msg=told)


def collectives(world):
    plan, inputs, wanted = task(world, (*SUMS, "int16", "bool"))
    for kind in KINDS:
        with (
            CudaDevice(replay=kind) as device,
            device.load(plan, {}, communicator=world) as loaded,
        ):
            for _ in range(3):
                check(loaded, inputs, wanted)
            assert len(loaded.time(inputs, 5)) == 5
            check(loaded, inputs, wanted)
        print(f"rank {world.rank}: {kind} is right", flush=True)


#: windows that overlap, with and without steps, and values that part and join again, in two ways: what
#: squeezenet and resnets divide, in as few kernels as may be, since every rank compiles them
FORK = """module @fork { graph.func @main(%x: f32[1, 8, 32, 32]) -> f32[1, 48, 15, 15] {
  %w0 = graph.constant(name = "w0") : f32[16, 8, 3, 3]
  %w1 = graph.constant(name = "w1") : f32[16, 16, 1, 1]
  %w2 = graph.constant(name = "w2") : f32[32, 16, 3, 3]
  %w3 = graph.constant(name = "w3") : f32[48, 48, 3, 3]
  %a = graph.conv2d(%x, %w0, padding = [1, 1, 1, 1]) : f32[1, 16, 32, 32]
  %b = graph.relu(%a) : f32[1, 16, 32, 32]
  %c = graph.conv2d(%b, %w1) : f32[1, 16, 32, 32]
  %d = graph.conv2d(%b, %w2, padding = [1, 1, 1, 1]) : f32[1, 32, 32, 32]
  %e = graph.concatenate(%c, %d, axis = 1) : f32[1, 48, 32, 32]
  %f = graph.max_pool2d(%e, pool_size = [3, 3], strides = [2, 2]) : f32[1, 48, 15, 15]
  %g = graph.conv2d(%f, %w3, padding = [1, 1, 1, 1]) : f32[1, 48, 15, 15]
  %h = graph.add(%f, %g) : f32[1, 48, 15, 15]
  graph.return(%h) } }"""


def fork():
    module, rng = tw.parse(FORK), np.random.default_rng(0)
    constants = [op for op in module.main.body.ops if op.name == "graph.constant"]
    arrays = {op["name"]: rng.standard_normal(op.result.tensor.shape, np.float32) / 8 for op in constants}
    return module.with_constants(Constants(arrays))


def networks(world):
    mlp = tw.frontends.relay.load(RELAY / "mlp.relay", params="random", seed=0)
    for name, module, modes in (
        ("fork", fork(), {"space": "gather=late", "pipeline": ""}),
        ("mlp", mlp, {"weights": "min_bytes=1024", "batch": ""}),
    ):
        with tw.compile(module, target="cuda") as whole:
            inputs = [inputs_of(t) for t in whole.input_types]
            wanted = whole(*inputs)
        for mode, options in modes.items():
            asked = {"mode": mode, "options": options, "target": "cuda", "communicator": world}
            with distributed.compile(module, **asked) as exe:
                for outputs in (exe(*inputs), *exe.map([inputs] * 4)):
                    for got, array in zip(outputs, wanted, strict=True):
                        scale = max(1e-6, float(np.abs(array.astype(np.float64)).max()))
                        error = float(np.abs(got.astype(np.float64) - array).max()) / scale
                        assert error < 1e-4, (name, mode, error)
                print(f"rank {world.rank}: {name}, {mode}: {exe.report()['distributed']}", flush=True)


def inputs_of(t):
    rng = np.random.default_rng(3)
    if "float" in t.dtype:
        return rng.standard_normal(t.shape).astype(t.dtype)
    return rng.integers(0, 10, t.shape).astype(t.dtype)


def hung(world):
    """Rank 1 stays away from the second run; rank 0 tells so after the timeout."""
    plan, inputs, wanted = task(world, ("float32",))
    with CudaDevice() as device, device.load(plan, {}, communicator=world) as loaded:
        check(loaded, inputs, wanted)
        if world.rank == 1:
            time.sleep(2 * HUNG_S)
            return
        begin = time.monotonic()
        with pytest.raises(CommunicationError) as caught:
            loaded.run(inputs)
        assert time.monotonic() - begin < 2 * HUNG_S
        print(f"told: {caught.value}", flush=True)


def staged(world):
    """All ranks on GPU 0, through host memory."""
    plan, inputs, wanted = task(world, ("float32", "bfloat16", "bool"))
    with CudaDevice(0) as device:
        through = StagedCommunicator(world, device.context)
        with device.load(plan, {}, communicator=through) as loaded:
            check(loaded, inputs, wanted)


def shared(world):
    """All ranks on GPU 0."""
    plan, _, _ = task(world, ("float32",))
    with CudaDevice(0) as device, pytest.raises(CommunicationError) as caught:
        device.load(plan, {}, communicator=world)
    print(f"told: {caught.value}", flush=True)


CASES = {
    "collectives": collectives, "networks": networks, "hung": hung, "shared": shared, "staged": staged
}  # fmt: skip


def main():
    cases = sys.argv[1:]
    world = distributed.world(HUNG_S if "hung" in cases else TIMEOUT_S)
    with distributed.together(world):
        for case in cases:
            begin = time.monotonic()
            CASES[case](world)
            took_s = time.monotonic() - begin
            print(f"rank {world.rank} is done with {case} after {took_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
