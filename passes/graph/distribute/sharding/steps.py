"""One rank's module of a step with state: what it holds of state and inputs is found by trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.costmodel.links import Link
from tilewright.costmodel.op_work import Rates
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.modules.divisions import Division, divisions_of, with_divisions
from tilewright.ir.nodes import Func, Module, Op, walk
from tilewright.passes.graph.distribute.sharding.messages import (
    gather_groups,
    in_order,
    last_read_last,
    message_order,
    scheduled,
    with_gathers,
    with_messages,
)
from tilewright.passes.graph.distribute.sharding.program import LabelCut, ShardedProgram, UnitHint
from tilewright.passes.graph.distribute.sharding.shards import Shard
from tilewright.passes.graph.distribute.sharding.step_program import SUMMED_STATE, Holding, StepProgram
from tilewright.passes.graph.distribute.sharding.step_runs import (
    RunInputs,
    joined_divisions,
    joined_runs,
    with_joined_inputs,
)

#: the module attribute with the seconds, by the model, of sums that may wait, and of those that nothing hides
MESSAGE_SECONDS = "message_seconds"
#: trials until state is held as it is made; a division that does not settle goes on with the last one
_MAX_TRIALS = 16


class WeightDecisions(Protocol):
    """What decides how weights are cut; see `WeightCuts`."""

    held: dict[str, Shard]

    def restart(self) -> None: ...

    def choose(self, program: ShardedProgram, op: Op) -> LabelCut | None: ...

    def refine(self, unit_hints: Sequence[UnitHint]) -> bool: ...


def divided_step(
    module: Module,
    devices: int,
    rank: int,
    *,
    inputs: Mapping[str, Shard],
    stored: Mapping[str, Shard],
    adds_up: bool,
    weights: WeightDecisions | None = None,
    rates: Rates | None = None,
    runs: int = 1,
) -> Module:
    """The module of one rank of a step.

    inputs: cuts of inputs; one that an op needs whole stays whole, and is cut on the device. stored: cuts of
    state that save memory, not work. weights: decides how weights are cut; what is kept beside one is cut
    like it. Other state is held in the pieces that its new value comes in. rates: by which sums over ranks
    share messages; None leaves each alone. runs: of the step, which one run of the rank's module does on
    inputs that are joined along dimension 0. Where gradients are added up, state that the module's attribute
    `summed_state` names is a summand on every rank.
    """
    run_inputs: RunInputs = {}
    if runs > 1:
        module, run_inputs = joined_runs(module, runs)
        inputs = {n: s for name, s in inputs.items() for n in run_inputs[name]}
    state = set(module.state_names)
    given = {n: Shard(d.axis, d.outer, d.parts) for n, d in divisions_of(module).items() if n in state}
    stored = {**stored, **given} if adds_up else stored
    sums = frozenset(_summed(module)) if adds_up else frozenset()
    may_be_stored = stored
    stored = {n: s for n, s in may_be_stored.items() if n not in sums}
    choose = None if weights is None else weights.choose
    whole: set[str] = set()
    held: dict[str, Shard] = {}

    beside = kept_beside(module)

    def program(pool: ConstantPool, member: int = rank) -> StepProgram:
        if weights is not None:
            weights.restart()
        cuts = {n: s for n, s in inputs.items() if n not in whole}
        holding = Holding({**cuts, **held, **stored}, frozenset(stored), sums)
        made = StepProgram(
            module, range(devices), member, pool, holding=holding, choose=choose, adds_up=adds_up
        )
        made.run()
        return made

    for _ in range(_MAX_TRIALS):
        trial = program(ConstantPool(module.constants))
        trial.main()
        if weights is not None and weights.refine(trial.unit_hints):
            held = {}
            continue
        if trial.summed_params:
            sums -= trial.summed_params
            stored = {n: s for n, s in may_be_stored.items() if n not in sums}
            continue
        gathered = trial.gathered_params & inputs.keys() - whole
        gathered |= {n for own in run_inputs.values() if gathered & {*own} for n in own}
        made = {
            n: s for n, s in trial.becoming.items() if s is not None and n not in stored and n not in sums
        }
        decided = {} if weights is None else weights.held
        made |= {n: decided[w] for n, w in beside.items() if w in decided}
        made |= given
        if not gathered and made == held:
            break
        whole |= gathered
        held = made
    pool = ConstantPool(module.constants)
    final = program(pool)
    main = final.main()
    if rates is not None:
        first = main if rank == 0 else program(ConstantPool(module.constants), 0).main()
        main, seconds = _with_shared_messages(main, first, rates)
        module = module.with_attrs(**{MESSAGE_SECONDS: seconds})
    divisions = _divisions(module, final.holding, devices)
    if run_inputs:
        main, divisions = with_joined_inputs(main, run_inputs), joined_divisions(divisions, run_inputs)
    return _of_rank(module.with_funcs((main,)), pool, divisions, state, rank)


def _divisions(module: Module, holding: Holding, devices: int) -> list[Division]:
    """What ranks hold of parameters of @main, where that is not all of them on each."""
    cuts = [
        Division(p.hint, "cut", p.tensor.shape, s.axis, s.outer, s.parts)
        for p in module.main.params
        if (s := holding.cuts.get(p.hint)) is not None
    ]
    sums = [
        Division(p.hint, "sum", p.tensor.shape, 0, 1, ((0, 1),) * devices)
        for p in module.main.params
        if p.hint in holding.sums
    ]
    return cuts + sums


def _summed(module: Module) -> tuple[str, ...]:
    """State of which every rank may have a summand, as the module names it."""
    names = module.get(SUMMED_STATE, ())
    return tuple(map(str, names)) if isinstance(names, tuple) else ()


def _with_shared_messages(main: Func, first: Func, rates: Rates) -> tuple[Func, tuple[float, ...]]:
    """The function of a rank with its messages as the model has them, and seconds of those that may wait.

    first: the function of the first rank, by which all ranks decide alike though their parts may differ.
    """
    link = Link(rates.link_bytes_per_s, rates.link_latency_s)
    own, first = last_read_last(main), last_read_last(first)
    gathers = gather_groups(first, rates, link)
    own, first = with_gathers(own, gathers), with_gathers(first, gathers)
    schedule = scheduled(first, rates, link)
    order = message_order(with_messages(first, schedule.groups), rates, link)
    own = in_order(with_messages(own, schedule.groups), order, rates, link)
    return own, _rounded(schedule.messages_s, schedule.exposed_s)


def _rounded(*seconds: float) -> tuple[float, ...]:
    return tuple(float(f"{s:.6g}") for s in seconds)


def _of_rank(
    module: Module, pool: ConstantPool, divisions: Sequence[Division], state: set[str], rank: int
) -> Module:
    """The module with the constants that it names, and state as this rank starts with it."""
    constants = pool.constants
    named = {str(op["name"]) for f in module.funcs for op in walk(f.body) if op.name.endswith(".constant")}
    first = {
        d.name: d.piece(constants[d.name], rank) for d in divisions if d.name in state and d.name in constants
    }
    kept = constants.only(frozenset(named | state)).updated(first)
    return with_divisions(module.without_attr(SUMMED_STATE).with_constants(kept), divisions)


def kept_beside(module: Module) -> dict[str, str]:
    """Trained parameters, and the state of their types that is named after them: the parameter of each."""
    types = {p.hint: p.tensor for p in module.main.params}
    trained = [n for n in module.parameters if n in types]
    out = {n: n for n in trained}
    for name in module.state_names:
        owner, dot, _ = name.rpartition(".")
        if dot and owner in out and types[owner] == types[name]:
            out.setdefault(name, owner)
    return out
