"""Long sums in parts: the same results, on GPUs only, within memory, with prologues and epilogues fused."""

import numpy as np
import pytest
from unbuilt_plans import plan_of

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.ir import Builder, parse
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.memory_headroom import FLOOR_BYTES, MemoryHeadroom
from tilewright.passes.estimation.algorithms import kernels_of
from tilewright.passes.kernels.matrix.reduction_parts import matrix_estimates, split

H100 = resolve_target("cuda:sm_90a")


def products(module, target="cuda:sm_90a"):
    """Parts of every contraction after the pass."""
    resolved = resolve_target(target)
    context = PassContext(str(resolved), resolved.hardware, verify_each=True, reproducer_folder=None)
    text = "infer-shapes, graph-to-tensor, split-reductions"
    out = run_pipeline(module, Pipeline.parse(text), context)
    return [dims(op, "par").get("part", 1) for op in out.main.body.ops if op.name == "tensor.contract"], out


def pointwise(c=512, k=64, side=7, dtype="f32", scaled=True):
    image = f"{dtype}[1, {c}, {side}, {side}]"
    scale = f"%1 = graph.multiply(%x, %s) : {image}" if scaled else ""
    return parse(f"""module @m {{
  graph.func @main(%x: {image}, %w: {dtype}[{k}, {c}, 1, 1], %s: {dtype}[1, {c}, 1, 1])
      -> {dtype}[1, {k}, {side}, {side}] {{
    {scale}
    %0 = graph.conv2d({"%1" if scaled else "%x"}, %w) : {dtype}[1, {k}, {side}, {side}]
    %2 = graph.relu(%0) : {dtype}[1, {k}, {side}, {side}]
    graph.return(%2)
  }}
}}
""")


def random_inputs(module, seed):
    rng = np.random.default_rng(seed)
    types = [p.tensor for p in module.main.params]
    return [rng.standard_normal(t.shape).astype(storage_dtype(t.dtype)) for t in types]


def matmul(m, k, n, dtype="f32", rectified=False):
    relu = f"%1 = graph.relu(%0) : {dtype}[{m}, {n}]" if rectified else ""
    return parse(f"""module @m {{
  graph.func @main(%x: {dtype}[{m}, {k}], %w: {dtype}[{n}, {k}]) -> {dtype}[{m}, {n}] {{
    %0 = graph.dense(%x, %w) : {dtype}[{m}, {n}]
    {relu}
    graph.return({"%1" if rectified else "%0"})
  }}
}}
""")


@pytest.mark.parametrize(
    ("module", "splits"),
    [
        (pointwise(c=1152, k=64), True),
        (pointwise(c=1152, k=192), True),
        (pointwise(c=32), False),  # a short sum
        (pointwise(c=509), False),  # no parts of equal length
        (pointwise(c=512, k=1024, side=112), False),  # blocks enough
        (pointwise(c=4096, dtype="f16"), True),
        (pointwise(c=4096, dtype="bf16"), True),
        (pointwise(c=1152, dtype="f16"), False),  # sets of warps within a block do
        (matmul(128, 3072, 768), True),
    ],
    ids=["pointwise", "wide", "short", "prime", "large", "f16", "bf16", "f16 warps", "matmul"],
)
def test_what_is_split(module, splits):
    (parts,), out = products(module)
    assert (parts > 1) == splits
    if splits:
        xs = random_inputs(module, 0)
        got, wanted = (tw.interpret(m, *xs)[0].astype(np.float64) for m in (out, module))
        digits = {"f32": 1e-6, "f16": 1e-3, "bf16": 1e-2}[module.main.params[0].tensor.dtype]
        assert np.abs(got - wanted).max() <= digits * np.abs(wanted).max()
        (product,) = (op for op in out.main.body.ops if op.name == "tensor.contract")
        assert product.result.tensor.dtype == "f32"


def test_cpus_are_left_alone():
    assert products(pointwise(c=1152), "opencl")[0] == [1]


def test_parts_keep_to_the_peak_of_the_network(monkeypatch):
    """A sum whose parts would take more than the network holds otherwise stays whole, or has fewer parts."""
    modules = {rows: matmul(rows, 3072, 768) for rows in (128, 192, 256)}
    parts = {rows: products(module)[0][0] for rows, module in modules.items()}
    assert parts == {128: 4, 192: 3, 256: 1}
    assert all(4 * n * (3072 + parts[n] * 768) <= FLOOR_BYTES for n in (128, 192))
    monkeypatch.setattr(MemoryHeadroom, "fits", lambda headroom, op, working_bytes: True)
    for module in modules.values():
        (wanted,), out = products(module)
        assert wanted == 8
        assert out.main.result_types == module.main.result_types


