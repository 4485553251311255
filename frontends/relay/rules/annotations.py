"""Relay operators that say something to TVM's passes and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError

#: operator -> its attributes, which say nothing here
_REMARKS: Mapping[str, Sequence[str]] = {
    "annotation.bitpack_end": (),
    "annotation.bitpack_start": (),
    "annotation.cast_hint": ("dtype",),
    "annotation.checkpoint": (),
    "annotation.compiler_begin": ("compiler",),
    "annotation.compiler_end": ("compiler",),
    "annotation.stop_fusion": (),
    "debug": ("debug_func",),
    "device_copy": ("src_virtual_device", "dst_virtual_device", "src_dev_type", "dst_dev_type"),
    "on_device": ("virtual_device", "constrain_result", "constrain_body", "device_type", "is_fixed"),
}


def _remark(dropped: Sequence[str]) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        attrs.drop(*dropped)
        if len(args) != 1:
            raise InputError(f"expected one argument, got {len(args)}")
        return args[0]

    return rule


RULES: Mapping[str, Rule] = {name: _remark(dropped) for name, dropped in _REMARKS.items()}
