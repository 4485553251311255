"""Thread-level ops of roles: warps of one block that run different programs at the same time.

Consecutive roles at the end of a kernel divide its warps among them. Inside a role `tid` counts its own
threads from 0, and a barrier holds for its threads alone. Roles meet in channels (`channel_ops`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.hardware_facts import (
    MOST_REGISTERS,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.ir.nodes import Func, Op, walk
from tilewright.ir.opdef import AttrDef, define, no_results, op_def

ROLE = "thread.role"
#: all threads of the blocks of a cluster arrive (`cluster_ops`): those of a role that one thread runs, too
MEET = "thread.meet_cluster"
#: registers that a thread of a role may give back to or take of the others (PTX: setmaxnreg)
LEAST_ROLE_REGISTERS = 24
#: named barriers of a block; the one of all threads is the first
MOST_BARRIERS = 16


def _verify_role(op: Op) -> Sequence[str]:
    warps, registers = op.integer("warps"), op.integer("registers")
    faults = []
    if warps < 1 or warps % WARPGROUP_WARPS:
        faults.append(f"expected warps in multiples of {WARPGROUP_WARPS}, got {warps}")
    if registers and (registers % REGISTER_UNIT or not LEAST_ROLE_REGISTERS <= registers <= MOST_REGISTERS):
        faults.append(
            f"expected registers = 0 or {LEAST_ROLE_REGISTERS} to {MOST_REGISTERS} in multiples of "
            f"{REGISTER_UNIT}, got {registers}"
        )
    return faults


define(
    ROLE,
    (),
    "What some warps of the block do, while other roles run. `tid` counts from 0 inside; `registers`: of a "
    "thread, 0 for what it has at launch. A role whose work one thread can give out is run by one thread.",
    attrs={
        "name": AttrDef("str", doc="for messages"),
        "warps": AttrDef("int", 4),
        "registers": AttrDef("int", 0),
    },
    results=0,
    infer=no_results,
    verify=_verify_role,
    body=True,
    effects=frozenset({"control"}),
)


def roles_of(func: Func) -> tuple[Op, ...]:
    """The roles of a kernel in the order of their warps; none where all threads run one program."""
    return tuple(op for op in func.body.ops if op.name == ROLE)


def threads_of(role: Op) -> int:
    """Threads of a role."""
    return role.integer("warps") * WARP


def first_threads(func: Func) -> dict[Op, int]:
    """Per role the number of its first thread in the block."""
    first: dict[Op, int] = {}
    at = 0
    for role in roles_of(func):
        first[role] = at
        at += threads_of(role)
    return first


def launch_registers(func: Func) -> int:
    """Registers of a block with roles at launch, alike for all threads: roles only pass them on."""
    block, resident = func.get("block"), func.get("resident", 1)
    assert isinstance(block, int)
    assert isinstance(resident, int)
    return REGISTERS_PER_SM // resident // block // REGISTER_UNIT * REGISTER_UNIT * block


def known_registers(func: Func) -> int:
    """Registers of a block where roles pass some on, which fixes what it has at launch; else 0: not known."""
    passed = any(role.integer("registers") for role in roles_of(func))
    return launch_registers(func) if passed else 0


def issued_by_one(role: Op) -> bool:
    """True when one thread runs a role: all its work is ops of which one thread gives out the whole.

    Beside them there are only control flow, ops on channels, and computation of numbers.
    """
    assert role.body is not None
    ops = tuple(walk(role.body))
    issues = [op for op in ops if op_def(op.name).issued_once]
    waits = ("control", "channel", "terminator")
    rest = (op for op in ops if not op_def(op.name).issued_once and op.level != "scalar")
    return bool(issues) and all(op_def(op.name).effects & set(waits) for op in rest)


def role_faults(func: Func) -> Iterator[tuple[int, str]]:
    """Faults in the division of a kernel into roles as (index of the op in its body, clause)."""
    ops = func.body.ops
    roles = roles_of(func)
    for i, op in enumerate(ops):
        if op.body is not None and any(o.name == ROLE for o in walk(op.body)):
            yield i, "expected roles at the top of a kernel, outside of loops, conditions and other roles"
    if not roles:
        return
    first = next(i for i, op in enumerate(ops) if op.name == ROLE)
    for i, op in enumerate(ops[first:], first):
        if op.name != ROLE and i != len(ops) - 1:
            yield i, "expected nothing but roles and the end of the kernel after the first role"
    block = func.get("block")
    if sum(map(threads_of, roles)) != block:
        yield first, f"expected roles of {block} threads together, got {sum(map(threads_of, roles))}"
    registers, given = sum(threads_of(r) * r.integer("registers") for r in roles), launch_registers(func)
    if registers > given:
        yield (
            first,
            f"expected roles of at most the {given} registers that the block has at launch, got {registers}",
        )
    if len(roles) >= MOST_BARRIERS:
        yield first, f"expected fewer than {MOST_BARRIERS} roles, which have a barrier each, got {len(roles)}"
    names = [str(r["name"]) for r in roles]
    for name in sorted({n for n in names if not n or names.count(n) > 1}):
        yield first, f"expected a name of its own for each role, got {name!r}"
