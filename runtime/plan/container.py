"""One-file saved executables: a zip of a manifest, plans, kernels, weights and IR texts, all hashed.

A file holds one plan, or one for each of several input shapes ("buckets") with every weight stored once.
Reading trusts nothing and runs nothing from the file: sizes, names, hashes and headers are checked first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.runtime.atomic_file import atomic_file
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.arrays import check_constants
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json
from tilewright.runtime.plan.tensor_file import read_tensors, write_tensors
from tilewright.runtime.shared_memory import content_key
from tilewright.runtime.strict_json import JsonFields, load_strict_json

CONTAINER_VERSION, BUCKETS_VERSION = 1, 2
PLAN_FILE, WEIGHTS_FILE = "plan.json", "weights.safetensors"
WEIGHT_NAMES_FILE = "weights.json"
MAX_MEMBERS = 50_000
MAX_TEXT_BYTES = 32 << 20
MAX_ALL_TEXT_BYTES = 256 << 20
MAX_RATIO = 200  # deflate reaches about 1000 on a bomb; kernel and IR text stays below 60
SOURCE_SUFFIX = {"cuda": ".cu", "opencl": ".cl", "library": ".json", "communication": ".json"}
_MANIFEST_KEYS = ("container_version", "target", "facts", "sha256")
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class SavedExecutable:
    """The content of a file with one plan: plan, sources, binaries, constants, IR texts, free-form facts.

    `texts` maps names to IR texts (`graph`, `tensor`, ...); `facts` is JSON data (compiler version, options).
    """

    plan: ExecutionPlan
    constants: Mapping[str, Array] = field(repr=False)
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)


def write_container(path: str | os.PathLike[str], saved: SavedExecutable) -> None:
    """Write `saved` to `path`, replacing it at once and only when complete.

    The bytes depend on the content alone. Raises `InputError` for a bad plan, constant or path.
    """
    members = _plan_members(saved)
    members[WEIGHTS_FILE] = write_tensors(check_constants(saved.plan, saved.constants))
    manifest = {
        "container_version": CONTAINER_VERSION,
        "target": saved.plan.target,
        "facts": dict(saved.facts),
    }
    _write_archive(path, manifest, members)


def _plan_members(saved: SavedExecutable) -> dict[str, bytes]:
    """The members that hold the plan, its kernels and the IR texts; all but the weights."""
    validate(saved.plan)
    members = {PLAN_FILE: plan_to_json(saved.plan, sources=False).encode()}
    for kernel in saved.plan.kernels:
        members[f"kernels/{kernel.name}{SOURCE_SUFFIX[kernel.language]}"] = kernel.source.encode()
        if kernel.binary is not None:
            members[f"kernels/{kernel.name}.cubin"] = kernel.binary
    for name, text in saved.texts.items():
        members[_text_file(name)] = text.encode()
    return members


def _write_archive(
    path: str | os.PathLike[str], manifest: Mapping[str, Any], members: Mapping[str, bytes]
) -> None:
    """Write members behind a manifest that also holds their hashes; replaces the file when complete."""
    manifest = {
        **manifest,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    with _written(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        _add(archive, "manifest.json", json.dumps(manifest, indent=1).encode())
        for name, data in members.items():
            _add(archive, name, data)


@contextmanager
def _opened_archive(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """The archive of a container; whatever is wrong inside is one `InputError` naming the file."""
    try:
        # Opening a pipe would wait for a writer, and a device may have no end.
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            raise InputError("expected a saved executable, got no regular file")
        with zipfile.ZipFile(path) as archive:
            yield archive
    except InputError as error:
        raise InputError(f"{os.fspath(path)}: {error}") from None
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError) as error:
        raise InputError(
            f"{os.fspath(path)}: expected a saved executable, got a damaged or other file ({error})"
        ) from None
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be read ({error.strerror or error})") from None


def _text_file(name: str) -> str:
    path = f"ir/{name}.ir"
    if not _TEXT_FILE.fullmatch(path):
        raise InputError(f"expected an IR text's name of letters, digits, - and _, got {name!r:.100}")
    return path


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _FIXED_DATE)
    # Weights and CUBINs hardly shrink; text does.
    compressible = name.endswith((".json", ".cu", ".cl", ".ir"))
    info.compress_type = zipfile.ZIP_DEFLATED if compressible else zipfile.ZIP_STORED
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    # A repetitive text would deflate beyond what the reader takes for a bomb.
    if compressible and len(zlib.compress(data)) * MAX_RATIO < len(data):
        info.compress_type = zipfile.ZIP_STORED
    archive.writestr(info, data)


@contextmanager
def _written(path: Path) -> Iterator[Any]:
    """An atomic file; InputError where it cannot be written."""
    try:
        with atomic_file(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def _read_archive(archive: zipfile.ZipFile) -> tuple[JsonFields, dict[str, bytes]]:
    """The manifest and all members but it, sizes, names and hashes checked; raises `InputError`."""
    _check_members(archive)
    if "manifest.json" not in archive.namelist():
        raise InputError("expected a saved executable, but there is no manifest.json in it")
    text = _decode("manifest.json", _read_bounded(archive, "manifest.json"))
    manifest = JsonFields(
        load_strict_json(text, "manifest.json"), "manifest.json", _MANIFEST_KEYS, optional=("buckets",)
    )
    hashes = manifest.mapping("sha256")
    names = {info.filename for info in archive.infolist()} - {"manifest.json"}
    if names != set(hashes):
        odd = sorted(names ^ set(hashes))[0]
        raise InputError(f"member {odd!r:.100} is not both in the archive and in the manifest")
    return manifest, {name: _read_checked(archive, name, hashes[name]) for name in sorted(names)}


def _read_single(manifest: JsonFields, members: Mapping[str, bytes]) -> SavedExecutable:
    """The executable of a container that holds one plan; raises `InputError`."""
    if "buckets" in manifest.data:
        raise InputError(
            f"expected a file of container version {CONTAINER_VERSION} with one plan, got buckets"
        )
    for name in members:
        if name.startswith("buckets/"):
            raise InputError(f"member {name!r} is no part of a saved executable with one plan")
    _require_members(members, PLAN_FILE, WEIGHTS_FILE)
    plan, texts = _read_plan(members)
    _check_target(manifest, plan)
    constants = check_constants(plan, read_tensors(members[WEIGHTS_FILE]))
    return SavedExecutable(plan, constants, texts, manifest.mapping("facts"))


def _require_members(members: Mapping[str, bytes], *names: str) -> None:
    """Raise `InputError` for a member that is missing."""
    for name in names:
        if name not in members:
            raise InputError(f"member {name!r} is missing")


def _check_target(manifest: JsonFields, plan: ExecutionPlan) -> None:
    """Raise `InputError` where the manifest names another target than the plan."""
    if manifest.text("target") != plan.target:
        raise InputError(f"the manifest's target is not that of the plan, {plan.target!r}")


def _check_members(archive: zipfile.ZipFile) -> None:
    """Refuse odd names, encryption and sizes out of proportion before anything is unpacked."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise InputError(f"expected at most {MAX_MEMBERS} members, got {len(infos)}")
    if len({info.filename for info in infos}) < len(infos):
        raise InputError("a member occurs twice")
    for info in infos:
        _check_member(info)
    archive_bytes = os.fstat(archive.fp.fileno()).st_size if archive.fp else 0
    if sum(info.compress_size for info in infos) > archive_bytes:
        raise InputError("members overlap: they claim more bytes than the file has")
    if sum(info.file_size for info in infos if not _is_binary(info.filename)) > MAX_ALL_TEXT_BYTES:
        raise InputError(f"the members claim more than {MAX_ALL_TEXT_BYTES} bytes of text")


