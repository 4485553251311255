"""`DistributedExecutable`: this rank's part of a network, run together with the other ranks' parts.

The world is the ranks that mpirun started; what fails on one of them ends the work of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast, get_args

from tilewright.compilation.option_values import Transport
from tilewright.devices.opening import OpenedDevice
from tilewright.ir import InputError, TilewrightError
from tilewright.running.executable import Artifact, Executable
from tilewright.runtime.communication import mpi_world
from tilewright.runtime.communication.agreement import agree, communications
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.communication.mpi import MpiCommunicator
from tilewright.runtime.interface.device import Device


def world(timeout_s: float | None = None) -> MpiCommunicator:
    """The ranks that mpirun started, this process being one of them; opened by the first call.

    timeout_s: how long each wait for another rank may take from now on (at first 60 seconds). Raises
    WorkError where mpi4py or an MPI is missing, or where ranks do not come.
    """
    return mpi_world.open_world(timeout_s)


@contextmanager
def together(communicator: MpiCommunicator) -> Iterator[None]:
    """A failure inside, on whichever rank, ends the work of all with one sentence on each.

    Errors of Tilewright name the rank they come from; the exit code of the process is theirs.
    """
    try:
        with mpi_world.together(communicator, lambda error: 2 if isinstance(error, InputError) else 1):
            yield
    except TilewrightError as error:
        if not str(error).startswith("rank "):
            error.args = (f"rank {communicator.rank}: {error}",)
        raise


class DistributedExecutable(Executable):
    """An executable whose plan communicates: all ranks call, time and load it together, in the same order.

    When it is loaded (by the first call), the ranks compare world size, network, passes, precision, options
    and the sequence of their messages; where they do not belong together all of them raise WorkError with the
    same sentence. Saved, it is one file per rank, which `tilewright.load` reads on that rank.
    """

    #: whether it is of a step, of whose state this rank may hold nothing
    has_state = False

    def __init__(
        self,
        artifact: Artifact,
        target: str,
        *,
        instances: int = 1,
        device: OpenedDevice | None = None,
        communicator: AnyCommunicator | None = None,
        transport: Transport = "device",
    ) -> None:
        """communicator: None means the processes that mpirun started, when the first call comes.

        transport: `device`, from device to device where they can (NCCL between GPUs); `host`, through host
        memory and the processes, step by step, also where ranks share a GPU.
        """
        given = {} if self.has_state else {"instances": instances}  # one with state has a single one
        super().__init__(artifact, target, device=device, **given)
        if transport not in get_args(Transport):
            raise InputError(f"expected transport among {', '.join(get_args(Transport))}, got {transport!r}")
        self._communicator, self.transport = communicator, transport
        self.distribution = _read_facts(artifact.facts)

    @property
    def communicator(self) -> AnyCommunicator:
        """This rank's end of the world; raises WorkError where this process is none of its ranks."""
        if self._communicator is None:
            self._communicator = world()
        return self._communicator

    def _beside_constants(self, device: Device) -> dict[str, Any]:
        facts, own = self.distribution, self.communicator
        if facts["size"] != own.size or facts["rank"] != own.rank:
            # The others must know, or they would wait for this rank to compare programs.
            holder = f"rank {facts['rank']} of {facts['size']}"
            own.fail(f"it has the executable of {holder}")
            hint = f"; start it with mpirun -n {facts['size']}" if facts["size"] != own.size else ""
            this = f"rank {own.rank} of {own.size}"
            raise InputError(f"expected the executable of {this}, got that of {holder}{hint}")
        agree(own, {k: str(v) for k, v in facts["agreed"].items()}, self.plan)
        given = super()._beside_constants(device)
        if own.size == 1 or not (communications(self.plan) or device.language == "cuda"):
            return given
        if device.language == "cuda" and self.transport == "host":
            from tilewright.runtime.cuda.staged import StagedCommunicator

            staged: Any = StagedCommunicator(cast("Any", own), cast("Any", device).context)
            return {**given, "communicator": staged}
        # GPUs connect in a collective, so a rank without communications of its own takes part.
        return {**given, "communicator": own}

    def report(self) -> dict[str, Any]:
        """The report of every executable, and what this rank sends and receives in one run."""
        kernels = communications(self.plan).values()
        moved = {"communications": len(kernels), "bytes_communicated": sum(k.bytes_moved for k in kernels)}
        return {**super().report(), "distributed": {**self.distribution, **moved}}


def _read_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the division from a compilation or a file; raises InputError where some are missing."""
    division = facts.get("distributed")
    good = (
        isinstance(division, dict)
        and type(division.get("rank")) is int
        and type(division.get("size")) is int
        and isinstance(division.get("agreed"), dict)
    )
    if not good:
        raise InputError(
            "expected an executable that names its rank, the number of ranks and what they agreed on"
        )
    return dict(division)  # type: ignore[arg-type]  # a dict, as was checked
