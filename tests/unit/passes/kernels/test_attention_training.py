"""Attention of training steps on tensor cores: what is saved, what is dropped, what comes back; emulated."""

from dataclasses import replace

import numpy as np
import pytest
from attention_training import (
    emulated,
    exact,
    inputs_of,
    kernels_of,
    templates,
    thread_form,
    training_attention,
)
from sass import SERIALISED, faults, machine_code, nvdisasm

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.costmodel import load_hardware
from tilewright.ir import InputError
from tilewright.ir.nodes import walk
from tilewright.ir.thread.tensor_maps import maps_of
from tilewright.passes.kernels.decision import decision_of, with_parameters
from tilewright.passes.kernels.pair_sums.choice import pair_points
from tilewright.passes.kernels.pair_sums.parameters import pair_parameters
from tilewright.passes.kernels.pair_sums.work import bound_pairs
from tilewright.passes.thread.channel_order import check_channels

pytestmark = pytest.mark.emulator
ALWAYS = {"chain_kernels": "chain-kernels{attention=always}"}
#: largest error over the largest value
RESULT, LSE = 1e-3, 1e-6


def errors(module, kernels):
    inputs = inputs_of(module)
    pairs = zip(emulated(kernels, inputs), exact(module, inputs), strict=True)
    return [np.abs(a.astype(np.float64) - b).max() / np.abs(b).max() for a, b in pairs]


@pytest.mark.parametrize(
    "how",
    [
        {"causal": True, "dropout": True},  # random bits are computed where they are needed
        {"keys": 40, "bias": True, "heads": (2, 3), "shared": 1},
    ],
)
def test_logarithms_of_sums_come_with_the_result(how):
    module = training_attention(backward=False, **how)
    kernels = kernels_of(module, **ALWAYS)
    assert templates(kernels) == ["attention"]
    result, lse = errors(module, kernels)
    assert result < RESULT
    assert lse < LSE


BACKWARD = {**ALWAYS, "fuse_attention_backward": "fuse-attention-backward{when=always}"}


@pytest.mark.parametrize(
    "how",
    [
        {"queries": 40, "keys": 24, "bias": True, "dropout": True},
        {"queries": 40, "keys": 40, "heads": (2, 3), "shared": 1, "causal": True},
    ],
)
def test_gradients_are_two_kernels(how):
    """dq is one kernel, dk and dv are another; none stores a matrix of queries times keys."""
    module = training_attention(**how)
    kernels = kernels_of(module, **BACKWARD)
    assert templates(kernels)[-4:] == ["attention", "rows_kept", "pair_sums", "pair_sums"]
    result, lse, *gradients = errors(module, kernels)
    assert result < RESULT
    assert lse < LSE
    assert max(gradients) < 2e-3


def with_plan(kernels, *plan):
    """The module with these parameters of its kernels of gradients."""
    funcs = [
        with_parameters(
            f,
            **dict(zip(("rows", "tile", "warps", "stages", "held"), plan, strict=True)),
            resident=1,
            ahead=False,
            engine="mma",
        )
        if (d := decision_of(f)) is not None and d.template == "pair_sums"
        else f
        for f in kernels.funcs
    ]
    return kernels.with_funcs(tuple(funcs))


@pytest.mark.parametrize(
    ("plan", "window"),
    [
        ((32, 32, 1, 2, False), None),  # two tiles of rows per warp; the last rows and others are cut
        ((64, 16, 4, 3, True), 20),  # tiles of others that no row of a block or of a warp makes a pair with
    ],
)
def test_tiles_and_bands_of_gradients(plan, window):
    module = training_attention(heads=(1,), queries=75, keys=90, causal=True, window=window)
    kernels = with_plan(kernels_of(module, **BACKWARD), *plan)
    assert max(errors(module, kernels)[2:]) < 2e-3


