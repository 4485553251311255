"""Arguments of `tilewright bench`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

from tilewright.compilation.option_values import Precision, Tune
from tilewright.tools.arguments.network import SEED, add_pass_arguments, add_shape_arguments
from tilewright.tools.arguments.parsing import CommandParser, Sub, seconds, whole
from tilewright.tools.arguments.scope import OptionScope

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
#: batches of suites and of training rows that have none of their own
BATCHES = (1, 8, 64)
#: kernels that are timed alone; those without products move more bytes than any L2 cache of a GPU holds
KERNELS = ("gemm", "attention", "causal", "pointwise", "norm", "softmax", "pool", "depthwise")
#: extents of square products
SIZES = (1024, 2048, 4096, 8192)


FOLDER = "tests/data/relay"
_COUNT = whole(1, 1 << 20)


def add_bench(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser("bench", help="time networks beside PyTorch: batches x precisions x peers")
    _add_what(p)
    _add_instead(p)
    _add_ours(p)
    p.add_argument("--rounds", type=_COUNT, default=10, help="rounds, all contenders in each (default 10)")
    p.add_argument("--replays", type=_COUNT, default=10, help="timed runs per round at most (default 10)")
    p.add_argument("--cold", action="store_true", help="replace what the L2 cache holds before each run")
    p.add_argument("--time-limit", type=seconds, default=math.inf, metavar="S", help="seconds for everything")
    p.add_argument(
        "--peer-limit",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds per peer prepared (default 300)",
    )
    p.add_argument(
        "--jobs",
        type=whole(1, 256),
        default=1,
        metavar="N",
        help="networks prepared at once, in processes; they are timed one by one all the same (default 1)",
    )
    p.add_argument("--seed", type=SEED, default=0, help="seed of the inputs")
    p.add_argument("--json", metavar="FILE", help="write all results, after every row")
    p.add_argument("--markdown", metavar="FILE", help="write the tables at the end")
    p.add_argument(
        "--only-compile",
        metavar="FOLDER",
        help="measure nothing: compile the rows, on a machine without a GPU with --target cuda:sm_90a, and "
        "keep their kernels in this folder",
    )
    p.add_argument(
        "--compiled",
        metavar="FOLDER",
        help="take kernels that --only-compile kept, so that the GPU waits for none",
    )
    p.add_argument("--plot", metavar="FILE.svg", help="draw the ratios (needs matplotlib)")
    p.set_defaults(action="training_bench.dispatch:run_bench")


def _add_what(p: CommandParser) -> None:
    p.add_argument("networks", nargs="*", metavar="NET", help="names of networks, or files")
    p.add_argument("--suite", nargs="+", default=[], choices=tuple(SUITES), help="named groups of networks")
    p.add_argument("--folder", default=FOLDER, metavar="DIR", help=f"of named networks (default {FOLDER})")
    add_shape_arguments(p, OptionScope(without=("--suite",)))
    p.add_argument(
        "--batch",
        nargs="+",
        type=_COUNT,
        metavar="N",
        help="batch sizes, the first extents of all inputs (default 1, of suites and --foreign 1 8 64; with "
        "--shape as the shapes say)",
    )
    p.add_argument(
        "--precision",
        nargs="+",
        choices=get_args(Precision),
        help="default fp32; with --foreign fp32 tf32 fp16, with --train tf32 bf16 fp32",
    )
    p.add_argument(
        "--peers",
        nargs="+",
        metavar="PEER",
        help="torch-eager, torch-graph, torch-compile (reduce-overhead), torch-max-autotune, onnxruntime (on "
        "CPUs), or none (default on a GPU torch-eager torch-graph torch-compile, on a CPU onnxruntime "
        "torch-eager)",
    )
    p.add_argument(
        "--all-variants",
        action="store_true",
        help="compile peers in every variant (default: in the one that is fastest without compiling)",
    )


def _add_instead(p: CommandParser) -> None:
    """Options that name what is timed in place of networks from files."""
    p.add_argument(
        "--kernels",
        nargs="*",
        choices=KERNELS,
        metavar="KERNEL",
        help=f"time kernels alone: {', '.join(KERNELS)} (without names all of them)",
    )
    p.add_argument(
        "--train",
        nargs="*",
        metavar="ROW",
        help="time whole training steps instead: rows such as resnet50_b64 (without names all of them)",
    )
    p.add_argument(
        "--foreign",
        nargs="*",
        metavar="NAME",
        help="time networks that nothing here was tuned for instead: the suite of docs/foreign.md (without "
        "names all of them)",
    )
    p.add_scoped(
        p,
        OptionScope(needs=("--foreign",)),
        "--drawn",
        type=SEED,
        metavar="SEED",
        help="ten more networks, which this seed draws",
    )
    p.add_scoped(
        p,
        OptionScope(needs=("--train",)),
        "--curves",
        type=_COUNT,
        metavar="STEPS",
        help="train so many steps on the same batches with both and compare the losses, in place of timing",
    )
    p.add_scoped(
        p,
        OptionScope(needs=("--train",), without=("--curves",)),
        "--memory-budget",
        nargs="+",
        metavar="BYTES",
        help="time steps a second time, compiled to take no more than this on the device, such as 2GiB: one "
        "for all rows, or one for each",
    )
    p.add_scoped(
        p,
        OptionScope(needs=("--kernels",)),
        "--sizes",
        nargs="+",
        type=_COUNT,
        default=list(SIZES),
        metavar="N",
        help="extents of square products",
    )


def _add_ours(p: CommandParser) -> None:
    kernels = OptionScope(kernels=True)
    p.add_argument("--target", default="auto", help="as in tilewright run (default auto)")
    p.add_scoped(p, kernels, "--tune", default="model", choices=get_args(Tune), help="default model")
    measured = OptionScope(kernels=True, needs=("--tune measure",))
    p.add_scoped(p, measured, "--tuning-db", metavar="FILE", help="measurements that are looked up and kept")
    p.add_scoped(
        p,
        measured,
        "--budget",
        metavar="TIME",
        help="how long tuning one network may take (60s, 5min)",
    )
    p.add_argument(
        "--libraries",
        default="on",
        choices=("on", "off", "both"),
        help="whether library kernels may compete; both times a network with and without (default on)",
    )
    p.add_argument(
        "--no-libraries", dest="libraries", action="store_const", const="off", help="--libraries off"
    )
    p.add_scoped(p, kernels, "--streams", metavar="POLICY", help="as in tilewright run")
    add_pass_arguments(p, OptionScope())
