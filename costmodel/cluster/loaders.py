"""Loads clusters, models and trainings from TOML: a file of the user or a shipped record by name."""

from __future__ import annotations

from pathlib import Path

from tilewright.costmodel.cluster.machine import ELEMENT_BYTES, Cluster, Device, Storage
from tilewright.costmodel.cluster.model import Transformer
from tilewright.costmodel.cluster.reading import Fields, read_fields
from tilewright.costmodel.cluster.training import GRADIENTS, PHASES, SCHEDULES, SHARDINGS, Training
from tilewright.costmodel.links import Link
from tilewright.ir.errors import InputError

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
        max_wp=fields.whole("max_wp", 0, least=0),
        max_p=fields.whole("max_p", 0, least=0),
    )
    fields.finish()
    return training


def _device(fields: Fields) -> Device:
    device = Device(
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
