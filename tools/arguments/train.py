"""Arguments of `tilewright train`."""

from __future__ import annotations

from tilewright.tools.arguments.network import REPEATS, add_choice_arguments, add_network_arguments
from tilewright.tools.arguments.parsing import CommandParser, Sub, real, whole
from tilewright.tools.arguments.run import add_rank_arguments
from tilewright.tools.arguments.scope import OptionScope

#: losses, optimizers and schedules by name; a test compares them with those that there are
LOSSES = ("cross_entropy", "mse", "l1", "huber", "bce")
OPTIMIZERS = ("sgd", "adam", "adamw", "lamb", "rmsprop", "adagrad", "lion")
SCHEDULES = ("constant", "cosine", "linear")
#: how a step may be divided among devices
TRAINING_MODES = ("batch", "weights", "pipeline")


def add_train(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser("train", help="train a network on digits, a text or arrays of a file")
    add_choice_arguments(p)
    add_network_arguments(p, params="random", draws_inputs=True, trains=True)
    p.add_argument(
        "--data",
        required=True,
        metavar="WHAT",
        help="digits (those of scikit-learn), text:PATH (its characters), or npz:PATH (arrays x and y, or of "
        "the names of inputs and target; x_test and y_test are held out, or a fifth of the others)",
    )
    _add_optimization(p)
    _add_course(p)
    _add_storage(p)
    add_rank_arguments(
        p, "train", TRAINING_MODES, "(default batch): the batch, the weights, or stages of a pipeline"
    )
    p.set_defaults(action="commands.train:train_network")


def _add_optimization(p: CommandParser) -> None:
    """What is made small, and how."""
    p.add_argument(
        "--loss", default="cross_entropy", choices=LOSSES, help="what is made small (default cross_entropy)"
    )
    p.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS, help="default adamw")
    p.add_argument(
        "--lr", type=real(0), metavar="R", help="learning rate (default: that of the optimizer; 0.1 of sgd)"
    )
    p.add_scoped(
        p,
        OptionScope(needs=("--optimizer sgd", "--optimizer rmsprop")),
        "--momentum",
        type=real(0, 1),
        metavar="M",
        help="of sgd and rmsprop (default: 0.9 of sgd, 0 of rmsprop)",
    )
    p.add_argument(
        "--weight-decay", type=real(0), metavar="W", help="default: that of the optimizer, 0 of most"
    )
    p.add_argument(
        "--schedule",
        default="constant",
        choices=SCHEDULES,
        help="what becomes of the rate until the last step: stays, or falls to 0 (default constant)",
    )
    p.add_argument(
        "--trainable",
        metavar="NAME,...",
        help="weights that are trained, by name or pattern such as head.* (default: all of the network)",
    )
    p.add_argument(
        "--warm-up", type=whole(0, 10**9), default=0, metavar="N", help="steps in which the rate rises first"
    )
    p.add_argument(
        "--clip-norm", type=real(0), metavar="G", help="bound on the norm of all gradients together"
    )
    p.add_argument(
        "--accumulate", type=whole(1, 10**6), default=1, metavar="K", help="update after every K batches"
    )
    p.add_argument(
        "--batch-norm-groups",
        type=whole(1, 10**6),
        default=1,
        metavar="G",
        help="batch norms standardise so many equal parts of the batch each by itself (default 1: all of it)",
    )


def _add_storage(p: CommandParser) -> None:
    """State on storage, and batches in parts."""
    group = p.add_argument_group("state on storage, and micro-batches")
    p.add_scoped(
        group,
        OptionScope(kernels=True, without=("--devices", "--mode")),
        "--memory-cap",
        metavar="SIZE",
        help="device memory to use at most, such as 2GiB: weights and optimizer state stay on storage and "
        "stream through it",
    )
    p.add_scoped(
        group,
        OptionScope(needs=("--memory-cap", "--devices", "--mode"), without=("--accumulate",)),
        "--micro-batches",
        type=whole(1, 1 << 20),
        metavar="N",
        help="parts of a batch that are computed one after another, for one update, in which replicas add "
        "gradients up over the devices once (default 1)",
    )
    on_storage = OptionScope(needs=("--memory-cap",))
    p.add_scoped(
        group,
        on_storage,
        "--order",
        choices=("auto", "pr", "ar"),
        help="fetch weights once for all micro-batches (pr), or again for each (ar); default: the faster",
    )
    p.add_scoped(
        group,
        on_storage,
        "--weights-folder",
        metavar="FOLDER",
        help="where the state of every finished step is kept, also when the run is killed; --resume goes on "
        "from it (default: a temporary folder)",
    )
    p.add_scoped(
        group,
        on_storage,
        "--host-memory",
        metavar="SIZE",
        help="host memory for values of micro-batches between parts; the rest goes to the folder",
    )


def _add_course(p: CommandParser) -> None:
    """How long, and what is kept of it."""
    length = p.add_mutually_exclusive_group()
    length.add_argument(
        "--steps", type=REPEATS, metavar="N", help="steps in all, those before a resumption included"
    )
    length.add_argument("--epochs", type=REPEATS, metavar="N", help="passes over the data in all (default 1)")
    p.add_argument(
        "--batch", type=whole(1, 10**6), metavar="B", help="examples of a step (default: as the network)"
    )
    p.add_argument(
        "--eval-every",
        type=REPEATS,
        metavar="N",
        help="measure held-out examples and write the checkpoint after every N steps (default: every epoch)",
    )
    p.add_argument(
        "--checkpoint",
        metavar="FILE.safetensors",
        help="where weights, moments and counters are kept; also written when the run is interrupted",
    )
    p.add_scoped(
        p,
        OptionScope(needs=("--checkpoint", "--weights-folder")),
        "--resume",
        action="store_true",
        help="go on from the checkpoint, or from the weights folder, bit by bit as without the interruption",
    )
    p.add_argument(
        "--output", metavar="FILE.tw", help="compile the trained network, and write it as an executable"
    )
    p.add_argument("--plot", metavar="FILE.png", help="draw the curves (needs matplotlib)")
    p.add_argument("--json", action="store_true", help="print one JSON object per record, and one at the end")
