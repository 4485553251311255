"""Files of calibrations: one per device and driver, beside the tuning database."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from pathlib import Path

from tilewright.codegen.builders.cache import cache_key
from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.calibration import (
    MAX_BYTES,
    Calibration,
    calibrated,
    calibration_text,
    read_calibration,
)
from tilewright.ir import InputError, WorkError
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.machine import cache_folder
from tilewright.runtime.atomic_file import atomic_file

FOLDER_VARIABLE = "TILEWRIGHT_CALIBRATION_DIR"
_SUFFIX = ".toml"


def calibration_folder() -> tuple[Path, bool]:
    """`$TILEWRIGHT_CALIBRATION_DIR`, else a folder in the cache folder; and whether it is the latter."""
    named = os.environ.get(FOLDER_VARIABLE)
    return (Path(named), False) if named else (cache_folder() / "calibration", True)


def calibration_path(kind: str, device: str, driver: str) -> Path:
    """The file of a device that targets of `kind` open, with one version of its driver."""
    words = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:60]
    return calibration_folder()[0] / f"{kind}-{words}-{cache_key(device, driver)[:12]}{_SUFFIX}"


def has_calibrations(kind: str) -> bool:
    """Return whether any device that targets of `kind` open was calibrated; open none."""
    try:
        return any(calibration_folder()[0].glob(f"{kind}-*{_SUFFIX}"))
    except OSError:
        return False


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write the file, which is replaced at once, only when complete; raises WorkError.

    The folder of all calibrations is made where it is missing; no other is.
    """
    try:
        if path.parent == calibration_folder()[0]:
            path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(calibration_text(calibration).encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise WorkError(f"the calibration {path} cannot be written ({reason})") from error


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """The calibration in a file; raises InputError naming the file and what is wrong with it."""
    return read_calibration(read_bounded(Path(path), MAX_BYTES, "calibration"), str(path))


def as_calibrated(record: Hardware, kind: str, device: str, driver: str) -> Hardware:
    """The record with what was measured on this device, or itself where nothing was.

    A bad file in a folder that the user named is an error (InputError), and it stays as it is. In the cache
    folder, it is moved aside with a warning and the shipped record serves.
    """
    path = calibration_path(kind, device, driver)
    if not path.exists():
        return record
    try:
        calibration = load_calibration(path)
        if (calibration.device, calibration.driver) != (_plain(device), _plain(driver)):
            raise InputError(
                f"expected a calibration of {device}, got one of {calibration.device}", where=str(path)
            )
        return calibrated(record, calibration, str(path))
    except InputError as error:
        if not calibration_folder()[1]:
            message = str(error).removeprefix(f"{path}: ")
            raise InputError(
                f"{message}; remove this file, or measure again with `tilewright calibrate`", where=str(path)
            ) from None
        aside = path.with_name(path.name + ".damaged")
        with suppress(OSError):
            os.replace(path, aside)
        warnings.warn(
            f"{error}; moved to {aside.name}, and the constants that come with Tilewright are used",
            RuntimeWarning,
            stacklevel=2,
        )
        return record


def _plain(text: str) -> str:
    """A name as a calibration's file holds it."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)
