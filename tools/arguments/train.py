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
        OptionScope(needs=("--checkpoint",)),
        "--resume",
        action="store_true",
        help="go on from the checkpoint, bit by bit as without the interruption",
    )
    p.add_argument(
        "--output", metavar="FILE.tw", help="compile the trained network, and write it as an executable"
    )
    p.add_argument("--plot", metavar="FILE.png", help="draw the curves (needs matplotlib)")
    p.add_argument("--json", action="store_true", help="print one JSON object per record, and one at the end")