def test_results_of_kernels():
    """Scale before, rectifier after: two kernels in all, and the right numbers from them."""
    module = pointwise(c=1152)
    xs = random_inputs(module, 1)
    wanted = tw.interpret(module, *xs, precision="fp64")[0]
    with tw.compile(module, target="emulator:sm_90a", precision="fp32-strict", progress=False) as exe:
        assert len(exe.plan.launches) == 2
        got = exe(*xs)[0]
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("dtype", "precision", "k", "error"),
    [("f32", "tf32", 3072, 2e-3), ("f16", "fp32", 8192, 2e-3), ("bf16", "fp32", 8192, 1.6e-2)],
)
def test_parts_on_tensor_cores(dtype, precision, k, error):
    """The product stores float32 parts, and what adds them rectifies and rounds."""
    module = matmul(20, k, 24, dtype, rectified=True)
    x, w = random_inputs(module, 2)
    wanted = np.maximum(x.astype(np.float64) @ w.T.astype(np.float64), 0)
    with tw.compile(module, target="emulator:sm_90a", precision=precision, progress=False) as exe:
        assert ["mma.sync" in k.source for k in exe.plan.kernels] == [True, False]
        parts = exe.plan.launches[0].grid[2]
        assert parts > 1
        assert ("float32", (parts, *wanted.shape)) in {(b.dtype, b.shape) for b in exe.plan.buffers}
        got = exe(x, w)[0].astype(np.float64)
    assert np.abs(got - wanted).max() <= error * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_the_first_look_agrees_with_the_kernels(dtype):
    """Tensor cores' model alone and all passes give products, whole and in parts, the same time."""
    module = run_pipeline(
        matmul(20, 8192, 24, dtype),
        Pipeline.parse("infer-shapes, graph-to-tensor"),
        PassContext("cuda:sm_90a"),
    )
    op = next(op for op in module.main.body.ops if op.name == "tensor.contract")
    found = matrix_estimates(op, (1, 2, 8), H100.hardware)
    if dtype == "f32":  # not without the permission to round
        assert found == {}
        op = op.with_attrs(factors="tf32")
        found = matrix_estimates(op, (1, 2, 8), H100.hardware)
    for parts, seconds in found.items():
        b = Builder()
        if parts == 1:
            b.append(op)
        b.do("tensor.return", op.result if parts == 1 else split(op, b, parts))
        full_s = kernels_of(op.operands, b.ops, 0, H100.hardware).estimate_s()
        assert full_s == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(("rows", "length"), [(20, 8192), (8192, 4096)])
def test_parts_that_cannot_gain_are_not_estimated(rows, length):
    module = run_pipeline(
        matmul(rows, length, 512, "f16"),
        Pipeline.parse("infer-shapes, graph-to-tensor"),
        PassContext("cuda:sm_90a"),
    )
    op = next(op for op in module.main.body.ops if op.name == "tensor.contract")
    every = matrix_estimates(op, (1, 2, 4, 8), H100.hardware)
    some = matrix_estimates(op, (1, 2, 4, 8), H100.hardware, share=0.75)
    assert some == {parts: every[parts] for parts in some}
    assert all(every[parts] >= 0.75 * every[1] for parts in every if parts not in some)
    assert len(some) == (4 if rows == 20 else 1)


def test_launches_of_parts_name_their_ops():
    """Relay's ops have origins, those of the adding kernel as well."""
    text = """#[version = "0.0.5"]
def @main(%data: Tensor[(8, 2048), float32], %w: Tensor[(64, 2048), float32]) {
  nn.dense(%data, %w, units=64)
}
"""
    plan = plan_of(import_module(read_source(text, "net.relay")))
    assert len(plan.launches) == 2
    assert all(launch.origin for launch in plan.launches)


def test_networks_are_split_where_blocks_are_few(data_dir):
    path = data_dir / "relay" / "pt_efficientnet_b0.relay"
    module = tw.frontends.relay.load(str(path), params="random", seed=0)
    with_parts = [n for n in products(module)[0] if n > 1]
    assert len(with_parts) >= 5


def weight_gradient(side=16, dtype="f32", samples=8):
    image = f"{dtype}[{samples}, 16, {side}, {side}]"
    return parse(f"""module @m {{
  graph.func @main(%g: {image}, %x: {image}) -> {dtype}[16, 16, 3, 3] {{
    %0 = graph.conv2d_weight_grad(%g, %x, kernel_size = [3, 3], padding = [1, 1, 1, 1])
      : {dtype}[16, 16, 3, 3]
    graph.return(%0)
  }}
}}
""")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_gradients_by_weights_are_cut_along_samples_or_rows_of_windows(dtype):
    module = weight_gradient(dtype=dtype)
    (parts,), out = products(module)
    assert parts > 1
    inputs = random_inputs(module, 1)
    wide = [v.astype(np.float64) for v in inputs]
    expected = tw.interpret(module, *wide, precision="fp64")[0]
    np.testing.assert_allclose(
        tw.interpret(out, *wide, precision="fp64")[0], expected, rtol=1e-10, atol=1e-10
    )
    assert products(module, "opencl")[0] == [1]


def test_parts_that_would_be_larger_than_the_factors_are_not_made():
    # 4 x 4 windows of 2 samples: two parts of the kernel's gradient have more elements than both images
    assert products(weight_gradient(side=4, samples=2))[0] == [1]
