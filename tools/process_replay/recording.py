"""Compilations of one commit -> records: run by child processes of its own source, kept in a cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distributions, requires
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ir import InputError, WorkError
from tilewright.ir.machine import usable_cores
from tilewright.tools.process_replay import recorder
from tilewright.tools.process_replay.snapshot import CommitSource

#: what differs between machines and runs must not reach a record
_LEFT_OUT = ("TILEWRIGHT_", "PYTHON")
#: the extra whose packages answer what the OpenCL device of the machine is
_OF_COMPILING = re.compile(r"""extra == ['"]opencl['"]""")


@dataclass(frozen=True)
class ReplayCase:
    """One network compiled for one target in one precision."""

    network: str
    target: str
    precision: str

    def __str__(self) -> str:
        return f"{self.network} {self.target} {self.precision}"

    @property
    def file_name(self) -> str:
        """The name of the record's file."""
        return f"{self.network}.{self.target.replace(':', '-')}.{self.precision}.json.gz"


@dataclass(frozen=True)
class Networks:
    """The networks of a folder: NAME.relay with ref/NAME.npz, which says what its inputs are."""

    folder: Path

    def names(self) -> tuple[str, ...]:
        """All networks; raises InputError where there is none."""
        names = sorted(p.stem for p in self.folder.glob("*.relay") if self._facts(p.stem).exists())
        if not names:
            raise InputError("expected networks NAME.relay with ref/NAME.npz", where=str(self.folder))
        return tuple(names)

    def _facts(self, name: str) -> Path:
        return self.folder / "ref" / f"{name}.npz"

    def request(self, case: ReplayCase, file: str) -> dict[str, Any]:
        """The request to the recorder; `file` is where its record goes, empty for nowhere."""
        with np.load(self._facts(case.network)) as stored:
            inputs = tuple(json.loads(str(stored["inputs"])))
        path = str((self.folder / f"{case.network}.relay").resolve())
        choices = {"target": case.target, "precision": case.precision}
        return {"path": path, "inputs": inputs, "file": file, **choices}

    def digest(self, name: str) -> str:
        """A digest of the files that a record depends on."""
        digest = hashlib.sha256((self.folder / f"{name}.relay").read_bytes())
        digest.update(self._facts(name).read_bytes())
        return digest.hexdigest()


def environment_digest() -> str:
    """A digest of what records depend on besides code and network: recorder, machine, Python, packages."""
    requirements = (r for r in requires("tilewright") or () if "extra ==" not in r or _OF_COMPILING.search(r))
    names = sorted({re.split(r"[^\w.-]", r)[0] for r in requirements})
    packages = (f"{d.name} {d.version}" for name in names for d in distributions(name=name))
    machine = (platform.machine(), platform.node(), str(usable_cores()), platform.python_version())
    text = Path(recorder.__file__).read_text(encoding="utf-8")
    return hashlib.sha256("\n".join((text, *machine, *packages)).encode()).hexdigest()


class Child:
    """A process that compiles with the source of one commit; a context that ends it."""

    def __init__(self, root: Path, title: str, scratch: Path) -> None:
        self.title = title
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the context
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_LEFT_OUT)}
        own = {
            "TILEWRIGHT_CACHE_DIR": str(scratch / "cache"),
            "TILEWRIGHT_CALIBRATION_DIR": str(scratch / "calibration"),
            "PYTHONHASHSEED": "0",
        }
        # -P: the folder of the script holds modules of ours, which are not to be found by their bare names.
        self._process = subprocess.Popen(
            [sys.executable, "-P", recorder.__file__, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            cwd=root,
            env=environment | own,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; raises WorkError with the last line that a process said that ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._complaints.seek(0)
            said = self._complaints.read().decode(errors="replace").strip().splitlines()
            raise WorkError(f"the compiler of {self.title} ended: {said[-1] if said else 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._complaints.close()


@dataclass(frozen=True)
class Recording:
    """The files of the records of one source, by case."""

    source: CommitSource
    files: dict[ReplayCase, Path]

    def missing(self) -> list[ReplayCase]:
        """Cases whose record is not there or cannot be read."""
        return [case for case, file in self.files.items() if not _readable(file)]

    def record(self, case: ReplayCase) -> dict[str, Any]:
        """The record of a case."""
        return recorder.read(str(self.files[case]))


def recording(
    source: CommitSource, cases: Sequence[ReplayCase], networks: Networks, cache: Path, scratch: Path
) -> Recording:
    """The records of a source: of a commit in `cache`, of a changed working tree in `scratch`."""
    environment = environment_digest()
    files: dict[ReplayCase, Path] = {}
    for network, group in groupby(cases, key=lambda case: case.network):
        key = hashlib.sha256(f"{source.code} {environment} {networks.digest(network)}".encode()).hexdigest()
        folder = cache / key[:32] if source.code else scratch / "records"
        folder.mkdir(parents=True, exist_ok=True)
        files |= {case: folder / case.file_name for case in group}
    return Recording(source, files)


def record_all(
    wanted: Recording,
    root: Path,
    networks: Networks,
    scratch: Path,
    jobs: int,
    done: Callable[[], None],
) -> None:
    """Compile what is missing, each network by one of `jobs` processes.

    Raises WorkError where a process ends before its work.
    """
    groups = [list(g) for _, g in groupby(wanted.missing(), key=lambda case: case.network)]

    def compile_group(cases: list[ReplayCase]) -> None:
        with Child(root, wanted.source.title, scratch) as child:
            for case in cases:
                child.ask(networks.request(case, str(wanted.files[case])))
                done()

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(compile_group, groups):
            pass


def _readable(file: Path) -> bool:
    try:
        recorder.read(str(file))
    except (OSError, EOFError, ValueError):
        return False
    return True
