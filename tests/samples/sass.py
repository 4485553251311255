"""The machine code of kernels and what must not stand in the loops that multiply on tensor cores.

Needs nvdisasm, which the wheel `nvidia-cuda-nvdisasm` brings (5 MB, any machine).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tilewright.codegen.builders.nvrtc import SERIALISED, CudaBinary

#: instructions of warpgroups' multiplications: 16-bit and TF32, 8-bit floats, integers
MULTIPLIES = re.compile(r"\b[HQI]GMMA\b")
#: what costs hundreds of cycles each time: fences of the device, waits for their errors, flushes of the L1
#: cache, and registers that did not suffice
FENCES = re.compile(r"\bMEMBAR\.[A-Z.]*GPU|\bERRBAR\b|\bCGAERRBAR\b|\bCCTL\.IVALL\b")
SPILLS = re.compile(r"\b(?:LDL|STL)\b")
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
    """The instructions of a kernel in order, and its loops as sets of their numbers."""

    instructions: tuple[str, ...]
    loops: tuple[frozenset[int], ...]

    @property
    def multiplying(self) -> list[frozenset[int]]:
        """The innermost of the loops that multiply."""
        able = [loop for loop in self.loops if any(MULTIPLIES.search(self.instructions[i]) for i in loop)]
        return [a for a in able if not any(b < a for b in able)]

    def count(self, pattern: re.Pattern[str], within: Iterable[int] | None = None) -> int:
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
    """The instructions of a listing and its natural loops.

    A branch backwards closes a loop only where every way to it leads through its target: what is moved behind
    the end, such as waits that are seldom long, jumps back into the middle of loops.
    """
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.search(line):
            instructions.append(found[2])
    after = [_after(i, code, labels, len(instructions)) for i, code in enumerate(instructions)]
    before: list[list[int]] = [[] for _ in instructions]
    for i, targets in enumerate(after):
        for j in targets:
            before[j].append(i)
    ends: dict[int, set[int]] = {}
    for i, targets in enumerate(after):
        for j in targets:
            if j <= i and not _reaches(0, i, after, without=j):
                ends.setdefault(j, set()).add(i)
    return MachineCode(tuple(instructions), tuple(_natural(j, found, before) for j, found in ends.items()))


def _after(i: int, code: str, labels: dict[str, int], count: int) -> list[int]:
    """The instructions that may follow one."""
    branch = _BRANCH.search(code)
    target = labels.get(branch[1]) if branch else None
    always = not code.startswith("@") and (branch is not None or re.match(r"EXIT\b|BRA\b", code) is not None)
    following = [] if always or i + 1 == count else [i + 1]
    return following + ([target] if target is not None and target < count else [])


def _reaches(start: int, end: int, after: list[list[int]], *, without: int) -> bool:
    """Whether some way leads from one instruction to another and not through a third."""
    seen, todo = {start}, [start] if start != without else []
    while todo:
        i = todo.pop()
        if i == end:
            return True
        fresh = [j for j in after[i] if j != without and j not in seen]
        seen.update(fresh)
        todo += fresh
    return False


def _natural(head: int, ends: set[int], before: list[list[int]]) -> frozenset[int]:
    """What leads to the ends of a loop without its head, and the head."""
    loop, todo = {head}, [i for i in ends if i != head]
    while todo:
        i = todo.pop()
        if i not in loop:
            loop.add(i)
            todo += before[i]
    return frozenset(loop)


def faults(code: MachineCode, log: str = "", *, multiplications: int | None = None) -> list[str]:
    """What is wrong with a kernel that multiplies; `multiplications`: how many one turn of its loop takes."""
    found = [m[0] for m in SERIALISED.finditer(log)]
    if not code.multiplying:
        return [*found, "no loop multiplies"] if multiplications is not None else found
    for loop in code.multiplying:
        inside = [code.instructions[i] for i in sorted(loop)]
        found += [f"a loop that multiplies has {i}" for i in inside if FENCES.search(i) or SPILLS.search(i)]
        count = code.count(MULTIPLIES, loop)
        if multiplications is not None and count % multiplications:
            found.append(f"a loop has {count} multiplications, planned are {multiplications}")
    return found
