"""Operators of torch, exported one by one, against eager torch on the same inputs."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import tilewright as tw  # noqa: E402
from tilewright.frontends.torch.weights import host_array  # noqa: E402

torch.manual_seed(0)


def f(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


def u(*shape):
    return torch.rand(shape) * 0.8 + 0.1


def i(*shape, high=5, low=0, dtype=torch.int64):
    return torch.randint(low, high, shape, dtype=dtype)


def b(*shape):
    return torch.rand(shape) > 0.5


UNARY = """
    abs asinh atan ceil cos cosh erf exp expm1 floor isfinite isinf isnan negative round sigmoid sign sin sinh
    square tan tanh trunc relu neg erfc sinc sgn frac
"""
UNIT = "acos asin atanh log log2 log10 log1p rsqrt sqrt reciprocal logit"
ACTIVATIONS = """
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu
    softplus softshrink softsign tanhshrink
"""
BINARY = "add sub mul div maximum minimum atan2 fmod remainder eq ne lt le gt ge logaddexp hypot fmax fmin"
WHOLE = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift floor_divide remainder"
WHOLE += " fmod div"

CASES = {
    **{n: (lambda x, n=n: getattr(torch, n)(x), f(2, 3)) for n in UNARY.split()},
    **{n: (lambda x, n=n: getattr(torch, n)(x), u(2, 3)) for n in UNIT.split()},
    **{f"F.{n}": (lambda x, n=n: getattr(F, n)(x), f(2, 3) * 3) for n in ACTIVATIONS.split()},
    **{n: (lambda x, y, n=n: getattr(torch, n)(x, y), f(2, 3), f(3)) for n in BINARY.split()},
    **{
        f"{n}-int": (lambda x, y, n=n: getattr(torch, n)(x, y), i(2, 3, high=60), i(3, low=1))
        for n in WHOLE.split()
    },
    **{f"{n}-int": (lambda x, n=n: getattr(torch, n)(x), i(5)) for n in ("exp", "sqrt", "square", "abs")},
    "acosh": (lambda x: torch.acosh(x + 1), u(4)),
    "F.gelu-tanh": (lambda x: F.gelu(x, approximate="tanh"), f(4)),
    "F.glu": (F.glu, f(2, 6)),
    "F.prelu": (F.prelu, f(2, 3, 4), f(3)),
    "add-mixed": (lambda x, y: x + y, i(3), f(3)),
    "add-alpha": (lambda x, y: torch.add(x, y, alpha=2), f(3), f(3)),
    "sub-alpha": (lambda x, y: torch.sub(x, y, alpha=2), i(3), i(3)),
    "rsub": (lambda x: 2 - x, f(3)),
    "rsub-alpha": (lambda x: torch.rsub(x, 5, alpha=2), f(3)),
    "add-float-to-int": (lambda x: x + 1.5, i(3)),
    "add-int8": (lambda x: x + 100, i(3, dtype=torch.int8)),
    "mul-bool": (lambda x, y: x * y, b(4), f(4)),
    "mul-bools": (lambda x, y: x * y, b(4), b(4)),
    "add-bools": (lambda x, y: x + y, b(4), b(4)),
    "div-ints": (lambda x: x / 2, i(5)),
    "div-floor": (lambda x: torch.div(x, 0.7, rounding_mode="floor"), f(5)),
    "div-trunc": (lambda x: torch.div(x, 0.7, rounding_mode="trunc"), f(5)),
    "div-trunc-int": (lambda x: torch.div(x, 2, rounding_mode="trunc"), i(5, low=-9)),
    "floordiv-negative": (lambda x: x // 2, i(5, low=-9)),
    **{f"pow-{e}": (lambda x, e=e: x**e, u(4)) for e in (0, 1, 2, 3, 0.5, -1, -0.5, 2.5)},
    "pow-negative-base": (lambda x: x**2, f(4)),
    "pow-int": (lambda x: x**2, i(4, low=-3)),
    "pow-tensor": (torch.pow, u(4), f(4)),
    "pow-scalar": (lambda x: 2**x, f(4)),
    "logical_and": (torch.logical_and, f(4), i(4)),
    "logical_or-xor": (lambda x, y: torch.logical_or(torch.logical_xor(x, y), x), i(4), i(4)),
    "logical_not": (torch.logical_not, i(4, high=2)),
    "bool-and": (lambda x, y: (x & y) | ~x ^ y, b(5), b(5)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), f(4)),
    "clamp-int": (lambda x: x.clamp(min=1), i(4)),
    "clamp-int-by-float": (lambda x: x.clamp(0.5, 2.5), i(4)),
    "clamp-tensor": (torch.clamp, f(4), f(4) - 1, f(4) + 1),
    "where": (torch.where, b(3), f(2, 3), f(1)),
    "where-mixed": (lambda c, x: torch.where(c, x, 1.5), b(3), i(3)),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), f(2, 3), b(2, 3)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), f(3), f(3)),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), f(3), f(3), f(3)),
    "nan_to_num": (torch.nan_to_num, torch.tensor([1.0, float("nan"), float("inf")])),
    "to-int": (lambda x: x.to(torch.int32), f(4) * 5),
    "to-bool": (lambda x: x.bool(), f(4).round()),
    "round-decimals": (lambda x: torch.round(x, decimals=1), f(4) * 10),
    **{
        f"{n}-{k}": (lambda x, n=n, a=a: getattr(torch, n)(x, **a), f(2, 3, 4))
        for n in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp")
        for k, a in (("dims", {"dim": (0, 2)}), ("keep", {"dim": (-1,), "keepdim": True}))
    },
    **{
        n: (lambda x, n=n: getattr(torch, n)(x), f(2, 3))
        for n in ("sum", "mean", "max", "min", "prod", "var", "std")
    },
    "var-biased": (lambda x: torch.var(x, 1, correction=0), f(2, 5)),
    "sum-int": (torch.sum, i(4, dtype=torch.int32)),
    "sum-bool": (torch.sum, b(6)),
    "mean-dtype": (lambda x: x.mean(dtype=torch.float64), f(4)),
    "prod-dim": (lambda x: x.prod(1), f(2, 3)),
    "any-all": (lambda x: (x.any(), x.all(1), x.any(0, keepdim=True)), b(3, 4)),
    "max-dim": (lambda x: torch.max(x, 1), f(2, 5)),
    "min-dim": (lambda x: torch.min(x, -1, keepdim=True), f(2, 5)),
    "argmax": (lambda x: (x.argmax(1), x.argmin(), x.argmax(0, keepdim=True)), f(3, 4)),
    "norm": (lambda x: (x.norm(dim=-1), torch.linalg.vector_norm(x, 1, 0)), f(3, 4)),
    "cumsum": (lambda x: x.cumsum(1), f(2, 4)),
    "cumsum-int": (lambda x: x.cumsum(0), i(4, dtype=torch.int32)),
    "var_mean": (lambda x: torch.var_mean(x, 1), f(3, 4)),
    "topk-unsorted": (lambda x: torch.topk(x, 2, 0, largest=False, sorted=False)[0].sort(0), f(5, 2)),
    "searchsorted": (lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x, right=True), f(5)),
    "cumprod": (lambda x: x.cumprod(0), f(2, 4)),
    "sort": (lambda x: x.sort(1, descending=True), f(2, 5)),
    "argsort": (lambda x: x.argsort(-1), f(2, 5)),
    "topk": (lambda x: x.topk(2, 1), f(2, 5)),
    "median": (lambda x: (x.median(), x.median(1)), f(3, 4)),
    "cdist": (torch.cdist, f(3, 4), f(2, 4)),
    "view": (lambda x: x.view(3, -1).t(), f(2, 6)),
    "permute": (lambda x: x.permute(2, 0, 1).contiguous(), f(2, 3, 4)),
    "movedim": (lambda x: x.movedim(0, -1).unflatten(0, (1, 3)).flatten(1), f(2, 3, 4)),
    "squeeze": (lambda x: (x.squeeze(), x.squeeze(0), x[:, :, None].unsqueeze(-1)), f(1, 2, 1)),
    "expand": (lambda x: x.expand(4, -1, 3), f(2, 1)),
    "repeat": (lambda x: x.repeat(2, 1, 3), f(2, 3)),
    "tile": (lambda x: x.tile(2), f(2, 3)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), f(2, 3)),
    "cat": (lambda x, y: (torch.cat([x, y], -1), torch.stack([x, x], 1)), f(2, 3), f(2, 4)),
    "cat-mixed": (lambda x, y: torch.cat([x, y]), i(2), f(2)),
    "split": (lambda x: (*x.split(2, 1), *x.chunk(3, 1), *x.split([1, 5], 1), *x.unbind(0)), f(2, 6)),
    "chunk-uneven": (lambda x: x.chunk(4), f(10)),
    "slice": (lambda x: (x[1:, ::2], x[..., -3:-1], x[:, None, 2:100]), f(3, 6)),
    "select": (lambda x: (x[1], x[:, -1], x[-2, -3]), f(3, 6)),
    "flip": (lambda x: x.flip(0, 1), f(2, 3)),
    "roll": (lambda x: (x.roll(1, 1), x.roll((1, -2), (0, 1)), x.roll(2)), f(3, 4)),
    "rot90": (lambda x: torch.rot90(x), f(2, 3)),
    "tril": (lambda x: (x.tril(), x.triu(1)), f(2, 4, 4)),
    "diagonal": (lambda x: (x.diagonal(), torch.diag_embed(x[0])), f(4, 4)),
    "index": (lambda x, n: (x[n], x[:, n], x[n, n], x[-n]), f(5, 6, 2), i(3)),
    "index-two": (lambda x, n, m: (x[n[:, None], m], x[:, n, m], x[n, :, m]), f(5, 5, 5, 2), i(3), i(3)),
    "index-columns": (lambda x, n, m: x[:, n, m], f(2, 5, 5), i(3, 1), i(3, 1)),
    "index-negative": (lambda x, n: x[n], f(5, 2), i(4, low=-5)),
    "index_select": (lambda x, n: x.index_select(1, n), f(2, 5), i(3)),
    "assign-inner": (
        lambda x, n, v: [y := x.clone(), y.__setitem__((slice(None), n, n), v), y][2],
        f(2, 5, 5), torch.tensor([0, 2, 4]), f(2, 3),
    ),
    "assign-outer": (
        lambda x, n, v: [y := x.clone(), y.__setitem__((n, slice(None), n), v), y][2],
        f(5, 2, 5), torch.tensor([0, 2, -1]), f(2),
    ),
    "gather": (lambda x, n: x.gather(1, n), f(2, 5), i(2, 3)),
    "take": (torch.take, f(3, 4), i(5, high=12)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(1), 1), f(3, 4)),
    "scatter": (lambda x, n, v: x.scatter(1, n, v), f(2, 5), torch.tensor([[0, 3], [1, 4]]), f(2, 3)),
    "scatter-value": (lambda x, n: x.scatter(0, n, 2.5), f(5, 3), i(1, 3)),
    "scatter_add": (lambda x, n, v: x.scatter_add(0, n, v), f(5, 3), i(4, 3), f(4, 3)),
    "scatter_reduce": (lambda x, n, v: x.scatter_reduce(0, n, v, "amax"), f(5, 3), i(4, 3), f(4, 3)),
    "index_add": (lambda x, n, v: x.index_add(0, n, v), f(5, 3), i(4), f(4, 3)),
    "index_put": (lambda x, n, v: x.index_put((n,), v, accumulate=True), f(5, 3), i(4), f(4, 3)),
    "assign": (lambda x, v: torch.Tensor.copy_(x.clone()[1:3], v) * 1, f(5, 3), f(2, 3)),
    "assign-slice": (lambda x: [y := x.clone(), y[:, 1:3].fill_(0.0), y][2], f(3, 5)),
    "assign-mask": (lambda x: [y := x.clone(), y.masked_fill_(y < 0, 0.5), y][2], f(3, 5)),
    "select_scatter": (lambda x, v: torch.select_scatter(x, v, 1, -1), f(3, 4), f(3)),
    "slice_scatter": (lambda x, v: torch.slice_scatter(x, v, 1, 1, 4, 2), f(3, 5), f(3, 2)),
    "one_hot": (lambda n: F.one_hot(n, 6), i(2, 3)),
    "embedding": (F.embedding, i(2, 3, high=7), f(7, 4)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), f(2, 3)),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="xy"), f(2), f(3)),
    "create": (
        lambda x: x + torch.arange(3) + torch.full((3,), 2.5) + torch.linspace(0, 1, 3) + torch.eye(3),
        f(3, 3),
    ),
    "like": (lambda x: (torch.zeros_like(x), torch.full_like(x, 2), x.new_zeros(2)), f(2)),
    **{
        f"pad-{m}": (lambda x, m=m: F.pad(x, (1, 2, 2, 1), mode=m), f(1, 2, 4, 5))
        for m in ("constant", "reflect", "replicate", "circular")
    },
    "pad-value": (lambda x: F.pad(x, (1, -1), value=2.0), f(2, 4)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), f(1, 8, 2, 3)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), f(1, 2, 4, 6)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), f(1, 4, 2, 2)),
    "matmul": (torch.matmul, f(2, 1, 3, 4), f(5, 4, 2)),
    "matmul-vectors": (lambda x, y: (x @ x, y @ x, x @ y.T, torch.outer(x, x)), f(4), f(3, 4)),
    "matmul-f16": (torch.matmul, f(3, 4, dtype=torch.float16), f(4, 5, dtype=torch.float16)),
    "matmul-bf16": (torch.matmul, f(3, 4, dtype=torch.bfloat16), f(4, 5, dtype=torch.bfloat16)),
    "matmul-f64": (torch.matmul, f(3, 4, dtype=torch.float64), f(4, 5, dtype=torch.float64)),
    "matmul-int": (torch.matmul, i(3, 4), i(4, 5)),
    "addmv": (torch.addmv, f(3), f(3, 4), f(4)),
    "addmm": (lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), f(3, 5), f(3, 4), f(4, 5)),
    "baddbmm": (torch.baddbmm, f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
    "einsum": (lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), f(2, 2, 3, 4), f(2, 2, 5, 4)),
    "einsum-sum": (lambda x, y: torch.einsum("...ij,jk->...k", x, y), f(2, 3, 4), f(4, 5)),
    "linear": (F.linear, f(2, 3, 4), f(5, 4), f(5)),
    "bilinear": (F.bilinear, f(2, 3), f(2, 4), f(5, 3, 4), f(5)),
    "attention-mask": (
        F.scaled_dot_product_attention,
        f(1, 2, 3, 8), f(1, 2, 6, 8), f(1, 2, 6, 8), b(3, 6) | torch.eye(3, 6).bool(),
    ),
    "attention-bias": (F.scaled_dot_product_attention, f(2, 4, 8), f(2, 6, 8), f(2, 6, 8), f(4, 6)),
    "attention-unseen": (
        lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m),
        f(1, 2, 3, 4),
        torch.tensor([[True, False, False], [False] * 3, [True, True, False]]),
    ),
    "attention-unseen-bias": (
        lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m),
        f(1, 2, 3, 4),
        torch.tensor([[0.5, float("-inf"), 0.0], [float("-inf")] * 3, [0.0, 1.0, 2.0]]),
    ),
    "attention-scale": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.1),
        f(1, 2, 4, 8), f(1, 2, 4, 8),
    ),
    "attention-groups": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), f(1, 4, 4, 8), f(1, 2, 4, 8)
    ),
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), f(1, 4, 9), f(3, 4, 3)),
    "conv2d": (
        lambda x, w, c: F.conv2d(x, w, c, (2, 1), (1, 2), (1, 2), 2), f(1, 4, 9, 8), f(6, 2, 3, 3), f(6)
    ),
    "conv2d-same": (lambda x, w: F.conv2d(x, w, padding="same"), f(1, 2, 6, 6), f(3, 2, 4, 3)),
    "conv2d-depthwise": (lambda x, w: F.conv2d(x, w, groups=4), f(1, 4, 6, 6), f(8, 1, 3, 3)),
    "conv2d-unbatched": (F.conv2d, f(2, 6, 6), f(3, 2, 3, 3)),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), f(1, 2, 4, 4, 4), f(3, 2, 3, 3, 3)),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 1), f(1, 3, 5), f(3, 4, 3)),
    "conv_transpose2d": (
        lambda x, w, c: F.conv_transpose2d(x, w, c, 2, 1, 1, 2), f(1, 4, 4, 4), f(4, 3, 3, 3), f(6)
    ),
    "conv_transpose3d": (lambda x, w: F.conv_transpose3d(x, w, None, 2), f(1, 2, 3, 3, 3), f(2, 3, 2, 2, 2)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), f(1, 2, 8)),
    "max_pool2d": (lambda x: F.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True), f(1, 2, 8, 7)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), f(1, 2, 4, 4, 4)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), f(1, 2, 8)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), f(1, 2, 8, 7)),
    "avg_pool2d-excluding": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), f(1, 2, 8, 7)),
    "avg_pool2d-ceil": (lambda x: F.avg_pool2d(x, 3, 2, 0, ceil_mode=True), f(1, 2, 8, 8)),
    "avg_pool2d-ceil-padded": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), f(1, 2, 8, 7)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), f(1, 2, 4, 4, 4)),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), f(1, 2, 7, 5)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), f(1, 2, 7)),
    "batch_norm": (lambda x, m, v, w, c: F.batch_norm(x, m, v, w, c), f(2, 3, 4), f(3), u(3), f(3), f(3)),
    "batch_norm-bare": (lambda x, m, v: F.batch_norm(x, m, v), f(2, 3, 4, 4), f(3), u(3)),
    "batch_norm-own-statistics": (
        lambda x, w, c: F.batch_norm(x, None, None, w, c, training=True), f(2, 3, 4), f(3), f(3)
    ),
    "batch_norm-own-statistics-bare": (lambda x: F.batch_norm(x, None, None, training=True), f(4, 3)),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (4,), w, c), f(2, 3, 4), f(4), f(4)),
    "layer_norm-bare": (lambda x: F.layer_norm(x, (3, 4)), f(2, 3, 4)),
    "group_norm": (lambda x, w, c: F.group_norm(x, 2, w, c), f(2, 4, 3, 3), f(4), f(4)),
    "group_norm-bare": (lambda x: F.group_norm(x, 2), f(2, 4, 5)),
    "instance_norm": (lambda x, w, c: F.instance_norm(x, weight=w, bias=c), f(2, 4, 3, 3), f(4), f(4)),
    "instance_norm-bare": (lambda x: F.instance_norm(x), f(2, 4, 6)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), f(2, 3, 4), f(4)),
    "normalize": (lambda x: F.normalize(x, dim=1), f(2, 3)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 2), f(1, 4, 3, 3)),
    "softmax": (lambda x: (F.softmax(x, 1), F.log_softmax(x, -1), F.softmin(x, 0)), f(2, 3, 4)),
    "softmax-dtype": (lambda x: F.softmax(x, 1, dtype=torch.float64), f(2, 3)),
    "cosine_similarity": (F.cosine_similarity, f(2, 3), f(2, 3)),
    "cross_entropy": (F.cross_entropy, f(3, 4), i(3, high=4)),
    "losses": (lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y)), f(3), f(3)),
    "bce": (F.binary_cross_entropy_with_logits, f(3), u(3)),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), f(3)),
    **{
        f"interpolate-{m}-{k}": (lambda x, m=m, a=a: F.interpolate(x, mode=m, **a), f(1, 2, 4, 5))
        for m, corners in (
            ("nearest", None), ("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True)
        )
        for k, a in (
            (f"scale-{corners}", {"scale_factor": 2, "align_corners": corners}),
            (f"size-{corners}", {"size": (7, 3), "align_corners": corners}),
        )
    },
    "interpolate-nearest-exact": (lambda x: F.interpolate(x, size=7, mode="nearest-exact"), f(1, 2, 5)),
    "interpolate-linear": (lambda x: F.interpolate(x, size=7, mode="linear"), f(1, 2, 5)),
    "interpolate-odd-scale": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), f(1, 2, 5, 4)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), f(1, 2, 5, 4), f(1, 3, 3, 2)),
    "as_strided": (lambda x: torch.as_strided(x, (2, 2), (1, 2), 1), f(4, 4)),
    "fold": (lambda x: F.fold(x, (4, 4), 2), f(1, 8, 9)),
    "unfold": (lambda x: F.unfold(x, 3), f(1, 2, 5, 5)),
    "tensor-unfold": (lambda x: x.unfold(1, 3, 2), f(2, 7)),
}  # fmt: skip


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def leaves(result):
    return torch.utils._pytree.tree_leaves(result)


def check(function, inputs):
    """Import, interpret, compare."""
    with torch.no_grad():
        wanted = [host_array(t) for t in leaves(function(*inputs))]
        module = tw.frontends.torch.from_exported(torch.export.export(Call(function), tuple(inputs)))
    got = tw.interpret(module, *map(host_array, inputs))
    assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in wanted]
    for g, w in zip(got, wanted, strict=True):
        tolerance = 2e-2 if g.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_eager_torch(name):
    function, *inputs = CASES[name]
    check(function, inputs)