def _check_member(info: zipfile.ZipInfo) -> None:
    name = info.filename
    if not _is_our_name(name):
        raise InputError(f"member {name!r:.100} is no part of a saved executable")
    if info.flag_bits & 1:
        raise InputError(f"member {name!r} is encrypted")
    if info.compress_type == zipfile.ZIP_STORED:
        if info.file_size != info.compress_size:
            raise InputError(f"member {name!r} is stored, but claims two sizes")
    elif info.compress_type != zipfile.ZIP_DEFLATED or _is_binary(name):
        raise InputError(f"member {name!r} is compressed in an unexpected way")
    if not _is_binary(name) and info.file_size > MAX_TEXT_BYTES:
        raise InputError(f"member {name!r} claims {info.file_size} bytes of text")
    if info.file_size > max(1, info.compress_size) * MAX_RATIO:
        raise InputError(f"member {name!r} claims to unpack to {info.file_size} bytes")


def _is_binary(name: str) -> bool:
    return name.endswith((".safetensors", ".cubin"))


_KERNEL_FILE = re.compile(r"kernels/([A-Za-z0-9_][A-Za-z0-9_.-]{0,199})\.(cu|cl|json|cubin)")
_TEXT_FILE = re.compile(r"ir/([A-Za-z0-9_-]{1,100})\.ir")


_BUCKET_FILE = re.compile(r"buckets/(?:0|[1-9][0-9]{0,3})/(.*)")


def _is_our_name(name: str) -> bool:
    if name in ("manifest.json", WEIGHTS_FILE):
        return True
    bucket = _BUCKET_FILE.fullmatch(name)
    fixed = (PLAN_FILE, WEIGHT_NAMES_FILE) if bucket else (PLAN_FILE,)
    inner = bucket[1] if bucket else name
    return inner in fixed or bool(_KERNEL_FILE.fullmatch(inner) or _TEXT_FILE.fullmatch(inner))


