"""The record that `tilewright explain` prints of one kernel: parameters, bound, its limit, estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tilewright.costmodel.hardware.description import Hardware
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.ir.nodes import Pairs
from tilewright.ir.typed_attributes import AttrRecord

LIMITS = {
    "GM": "compulsory DRAM traffic",
    "L2": "L2 traffic of all blocks",
    "LAT": "serial chain of one block",
    "TQ": "padding of the last tiles",
    "WB": "uneven number of blocks per processor",
    "LANE": "idle lanes of partly filled warps",
    "SMB": "shared-memory bandwidth",
    "ISS": "instruction issue",
    "RATE": "rate of tensor-core instructions",
    "TENSOR": "products of the tensor cores",
    "EXP": "rate of exponentials",
    "PEAK": "arithmetic peak",
    "LAUNCH": "kernel launch",
}
"""The limiting terms of a bound in words."""


@dataclass(frozen=True)
class Explanation:
    """One choice as plain data; `parameters` are (name, value) pairs."""

    device: str
    parameters: tuple[tuple[str, int | str], ...]
    bound_us: float
    peak_fraction: float
    limit: str
    limit_words: str
    estimate_us: float
    candidates_considered: int

    def to_dict(self) -> dict[str, object]:
        """A dictionary that `json.dumps` takes."""
        return {**asdict(self), "parameters": dict(self.parameters)}

    def __str__(self) -> str:
        parameters = " ".join(f"{name}={value}" for name, value in self.parameters)
        return (
            f"{parameters} | bound {self.bound_us:.2f} us ({100 * self.peak_fraction:.1f} % of peak, "
            f"limited by {self.limit}: {self.limit_words}) | estimate {self.estimate_us:.2f} us"
        )


def explain(choice: ParameterChoice[AttrRecord], hardware: Hardware) -> Explanation:
    """The record to print for `choice`; the fraction of peak is that of the bound, 1 at most."""
    return Explanation(
        device=hardware.name,
        parameters=tuple(_flat(choice.parameters.pairs())),
        bound_us=1e6 * choice.bound.seconds,
        peak_fraction=choice.bound.ub,
        limit=choice.bound.limit,
        limit_words=LIMITS[choice.bound.limit],
        estimate_us=1e6 * choice.estimate_s,
        candidates_considered=choice.candidates_considered,
    )


def _flat(pairs: Pairs, prefix: str = "") -> Iterator[tuple[str, int | str]]:
    """The names and values of pairs, those inside others as `block.n`."""
    for name, value in pairs.items:
        if isinstance(value, Pairs):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | str):
            yield prefix + name, value
