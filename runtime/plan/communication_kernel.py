"""One communication as a plan stores it: kind, members, messages and sizes, as JSON.

A launch of it takes the operands, then the results; all buffers are dense and of one element type.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import InputError
from tilewright.runtime.strict_json import load_strict_json, read_dataclass

Kind = Literal["exchange", "all_gather", "all_reduce", "reduce_scatter"]
Reduction = Literal["sum", "max"]
KINDS: tuple[str, ...] = get_args(Kind)
REDUCTIONS: tuple[str, ...] = get_args(Reduction)
#: ranks of one world
MAX_RANKS = 65_536
#: largest tag that every MPI takes (UCX keeps 23 bits for it)
MAX_TAG = (1 << 23) - 1
MAX_ELEMENTS = 1 << 46
#: buffers of one exchange
MAX_BUFFERS = 1_000


@dataclass(frozen=True)
class Message:
    """One message of an exchange: the global rank at the other end, a tag, the operand or result it fills."""

    peer: int
    tag: int
    buffer: int


@dataclass(frozen=True)
class CommunicationKernel:
    """One communication of one rank. `operands` and `results` are numbers of elements per buffer.

    exchange: all `sends` and `receives` are posted at once; every operand is sent at least once, every result
        received once. Messages between the same ranks with the same tag arrive in the order of the plan.
    all_gather: one operand, this member's piece; one result, the members' pieces one after another, of
        `counts` elements (0 is allowed).
    all_reduce: one operand and one result of as many elements, the elementwise `reduction` over the members,
        in their order, the same bits on all of them; 16-bit floats are summed in float32.
    reduce_scatter: one operand, `counts` elements per member one after another; one result, this member's
        part of the elementwise sum over the members.

    members: global ranks of a collective, in the same order on all of them; `position` is this rank's place
    among them. An exchange has none.
    """

    kind: Kind
    dtype: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()
    members: tuple[int, ...] = ()
    position: int = 0
    counts: tuple[int, ...] = ()
    reduction: Reduction = "sum"

    @property
    def rank(self) -> int | None:
        """The global rank that this is for, where the kernel tells it."""
        return self.members[self.position] if self.members else None

    @property
    def peers(self) -> tuple[int, ...]:
        """The other global ranks it needs, ascending."""
        own = self.rank
        ranks = {m.peer for m in (*self.sends, *self.receives)} | {m for m in self.members if m != own}
        return tuple(sorted(ranks))

    @property
    def writes(self) -> tuple[int, ...]:
        """Positions of the arguments of a launch that are written."""
        return tuple(range(len(self.operands), len(self.operands) + len(self.results)))

    @property
    def bytes_moved(self) -> int:
        """Bytes that this rank sends and receives, whichever is more, as few as any algorithm needs."""
        size = DTYPES[self.dtype].itemsize
        if self.kind == "exchange":
            sent = sum(self.operands[m.buffer] for m in self.sends)
            return size * max(sent, sum(self.results))
        own = self.counts[self.position] if self.counts else 0
        if self.kind == "all_gather":
            return size * max(own, sum(self.counts) - own)
        if self.kind == "reduce_scatter":
            return size * max(sum(self.counts) - own, own * (len(self.members) - 1))
        return 2 * size * self.operands[0] * (len(self.members) - 1) // len(self.members)

    def describe(self) -> str:
        """Kind and peers in words, for messages."""
        if self.kind != "exchange":
            return f"{self.kind} among ranks {_listed(self.members)}"
        to = _listed(dict.fromkeys(m.peer for m in self.sends))
        source = _listed(dict.fromkeys(m.peer for m in self.receives))
        parts = [f"to {to}"] * bool(to) + [f"from {source}"] * bool(source)
        return f"exchange {' and '.join(parts)}"

    def to_json(self) -> str:
        """One line, the same for equal kernels."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> CommunicationKernel:
        """Read and check what `to_json` wrote; raises `InputError` for anything else."""
        where = "the communication kernel"
        kernel = read_dataclass(CommunicationKernel, load_strict_json(text, where), where)
        kernel.check()
        return kernel

    def check(self) -> None:
        """Raise `InputError` with the first fault where the fields do not fit together."""
        for fault in _faults(self):
            raise InputError(f"a communication of kind {self.kind!r:.40}: {fault}")


def _listed(ranks: Any) -> str:
    return ", ".join(map(str, ranks))


def _faults(k: CommunicationKernel) -> list[str]:
    if k.kind not in KINDS:
        return [f"expected a kind among {', '.join(KINDS)}"]
    if k.dtype not in DTYPES:
        return [f"unknown element type {k.dtype!r:.40}"]
    if k.reduction not in REDUCTIONS:
        return [f"expected a reduction among {', '.join(REDUCTIONS)}, got {k.reduction!r:.40}"]
    sizes = (*k.operands, *k.results, *k.counts)
    if any(type(n) is not int or not 0 <= n <= MAX_ELEMENTS for n in sizes):
        return [f"expected numbers of elements in 0..{MAX_ELEMENTS}, got {sizes!r:.200}"]
    if len(k.operands) + len(k.results) > MAX_BUFFERS:
        return [f"expected at most {MAX_BUFFERS} buffers"]
    return _exchange_faults(k) if k.kind == "exchange" else _collective_faults(k)


def _exchange_faults(k: CommunicationKernel) -> list[str]:
    faults = ["an exchange has no members, position or counts"] * bool(k.members or k.position or k.counts)
    if not k.sends and not k.receives:
        faults.append("expected a message")
    for what, messages, buffers in (("send", k.sends, k.operands), ("receive", k.receives, k.results)):
        for m in messages:
            if not 0 <= m.peer < MAX_RANKS or not 0 <= m.tag <= MAX_TAG or not 0 <= m.buffer < len(buffers):
                faults.append(
                    f"expected a rank below {MAX_RANKS}, a tag up to {MAX_TAG} and a buffer of "
                    f"{len(buffers)} to {what}, got {m}"
                )
        if {m.buffer for m in messages} != set(range(len(buffers))):
            faults.append(f"expected every buffer of {len(buffers)} to be part of a {what}")
    if len(k.receives) != len(k.results):
        faults.append("a result is received twice")
    return faults


def _collective_faults(k: CommunicationKernel) -> list[str]:
    faults = ["a collective has no sends and receives"] * bool(k.sends or k.receives)
    if len(set(k.members)) != len(k.members) or not all(0 <= m < MAX_RANKS for m in k.members):
        faults.append(f"expected distinct ranks below {MAX_RANKS} as members, got {k.members!r:.100}")
    if not 0 <= k.position < len(k.members):
        return [*faults, f"expected a position among {len(k.members)} members, got {k.position}"]
    if k.kind == "all_reduce":
        if k.counts or len(k.operands) != 1 or k.operands != k.results:
            faults.append("expected one operand, a result of as many elements, and no counts")
    elif len(k.counts) != len(k.members):
        return [*faults, f"expected a count per member ({len(k.members)}), got {len(k.counts)}"]
    else:
        part, whole = (k.counts[k.position],), (sum(k.counts),)
        expected = (part, whole) if k.kind == "all_gather" else (whole, part)
        if (k.operands, k.results) != expected:
            faults.append(f"expected operands and results of {expected}, got {(k.operands, k.results)}")
    if k.dtype == "bool" and k.kind != "all_gather" and (k.kind, k.reduction) != ("all_reduce", "max"):
        faults.append("expected numbers to add, got bool")
    if k.kind != "all_reduce" and k.reduction != "sum":
        faults.append(f"expected the reduction sum, got {k.reduction!r}")
    return faults
