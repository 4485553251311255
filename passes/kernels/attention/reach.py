"""Which keys a query sees at most, where the maps of the scores say so by position: causal attention."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.ir.expr import evaluate, symbols
from tilewright.ir.opdef import op_def
from tilewright.ir.types import numpy_dtype
from tilewright.passes.kernels.attention.terms import Apply, Position, Term, leaves
from tilewright.passes.kernels.attention.view import KEY, AttentionView

#: scores at most, or with this added, of which the exponential vanishes beside those of other keys: what
#: the kernels of this compiler and those of libraries take as a mask
HIDDEN = -1e4
#: pairs of queries and keys that are looked at
_MOST = 1 << 24
_NOWHERE = np.zeros((), dtype=np.bool_)

_Env = Mapping[str, np.ndarray | int]


def reach(view: AttentionView) -> int | None:
    """The largest key - query that counts; None where positions hide no key, or queries are no one dimension.

    Keys after a query's position plus this have scores that are chosen as, or had added, a number of at most
    `HIDDEN`, whatever the parameters of the kernel hold.
    """
    wide = [d for d in view.rows if view.sizes[d] > 1]
    if len(wide) != 1 or not any(isinstance(x, Position) for x in leaves(view.score)):
        return None
    queries = view.sizes[wide[0]]
    if queries * view.keys > _MOST:
        return None
    row, key = np.arange(queries)[:, None], np.arange(view.keys)[None, :]
    env: dict[str, np.ndarray | int] = {**dict.fromkeys(view.rows, 0), wide[0]: row, KEY: key}
    hidden = np.broadcast_to(_hidden(view.score, env), (queries, view.keys))
    if hidden.all(axis=1).any():  # such a row is not a number, or the mean of all values
        return None
    furthest = int(np.where(hidden, -queries, key - row).max())
    return furthest if furthest < view.keys - 1 else None


def _hidden(term: Term, env: _Env) -> np.ndarray:
    """Where a score is certainly hidden."""
    known = _positional(term, env)
    if known is not None:
        return np.asarray(known.astype(np.float64) <= HIDDEN) if known.dtype != np.bool_ else _NOWHERE
    if isinstance(term, Apply):
        if term.name == "scalar.cast":
            return _hidden(term.args[0], env)
        if term.name == "scalar.add":
            return _hidden(term.args[0], env) | _hidden(term.args[1], env)
        if term.name == "scalar.select":
            seen = _positional(term.args[0], env)
            one, other = (_hidden(a, env) for a in term.args[1:])
            return one & other if seen is None else np.where(seen, one, other)
    return _NOWHERE


def _positional(term: Term, env: _Env) -> np.ndarray | None:
    """The values of a term that positions alone decide; None for others."""
    if isinstance(term, Position):
        if not set(symbols(term.at)) <= set(env):
            return None
        return np.asarray(evaluate(term.at, env)).astype(numpy_dtype(term.type.dtype))
    if not isinstance(term, Apply):
        return None
    run, args = op_def(term.name).evaluate, [_positional(a, env) for a in term.args]
    found = [a for a in args if a is not None]
    if run is None or len(found) < len(args):
        return None
    return np.asarray(run(found, dict(term.attrs))[0])
