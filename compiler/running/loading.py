"""`load`: a saved file as the executable it holds, of one network, of several shapes or of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.ir import InputError
from tilewright.ir.errors import file_path
from tilewright.running.executable import Artifact, Executable
from tilewright.running.stateful import executable_of
from tilewright.runtime.plan.container import SavedBuckets, read_saved
from tilewright.runtime.plan.execution_plan import ExecutionPlan


def load(path: str | Path, target: str = "auto") -> Executable:
    """Read a file written by `save`, running nothing from it; raises InputError on damage.

    target: what the file must be for (`cuda`, `opencl`, ...); `auto` takes what it says. A file for the
        emulator is C++ that runs on the host with your rights: it needs `target="emulator"`.

    Any file is a program: run only files you trust.
    A file with plans for several input shapes gives a `tilewright.running.shaped.ShapedExecutable`, one of
    a rank a `tilewright.distributed.DistributedExecutable`.
    """
    saved = read_saved(file_path(path))
    if isinstance(saved, SavedBuckets):
        from tilewright.running.shaped import loaded_buckets  # with passes, which other files do not need

        named = _target_of(saved.facts, saved.buckets[0].plan, target, str(path))
        return loaded_buckets(saved, named, str(path))
    named = _target_of(saved.facts, saved.plan, target, str(path))
    artifact = Artifact.of(saved)
    if "distributed" in artifact.facts:
        from tilewright.running.rank_step import rank_executable

        return rank_executable(artifact, named)
    return executable_of(artifact, named)


def _target_of(facts: Mapping[str, Any], plan: ExecutionPlan, target: str, where: str) -> str:
    """The target that a file names, where it is the one asked for; raises InputError."""
    named = facts.get("target")
    if named != plan.target:
        raise InputError("expected a saved executable that names the target of its plan", where=where)
    kind = plan.target.partition(":")[0]
    if target == "auto" and kind == "emulator":
        raise InputError(
            'expected --target emulator (in Python target="emulator") for a file that runs host code: the '
            "emulator compiles its kernels as C++ and runs them with your rights",
            where=where,
        )
    if target not in ("auto", plan.target, kind):
        raise InputError(f"expected a saved executable for {target}, got one for {plan.target}", where=where)
    return plan.target
