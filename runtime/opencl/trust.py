"""The OpenCL devices that may be used on this machine, and how wide their vectors may be.

An implementation that says so (`Implementation.self_test`) is used only after its known answers came out
right on this machine, in a process of their own; the verdict is kept per device, driver and processor.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import DeviceMissingError
from tilewright.runtime.machine import cache_folder
from tilewright.runtime.opencl import selftest
from tilewright.runtime.opencl.platforms import (
    full_name,
    implementation_of,
    list_opencl_devices,
    matches,
)

#: vectors of OpenCL devices that nobody asked about are 128 bits wide, which every CPU has
LEAST_BITS = 128
MOST_BITS = 512
#: how long all known answers may take where the driver hangs or the machine is busy; what a compiler may take
#: of the processor's time is `selftest.CPU_S`, which does not depend on what else runs
_SELF_TEST_S = 600.0
_MAX_VERDICT_BYTES = 1 << 16


@dataclass(frozen=True)
class Verdict:
    """`bits`: width of the widest vectors that a device computes rightly, 0 where none are; then why.

    `lasting`: whether it holds until driver or processor change; not where the machine was too busy to tell.
    """

    bits: int
    reason: str
    lasting: bool = True


_verdicts: dict[str, Verdict] = {}
_judging = threading.Lock()


def find_device(name: str | None = None) -> tuple[Any, int]:
    """The first device that `name` means, or the preferred one, and the bits of its widest vectors.

    Devices that fail their self-test are passed over. Raises `DeviceMissingError` where none is left, saying
    of each one why it is refused.
    """
    devices = list_opencl_devices()
    refused = []
    for device in devices:
        if matches(device, name or ""):
            verdict = verdict_on(device)
            if verdict.bits:
                return device, verdict.bits
            refused.append(f"{full_name(device)} is refused: {verdict.reason}")
    if refused:
        raise DeviceMissingError("; ".join(refused))
    known = ", ".join(map(full_name, devices)) or "none; pip install 'tilewright[opencl]'"
    labels = f" named like {name!r}" if name else ""
    raise DeviceMissingError(f"expected an OpenCL device{labels}, found: {known}")


def verdict_on(device: Any) -> Verdict:
    """The verdict on a device: whether it may be used, and with vectors of how many bits.

    Runs the self-test where there is no verdict yet on this device, driver and processor; it takes some ten
    seconds, once. The verdict is stored in `$TILEWRIGHT_CACHE_DIR`, else in the user's cache folder.
    """
    made_by = implementation_of(device)
    if made_by is None or not made_by.self_test:
        native = 32 * int(device.native_vector_width_float)
        return Verdict(min(max(native, LEAST_BITS), MOST_BITS), "as the driver says")
    key = _key(device)
    with _judging:
        if key not in _verdicts:
            path = cache_folder() / "opencl-selftest" / f"{key}.json"
            _verdicts[key] = _stored(path) or _stored_anew(path, _judge(device))
        return _verdicts[key]


def _key(device: Any) -> str:
    facts = (device.name, device.version, device.driver_version, device.platform.version, processor())
    source = Path(selftest.__file__).read_text(encoding="utf-8")
    return hashlib.sha256("\0".join((*facts, source)).encode()).hexdigest()


def processor() -> str:
    """The processor's name and features as the system shows them."""
    labels = ("model name", "flags", "Features", "CPU part")
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        return "".join(sorted({line for line in stream if line.startswith(labels)}))
    return platform.processor()


def _stored(path: Path) -> Verdict | None:
    """The verdict in a file; None where there is none, or a damaged one."""
    with suppress(OSError, ValueError, TypeError), open(path, "rb") as stream:
        verdict = Verdict(**json.loads(stream.read(_MAX_VERDICT_BYTES)))
        if isinstance(verdict.bits, int) and isinstance(verdict.reason, str):
            return verdict
    return None


def _stored_anew(path: Path, verdict: Verdict) -> Verdict:
    if not verdict.lasting:
        return verdict
    with suppress(OSError):  # a folder that cannot be written costs the test anew in the next process
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(asdict(verdict), stream)
        os.replace(temporary, path)
    return verdict


def _judge(device: Any) -> Verdict:
    """The widest vectors that come out right."""
    bits, first = MOST_BITS, ""
    while bits >= LEAST_BITS:
        verdict, tried = _test(str(device.name), bits)
        if verdict.bits or not verdict.lasting:
            return verdict
        first = first or verdict.reason
        bits = min(bits, tried) // 2
    return Verdict(0, first)


def _test(name: str, bits: int) -> tuple[Verdict, int]:
    """Test a device with vectors of at most `bits`; the width tried besides."""
    late, complaint = False, ""
    with tempfile.TemporaryDirectory(prefix="tilewright-opencl-") as folder:
        # What a compiler leaves behind when it crashes must not be found by anybody later.
        environment = {**os.environ, "POCL_CACHE_DIR": folder}
        command = [sys.executable, "-m", "tilewright.runtime.opencl.selftest", name, str(bits)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_SELF_TEST_S
            )
            output, ended = done.stdout, how_ended(done.returncode)
            if done.returncode > 0 and not output:
                complaint = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or ended
        except subprocess.TimeoutExpired as stopped:
            output, ended, late = stopped.stdout or b"", f"took more than {_SELF_TEST_S:.0f} s", True
    if complaint:  # Python itself failed, before the device was asked for anything
        return Verdict(0, f"its self-test could not start: {complaint}", lasting=False), bits
    lines = [_facts(line) for line in output.splitlines()]
    tried = next((int(line["bits"]) for line in lines if "bits" in line), bits)
    wrong = [str(line["ends"]) for line in lines if line.get("right") is False]
    begun = next((str(line["begins"]) for line in reversed(lines) if "begins" in line), "its first kernel")
    if wrong:
        return Verdict(0, f"it computes {_spoken(wrong[0])} wrongly on this machine"), tried
    if not any(line.get("finished") for line in lines):
        return Verdict(0, f"its compiler {ended} on {_spoken(begun)} on this machine", not late), tried
    return Verdict(tried, f"known answers came out right with vectors of {tried} bits"), tried


def _facts(line: bytes) -> dict[str, Any]:
    """Return the result in one line of the self-test; a compiler's own output has none."""
    with suppress(ValueError):
        facts = json.loads(line)
        return facts if isinstance(facts, dict) else {}
    return {}


def _spoken(case: str) -> str:
    """`known_exp_float8` as `exp of float8`."""
    _, _, rest = case.partition("known_")
    function, _, kind = rest.rpartition("_")
    return f"{function} of {kind}" if function else case


def how_ended(code: int) -> str:
    """Describe the end of a process by its exit status, as a predicate."""
    if code >= 0:
        return "failed"
    if code == -signal.SIGXCPU:
        return f"took more than {selftest.CPU_S} s of the processor"
    with suppress(ValueError):
        return f"crashed ({signal.Signals(-code).name})"
    return f"crashed (signal {-code})"
