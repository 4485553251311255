"""Chooses a kernel template and its implementation parameters for every kernel by the cost model."""

from __future__ import annotations

from tilewright.costmodel import load_hardware
from tilewright.ir import Func, InputError, Level, UnsupportedError
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.decision import has_parameters
from tilewright.passes.kernels.registry import choices_in_order, decision_faults


@register_pass(Level.TENSOR, requires={"kernels-outlined"}, establishes={"parameters-chosen"})
def choose_parameters(func: Func, ctx: PassContext) -> Func:
    """Give every kernel a template, implementation parameters, and what the cost model says of them.

    rewrite:  tensor.func @conv(...)
        -->   tensor.func @conv(..., decision = kernel<template: "contract", parameters: (block: ...), ...>)

    The families of kernels are asked in their order; the first one that does not refuse decides. Parameters
    that a kernel already has stay, and must fit its template.
    """
    if func.name == "main":
        return func
    for fault in decision_faults(func):
        raise InputError(fault)
    if has_parameters(func):
        return func
    hardware = ctx.hardware or load_hardware(ctx.target)
    for family in choices_in_order():
        if (chosen := family.choose(func, hardware)) is not None:
            return chosen
    ops = [op for op in func.body.ops if op.name != "tensor.return"]
    names = ", ".join(sorted({op.name for op in ops}))
    raise UnsupportedError(f"no template lowers a kernel of {names}", where=f"@{func.name} [{ops[0].loc}]")
