"""`tilewright sweep LAYER`: configurations of every kernel priced by the model, and one order per tensor."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tilewright.costmodel import GpuHardware
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError
from tilewright.tools.commands.network import load_network
from tilewright.tools.data_movement.fused_encoder import KERNELS
from tilewright.tools.data_movement.sweep import sweep, sweep_facts, sweep_text
from tilewright.tools.plots.configurations import write_violins
from tilewright.tools.plots.training import require_plot


def run_sweep(a: argparse.Namespace) -> None:
    """Price, choose, and print; draw where a file is named."""
    if Path(a.network).suffix == ".tw":
        raise InputError("expected a network: a saved executable has its layouts", where=a.network)
    if a.plot:
        require_plot(a.plot)
    hardware = resolve_target(a.target).hardware
    if not isinstance(hardware, GpuHardware):
        raise InputError("expected a target with a GPU, whose warps read along dimensions", where="--target")
    groups = KERNELS if a.kernels == "published" else None
    swept = sweep(load_network(a), hardware, a.dtype, groups, each=a.kernels == "ops")
    facts = sweep_facts(swept, hardware, a.dtype)
    print(json.dumps(facts, indent=1) if a.json else f"{a.network}: {sweep_text(facts)}")
    if a.plot:
        write_violins(swept.costs, a.plot)
