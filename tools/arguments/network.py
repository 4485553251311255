"""Arguments that commands share: which network, weights and target, and how it is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from tilewright.compilation.option_values import (
    PARTITIONER,
    ConvAlgorithm,
    Layouts,
    Partitioner,
    Precision,
    Relays,
    Tune,
    Workspace,
)
from tilewright.tools.arguments.parsing import CommandParser, whole
from tilewright.tools.arguments.scope import (
    ANYTHING,
    COMPILED,
    NETWORKS,
    WITHOUT_WEIGHTS,
    NetworkKind,
    OptionScope,
)

#: seeds of NumPy's generators that all commands take
SEED = whole(0, 2**63 - 1)
#: timed runs; more than a year of the smallest network
REPEATS = whole(1, 10**9)


def add_network_arguments(
    p: CommandParser, *, params: str | None, draws_inputs: bool = False, trains: bool = False
) -> None:
    """Arguments that name a network, its weights and the target.

    params: weights where none are named. draws_inputs: whether the command draws random inputs as well.
    trains: whether the command trains the network, so that a program may be in training mode in any case.
    """
    default = "random" if params else "none: every parameter stays an input"
    p.add_argument(
        "network",
        metavar="NET",
        help="a Relay (.relay text, .json), ONNX (.onnx), torch.export (.pt2) or Tilewright IR (.ir) file, "
        "or zoo:nasnet_mobile, zoo:gpt2_small{sequence=64}, ...",
    )
    relay = OptionScope(frozenset({NetworkKind.RELAY}))
    p.add_scoped(
        p,
        relay,
        "--params",
        default=params,
        metavar="FILE|random",
        help=f"weights: a Relay param-dict file, .npz, .safetensors, or 'random' (default {default})",
    )
    p.add_scoped(
        p,
        relay,
        "--inputs",
        metavar="NAME,...",
        help="parameters that stay inputs; every other one needs a value (default: the first, and with "
        "random weights the integer ones, with a file the indices right behind it)",
    )
    if trains:
        p.set_defaults(training_mode=True)
    else:
        p.add_scoped(
            p,
            OptionScope(frozenset({NetworkKind.EXPORTED})),
            "--training-mode",
            action="store_true",
            help="the program was exported in training mode: take the network that it trains, with dropout "
            "off and batch norms by their running statistics",
        )
    add_shape_arguments(p, OptionScope(), "; of a saved executable: which of its plans")
    p.add_scoped(
        p,
        OptionScope(ANYTHING if draws_inputs else WITHOUT_WEIGHTS),
        "--seed",
        type=SEED,
        default=0,
        help="seed of random weights and inputs" if draws_inputs else "seed of random weights",
    )
    p.add_argument(
        "--target",
        default="auto",
        help="auto, cuda, cuda:sm_90a, cuda:sm_90a:h200, opencl, emulator, reference (default: auto, or what "
        "a saved executable was compiled for)",
    )


def add_shape_arguments(p: CommandParser, scope: OptionScope, more: str = "") -> None:
    """The arguments that fix what a network leaves open: shapes and extents, and values of inputs.

    more: what else the help says of `--shape`.
    """
    p.add_scoped(
        p,
        scope,
        "--shape",
        action="append",
        default=[],
        metavar="NAME=N,...",
        help="compile for this shape of an input (repeatable); ONNX: also the extent of a symbolic "
        f"dimension{more}",
    )
    p.add_scoped(
        p,
        replace(scope, inputs=frozenset({NetworkKind.ONNX})),
        "--constant",
        action="append",
        default=[],
        metavar="NAME=V,...",
        help="ONNX: fix an input to a value, so that it is an input no more (repeatable)",
    )


def add_choice_arguments(p: CommandParser) -> None:
    """The arguments of a compilation: precision, and how algorithms and parameters are chosen."""
    p.add_scoped(
        p,
        COMPILED,
        "--tune",
        default="model",
        choices=get_args(Tune),
        help="how parameters are chosen (default model)",
    )
    add_measuring_arguments(p, replace(COMPILED, needs=("--tune measure",)))
    add_lowering_arguments(p)


def add_measuring_arguments(p: CommandParser, scope: OptionScope) -> None:
    """The arguments of measured choices."""
    p.add_scoped(
        p,
        scope,
        "--tuning-db",
        metavar="FILE",
        help="where measurements are kept and looked up (default: $TILEWRIGHT_TUNING_DB, else in the cache); "
        "of a saved executable, those that travel with it",
    )
    p.add_scoped(
        p,
        scope,
        "--budget",
        metavar="TIME",
        help="how long measuring may take, such as 60s or 5min; 0 takes what is known (default: as long as "
        "the search sees gains)",
    )


def add_lowering_arguments(p: CommandParser) -> None:
    """The arguments that choose how a network is computed."""
    p.add_scoped(
        p,
        OptionScope(NETWORKS),
        "--precision",
        default="fp32",
        choices=get_args(Precision),
        help="storage and products (default fp32: on tensor cores in pieces, as precise as float32 sums; "
        "fp32-strict: on the lanes)",
    )

    def add(*flags: str, **options: Any) -> None:
        p.add_scoped(p, COMPILED, *flags, **options)

    add(
        "--no-libraries",
        action="store_true",
        help="take no kernels of cuBLASLt and cuDNN, even where they are measured to be faster",
    )
    add(
        "--conv-algorithm",
        default="auto",
        choices=get_args(ConvAlgorithm),
        help="how convolutions are computed, where legal (default auto: as --tune chooses)",
    )
    add(
        "--workspace",
        default="network",
        choices=get_args(Workspace),
        help="memory that chosen algorithms may take: the network's peak without them (default), or any",
    )
    _add_kernel_arguments(p)
    add(
        "--streams",
        metavar="POLICY",
        help="which launches run side by side: model, auto (measured), serial, exact, ios, limited(K), ... "
        "(default as --tune chooses)",
    )
    add(
        "--relays",
        default="auto",
        choices=get_args(Relays),
        help="whether a launch may start while the one before it runs, where the GPU has places for both: "
        "where the cost model sees a gain (auto, the default), always, or never",
    )
    add_pass_arguments(p, OptionScope(NETWORKS))


def _add_kernel_arguments(p: CommandParser) -> None:
    """The arguments that choose which ops share a kernel, and in which order values lie between kernels."""

    def add(*flags: str, **options: Any) -> None:
        p.add_scoped(p, COMPILED, *flags, **options)

    add(
        "--partitioner",
        default=PARTITIONER,
        choices=get_args(Partitioner),
        help=f"what chooses which ops share a kernel (default {PARTITIONER})",
    )
    add(
        "--layouts",
        default="cut",
        choices=get_args(Layouts),
        help="what chooses the order of dimensions of intermediate values: channels first or last (cut, the "
        "default), the least time of all useful orders (exact), or shortest paths (sssp)",
    )


def add_pass_arguments(p: CommandParser, scope: OptionScope) -> None:
    """The arguments that bring passes of the user into a compilation."""
    group = p.add_argument_group("own passes")
    p.add_scoped(
        group,
        replace(scope, needs=("--pass-pipeline",)),
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE_OR_MODULE",
        help="Python code that registers passes (repeatable)",
    )
    p.add_scoped(
        group,
        scope,
        "--pass-pipeline",
        action="append",
        default=[],
        metavar="LEVEL:PASSES",
        help="run these passes at their point of the pipeline, as in graph:'my-pass{limit=2}, cse'; LEVEL is "
        "graph, tensor or thread (repeatable)",
    )
    p.add_scoped(
        group, scope, "--verify-each", action="store_true", help="verify the module after every pass"
    )
