"""Loads clusters, models and trainings from TOML: a file of the user or a shipped record by name.

Files are read field by field, quantities as people write them ("16 GB/s", "24 GiB", "5 us"); a fault is one
InputError with file and field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.costmodel.cluster.inputs.machine import ELEMENT_BYTES, Cluster, ClusterDevice, Storage
from tilewright.costmodel.cluster.inputs.model import Transformer
from tilewright.costmodel.cluster.inputs.training import GRADIENTS, PHASES, SCHEDULES, SHARDINGS, Training
from tilewright.costmodel.links import Link
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.errors import InputError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(\S.*?)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BYTES = {
    **{f"{prefix}B": factor for prefix, factor in _DECIMAL.items()},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGTP", 1)},
}
#: dimension -> (example, unit -> factor to the base unit)
DIMENSIONS: dict[str, tuple[str, dict[str, float]]] = {
    "bytes": ("24 GiB", _BYTES),
    "bytes_per_s": ("16 GB/s", {f"{unit}/s": factor for unit, factor in _BYTES.items()}),
    "seconds": ("5 us", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}),
    "flops_per_s": ("125 TFLOP/s", {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}),
}


def quantity(value: object, dimension: str, where: str) -> float:
    """`value` in base units of `dimension` (a key of DIMENSIONS): bytes, bytes/s, seconds or FLOP/s.

    Raises InputError at `where` (file and field) for anything that is not a number with such a unit.
    """
    example, units = DIMENSIONS[dimension]
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise InputError(f'expected a quantity such as "{example}", got {value!r:.60}', where=where)
    result = float(match[1]) * units[match[2]]
    if not result < 1e30:
        raise InputError(f"expected less than 1e30 base units, got {value!r:.60}", where=where)
    return result


MAX_FILE_BYTES = 1 << 20
MAX_WHOLE = 10**9
_RECORDS = Path(__file__).parents[1] / "records"
_MISSING: Any = object()


class Fields:
    """One table of a file: each field is taken once by kind; what nobody took is unknown (`finish`)."""

    def __init__(self, table: dict[str, Any], where: str, path: str = "") -> None:
        self._table = table
        self._where = where
        self._path = path
        self._known: list[str] = []

    def place(self, key: str) -> str:
        """File and field, as errors name them."""
        return f"{self._where}: {self._path}{key}"

    def has(self, key: str) -> bool:
        """True when the file gives `key`."""
        return key in self._table

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        value = self._table.get(key, default)
        if value is _MISSING:
            raise InputError("this field is missing", where=self.place(key))
        return value

    def text(self, key: str, default: str = _MISSING) -> str:
        """A non-empty string."""
        value = self._take(key, default)
        if not isinstance(value, str) or not (value.strip() or value == default):
            raise InputError(f"expected a non-empty string, got {value!r:.60}", where=self.place(key))
        return value

    def choice(self, key: str, options: Sequence[str], default: str = _MISSING) -> str:
        """One of `options`."""
        value = self._take(key, default)
        if value not in options:
            raise InputError(
                f"expected one of {', '.join(options)}, got {value!r:.60}", where=self.place(key)
            )
        return str(value)

    def choices(self, key: str, options: Sequence[Any], default: Sequence[Any]) -> tuple[Any, ...]:
        """A list of different members of `options`."""
        values = self._take(key, list(default))
        ok = isinstance(values, list) and values
        if not ok or any(not _member(v, options) for v in values) or len(set(values)) < len(values):
            names = ", ".join(str(o).lower() if isinstance(o, bool) else str(o) for o in options)
            raise InputError(f"expected a list of some of {names}, got {values!r:.60}", where=self.place(key))
        return tuple(values)

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """true or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise InputError(f"expected true or false, got {value!r:.60}", where=self.place(key))
        return value

    def whole(self, key: str, default: int = _MISSING, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self._take(key, default)
        return _whole(value, least, self.place(key))

    def wholes(self, key: str, default: Sequence[int] = _MISSING) -> tuple[int, ...]:
        """A list of different positive whole numbers."""
        values = self._take(key, list(default) if default is not _MISSING else default)
        if not isinstance(values, list) or not values or len(set(map(repr, values))) < len(values):
            raise InputError(
                f"expected a list of different whole numbers, got {values!r:.60}", where=self.place(key)
            )
        return tuple(_whole(value, 1, self.place(key)) for value in values)

    def number(self, key: str, low: float, high: float, default: float = _MISSING) -> float:
        """A number above `low` and at most `high`; `default` may lie outside."""
        value = self._take(key, default)
        if not self.has(key):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
            raise InputError(
                f"expected a number above {low:g} and at most {high:g}, got {value!r:.60}",
                where=self.place(key),
            )
        return float(value)

    def quantity(self, key: str, dimension: str, default: str = _MISSING, zero: bool = False) -> float:
        """A number with a unit of `dimension`, in base units; positive unless `zero`."""
        value = quantity(self._take(key, default), dimension, self.place(key))
        if value == 0 and not zero:
            raise InputError("expected more than 0", where=self.place(key))
        return value

    def quantities(self, key: str, names: Sequence[str], dimension: str) -> dict[str, float]:
        """A table of quantities under some of `names`."""
        inner = self.table(key)
        present = [name for name in names if inner.has(name)]
        values = {name: inner.quantity(name, dimension) for name in present}
        inner.finish()
        if not values:
            raise InputError(f"expected at least one of {', '.join(names)}", where=self.place(key))
        return values

    def table(self, key: str) -> Fields:
        """The fields of the table `key`."""
        value = self._take(key, _MISSING)
        if not isinstance(value, dict):
            raise InputError(f"expected a table [{self._path}{key}]", where=self.place(key))
        return Fields(value, self._where, f"{self._path}{key}.")

    def finish(self) -> None:
        """Raise InputError for the first key that no field has taken."""
        unknown = sorted(set(self._table) - set(self._known))
        if unknown:
            known = ", ".join(self._known)
            raise InputError(f"this key is unknown; known ones: {known}", where=self.place(unknown[0]))


def read_fields(path_or_name: str | Path, kind: str) -> Fields:
    """The fields of a file of `kind` (cluster, model, training): a path, or the name of a shipped record.

    Anything with a folder or the ending .toml is a path. Raises InputError naming the file.
    """
    path = _path_of(path_or_name, kind)
    where = str(path_or_name)
    try:
        table = tomllib.loads(read_bounded(path, MAX_FILE_BYTES, f"{kind} file").decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"expected TOML in UTF-8: {error}", where=where) from error
    fields = Fields(table, where)
    fields.choice("kind", [kind])
    return fields


def record_names(kind: str) -> tuple[str, ...]:
    """Names of the shipped records of `kind`, sorted."""
    return tuple(sorted(path.stem.split("-", 1)[1] for path in _RECORDS.glob(f"{kind}-*.toml")))


def _path_of(path_or_name: str | Path, kind: str) -> Path:
    path = Path(path_or_name)
    if path.suffix == ".toml" or len(path.parts) != 1:
        return path
    names = record_names(kind)
    if str(path_or_name).lower() not in names:
        raise InputError(
            f"expected a {kind} file ending in .toml or one of {', '.join(names)}, got {str(path_or_name)!r}"
        )
    return _RECORDS / f"{kind}-{str(path_or_name).lower()}.toml"


def _whole(value: object, least: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_WHOLE:
        raise InputError(
            f"expected a whole number from {least} to {MAX_WHOLE}, got {value!r:.60}", where=where
        )
    return value


def _member(value: object, options: Sequence[Any]) -> bool:
    return any(type(value) is type(option) and value == option for option in options)


_MAX_DEVICES = 1 << 20


def load_cluster(path_or_name: str | Path) -> Cluster:
    """The cluster in a TOML file, or the shipped one of that name; InputError names file and field."""
    fields = read_fields(path_or_name, "cluster")
    cluster = Cluster(
        name=fields.text("name"),
        nodes=fields.whole("nodes"),
        devices_per_node=fields.whole("devices_per_node"),
        device=_device(fields.table("device")),
        intra=_link(fields.table("intra")),
        inter=_link(fields.table("inter")),
        storage=_storage(fields.table("storage")),
        printed_link=fields.choice("printed_link", ["intra", "inter"], "inter"),
    )
    fields.finish()
    if cluster.devices > _MAX_DEVICES:
        raise InputError(f"expected at most {_MAX_DEVICES} devices in all", where=fields.place("nodes"))
    if cluster.devices_per_node % cluster.storage.devices:
        raise InputError(
            f"expected a divisor of devices_per_node, got {cluster.storage.devices}",
            where=fields.place("storage.devices"),
        )
    return cluster


def load_model(path_or_name: str | Path) -> Transformer:
    """The transformer in a TOML file, or the shipped one of that name; InputError names file and field."""
    fields = read_fields(path_or_name, "model")
    model = Transformer(
        name=fields.text("name"),
        layers=fields.whole("layers"),
        hidden=fields.whole("hidden"),
        heads=fields.whole("heads"),
        sequence=fields.whole("sequence"),
        vocabulary=fields.whole("vocabulary"),
    )
    fields.finish()
    if model.hidden % model.heads:
        raise InputError(f"expected a divisor of hidden = {model.hidden}", where=fields.place("heads"))
    return model


def load_training(path_or_name: str | Path) -> Training:
    """The training in a TOML file, or the shipped one of that name; InputError names file and field."""
    fields = read_fields(path_or_name, "training")
    training = Training(
        name=fields.text("name"),
        batch=fields.whole("batch"),
        micro_batches=fields.wholes("micro_batches", (1,)),
        schedules=fields.choices("schedules", SCHEDULES, ("PR", "AR")),
        recompute=fields.choices("recompute", (True, False), (True,)),
        sharding=fields.choices("sharding", SHARDINGS, (1,)),
        interleave=fields.wholes("interleave", (1,)),
        gradients=fields.choices("gradients", GRADIENTS, ("device",)),
        phase=fields.choice("phase", PHASES, "training"),
        precision=fields.choice("precision", tuple(ELEMENT_BYTES), "fp16"),
        uneven_stages=fields.flag("uneven_stages", False),
        optimizer_moments=fields.whole("optimizer_moments", 2, least=0),
        optimizer_coefficient=fields.number("optimizer_coefficient", 0, 1e6, 4.0),
        printed_flops_per_op=fields.number("printed_flops_per_op", 0, 1e30, 0.0),
        max_dp=fields.whole("max_dp", 0, least=0),
        max_tp=fields.whole("max_wp" if fields.has("max_wp") else "max_tp", 0, least=0),
        max_p=fields.whole("max_p", 0, least=0),
    )
    fields.finish()
    return training


def _device(fields: Fields) -> ClusterDevice:
    device = ClusterDevice(
        name=fields.text("name"),
        memory_bytes=fields.quantity("memory", "bytes"),
        memory_bytes_per_s=fields.quantity("memory_bandwidth", "bytes_per_s"),
        peak_flops_per_s=fields.quantities("peak", tuple(ELEMENT_BYTES), "flops_per_s"),
        efficiency=fields.number("efficiency", 0, 1),
    )
    fields.finish()
    return device


def _link(fields: Fields) -> Link:
    link = Link(
        bytes_per_s=fields.quantity("bandwidth", "bytes_per_s"),
        latency_s=fields.quantity("latency", "seconds", zero=True),
        call_s=fields.quantity("call", "seconds", "0 s", zero=True),
        per=fields.choice("per", ["device", "node"]),
    )
    fields.finish()
    return link


def _storage(fields: Fields) -> Storage:
    storage = Storage(
        read_bytes_per_s=fields.quantity("read", "bytes_per_s"),
        write_bytes_per_s=fields.quantity("write", "bytes_per_s"),
        capacity_bytes=fields.quantity("capacity", "bytes"),
        duplex=fields.choice("duplex", ["half", "full"]),
        devices=fields.whole("devices"),
    )
    fields.finish()
    return storage
