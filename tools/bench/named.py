"""What the benchmark names: groups of networks, kernels, and the extents of its square products."""

from __future__ import annotations

from collections.abc import Mapping

#: named groups of networks; `main` are those the project is judged by
SUITES: Mapping[str, tuple[str, ...]] = {
    "main": (
        "resnet50",
        "pt_mobilenet_v2",
        "inception_v3",
        "densenet121",
        "pt_efficientnet_b0",
        "bert_base",
    ),
    "classic": ("resnet18", "mobilenet", "squeezenet", "vgg16", "dqn", "mlp"),
    "recurrent": ("lstm", "pt_bilstm", "pt_bigru"),
}
#: kernels that are timed alone; those without products move more bytes than any L2 cache of a GPU holds
KERNELS = ("gemm", "attention", "causal", "pointwise", "norm", "softmax", "pool", "depthwise")
#: extents of square products
SIZES = (1024, 2048, 4096, 8192)
