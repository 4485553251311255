"""merge-products: which products become one, what that saves, and that slices are read in place."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants, Level, Module, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.index_sets import is_padded_copy
from tilewright.passes.graph.products.kernel_savings import Savings
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.view import matrix_view
from tilewright.passes.pipelines import official_stages
from tilewright.running.checking import relative_error

CTX = PassContext(target="cuda:sm_90a", verify_each=True, reproducer_folder=None)
RNG = np.random.default_rng(3)


def net(params: str, results: str, body: str, **shapes: tuple[int, ...]) -> Module:
    """A graph-level module with float32 constants of these shapes, which stand under their names."""
    arrays = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    constants = [f'%{n} = graph.constant(name = "{n}") : f32{list(s)}' for n, s in shapes.items()]
    lines = "\n".join([*constants, *body.strip().splitlines()])
    return parse(
        f"module @net {{ graph.func @main({params}) -> {results} {{ {lines} }} }}",
        constants=Constants(arrays),
    )


def merged(module: Module, options: str = "") -> Module:
    """The module after the pass, which computes the same."""
    out = run_pipeline(module, Pipeline.parse(f"merge-products{options}"), CTX)
    inputs = [RNG.normal(size=p.tensor.shape).astype(np.float32) for p in module.main.params]
    for a, b in zip(tw.interpret(module, *inputs), tw.interpret(out, *inputs), strict=True):
        assert relative_error(a, b) < 1e-6
    return out


def count(module: Module, name: str) -> int:
    return sum(op.name == name for op in module.main.body.ops)


def kernels(module: Module, precision: str = "fp16", *, merge: bool = True) -> Module:
    """The module as kernels for a GPU."""
    stages = official_stages(Level.GRAPH, "cuda", precision).down_to(Level.TENSOR)
    return run_pipeline(module, (stages if merge else stages.without("merge-products")).whole, CTX)


def attention(batch: int = 1, tokens: int = 32, size: int = 16) -> Module:
    """Self-attention with 4 heads, with the reshapes that frontends leave behind."""
    width = 4 * size
    t, heads = f"[{batch}, {tokens}, {width}]", f"[{batch * 4}, {tokens}, {size}]"
    apart = f"[{batch}, {tokens}, 4, {size}]"
    lines = []
    for n in "qkv":
        lines.append(f"""
            %{n}0 = graph.batch_matmul(%x, %w{n}) : f32{t}
            %{n}1 = graph.reshape(%{n}0, newshape = {t}) : f32{t}
            %{n}2 = graph.bias_add(%{n}1, %b{n}, axis = -1) : f32{t}
            %{n}3 = graph.reshape(%{n}2, newshape = {apart}) : f32{apart}
            %{n}4 = graph.transpose(%{n}3, axes = [0, 2, 1, 3]) : f32[{batch}, 4, {tokens}, {size}]
            %{n}5 = graph.reshape(%{n}4, newshape = {heads}) : f32{heads}""")
    lines.append(f"""
        %s = graph.batch_matmul(%q5, %k5, transpose_b = true) : f32[{batch * 4}, {tokens}, {tokens}]
        %p = graph.softmax(%s, axis = -1) : f32[{batch * 4}, {tokens}, {tokens}]
        %o = graph.batch_matmul(%p, %v5) : f32{heads}
        graph.return(%o)""")
    shapes: dict[str, tuple[int, ...]] = {f"w{n}": (1, width, width) for n in "qkv"}
    shapes |= {f"b{n}": (width,) for n in "qkv"}
    return net(f"%x: f32{t}", f"f32{heads}", "\n".join(lines), **shapes)


def inception(order: str = "abc", *, returned: bool = False) -> Module:
    """Two branches that begin with 1x1 convolutions and one, a, that is only one, joined in an order."""
    pieces = ", ".join({"a": "%a2", "b": "%b3", "c": "%c3"}[n] for n in order)
    results = "%z, %y" if returned else "%z"
    types = "f32[1, 16, 9, 9], f32[1, 48, 9, 9]" if returned else "f32[1, 16, 9, 9]"
    body = f"""
        %a0 = graph.conv2d(%x, %wa) : f32[1, 16, 9, 9]
        %a1 = graph.add(%a0, %ba) : f32[1, 16, 9, 9]
        %a2 = graph.relu(%a1) : f32[1, 16, 9, 9]
        %b0 = graph.conv2d(%x, %wb) : f32[1, 24, 9, 9]
        %b1 = graph.add(%b0, %bb) : f32[1, 24, 9, 9]
        %b2 = graph.relu(%b1) : f32[1, 24, 9, 9]
        %b3 = graph.conv2d(%b2, %wb3, padding = [1, 1, 1, 1]) : f32[1, 16, 9, 9]
        %c0 = graph.conv2d(%x, %wc) : f32[1, 8, 9, 9]
        %c1 = graph.add(%c0, %bc) : f32[1, 8, 9, 9]
        %c2 = graph.relu(%c1) : f32[1, 8, 9, 9]
        %c3 = graph.conv2d(%c2, %wc5, padding = [2, 2, 2, 2]) : f32[1, 16, 9, 9]
        %y = graph.concatenate({pieces}, axis = 1) : f32[1, 48, 9, 9]
        %z = graph.conv2d(%y, %wz) : f32[1, 16, 9, 9]
        graph.return({results})"""
    shapes = {
        "wa": (16, 32, 1, 1), "wb": (24, 32, 1, 1), "wc": (8, 32, 1, 1), "wb3": (16, 24, 3, 3),
        "wc5": (16, 8, 5, 5), "wz": (16, 48, 1, 1), "ba": (16, 1, 1), "bb": (24, 1, 1), "bc": (8, 1, 1),
    }  # fmt: skip
    return net("%x: f32[1, 32, 9, 9]", types, body, **shapes)


@pytest.mark.parametrize("batch", [1, 2])
def test_queries_keys_and_values_are_one_product(batch):
    out = merged(attention(batch))
    assert (count(out, "graph.batch_matmul"), count(out, "graph.bias_add")) == (3, 1)
    (whole,) = (op for op in out.main.body.ops if op.get("name") == "wq.wk.wv")
    assert whole.result.tensor.shape == (1, 64, 192)


@pytest.mark.parametrize("make", [attention, inception])
@pytest.mark.parametrize("precision", ["fp16", "tf32", "fp32"])
def test_slices_cost_no_kernel_and_keep_wide_copies(make, precision):
    module = attention(tokens=128, size=64) if make is attention else make()
    before, after = (kernels(module, precision, merge=m) for m in (False, True))
    saved = count(before, "tensor.call") - count(after, "tensor.call")
    assert saved >= 2
    for f in after.funcs:
        copies = [op for op in f.body.ops if is_padded_copy(op)]
        assert f is after.main or len(copies) < len(f.body.ops) - 1, f.name
    if precision == "fp16" and make is inception:
        assert copied_elements(after) == [8] * 3  # the first product converts its input


def copied_elements(module: Module) -> list[int]:
    """Elements of the first factor that each tensor-core kernel copies at once, where it is stored so."""
    found = []
    for f in module.funcs:
        view = matrix_view(f, f.body.ops[0]) if f.body.ops[0].name == "tensor.contract" else None
        found += [matrix_problem(f, view).first_copy] if view is not None else []
    return found


def test_a_branch_that_is_joined_first_or_last_lies_beside_the_others():
    for module, order, begin in ((inception(), "wb.wc.wa", 32), (inception("bca"), "wa.wb.wc", 0)):
        out = merged(module)
        whole, *others = (op for op in out.main.body.ops if op.name == "graph.conv2d")
        assert [op.operands[1].tensor.shape[0] for op in (whole, *others)] == [48, 16, 16, 16]
        assert count(out, "graph.strided_slice") == 3
        (join,) = (op for op in out.main.body.ops if op.name == "graph.concatenate")
        assert join.result.tensor.shape == (1, 80, 9, 9)
        (piece,) = (op for op in out.main.body.ops if join.result in op.operands)
        assert piece["begin"] == (0, begin, 0, 0)
        assert any(op.get("name") == order for op in out.main.body.ops)


def test_a_branch_that_is_joined_in_between_or_into_a_result_stays():
    for module in (inception(order="bac"), inception(returned=True)):
        out = merged(module)
        shapes = [op.operands[1].tensor.shape[0] for op in out.main.body.ops if op.name == "graph.conv2d"]
        assert 32 in shapes
        assert 48 not in shapes


def test_branches_that_are_joined_alone_are_written_as_one_piece():
    body = """
        %0 = graph.conv2d(%x, %a) : f32[1, 8, 6, 6]
        %1 = graph.conv2d(%x, %b) : f32[1, 16, 6, 6]
        %2 = graph.concatenate(%0, %1, axis = 1) : f32[1, 24, 6, 6]
        %3 = graph.softmax(%2, axis = 1) : f32[1, 24, 6, 6]
        graph.return(%3)"""
    module = net("%x: f32[1, 8, 6, 6]", "f32[1, 24, 6, 6]", body, a=(8, 8, 1, 1), b=(16, 8, 1, 1))
    out = merged(module)
    assert (count(out, "graph.conv2d"), count(out, "graph.concatenate")) == (1, 0)
    assert count(out, "graph.strided_slice") == 0


@pytest.mark.parametrize("make", [attention, inception])
def test_on_opencl(make):
    module = make()
    x = RNG.normal(size=module.main.params[0].tensor.shape).astype(np.float32)
    with tw.compile(module, target="opencl", progress=False) as exe:
        (got,) = exe(x)
    assert relative_error(got, tw.interpret(module, x)[0]) < 1e-5


PAIR = """
    %0 = graph.conv2d(%x, %a{first}) : f32[1, 8, 6, 6]
    %1 = graph.conv2d(%x, %b{second}) : f32[1, {n}, 6, 6]
    %2 = graph.{act}(%0) : f32[1, 8, 6, 6]
    %3 = graph.{other}(%1) : f32[1, {n}, 6, 6]
    %4 = graph.softmax(%2, axis = 1) : f32[1, 8, 6, 6]
    %5 = graph.softmax(%3, axis = 1) : f32[1, {n}, 6, 6]
    graph.return(%4, %5)"""


def pair(n: int = 8, b: tuple[int, ...] = (8, 8, 1, 1), **parts: str) -> Module:
    body = PAIR.format(**{"first": "", "second": "", "act": "relu", "other": "relu", "n": n} | parts)
    return net("%x: f32[1, 8, 6, 6]", f"f32[1, 8, 6, 6], f32[1, {n}, 6, 6]", body, a=(8, 8, 1, 1), b=b)


def test_products_that_agree_merge():
    assert count(merged(pair()), "graph.conv2d") == 1
    assert count(merged(pair(12, (12, 8, 1, 1))), "graph.conv2d") == 1


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(pair(b=(8, 8, 3, 3), second=", padding = [1, 1, 1, 1]"), id="another window"),
        pytest.param(pair(b=(8, 4, 1, 1), second=", groups = 2"), id="groups"),
        pytest.param(pair(other="tanh"), id="another activation"),
        pytest.param(pair(7, (7, 8, 1, 1)), id="rows that would not be aligned"),
    ],
)
def test_products_that_differ_stay(module):
    assert run_pipeline(module, Pipeline.parse("merge-products{always=true}"), CTX) is module


def test_results_and_unknown_constants_stay():
    body = """
        %0 = graph.dense(%x, %a) : f32[2, 4]
        %1 = graph.dense(%x, %b) : f32[2, 4]
        graph.return(%0, %1)"""
    module = net("%x: f32[2, 8]", "f32[2, 4], f32[2, 4]", body, a=(4, 8), b=(4, 8))
    assert run_pipeline(module, Pipeline.parse("merge-products{always=true}"), CTX) is module
    unknown = pair().with_constants(Constants({}))
    assert run_pipeline(unknown, Pipeline.parse("merge-products{always=true}"), CTX) is unknown


def test_a_sum_that_one_product_would_have_done_is_no_gain():
    body = """
        %0 = graph.dense(%x, %a) : f32[8, 32]
        %1 = graph.dense(%x, %b) : f32[8, 32]
        %2 = graph.add(%0, %1) : f32[8, 32]
        graph.return(%2)"""
    module = net("%x: f32[8, 64]", "f32[8, 32]", body, a=(32, 64), b=(32, 64))
    assert run_pipeline(module, Pipeline.parse("merge-products"), CTX) is module
    assert count(merged(module, "{always=true}"), "graph.dense") == 1


def test_numbers_for_all_channels_must_agree_and_merged_products_feed_others():
    body = """
        %0 = graph.dense(%x, %a) : f32[8, 32]
        %1 = graph.multiply(%0, %s) : f32[8, 32]
        %2 = graph.dense(%x, %b) : f32[8, 32]
        %3 = graph.multiply(%2, %{other}) : f32[8, 32]
        %4 = graph.dense(%1, %c) : f32[8, 16]
        %5 = graph.subtract(%v, %4) : f32[8, 16]
        %6 = graph.dense(%1, %d) : f32[8, 16]
        %7 = graph.subtract(%w, %6) : f32[8, 16]
        %8 = graph.softmax(%5, axis = 1) : f32[8, 16]
        %9 = graph.softmax(%7, axis = 1) : f32[8, 16]
        %10 = graph.softmax(%3, axis = 1) : f32[8, 32]
        graph.return(%8, %9, %10)"""
    shapes = {"a": (32, 64), "b": (32, 64), "s": (1,), "t": (1,), "c": (16, 32), "d": (16, 32)}
    shapes |= {"v": (16,), "w": (16,)}
    results = "f32[8, 16], f32[8, 16], f32[8, 32]"
    for other, products in (("s", 2), ("t", 3)):
        module = net("%x: f32[8, 64]", results, body.replace("{other}", other), **shapes)
        assert count(merged(module, "{always=true}"), "graph.dense") == products


def test_reads_beyond_an_image_go_through_slices_of_channels_only():
    def reads(begin: str, size: str, channels: int) -> bool:
        """Whether a padded convolution of a slice of 6 channels of an image of 9 x 9 reads that image."""
        side = 9 if channels == 3 else 7
        body = f"""
            %1 = graph.strided_slice(%x, begin = {begin}, size = {size}, strides = [1, 1, 1, 1]) : f32{size}
            %2 = graph.conv2d(%1, %w, padding = [1, 1, 1, 1]) : f32[1, 4, {side}, {side}]
            graph.return(%2)"""
        module = net("%x: f32[1, 6, 9, 9]", f"f32[1, 4, {side}, {side}]", body, w=(4, channels, 3, 3))
        out = run_pipeline(module, Pipeline.parse("graph-to-tensor, forward-copies, dce"), CTX)
        x = RNG.normal(size=(1, 6, 9, 9)).astype(np.float32)
        np.testing.assert_allclose(tw.interpret(out, x)[0], tw.interpret(module, x)[0], rtol=1e-4, atol=1e-4)
        return any(
            out.main.params[0] in op.operands for op in out.main.body.ops if op.name == "tensor.contract"
        )

    assert reads("[0, 2, 0, 0]", "[1, 3, 9, 9]", 3)
    assert not reads("[0, 0, 1, 1]", "[1, 6, 7, 7]", 6)


def test_state_that_lies_apart_is_no_part_of_what_is_counted():
    """A parameter and the result that it becomes have their numbers in the whole network."""
    steps = " ".join(f"%s{i + 1} = graph.relu(%s{i}) : f32[4]" for i in range(24))
    text = f"""module @net {{
      graph.func @main(%x: f32[1, 2, 1, 2], %s0: f32[4], updates = [[1, 2]])
        -> f32[1, 4, 2, 2], f32[1, 4, 2, 2], f32[4] {{
        %a = graph.constant(name = "a") : f32[4, 2, 1, 1]
        %b = graph.constant(name = "b") : f32[4, 2, 1, 1]
        %0 = graph.conv2d(%x, %a) : f32[1, 4, 1, 2]
        %1 = graph.conv2d(%x, %b) : f32[1, 4, 1, 2]
        %2 = graph.repeat(%0, repeats = 2, axis = 2) : f32[1, 4, 2, 2]
        %3 = graph.repeat(%1, repeats = 2, axis = 2) : f32[1, 4, 2, 2]
        {steps}
        graph.return(%2, %3, %s24)
      }}
    }}"""
    arrays = {n: RNG.normal(size=(4, 2, 1, 1)).astype(np.float32) for n in "ab"}
    module = parse(text, constants=Constants({**arrays, "s0": np.zeros(4, np.float32)}))
    out = run_pipeline(module, Pipeline.parse("merge-products"), PassContext("opencl"))
    assert out.main.updates == ((1, 2),)
    assert count(out, "graph.conv2d") == 1


def test_repeated_layers_are_counted_once(monkeypatch):
    counted = []
    count_of = Savings._count
    monkeypatch.setattr(Savings, "_count", lambda self, func: counted.append(func) or count_of(self, func))
    layers, shapes = [], {}
    for i in range(8):
        layers.append(f"""
            %q{i} = graph.dense(%x{i}, %a{i}) : f32[8, 32]
            %k{i} = graph.dense(%x{i}, %b{i}) : f32[8, 32]
            %s{i} = graph.matmul(%q{i}, %k{i}, transpose_b = true) : f32[8, 8]
            %p{i} = graph.softmax(%s{i}, axis = 1) : f32[8, 8]
            %m{i} = graph.matmul(%p{i}, %x{i}) : f32[8, 64]
            %t{i} = graph.tanh(%m{i}) : f32[8, 64]
            %n{i} = graph.dense(%t{i}, %c{i}) : f32[8, 64]
            %u{i} = graph.softmax(%n{i}, axis = 1) : f32[8, 64]
            %x{i + 1} = graph.sigmoid(%u{i}) : f32[8, 64]""")
        shapes |= {f"a{i}": (32, 64), f"b{i}": (32, 64), f"c{i}": (64, 64)}
    module = net("%x0: f32[8, 64]", "f32[8, 64]", "".join([*layers, "\ngraph.return(%x8)"]), **shapes)
    out = merged(module)
    assert count(out, "graph.dense") == 8 * 2
    sizes = [len(f.body.ops) for f in counted]
    assert len(sizes) <= 2 * 3  # the first, those in between, the last
    assert max(sizes) < len(module.main.body.ops) / 2


def test_constants_of_later_products_may_stand_behind_the_first():
    module = net(
        "%x: f32[8, 64]",
        "f32[8, 32], f32[8, 32]",
        """
        %0 = graph.dense(%x, %a) : f32[8, 32]
        %1 = graph.multiply(%0, %n) : f32[8, 32]
        %2 = graph.dense(%x, %b) : f32[8, 32]
        %3 = graph.multiply(%2, %n) : f32[8, 32]
        %4 = graph.softmax(%1, axis = 1) : f32[8, 32]
        %5 = graph.softmax(%3, axis = 1) : f32[8, 32]
        graph.return(%4, %5)
        """,
        a=(32, 64),
        b=(32, 64),
        n=(1,),
    )
    first, second, number, product, *rest = module.main.body.ops
    ops = (first, product, second, number, *rest)
    late = module.with_funcs((module.main.with_body(module.main.body.with_ops(ops)),))
    assert count(merged(late, "{always=true}"), "graph.dense") == 1
