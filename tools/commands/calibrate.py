"""`tilewright calibrate`: measure the device's constants, keep them for later compilations, show them."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tilewright.calibration.calibrate import calibrate
from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.calibration import (
    Calibration,
    Measured,
    calibrated,
    fitted_constants,
    roles_of,
)
from tilewright.devices.calibration_store import calibration_path, save_calibration
from tilewright.devices.targets import Target, resolve_target, shipped_record
from tilewright.ir import InputError


def run_calibrate(a: argparse.Namespace) -> None:
    """Measure and store, or show what is stored."""
    if a.output and not Path(a.output).absolute().parent.is_dir():
        raise InputError("expected a file in a folder that exists", where=a.output)
    # Measuring anew is the way out of a damaged calibration.
    target = resolve_target(a.target, with_calibration=a.show)
    if a.show:
        shown = _record_facts(target.hardware, shipped_record(target))
        print(json.dumps(shown) if a.json else _record_text(shown))
        return
    start = time.perf_counter()
    calibration = calibrate(target)
    record = calibrated(shipped_record(target), calibration)
    path = Path(a.output or calibration_path(target.kind, calibration.device, calibration.driver))
    save_calibration(calibration, path)
    result = _result(calibration, target, record, path, time.perf_counter() - start)
    print(json.dumps(result) if a.json else _result_text(result))


def _record_facts(used: Hardware, shipped: Hardware) -> dict[str, Any]:
    rows = [
        {"name": name, "role": role, "shipped": getattr(shipped, name), "used": getattr(used, name)}
        for name, role in roles_of(shipped).items()
    ]
    return {"hardware": used.name, "origin": used.origin, "constants": rows}


def _record_text(shown: dict[str, Any]) -> str:
    head = f"{shown['hardware']}: {shown['origin']}"
    lines = [f"{'constant':<34} {'shipped':>12} {'used':>12}"]
    for row in shown["constants"]:
        mark = "" if row["shipped"] == row["used"] else "  *"
        lines.append(f"{row['name']:<34} {row['shipped']:>12.5g} {row['used']:>12.5g}{mark}")
    return "\n".join([head, *lines])


def _result(
    calibration: Calibration, target: Target, record: Hardware, path: Path, seconds: float
) -> dict[str, Any]:
    shipped = shipped_record(target)
    roles, fitted = roles_of(shipped), fitted_constants(shipped)
    constants = [
        {
            **_quantity(name, m),
            "role": "kept: fitted to kernels" if name in fitted else roles[name],
            "shipped": getattr(shipped, name),
            "used": getattr(record, name),
        }
        for name, m in calibration.constants
    ]
    return {
        "target": str(target),
        "device": calibration.device,
        "driver": calibration.driver,
        "hardware": calibration.record,
        "measured": calibration.measured,
        "path": str(path),
        "seconds": seconds,
        "constants": constants,
        "facts": [_quantity(name, m) for name, m in calibration.facts],
    }


def _quantity(name: str, m: Measured) -> dict[str, Any]:
    return {"name": name, "value": m.value, "unit": m.unit, "samples": m.samples, "spread": m.spread}


def _result_text(r: dict[str, Any]) -> str:
    lines = [f"{r['device']} ({r['driver']}), record {r['hardware']}, {r['seconds']:.1f} s"]
    lines.append(
        f"{'constant':<34} {'measured':>12} {'unit':<6} {'spread':>7} {'shipped':>12} {'used':>12}  role"
    )
    for c in r["constants"]:
        lines.append(
            f"{c['name']:<34} {c['value']:>12.5g} {c['unit']:<6} {100 * c['spread']:>6.1f}% "
            f"{c['shipped']:>12.5g} {c['used']:>12.5g}  {c['role']}"
        )
    for f in r["facts"]:
        lines.append(f"{f['name']:<34} {f['value']:>12.5g} {f['unit']:<6} {100 * f['spread']:>6.1f}%")
    lines.append(f"written to {r['path']}")
    return "\n".join(lines)