def _read_checked(archive: zipfile.ZipFile, name: str, expected: object) -> bytes:
    data = _read_bounded(archive, name)
    if hashlib.sha256(data).hexdigest() != expected:
        raise InputError(f"member {name!r} does not have the hash the manifest states")
    return data


def _read_bounded(archive: zipfile.ZipFile, name: str) -> bytes:
    claimed = archive.getinfo(name).file_size
    with archive.open(name) as member:
        data = member.read(claimed + 1)
    if len(data) != claimed:
        raise InputError(f"member {name!r} has not the {claimed} bytes it claims")
    return data


def _decode(name: str, data: bytes) -> str:
    """The text of a member; raises `InputError` where it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"member {name!r} is not UTF-8 text") from None


def _read_plan(members: Mapping[str, bytes]) -> tuple[ExecutionPlan, dict[str, str]]:
    """The plan with its sources and binaries, and the IR texts; raises `InputError`."""
    sources: dict[str, str] = {}
    binaries: dict[str, bytes] = {}
    for name, data in members.items():
        match = _KERNEL_FILE.fullmatch(name)
        if match is None:
            continue
        kernel, suffix = match.groups()
        if suffix == "cubin":
            binaries[kernel] = data
        elif kernel in sources:
            raise InputError(f"kernel {kernel!r} has two sources")
        else:
            sources[kernel] = _decode(name, data)
    plan = plan_from_json(_decode(PLAN_FILE, members[PLAN_FILE]), sources=sources, binaries=binaries)
    stray = sorted((sources.keys() | binaries.keys()) - plan.kernel_by_name.keys())
    if stray:
        raise InputError(f"the plan has no kernel {stray[0]!r}")
    texts = {
        match[1]: _decode(name, data)
        for name, data in members.items()
        if (match := _TEXT_FILE.fullmatch(name))
    }
    return plan, texts


@dataclass(frozen=True)
class SavedBuckets:
    """The content of a file with several plans: an executable for each of several shapes of one network.

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
        inner = {**_plan_members(bucket), WEIGHT_NAMES_FILE: json.dumps(names, indent=1).encode()}
        members |= {f"buckets/{index}/{name}": data for name, data in inner.items()}
    members[WEIGHTS_FILE] = write_tensors(weights)
    manifest = {
        "container_version": BUCKETS_VERSION,
        "target": saved.buckets[0].plan.target,
        "facts": dict(saved.facts),
        "buckets": [dict(bucket.facts) for bucket in saved.buckets],
    }
    _write_archive(path, manifest, members)


def read_saved(path: str | os.PathLike[str]) -> SavedExecutable | SavedBuckets:
    """Read and check a container of either kind; what is wrong is one `InputError` naming the file."""
    with _opened_archive(path) as archive:
        manifest, members = _read_archive(archive)
        version = manifest.integer("container_version")
        if version not in (CONTAINER_VERSION, BUCKETS_VERSION):
            raise InputError(
                f"expected container version {CONTAINER_VERSION} or {BUCKETS_VERSION}, got {version}"
            )
        if version == CONTAINER_VERSION:
            return _read_single(manifest, members)
        return _read_buckets(manifest, members)


def _read_buckets(manifest: JsonFields, members: Mapping[str, bytes]) -> SavedBuckets:
    all_facts = _list_of_facts(manifest)
    _require_members(members, WEIGHTS_FILE)
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


def _list_of_facts(manifest: JsonFields) -> Sequence[dict[str, Any]]:
    facts = manifest.data.get("buckets")
    if not isinstance(facts, list) or not facts or not all(isinstance(f, dict) for f in facts):
        raise InputError("manifest.json: expected 'buckets' to be a list of objects, at least one")
    return facts


def _read_bucket(
    manifest: JsonFields,
    members: Mapping[str, bytes],
    weights: Mapping[str, Array],
    facts: Mapping[str, Any],
    unused: set[str],
) -> SavedExecutable:
    _require_members(members, "plan.json", WEIGHT_NAMES_FILE)
    plan, texts = _read_plan(members)
    _check_target(manifest, plan)
    names = load_strict_json(_decode(WEIGHT_NAMES_FILE, members[WEIGHT_NAMES_FILE]), WEIGHT_NAMES_FILE)
    if not isinstance(names, dict):
        raise InputError(f"{WEIGHT_NAMES_FILE}: expected an object, got {type(names).__name__}")
    constants = {}
    for name, number in names.items():
        if not isinstance(number, str) or number not in weights:
            raise InputError(f"{WEIGHT_NAMES_FILE}: there is no weight {number!r:.100}")
        constants[name] = weights[number]
        unused.discard(number)
    return SavedExecutable(plan, check_constants(plan, constants), texts, facts)
