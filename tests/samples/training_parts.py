"""Small steps for tests of training in parts, and their parts run by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Module, interpret
from tilewright.ir.types import array_type
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.graph.distribute.pipeline.step_places import StepFlow
from tilewright.streaming.parts.schedule import SCHEDULES
from tilewright.streaming.parts.training_forms import HostState
from tilewright.streaming.parts.training_visits import training_visits
from tilewright.streaming.training_planning import CutStep, cut_step


def mlp(width: int = 32, batch: int = 4, layers: int = 3) -> Module:
    """Products with tanh behind each, [batch, width] to [batch, width]."""
    body = "".join(
        f'%w{i} = graph.constant(name = "w{i}") : f32[{width}, {width}]\n'
        f"%h{i} = graph.dense(%a{i}, %w{i}) : f32[{batch}, {width}]\n"
        f"%a{i + 1} = graph.tanh(%h{i}) : f32[{batch}, {width}]\n"
        for i in range(layers)
    )
    names = ", ".join(f'"w{i}"' for i in range(layers))
    text = f"""module @mlp(parameters = [{names}]) {{
      graph.func @main(%a0: f32[{batch}, {width}]) -> f32[{batch}, {width}] {{
        {body} graph.return(%a{layers}) }} }}"""
    rng = np.random.default_rng(0)
    shape = (width, width)
    weights = {f"w{i}": rng.standard_normal(shape).astype(np.float32) / 6 for i in range(layers)}
    return tw.parse(text).with_constants(Constants(weights))


def drawn(step: Module, count: int, seed: int = 0) -> list[list[np.ndarray]]:
    """Inputs for so many runs of a step; integers are from 0 to 9."""
    rng = np.random.default_rng(seed)
    kinds = [array_type(p.tensor) for p in step.main.params if p.hint not in set(step.state_names)]
    return [
        [
            rng.integers(0, 10, t.shape).astype(t.dtype)
            if t.dtype.startswith("int")
            else rng.standard_normal(t.shape).astype(t.dtype)
            for t in kinds
        ]
        for _ in range(count)
    ]


def prepared(step: Module) -> Module:
    """A step without the loss scale that only fp16 has."""
    return run_pipeline(step, Pipeline.parse("fix-loss-scale, infer-shapes, dce"), PassContext())


def cut_evenly(step: Module, runs: int, layers: int, state: Mapping[str, Any]) -> CutStep:
    """The step cut into layers of equally many ops, in the forms of so many runs from `state` on."""
    count = len(StepFlow(step.main, HostState(step).names).forward)
    return cut_at(step, runs, [count * i // layers for i in range(1, layers)], state)


def cut_at(step: Module, runs: int, starts: Sequence[int], state: Mapping[str, Any]) -> CutStep:
    """The step cut at these ops of its forward pass, in the forms of so many runs from `state` on."""
    host = HostState(step)
    forms, values = [], {n: state[n] for n in host.names}
    for _ in range(runs):
        values, form = host.after(values)
        forms.append(form)
    return cut_step(step, host, forms, starts)


def run_parts(
    cut: CutStep, batches: Sequence[Sequence[np.ndarray]], state: Mapping[str, Any], schedule: str
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Results per run and the new state, all parts interpreted in float64 in the order of a schedule."""
    host = {n: state[n] for n in cut.host.names}
    hosts, form_of = [], []
    for _ in batches:
        hosts.append(host)
        host, form = cut.host.after(host)
        form_of.append(cut.forms[form])
    kept = {n: a for n, a in state.items() if n not in host}
    values: list[dict[Any, Any]] = [{} for _ in batches]
    for i, batch in enumerate(batches):
        given = iter(batch)
        for p in cut.parts[form_of[i]].line.parameters:
            values[i][p] = hosts[i][p.hint] if p.hint in host else next(given)
    order = [t.spec.name for t in cut.tensors]
    for visit in training_visits(SCHEDULES[schedule], cut.parts, form_of, order):
        kept.update((n, np.zeros_like(kept[n])) for n in visit.cleared)
        for w in visit.work:
            part = cut.parts[w.form].parts[w.part]
            own = values[w.batch]
            old = [
                kept.get(n, np.zeros(array_type(v.tensor).shape))
                for n, v in zip(part.states, part.state_parameters, strict=True)
            ]
            out = interpret(part.with_data(), *(own[v] for v in part.inputs), *old, precision="fp64")
            own.update(zip(part.outputs, out[: len(part.outputs)], strict=True))
            new = zip(part.states, out[len(part.outputs) :], strict=True)
            kept.update((n, a) for n, a in new if n in part.writes)
    results = [[values[i][v] for v in cut.parts[form_of[i]].line.returned] for i in range(len(batches))]
    local = frozenset().union(*(form.local for form in cut.parts))
    return results, {
        n: host[n] if n in host else np.zeros_like(state[n]) if n in local else kept[n] for n in state
    }
