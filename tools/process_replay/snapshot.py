"""Commit or working tree -> a folder of its own that Python imports the package `tilewright` from."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.ir import InputError

PROJECT = "pyproject.toml"
PACKAGE = "tilewright"


@dataclass(frozen=True)
class CommitSource:
    """The source to replay: `title` names it for people, `commit` is empty for a changed working tree.

    code: a digest of the folders that the package is made of, the same for commits that differ elsewhere
    only; empty for a changed working tree.
    """

    title: str
    commit: str
    code: str


def git(repository: Path, *arguments: str) -> bytes:
    """The output of git; raises InputError with its complaint."""
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise InputError(f"git {arguments[0]}: {lines[-1] if lines else 'failed'}", where=str(repository))
    return done.stdout


def this_repository() -> Path:
    """The root of the repository that the working folder lies in; raises InputError where there is none."""
    return Path(os.fsdecode(git(Path.cwd(), "rev-parse", "--show-toplevel").strip()))


def resolve(repository: Path, revision: str | None) -> CommitSource:
    """The commit that `revision` names; without one the working tree, or its commit if nothing is changed."""
    if revision is None and git(repository, "status", "--porcelain"):
        return CommitSource("working tree", "", "")
    named = revision or "HEAD"
    try:
        commit = git(repository, "rev-parse", "--verify", "--quiet", f"{named}^{{commit}}").decode().strip()
    except InputError:
        raise InputError(f"expected a commit, got {named!r}", where=str(repository)) from None
    folders = _folders(git(repository, "show", f"{commit}:{PROJECT}").decode(), named)
    trees = git(repository, "rev-parse", *(f"{commit}:{f}" for f in folders.values())).decode().split()
    parts = sorted(f"{package} {tree}" for package, tree in zip(folders, trees, strict=True))
    short = commit[:9] if revision is None or commit.startswith(named) else f"{named} ({commit[:9]})"
    return CommitSource(short, commit, hashlib.sha256("\n".join(parts).encode()).hexdigest())


def import_root(repository: Path, source: CommitSource, into: Path) -> Path:
    """Copy the package of `source` to a folder of `into`; the folder to import it from."""
    return link_package(export(repository, source, into / "tree"), into / "root")


def export(repository: Path, source: CommitSource, tree: Path, more: Sequence[str] = ()) -> Path:
    """Copy pyproject.toml, the package folders that it names, and the folders `more` to the folder `tree`."""
    if source.commit:
        listing = git(repository, "show", f"{source.commit}:{PROJECT}").decode()
    else:
        listing = (repository / PROJECT).read_text(encoding="utf-8")
    paths = (PROJECT, *sorted({*_folders(listing, source.title).values(), *more}))
    if source.commit:
        archive = git(repository, "archive", "--format=tar", source.commit, "--", *paths)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(tree, filter="data")
        return tree
    names = git(repository, "ls-files", "-z", "-co", "--exclude-standard", "--", *paths).decode()
    for name in filter(None, names.split("\0")):
        if (repository / name).is_file():  # a file that is listed may have been removed
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / name, tree / name)
    return tree


def link_package(tree: Path, root: Path) -> Path:
    """Make `root` a folder of links to the folders that pyproject.toml in `tree` maps to packages."""
    root.mkdir()
    _link({p: tree / f for p, f in package_folders(tree).items()}, PACKAGE, root / PACKAGE)
    return root


def package_folders(tree: Path) -> dict[str, str]:
    """Folder by package, as pyproject.toml in `tree` maps them; raises InputError where it does not."""
    return _folders((tree / PROJECT).read_text(encoding="utf-8"), str(tree))


def _folders(project: str, title: str) -> dict[str, str]:
    """Folder by package, as the text of pyproject.toml maps them; raises InputError where it does not."""
    table = tomllib.loads(project).get("tool", {}).get("setuptools", {}).get("package-dir", {})
    if PACKAGE not in table:
        raise InputError(f"expected a folder for {PACKAGE} in [tool.setuptools.package-dir]", where=title)
    return {str(package): str(folder).rstrip("/") for package, folder in table.items()}


def _link(folders: Mapping[str, Path], package: str, at: Path) -> None:
    """Make `at` the folder of `package`: a link, or a folder of links where packages in it lie elsewhere."""
    inner: Sequence[str] = sorted(
        {p[len(package) + 1 :].split(".")[0] for p in folders if p.startswith(f"{package}.")}
    )
    own = folders.get(package)
    if not inner and own is not None:
        at.symlink_to(own, target_is_directory=True)
        return
    at.mkdir()
    for entry in os.listdir(own) if own is not None else ():
        if entry not in inner:
            (at / entry).symlink_to(own / entry)  # type: ignore[operator]  # it was listed
    for name in inner:
        _link(folders, f"{package}.{name}", at / name)
