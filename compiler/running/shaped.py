"""`ShapedExecutable`: one plan per set of input shapes on one device, over weights that are stored once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np

from tilewright.devices.opening import OpenedDevice
from tilewright.ir import InputError
from tilewright.ir.errors import file_path
from tilewright.profiling.profile import Profile
from tilewright.running.buckets import Buckets, Shape, ShapesOption
from tilewright.running.executable import Artifact, Executable, inputs_of
from tilewright.running.named_inputs import in_order
from tilewright.running.reference import ReferenceExecutable
from tilewright.runtime.interface.device import LoadedPlan
from tilewright.runtime.plan.container import SavedBuckets, write_buckets
from tilewright.runtime.shared_memory import content_key


def shaped_executable(buckets: Buckets, compiled: Sequence[Executable]) -> Executable:
    """One executable for the plans of all buckets, which are in their order."""
    if any(isinstance(e, ReferenceExecutable) for e in compiled):
        return cast("Executable", ShapedReference(buckets, cast("list[ReferenceExecutable]", compiled)))
    first = compiled[0]
    return ShapedExecutable([e.artifact for e in compiled], first.target, instances=first.instances)


class ShapedExecutable(Executable):
    """Executables for several sets of input shapes (buckets); a call runs the one of the shapes it is given.

    What an `Executable` says of itself (`plan`, `input_types`, ...) is said of the first bucket; `select`
    gives the executable of any. Plans are loaded at their first call, or all of them by `load`, on one device
    that stores equal weights once.
    """

    def __init__(self, artifacts: Sequence[Artifact], target: str, *, instances: int = 1) -> None:
        device = OpenedDevice(target)
        parts = shared_constants(artifacts)
        super().__init__(parts[0], target, instances=instances, device=device)
        self.executables = tuple(Executable(a, target, instances=instances, device=device) for a in parts)
        self._buckets = Buckets(
            self.input_names, [[t.shape for t in e.input_types] for e in self.executables]
        )

    @property
    def buckets(self) -> tuple[dict[str, Shape], ...]:
        """The shapes of every bucket, by input name."""
        return self._buckets.as_mappings()

    def select(self, shapes: ShapesOption) -> Executable:
        """The executable of one bucket; shapes by input name, or of the only input. Raises InputError."""
        return self.executables[self._buckets.of_shapes(shapes)]

    def select_for(self, inputs: Sequence[object]) -> Executable:
        """The executable for the shapes of these arrays; raises InputError that lists the buckets."""
        return self.executables[self._buckets.of_arrays(inputs)]

    @property
    def device(self) -> str:
        """Name of the device that runs it."""
        return self.executables[0].device

    def load(self) -> LoadedPlan:
        """Load the plans of all buckets; gives that of the first."""
        first, *_ = [e.load() for e in self.executables]
        return first

    def __call__(self, /, *inputs: object, **named: object) -> list[np.ndarray]:
        """Outputs for one array per input, by the plan for their shapes (see `Executable.__call__`)."""
        inputs = tuple(in_order(self.input_names, inputs, named))
        return self.executables[self._buckets.of_arrays(inputs)](*inputs)

    def map(self, batches: Iterable[object]) -> Iterator[list[np.ndarray]]:
        """Outputs of every batch in order, as `Executable.map`; other shapes wait for what came before."""
        named = ((self._buckets.of_arrays(inputs_of(b)), b) for b in batches)
        for index, group in groupby(named, key=lambda pair: pair[0]):
            yield from self.executables[index].map(b for _, b in group)

    def time(self, *inputs: object, repeats: int = 20) -> list[float]:
        """See `Executable.time`, of the plan for these shapes."""
        return self.select_for(inputs).time(*inputs, repeats=repeats)

    def time_kernels(self, *inputs: object, repeats: int = 5) -> list[tuple[str, float]]:
        """See `Executable.time_kernels`, of the plan for these shapes."""
        return self.select_for(inputs).time_kernels(*inputs, repeats=repeats)

    def profile(self, *inputs: object, repeats: int = 10, compare_serial: bool = False) -> Profile:
        """See `Executable.profile`, of the plan for these shapes."""
        return self.select_for(inputs).profile(*inputs, repeats=repeats, compare_serial=compare_serial)

    def report(self) -> dict[str, Any]:
        """The report of the first bucket, and under `buckets` that of each; what weights take, stored once.

        `constant_bytes` counts every weight once. Of a bucket `shared_constant_bytes` are those of weights
        that another bucket has too, `own_constant_bytes` the rest.
        """
        sizes = [_constant_sizes(e.artifact) for e in self.executables]
        reports = []
        for i, (e, mine) in enumerate(zip(self.executables, sizes, strict=True)):
            others = set().union(*(s for j, s in enumerate(sizes) if j != i))
            shared = sum(n for key, n in mine.items() if key in others)
            facts = {"shared_constant_bytes": shared, "own_constant_bytes": sum(mine.values()) - shared}
            shapes = {n: list(s) for n, s in self.buckets[i].items()}
            reports.append({"shapes": shapes, **e.report(), **facts})
        once = {key: n for mine in sizes for key, n in mine.items()}
        unshared = sum(sum(mine.values()) for mine in sizes)
        return {
            **self.executables[0].report(),
            "constant_bytes": sum(once.values()),
            "shared_constant_bytes_saved": unshared - sum(once.values()),
            "buckets": reports,
        }

    def save(self, path: str | Path) -> None:
        """Write one file with every bucket, each weight once, that `tilewright.load` reads."""
        saved = tuple(e.artifact.saved({}) for e in self.executables)
        write_buckets(file_path(path), SavedBuckets(saved, {"target": self.target}))

    def close(self) -> None:
        """Free the device. The executable can be called again, which opens it anew."""
        for e in self.executables:
            e.close()
        super().close()


class ShapedReference(ReferenceExecutable):
    """The `ShapedExecutable` of the reference target: the networks are interpreted."""

    def __init__(self, buckets: Buckets, executables: Sequence[ReferenceExecutable]) -> None:
        super().__init__(executables[0].module)
        self.executables = tuple(executables)
        self._buckets = buckets

    @property
    def buckets(self) -> tuple[dict[str, Shape], ...]:
        """The shapes of every bucket, by input name."""
        return self._buckets.as_mappings()

    def select(self, shapes: ShapesOption) -> ReferenceExecutable:
        """The executable of one bucket. Raises InputError."""
        return self.executables[self._buckets.of_shapes(shapes)]

    def __call__(self, /, *inputs: Any, **named: Any) -> list[np.ndarray]:
        """Outputs by reference semantics."""
        inputs = tuple(in_order(self.input_names, inputs, named))
        return self.executables[self._buckets.of_arrays(inputs)](*inputs)


def loaded_buckets(saved: SavedBuckets, target: str, where: str) -> ShapedExecutable:
    """The executable of a file with several buckets; raises InputError."""
    artifacts = [Artifact.of(b) for b in saved.buckets]
    names = artifacts[0].plan.input_titles
    if any(a.plan.input_titles != names for a in artifacts):
        raise InputError("expected the same inputs in every bucket", where=where)
    return ShapedExecutable(artifacts, target)


def shared_constants(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """The artifacts with one array for all constants of equal content, type and shape."""
    pool: dict[object, np.ndarray] = {}
    out = []
    for a in artifacts:
        constants = {name: pool.setdefault(_identity(array), array) for name, array in a.constants.items()}
        out.append(replace(a, constants=constants))
    return out


def _identity(array: np.ndarray) -> tuple[bytes, str, Shape]:
    return content_key(array), array.dtype.name, array.shape


def _constant_sizes(artifact: Artifact) -> Mapping[object, int]:
    return {_identity(array): array.nbytes for array in artifact.constants.values()}
