"""What a rank of the failure tests runs: sums that succeed, a fault on rank 1, another sum.

Started by mpirun. It needs the runtime alone; whoever starts it may leave the compiler out.
"""

import os
import signal
import sys
import time

import numpy as np

from tilewright.runtime.communication.mpi import MpiCommunicator
from tilewright.runtime.communication.mpi_world import open_world, together
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message

FAILED = 5


def total(world: MpiCommunicator) -> float:
    """The sum of 1 over all ranks."""
    kernel = CommunicationKernel(
        "all_reduce", "float32", (4,), (4,), members=tuple(range(world.size)), position=world.rank
    )
    result = np.zeros(4, np.float32)
    world.start(kernel, [np.ones(4, np.float32)], [result], doing="launch 3 of kernel 'sum'").finish()
    return float(result[0])


def swap(world: MpiCommunicator) -> list[float]:
    """What the neighbours on a ring send of 70,000 elements: more than any engine sends at once."""
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    kernel = CommunicationKernel(
        "exchange", "float32", (70_000,), (70_000, 70_000),
        (Message(right, 2, 0), Message(left, 3, 0)), (Message(left, 2, 0), Message(right, 3, 1)),
    )  # fmt: skip
    results = [np.zeros(70_000, np.float32) for _ in range(2)]
    world.start(kernel, [np.full(70_000, world.rank, np.float32)], results, doing="a ring").finish()
    return [float(r.mean()) for r in results]


def main(scenario: str, timeout_s: float) -> None:
    """One rank."""
    world = open_world(timeout_s)
    with together(world, lambda error: FAILED):
        print(f"rank {world.rank} sum {total(world)} ring {swap(world)} pid {os.getpid()}", flush=True)
        total(world)  # all have told their numbers before one of them ends the others
        if world.rank == 1:
            if scenario == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif scenario == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif scenario == "raise":
                raise ValueError("the third weight is missing")
            else:
                time.sleep(1000)
        total(world)


if __name__ == "__main__":
    try:
        main(sys.argv[1], float(sys.argv[2]))
    except Exception as error:  # noqa: BLE001 - as the command line does
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