def by_roles(kernels, rows, tile, stages, *, resident=1, ahead=False, spread=False):
    """The module with kernels of gradients whose roles copy and multiply."""
    plan = {"rows": rows, "tile": tile, "warps": rows // 16, "stages": stages, "held": False}
    plan |= {"resident": resident, "ahead": ahead, "spread": spread, "engine": "wgmma"}
    return kernels.with_funcs(
        tuple(with_parameters(f, **plan) if f in pair_kernels(kernels) else f for f in kernels.funcs)
    )


def pair_kernels(kernels):
    return [f for f in kernels.funcs if (d := decision_of(f)) is not None and d.template == "pair_sums"]


@pytest.mark.parametrize(
    ("how", "plan", "more"),
    [
        # rows and others are cut; a mask by position in some tiles, two slots, products ahead
        ({"queries": 75, "keys": 90, "causal": True, "window": 20}, (64, 16, 2), {"ahead": True}),
        # grouped keys: dk and dv sum over two runs of queries; weights that are dropped
        ({"queries": 64, "keys": 64, "heads": (2, 2), "shared": 1, "causal": True, "dropout": True,
          "size": 32}, (64, 32, 3), {"resident": 2, "spread": True}),
        # two warpgroups, two panels per row, a bias, one slot
        ({"queries": 128, "keys": 64, "size": 128, "heads": (1,), "bias": True, "dtype": "bf16"},
         (128, 64, 1), {}),
    ],
)  # fmt: skip
def test_gradients_by_roles(how, plan, more):
    module = training_attention(**how)
    kernels = by_roles(kernels_of(module, **BACKWARD), *plan, **more)
    assert max(errors(module, kernels)[2:]) < (8e-3 if how.get("dtype") == "bf16" else 2e-3)


def test_roles_bring_factors_from_inside_an_array():
    """Queries, keys and values of one product lie side by side; each has a map that starts where it does."""
    module = training_attention(heads=(1,), queries=64, keys=64, stacked=True)
    kernels = by_roles(kernels_of(module, **BACKWARD), 64, 32, 2)
    (whole,) = {f.params[0].tensor.shape for f in pair_kernels(kernels)}
    assert whole[-1] == 48
    starts = {m.offset for f in pair_kernels(kernels) for m in maps_of(thread_form(kernels, f))}
    assert starts == {0, 32, 64}
    assert max(errors(module, kernels)) < 2e-3


def test_the_gradient_of_values_alone_by_roles():
    module = training_attention(queries=64, keys=64, causal=True)
    (*ops, returned) = module.main.body.ops
    values = returned.with_operands(returned.operands[-1:])
    body = module.main.body.with_ops((*ops, values))
    module = module.with_funcs((replace(module.main, body=body, result_types=module.main.result_types[-1:]),))
    kernels = by_roles(kernels_of(module, **BACKWARD), 64, 32, 2)
    (kernel,) = pair_kernels(kernels)
    assert len(kernel.body.ops[-1].operands) == 1
    assert max(errors(module, kernels)) < 2e-3


def test_roles_read_nothing_that_is_not_there():
    """Keys beyond the last one have scores of 0, beside which those of a hidden query are -1e4."""
    module = training_attention(heads=(1,), queries=16, keys=20, bias=True)
    inputs = inputs_of(module)
    places = [p.hint for p in module.main.params]
    inputs[places.index("bias")][3] = -1e4
    kernels = kernels_of(module, **BACKWARD)
    for made in (kernels, by_roles(kernels, 64, 16, 2)):
        pairs = zip(emulated(made, inputs), exact(module, inputs), strict=True)
        assert max(np.abs(a.astype(np.float64) - b).max() / np.abs(b).max() for a, b in pairs) < 2e-3


@pytest.mark.parametrize(
    ("plan", "clause"),
    [
        ({"tile": 272}, "at most 256 others"),
        ({"rows": 32, "warps": 2}, "whole warpgroups"),
        ({"held": True}, "own rows in shared memory"),
        ({"ahead": True, "stages": 1}, "at least 2 stages"),
        ({"ahead": True, "engine": "mma"}, "at least 2 stages"),
        ({"spread": True, "engine": "mma", "warps": 4}, "to have roles"),
    ],
)
def test_parameters_of_roles(plan, clause):
    kernels = by_roles(kernels_of(training_attention(), **BACKWARD), 64, 16, 2)
    with pytest.raises(InputError, match=clause):
        pair_parameters(with_parameters(pair_kernels(kernels)[0], **plan))


@pytest.mark.parametrize(("size", "tile", "resident"), [(64, 64, 2), (128, 64, 1)])
def test_machine_code_of_roles(size, tile, resident, tmp_path):
    """Nothing is spilled, no multiplication waits for the one before, no fence of the device in loops."""
    module = training_attention(heads=(64,), queries=512, keys=512, size=size, causal=True)
    kernels = by_roles(kernels_of(module, **BACKWARD), 128 // resident, tile, 3, resident=resident)
    for f in pair_kernels(kernels):
        binary = compile_cuda(emit_cuda(thread_form(kernels, f)).source, arch="sm_90a")
        assert not SERIALISED.search(binary.log)
        assert not any(k.spill_bytes for k in binary.kernels.values())
        if nvdisasm() is not None:
            assert not faults(machine_code(binary, tmp_path), binary.log)


def test_the_model_takes_roles_for_long_sequences():
    """On an H200, for causal heads of 1024 queries and keys; their estimate is above the bound."""
    for f in pair_kernels(kernels_of(training_attention(heads=(64,), queries=1024, keys=1024, size=64))):
        points = pair_points(f, load_hardware("H200"))
        assert points[0].plan.engine == "wgmma"
        assert bound_pairs(points[0].work, load_hardware("H200")).seconds < points[0].estimate_s


def test_registers_are_not_touched_while_they_are_multiplied():
    """A wait for scores that leaves one group more in flight than it may is found."""
    kernels = by_roles(kernels_of(training_attention(), **BACKWARD), 64, 16, 2)
    func = thread_form(kernels, pair_kernels(kernels)[1])
    waits = [o for o in walk(func.body) if o.name == "thread.warpgroup_wait"]
    chosen = next(o for o in waits if o["pending"] == 1)

    def longer(op):
        if op is chosen:
            return op.with_attrs(pending=2)
        return replace(op, body=op.body.with_ops(tuple(map(longer, op.body.ops)))) if op.body else op

    with pytest.raises(InputError, match="while it is multiplied"):
        check_channels(func.with_body(func.body.with_ops(tuple(map(longer, func.body.ops)))))


def test_unequal_blocks_start_with_those_of_most_tiles():
    """Few blocks of grouped keys end together where all batches start their long ones first."""
    how = {"heads": (4, 8, 4), "shared": 1, "queries": 1024, "keys": 1024, "size": 128, "causal": True}
    by_queries, by_keys = (
        pair_points(f, load_hardware("H200"))[0].plan
        for f in pair_kernels(kernels_of(training_attention(**how)))
    )
    assert (by_queries.engine, by_keys.engine) == ("wgmma", "wgmma")
    assert by_keys.spread
    assert not by_queries.spread


def test_tf32_gradients():
    module = training_attention(heads=(2,), queries=40, keys=24, dtype="f32")
    kernels = kernels_of(module, "tf32", **BACKWARD)
    assert templates(kernels)[-2:] == ["pair_sums", "pair_sums"]
    assert max(errors(module, kernels)) < 2e-3


def test_kernels_of_gradients_spill_nothing():
    module = training_attention(heads=(384,), queries=128, keys=128, size=64)
    kernels = kernels_of(module)
    for f in kernels.funcs:
        decision = decision_of(f)
        if decision is not None and decision.template == "pair_sums":
            (used,) = compile_cuda(emit_cuda(thread_form(kernels, f)).source, arch="sm_90a").kernels.values()
            assert used.spill_bytes == 0
            assert decision.cost.bound_s < decision.cost.estimate_s
