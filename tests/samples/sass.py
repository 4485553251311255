"""The machine code of kernels and what must not stand in the loops that multiply on tensor cores.

Needs nvdisasm, which the wheel `nvidia-cuda-nvdisasm` brings (5 MB, any machine).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tilewright.codegen.builders.nvrtc import CudaBinary

#: instructions of warpgroups' multiplications: 16-bit and TF32, 8-bit floats, integers
MULTIPLIES = re.compile(r"\b[HQI]GMMA\b")
#: what costs hundreds of cycles each time: fences of the device, waits for their errors, flushes of the L1
#: cache, and registers that did not suffice
FENCES = re.compile(r"\bMEMBAR\.[A-Z.]*GPU|\bERRBAR\b|\bCGAERRBAR\b|\bCCTL\.IVALL\b")
SPILLS = re.compile(r"\b(?:LDL|STL)\b")
#: what ptxas says when it puts a wait behind every multiplication (C7510 to C7515)
SERIALISED = re.compile(r"\(C75\d\d\)[^\n]*instructions are serialized[^\n]*")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_x_\d+):", re.MULTILINE)
_BRANCH = re.compile(r"\bBRA(?:\.\w+)*\s+.*`\((\.L_x_\d+)\)")


@cache
def nvdisasm() -> str | None:
    """Path of nvdisasm; None where it is not installed."""
    spec = find_spec("nvidia")
    places = [Path(p) / "cu13/bin/nvdisasm" for p in (spec.submodule_search_locations or ())] if spec else []
    return next((str(p) for p in places if p.exists()), None) or shutil.which("nvdisasm")


@dataclass(frozen=True)
class MachineCode:
    """The instructions of a kernel in order, and its loops as ranges of them."""

    instructions: tuple[str, ...]
    loops: tuple[range, ...]

    @property
    def multiplying(self) -> list[range]:
        """The innermost of the loops that multiply."""
        able = [loop for loop in self.loops if any(MULTIPLIES.search(self.instructions[i]) for i in loop)]
        return [a for a in able if not any(b != a and set(b) < set(a) for b in able)]

    def count(self, pattern: re.Pattern[str], within: range | None = None) -> int:
        """How many instructions match, of all or of a loop."""
        chosen = range(len(self.instructions)) if within is None else within
        return sum(bool(pattern.search(self.instructions[i])) for i in chosen)


def machine_code(binary: CudaBinary, folder: Path) -> MachineCode:
    """The code of a binary with one kernel."""
    file = folder / "kernel.cubin"
    file.write_bytes(binary.cubin)
    command = [str(nvdisasm()), "-c", "-novliw", str(file)]
    return parsed(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def parsed(text: str) -> MachineCode:
    """The instructions of a listing; a branch backwards closes a loop."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    loops = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.search(line):
            instructions.append(found[2])
            branch = _BRANCH.search(found[2])
            if branch and branch[1] in labels:
                loops.append(range(labels[branch[1]], len(instructions)))
    return MachineCode(tuple(instructions), tuple(loops))


def faults(code: MachineCode, log: str = "", *, multiplications: int | None = None) -> list[str]:
    """What is wrong with a kernel that multiplies; `multiplications`: how many one turn of its loop takes."""
    found = [m[0] for m in SERIALISED.finditer(log)]
    if not code.multiplying:
        return [*found, "no loop multiplies"] if multiplications is not None else found
    for loop in code.multiplying:
        inside = [code.instructions[i] for i in loop]
        found += [f"a loop that multiplies has {i}" for i in inside if FENCES.search(i) or SPILLS.search(i)]
        count = code.count(MULTIPLIES, loop)
        if multiplications is not None and count % multiplications:
            found.append(f"a loop has {count} multiplications, planned are {multiplications}")
    return found
