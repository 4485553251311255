"""`python -m tilewright.tools.demo_train`: networks trained from nothing on this machine."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import compile as compile_module
from tilewright.devices.targets import resolve_target
from tilewright.frontends.zoo import build, gpt
from tilewright.ir import InputError, Module, TilewrightError, WorkError
from tilewright.passes.graph.forms.promote_parameters import promoted
from tilewright.tools.commands.train import prepared
from tilewright.tools.plots.training import Curve, require_plot, write_curves
from tilewright.training import losses, optim, schedules
from tilewright.training.data import Data, Windows, characters, digits
from tilewright.training.loop import Loop, Record
from tilewright.training.step import train_step

#: what the digits must reach (median over seeds)
LEAST_ACCURACY = 0.97


@dataclass(frozen=True)
class Sizes:
    """How much is trained; the defaults are those of `make demo-train`."""

    seeds: Sequence[int] = (0, 1, 2)
    epochs: int = 20
    width: int = 24
    text_steps: int = 1500
    eval_every: int = 250
    layers: int = 2
    text_width: int = 64
    sequence: int = 64
    text_batch: int = 32
    resumed_steps: int = 20
    sample: int = 400
    characters: int | None = None


def main(folder: Path = Path("build/demo-train"), target: str = "auto") -> int:
    """Run the demonstration; returns an exit code."""
    try:
        start = time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"training on {resolve_target(target)}\n")
        train_digits(folder, target, Sizes())
        print()
        train_text(folder, target, Sizes())
        print(f"\ndone in {time.perf_counter() - start:.0f} s; pictures and checkpoints are in {folder}")
    except TilewrightError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2 if isinstance(e, InputError) else 1
    return 0


# -- digits --------------------------------------------------------------------------------------------------
def train_digits(folder: Path, target: str, sizes: Sizes) -> float:
    """Train both classifiers; the median accuracy of the convolutional one, which must be good."""
    plot = folder / "digits.png"
    require_plot(str(plot))
    data = digits()
    print(
        f"1. Handwritten digits: {data.training.count} images of 8 x 8 pixels to learn from, "
        f"{data.held_out.count} held out to measure with"
    )
    start = time.perf_counter()
    steps = sizes.epochs * (data.training.count // 64)
    plain = train_step(build("linear_classifier"), losses.cross_entropy(), optim.adam(lr=0.02))
    linear = _learner(plain, data, target, seed=0)
    _run(linear, steps, sizes.epochs)
    print(f"   a linear classifier:             {_percent(linear.records[-1])} right", flush=True)
    curves = [Curve("linear", linear.loop.losses, linear.records)]
    learner = None
    for seed in sizes.seeds:
        network = build(f"digits{{width={sizes.width}}}", seed=seed)
        optimizer = optim.adamw(lr=schedules.cosine(0.004, steps), weight_decay=0.02)
        step = train_step(network, losses.cross_entropy(), optimizer, seed=seed)
        learner = _learner(step, data, target, seed) if learner is None else learner.anew(step, seed)
        _run(learner, steps, sizes.epochs)
        print(f"   a convolutional network, seed {seed}: {_percent(learner.records[-1])} right", flush=True)
        curves.append(Curve(f"convolutional, seed {seed}", learner.loop.losses, learner.records))
    median = statistics.median(c.records[-1].held_out["accuracy"] for c in curves[1:])
    write_curves(curves, {"accuracy": "held-out accuracy"}, str(plot))
    seconds = time.perf_counter() - start
    print(f"   median of {len(sizes.seeds)} seeds: {100 * median:.2f} % after {steps} steps each")
    print(f"   {seconds:.0f} s with compilation; the curves are in {plot}")
    if median < LEAST_ACCURACY and sizes == Sizes():
        raise WorkError(
            f"expected {100 * LEAST_ACCURACY:g} % of the digits to be right, got {100 * median:.2f} %"
        )
    return median


@dataclass
class _Learner:
    """A loop and what it measured."""

    loop: Loop
    records: list[Record] = field(default_factory=list)

    def anew(self, step: Module, seed: int) -> _Learner:
        """The same compiled step with the first weights of another one: nothing is compiled again."""
        state: Any = self.loop.steps.state
        for name in step.state_names:
            state[name] = step.constants[name]
        return _Learner(replace(self.loop, seed=seed, losses=[]))


def _learner(step: Module, data: Data, target: str, seed: int) -> _Learner:
    return _Learner(prepared(step, data, "cross_entropy", target, seed=seed))


def _run(learner: _Learner, steps: int, records: int) -> None:
    """Train, measuring about so many times."""
    learner.records += learner.loop.run(steps, eval_every=max(1, steps // records))


def _percent(record: Record) -> str:
    return f"{100 * record.held_out['accuracy']:6.2f} %"


# -- text ----------------------------------------------------------------------------------------------------
def train_text(folder: Path, target: str, sizes: Sizes) -> float:
    """Train a small GPT; its bits per held-out character, which must be less than those of letter pairs."""
    from pydoc_data.topics import topics

    start = time.perf_counter()
    text = "\n".join(topics[name] for name in sorted(topics))[: sizes.characters]
    data = characters(text, sizes.sequence, "pydoc_data.topics")
    held_out = data.held_out
    assert isinstance(held_out, Windows)
    assert isinstance(data.training, Windows)
    first, whole = entropy(held_out.ids, 1), entropy(np.append(data.training.ids, held_out.ids), 1)
    print(
        f"2. Text: the {len(text)} characters of Python's help pages, {len(data.symbols)} different ones, of "
        "which the last tenth is held out"
    )
    print(
        f"   a table of pairs of characters needs {whole:.2f} bits per character, and {first:.2f} where it "
        "is made from the held-out characters themselves"
    )
    network = _gpt(data, sizes, batch=sizes.text_batch, logits="all")
    rate = schedules.warm_up(min(50, sizes.text_steps), schedules.cosine(0.004, sizes.text_steps, end=0.0004))
    step = train_step(network, losses.cross_entropy(), optim.adamw(lr=rate, weight_decay=0.01), clip_norm=1.0)
    loop = prepared(step, data, "cross_entropy", target)
    weights = sum(math.prod(a.shape) for n, a in network.constants.items() if n in network.parameters)
    print(f"   a GPT of {sizes.layers} layers, {weights} parameters, starts at {_bits(loop):.2f} bits:")
    checkpoint = folder / "text.safetensors"
    records = []
    for record in loop.run(sizes.text_steps, eval_every=sizes.eval_every, checkpoint=checkpoint):
        records.append(record)
        print(
            f"   step {record.step:5d}: {record.held_out['bits_per_character']:.3f} bits per held-out "
            f"character, {record.seconds:4.0f} s",
            flush=True,
        )
    curve = Curve("GPT", loop.losses, records)
    write_curves([curve], {"bits_per_character": "bits per character"}, str(folder / "text.png"))
    bits = records[-1].held_out["bits_per_character"]
    print("   what it writes, one character after the other:\n")
    written = sampled(loop, data, _gpt(data, sizes, batch=1, logits="last"), target, sizes)
    print("\n".join(f"      | {line}" for line in written.split("\n")), end="\n\n")
    count = resumed_alike(step, loop, data, checkpoint, target, sizes)
    print(
        f"   resumed from the checkpoint: after {sizes.resumed_steps} more steps all {count} arrays of the "
        "state have the same bits as without the interruption"
    )
    print(f"   {time.perf_counter() - start:.0f} s with compilation; the curve is in {folder / 'text.png'}")
    if bits >= first and sizes == Sizes():
        raise WorkError(f"expected fewer bits per character than pairs need ({first:.2f}), got {bits:.2f}")
    return bits


def entropy(ids: np.ndarray, order: int) -> float:
    """Bits per character of the best table of characters given `order` characters before, on its own text."""
    contexts = np.lib.stride_tricks.sliding_window_view(ids, order + 1)
    _, joint = np.unique(contexts, axis=0, return_counts=True)
    _, before = np.unique(contexts[:, :-1], axis=0, return_counts=True) if order else (None, [len(contexts)])
    return (_bits_of(joint) - _bits_of(np.asarray(before))) if order else _bits_of(joint)


def _bits_of(counts: np.ndarray) -> float:
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum())


def _gpt(data: Data, sizes: Sizes, *, batch: int, logits: str) -> Module:
    return gpt(
        layers=sizes.layers,
        width=sizes.text_width,
        vocabulary=len(data.symbols),
        context=sizes.sequence,
        sequence=sizes.sequence,
        batch=batch,
        logits=logits,
    )


def _bits(loop: Loop) -> float:
    measured = loop.measures.of(loop.network, loop.data.held_out, loop.batch, 1)
    return measured["bits_per_character"]


def sampled(loop: Loop, data: Data, network: Module, target: str, sizes: Sizes) -> str:
    """Characters drawn one after the other, each given those before it."""
    exe: Any = compile_module(promoted(network, network.parameters), target)
    exe.share_state(loop.steps)
    return drawn(lambda tokens: exe(tokens)[0][0, -1], data.symbols, sizes.sequence, sizes.sample)


def drawn(
    logits: Callable[[np.ndarray], np.ndarray],
    symbols: str,
    sequence: int,
    count: int,
    *,
    temperature: float = 0.8,
    seed: int = 0,
) -> str:
    """`count` characters, of which each is drawn by its logits over a temperature, after an end of line."""
    rng = np.random.default_rng(seed)
    tokens = np.full((1, sequence), symbols.find("\n"), np.int32)
    out = []
    for _ in range(count):
        scores = np.asarray(logits(tokens), np.float64) / temperature
        shares = np.exp(scores - scores.max())
        out.append(int(rng.choice(len(symbols), p=shares / shares.sum())))
        tokens = np.concatenate([tokens[:, 1:], [[np.int32(out[-1])]]], axis=1)
    return "".join(symbols[i] for i in out)


def resumed_alike(step: Module, loop: Loop, data: Data, checkpoint: Path, target: str, sizes: Sizes) -> int:
    """Train on, and again from the checkpoint elsewhere; the number of arrays, all of which must be equal."""
    other = prepared(step, data, "cross_entropy", target, seed=loop.seed)
    if other.resume(checkpoint) != loop.done:
        raise WorkError("expected the checkpoint to hold the last step")
    for each in (loop, other):
        for _ in range(sizes.resumed_steps):
            each.steps.step(*data.training.batch(each.done, each.batch, each.seed))
    apart = [n for n, a in loop.steps.state.items() if a.tobytes() != other.steps.state[n].tobytes()]
    if apart:
        raise WorkError(f"expected a resumed run to have the same bits, it differs in {', '.join(apart[:5])}")
    return len(loop.steps.state)


if __name__ == "__main__":
    sys.exit(main())
