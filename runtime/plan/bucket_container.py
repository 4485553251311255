"""Saved executables with a plan for each of several shapes: one container, every weight stored once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.arrays import check_constants
from tilewright.runtime.plan.container import (
    CONTAINER_VERSION,
    WEIGHT_NAMES_FILE,
    WEIGHTS_FILE,
    SavedExecutable,
    check_target,
    decode,
    opened_archive,
    plan_members,
    read_archive,
    read_plan,
    read_single,
    require_members,
    write_archive,
)
from tilewright.runtime.plan.tensor_file import read_tensors, write_tensors
from tilewright.runtime.shared_memory import content_key
from tilewright.runtime.strict_json import Fields, load_strict_json

BUCKETS_VERSION = 2


@dataclass(frozen=True)
class SavedBuckets:
    """What such a container holds: an executable for each of several input shapes of one network.

    Equal constants of different buckets are one array after reading. `facts` is JSON data about all of them.
    """

    buckets: tuple[SavedExecutable, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def write_buckets(path: str | os.PathLike[str], saved: SavedBuckets) -> None:
    """Write `saved` to `path`, replacing it at once and only when complete.

    The bytes depend on the content alone. Raises `InputError` for a bad plan, constant or path.
    """
    if not saved.buckets:
        raise InputError("expected at least one bucket to save")
    members: dict[str, bytes] = {}
    weights: dict[str, Array] = {}
    ids: dict[tuple[bytes, str, tuple[int, ...]], str] = {}
    for index, bucket in enumerate(saved.buckets):
        names = {}
        for name, array in check_constants(bucket.plan, bucket.constants).items():
            key = (content_key(array), array.dtype.name, array.shape)
            names[name] = ids.setdefault(key, f"w{len(ids)}")
            weights.setdefault(names[name], array)
        inner = {**plan_members(bucket), WEIGHT_NAMES_FILE: json.dumps(names, indent=1).encode()}
        members |= {f"buckets/{index}/{name}": data for name, data in inner.items()}
    members[WEIGHTS_FILE] = write_tensors(weights)
    manifest = {
        "container_version": BUCKETS_VERSION,
        "target": saved.buckets[0].plan.target,
        "facts": dict(saved.facts),
        "buckets": [dict(bucket.facts) for bucket in saved.buckets],
    }
    write_archive(path, manifest, members)


def read_saved(path: str | os.PathLike[str]) -> SavedExecutable | SavedBuckets:
    """Read and check a container of either kind; what is wrong is one `InputError` naming the file."""
    with opened_archive(path) as archive:
        manifest, members = read_archive(archive)
        version = manifest.integer("container_version")
        if version not in (CONTAINER_VERSION, BUCKETS_VERSION):
            raise InputError(
                f"expected container version {CONTAINER_VERSION} or {BUCKETS_VERSION}, got {version}"
            )
        if version == CONTAINER_VERSION:
            return read_single(manifest, members)
        return _read_buckets(manifest, members)


def _read_buckets(manifest: Fields, members: Mapping[str, bytes]) -> SavedBuckets:
    all_facts = _list_of_facts(manifest)
    require_members(members, WEIGHTS_FILE)
    parts: list[dict[str, bytes]] = [{} for _ in all_facts]
    for name, data in members.items():
        if name == WEIGHTS_FILE:
            continue
        folder, number, inner = ("", "", "") if name.count("/") < 2 else name.split("/", 2)
        if folder != "buckets" or int(number) >= len(parts):
            raise InputError(f"member {name!r} belongs to none of the {len(parts)} buckets")
        parts[int(number)][inner] = data
    weights = read_tensors(members[WEIGHTS_FILE])
    unused = set(weights)
    buckets = []
    for index, (part, facts) in enumerate(zip(parts, all_facts, strict=True)):
        try:
            buckets.append(_read_bucket(manifest, part, weights, facts, unused))
        except InputError as error:
            raise InputError(f"bucket {index}: {error}") from None
    if unused:
        raise InputError(f"weight {min(unused)!r:.100} belongs to no bucket")
    return SavedBuckets(tuple(buckets), manifest.mapping("facts"))


def _list_of_facts(manifest: Fields) -> Sequence[dict[str, Any]]:
    facts = manifest.data.get("buckets")
    if not isinstance(facts, list) or not facts or not all(isinstance(f, dict) for f in facts):
        raise InputError("manifest.json: expected 'buckets' to be a list of objects, at least one")
    return facts


def _read_bucket(
    manifest: Fields,
    members: Mapping[str, bytes],
    weights: Mapping[str, Array],
    facts: Mapping[str, Any],
    unused: set[str],
) -> SavedExecutable:
    require_members(members, "plan.json", WEIGHT_NAMES_FILE)
    plan, texts = read_plan(members)
    check_target(manifest, plan)
    names = load_strict_json(decode(WEIGHT_NAMES_FILE, members[WEIGHT_NAMES_FILE]), WEIGHT_NAMES_FILE)
    if not isinstance(names, dict):
        raise InputError(f"{WEIGHT_NAMES_FILE}: expected an object, got {type(names).__name__}")
    constants = {}
    for name, number in names.items():
        if not isinstance(number, str) or number not in weights:
            raise InputError(f"{WEIGHT_NAMES_FILE}: there is no weight {number!r:.100}")
        constants[name] = weights[number]
        unused.discard(number)
    return SavedExecutable(plan, check_constants(plan, constants), texts, facts)
