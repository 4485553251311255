"""`tilewright train NET --data WHAT`: train a network, measure it on held-out examples, keep checkpoints."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np

from tilewright.api import compile as compile_module
from tilewright.compilation.report_facts import parameter_facts
from tilewright.distributed import compile as compile_rank
from tilewright.distributed.result_output import keep_output_for_results
from tilewright.ir import InputError, Module
from tilewright.ir.errors import file_path
from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes
from tilewright.runtime.communication.mpi import MpiCommunicator
from tilewright.streaming.training_executable import StreamedStep
from tilewright.tools.commands.network import choices_of, load_network, require_device
from tilewright.tools.commands.rank_run import is_rank, joined_world, on_ranks, start_ranks
from tilewright.tools.commands.train_streamed import (
    micro_batch_network,
    streamed_loop,
    streaming_facts,
    streaming_text,
)
from tilewright.tools.plots.training import Curve, require_plot, write_curves
from tilewright.tools.report.wording import weights_text
from tilewright.training import optim, schedules
from tilewright.training.data import Data, fitted, read_data
from tilewright.training.loop import Loop, Record, interface_of, measures_of
from tilewright.training.step import train_step

#: learning rate of plain gradient descent, which has no default of its own, and its momentum
_SGD_RATE, _SGD_MOMENTUM = 0.1, 0.9
_TITLES = {
    "loss": "held-out loss",
    "accuracy": "held-out accuracy",
    "bits_per_character": "bits per character, held out",
}


def train_network(a: argparse.Namespace) -> None:
    """Train, on one device or as one of several ranks, or start these."""
    check_files(a)
    if not on_ranks(a):
        train_here(a)
    elif not is_rank(a):
        start_ranks(a)
    else:
        keep_output_for_results()
        with joined_world(a) as communicator:
            train_here(a, communicator)


def check_files(a: argparse.Namespace) -> None:
    """Raise InputError for files that cannot be read or written, and for options that do not go together."""
    if a.plot:
        require_plot(a.plot)
    for path in filter(None, (a.checkpoint, a.output, a.plot)):
        if not file_path(path).parent.is_dir():
            raise InputError("no such folder to write to", where=str(file_path(path).parent))
    if a.micro_batches and a.mode == "weights":
        raise InputError("expected --mode batch or pipeline, got weights", where="--micro-batches")
    if a.resume and not a.weights_folder and not Path(a.checkpoint).exists():
        raise InputError("no such file to resume from", where=a.checkpoint)


def train_here(a: argparse.Namespace, communicator: MpiCommunicator | None = None) -> None:
    """Train, print records, write what was asked for; of several ranks the first one prints and writes."""
    network = with_batch(load_network(a), a.batch)
    if a.loss == "cross_entropy" and (logits := before_softmax(network)) is not None:
        warn(
            "the network ends in softmax; it is trained, and written, without it: the loss takes logits",
            stacklevel=1,
        )
        network = logits
    require_device(a.target)
    trainable = [n.strip() for n in a.trainable.split(",")] if a.trainable else None
    counted = train_step(network, a.loss, _optimizer(a, 1), trainable=trainable, seed=a.seed)
    ports = interface_of(counted)
    data = read_data(a.data, ports.inputs, ports.targets)
    steps = _steps(a, data, next(iter(ports.inputs.values())).shape[0])
    step = train_step(
        micro_batch_network(network, a),
        a.loss,
        _optimizer(a, steps),
        trainable=trainable,
        clip_norm=a.clip_norm,
        accumulate=a.micro_batches or a.accumulate,
        batch_norm_groups=a.batch_norm_groups,
        seed=a.seed,
    )
    if a.memory_cap is not None:
        with streamed_loop(a, step, data) as loop:
            _train(a, network, step, steps, loop, None)
    elif communicator is None:
        loop = prepared(step, data, a.loss, a.target, seed=a.seed, **choices_of(a))
        _train(a, network, step, steps, loop, None)
    else:
        exe = _compiled_rank(step, a, communicator)
        loop = loop_of(exe, step, data, a.loss, seed=a.seed, runs=a.micro_batches or 1)
        _train(a, network, step, steps, loop, communicator)


def _train(
    a: argparse.Namespace,
    network: Module,
    step: Module,
    steps: int,
    loop: Loop,
    communicator: MpiCommunicator | None,
) -> None:
    """Train what is compiled."""
    first_rank = communicator is None or communicator.rank == 0
    first = _resumed(loop, a) if a.resume else 0
    if first >= steps:
        raise InputError(
            f"expected more steps than the {first} of the checkpoint, got {steps}", where="--steps"
        )
    counts = parameter_facts(step)
    if not a.json and first_rank:
        print(f"{network.name}: {weights_text({'parameters': counts})}", flush=True)
    records = _trained(loop, a, steps, first, first_rank=first_rank, alone=communicator is None)
    state = {n: loop.steps.state[n] for n in loop.steps.state} if a.output else {}
    ranks = [] if communicator is None else _rank_rows(loop.steps, communicator)
    if not first_rank:
        return
    if a.plot:
        named = {k: _TITLES[k] for k in records[-1].held_out if k != "loss"} or {"loss": _TITLES["loss"]}
        write_curves([Curve(network.name, loop.losses, records, first)], named, a.plot)
    if a.output:
        trained = compile_module(step.inference(state), a.target, **choices_of(a))
        trained.save(file_path(a.output))
    streaming = streaming_facts(loop.steps) if isinstance(loop.steps, StreamedStep) else {}
    _report(a, network, loop, records, counts, ranks, streaming)
    if loop.done < steps:
        kept = f"; {a.checkpoint} holds the state" if a.checkpoint else ""
        raise KeyboardInterrupt(f"interrupted after step {loop.done} of {steps}{kept}")


def prepared(step: Module, data: Data, loss: str, target: str, *, seed: int = 0, **choices: Any) -> Loop:
    """The compiled step and its network over the same weights, ready to be trained on the data."""
    return loop_of(compile_module(step, target, **choices), step, data, loss, seed=seed)


def loop_of(exe: Any, step: Module, data: Data, loss: str, *, seed: int = 0, runs: int = 1) -> Loop:
    """The loop of a step that is compiled, `runs` runs of which are one step of the loop."""
    ports = interface_of(step)
    fitting = fitted(data, ports.inputs, ports.targets)
    return Loop(exe, exe.inference(), fitting, ports, measures_of(loss, data), seed, runs=runs)


def _compiled_rank(step: Module, a: argparse.Namespace, communicator: MpiCommunicator) -> Any:
    return compile_rank(
        step,
        mode=a.mode or "batch",
        target=a.target,
        communicator=communicator,
        options=", ".join(
            filter(None, (a.mode_options, a.micro_batches and f"micro_batches={a.micro_batches}"))
        ),
        transport=a.transport,
        **choices_of(a),
    )


def _rank_rows(exe: Any, communicator: MpiCommunicator) -> list[dict[str, Any]]:
    """What every rank sends in a step, and the memory it takes; a collective."""
    report = exe.report()
    own = {"rank": communicator.rank, "device": exe.device}
    own |= {k: report["distributed"][k] for k in ("communications", "bytes_communicated")}
    own |= {k: report[k] for k in ("state_bytes", "arena_bytes")}
    own |= {k: report["distributed"][k] for k in ("modelled",) if k in report["distributed"]}
    return list(map(json.loads, communicator.gather_texts(json.dumps(own), doing="reporting")))


def with_batch(network: Module, batch: int | None) -> Module:
    """The network for another extent of the first dimension of all its inputs."""
    if batch is None:
        return network
    shapes = {n: t.shape for n, t in zip(network.input_names, network.input_types, strict=True)}
    return with_input_shapes(network, {n: (batch, *s[1:]) for n, s in shapes.items() if s})


def before_softmax(network: Module) -> Module | None:
    """The network up to the softmax that gives its only result; None where it ends otherwise."""
    *ops, last = network.main.body.ops
    ends = [op for op in ops if op.name == "graph.softmax" and op.results == last.operands]
    if not ends:
        return None
    source = ends[0].operands[0]
    block = network.main.body.with_ops(
        (*(op for op in ops if op is not ends[0]), last.with_operands((source,)))
    )
    main = replace(network.main, body=block, result_types=(source.type,))
    return network.with_funcs(tuple(main if f is network.main else f for f in network.funcs))


def _optimizer(a: argparse.Namespace, steps: int) -> optim.Optimizer:
    """The optimizer with its rate and schedule over so many steps."""
    options: dict[str, Any] = {}
    if a.weight_decay is not None:
        options["weight_decay"] = a.weight_decay
    if a.optimizer == "sgd" or a.momentum is not None:
        options["momentum"] = _SGD_MOMENTUM if a.momentum is None else a.momentum
    make: Callable[..., optim.Optimizer] = optim.NAMED[a.optimizer]
    rate = a.lr
    if rate is None:
        rate = _SGD_RATE if a.optimizer == "sgd" else make().options["lr"]
    return make(lr=_scheduled(rate, a.schedule, a.warm_up, max(1, steps // a.accumulate)), **options)


def _scheduled(rate: float, kind: str, warm_up: int, updates: int) -> Any:
    if warm_up >= updates > 1:
        raise InputError(
            f"expected fewer steps of warm-up than the {updates} updates, got {warm_up}", where="--warm-up"
        )
    rest = max(1, updates - warm_up)
    after: Any = rate
    if kind == "cosine":
        after = schedules.cosine(rate, rest)
    elif kind == "linear":
        after = schedules.polynomial(rate, rest)
    return schedules.warm_up(warm_up, after) if warm_up else after


def _steps(a: argparse.Namespace, data: Data, batch: int) -> int:
    return int(a.steps or (a.epochs or 1) * (data.training.count // batch))


def _resumed(loop: Loop, a: argparse.Namespace) -> int:
    """The steps of the checkpoint; a rate that was given replaces that of the checkpoint."""
    done = loop.done if a.weights_folder else loop.resume(a.checkpoint)
    state: Any = loop.steps.state
    if "lr" in a.given and "lr" in state:
        state["lr"] = np.asarray(a.lr, np.float32)
    return done


def _trained(
    loop: Loop, a: argparse.Namespace, steps: int, first: int, *, first_rank: bool, alone: bool
) -> list[Record]:
    """Run the loop with a bar of progress, and print records as they come.

    alone: an interrupt ends the step that runs, and keeps its state; ranks that are interrupted end all.
    """
    from tqdm import tqdm

    records = []
    hidden = None if first_rank else True
    with (
        tqdm(total=steps, initial=first, unit="step", disable=hidden, leave=False) as bar,
        _interrupts() if alone else nullcontext(threading.Event()) as asked,
    ):

        def show(step: int, loss: float) -> None:
            bar.update(step - bar.n)
            bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)

        every = a.eval_every or loop.epoch_steps
        for record in loop.run(
            steps, eval_every=every, checkpoint=a.checkpoint, stop=asked.is_set, progress=show
        ):
            records.append(record)
            if not first_rank:
                continue
            with bar.external_write_mode():
                print(json.dumps(asdict(record)) if a.json else shown(record), flush=True)
    return records


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Within, the first Ctrl-C sets the event, so that a step that runs ends; the second one interrupts."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def shown(record: Record) -> str:
    """One record as a line."""
    parts = [f"step {record.step:6d}", f"epoch {record.epoch:6.2f}", f"loss {record.loss:8.4f}"]
    parts += [
        f"{_TITLES[k].replace('held-out', 'held out:')} {_number(k, v)}" for k, v in record.held_out.items()
    ]
    return "  ".join([*parts, f"{record.seconds:7.1f} s"])


def _number(key: str, value: float) -> str:
    return f"{100 * value:.2f} %" if key == "accuracy" else f"{value:.4f}"


def _report(
    a: argparse.Namespace,
    network: Module,
    loop: Loop,
    records: list[Record],
    counts: Mapping[str, int],
    ranks: Sequence[Mapping[str, Any]],
    streaming: Mapping[str, Any],
) -> None:
    last = records[-1]
    weights = parameter_facts(network)["trainable"]
    steps = len(loop.losses)
    result: Mapping[str, Any] = {
        "network": a.network,
        "data": a.data,
        "parameters": weights,
        "trained": counts["trainable"],
        "parameter_bytes": counts["bytes"],
        "batch": loop.batch,
        "steps": last.step,
        "loss": last.loss,
        "held_out": dict(last.held_out),
        "seconds": last.seconds,
        "step_seconds_mean": last.step_seconds / max(1, steps),
        "checkpoint": a.checkpoint,
    }
    if ranks:
        result = {**result, "distributed": {"mode": a.mode or "batch", "ranks": ranks}}
    if streaming:
        result = {**result, "streaming": streaming}
    if a.json:
        print(json.dumps(result), flush=True)
        return
    print(
        f"{network.name}: {weights} parameters, {steps} steps of {loop.batch} examples, "
        f"{1e3 * last.step_seconds / max(1, steps):.2f} ms per step"
    )
    if streaming:
        print(streaming_text(streaming))
    for r in ranks:
        print(
            f"rank {r['rank']}: {r['communications']} communications of "
            f"{r['bytes_communicated'] / 1e6:.3f} MB per step, "
            f"{r['state_bytes'] / 1e6:.3f} MB of state, {r['arena_bytes'] / 1e6:.3f} MB besides, "
            f"{r['device']}"
        )
    if ranks and "modelled" in ranks[0]:
        taken, exposed = (1e3 * ranks[0]["modelled"][k] for k in ("messages_s", "exposed_s"))
        print(
            f"by the model, sums of gradients take {taken:.3f} ms, of which {exposed:.3f} ms come after the "
            "backward pass"
        )
    for path in filter(None, (a.checkpoint, a.output, a.plot)):
        print(f"wrote {path}")
