"""Selection: elimination, integer program and brute force agree, and are never worse than shortest paths."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tilewright.costmodel.selection import (
    Problem,
    Table,
    add_copies,
    eliminate,
    exact,
    integer,
    settled,
    shortest_path,
)
from tilewright.costmodel.selection.elimination import TooWide, undominated
from tilewright.ir import InputError


def brute_force(problem):
    names = list(problem.domains)
    return min(
        problem.seconds(dict(zip(names, labels, strict=True)))
        for labels in product(*problem.domains.values())
    )


def random_problem(rng, kernels=6, impossible=0.0, equal=True, knobs=True):
    """Kernels of two passes, each of which reads some earlier tensors and writes one or two new ones."""
    domains = {"x": ("a", "b", "c")[: rng.integers(1, 4)]}
    tables = []
    for k in range(kernels):
        phase = "forward" if k < (kernels + 1) // 2 else "backward"
        known = [v for v in domains if not v.startswith("knob")]
        reads = list(rng.choice(known, min(len(known), int(rng.integers(1, 4))), replace=False))
        writes = [f"t{k}"] + ([f"s{k}"] if rng.random() < 0.2 else [])
        for v in writes:
            domains[v] = ("a", "b", "c", "d")[: rng.integers(1, 5)]
        groups = [(*reads, *writes)]
        if knobs and rng.random() < 0.3:
            domains[f"knob{k}"] = ("1", "2")
            groups = [(v, f"knob{k}") for v in groups[0]]
        for names in groups:
            seconds = rng.integers(1, 30, [len(domains[v]) for v in names]).astype(float)
            seconds[rng.random(seconds.shape) < impossible] = np.inf
            own_reads, own_writes = (tuple(v for v in names if v in vs) for vs in (reads, writes))
            tables.append(Table(f"k{k}", tuple(names), seconds, own_reads, own_writes, phase))
    pairs = []
    if equal:
        names = [v for v in domains if not v.startswith("knob")]
        same = [(u, v) for u in names for v in names if u < v and domains[u] == domains[v]]
        pairs = [same[i] for i in rng.choice(len(same), min(len(same), 1), replace=False)] if same else []
    return Problem(domains, tuple(tables), tuple(pairs))


def chain(rng, length=6):
    domains = {f"t{i}": ("a", "b", "c") for i in range(length + 1)}
    tables = [
        Table(f"k{i}", (f"t{i}", f"t{i + 1}"), rng.random((3, 3)), (f"t{i}",), (f"t{i + 1}",),
              "forward" if i < length // 2 else "backward")
        for i in range(length)
    ]  # fmt: skip
    return Problem(domains, tuple(tables))


def test_all_exact_ways_agree_on_small_problems():
    rng = np.random.default_rng(1)
    possible = 0
    for _ in range(15):
        problem = random_problem(rng, kernels=4, impossible=0.1)
        best = brute_force(problem)
        assert eliminate(problem).seconds == best
        if best < np.inf:
            possible += 1
            proven = integer(problem)
            assert (proven.seconds, proven.optimal) == (best, True)
            assert problem.seconds(proven.labels) == best
    assert possible > 7


def test_elimination_equals_the_integer_program():
    rng = np.random.default_rng(2)
    for _ in range(8):
        problem = random_problem(rng, kernels=14)
        a, b = eliminate(problem), integer(problem)
        assert a.seconds == pytest.approx(b.seconds)
        assert (a.optimal, b.optimal) == (True, True)
        assert b.bound_s <= b.seconds
        assert a.width >= 1


def test_exact_is_never_worse_than_the_shortest_path():
    rng = np.random.default_rng(3)
    better = 0
    for i in range(1000):
        problem = random_problem(rng, kernels=int(rng.integers(2, 7)), impossible=0.05 * (i % 2))
        best = eliminate(problem).seconds
        paths = [shortest_path(problem).seconds]
        if i % 4 == 0:
            split = list(problem.domains)[:2]
            paths += [shortest_path(problem, "backward-first").seconds]
            paths += [shortest_path(problem, "combined", split).seconds]
        assert problem.free_s <= best <= min(paths)
        better += best < min(paths)
    assert better > 100  # the baseline is one


def test_the_shortest_path_is_exact_on_chains():
    rng = np.random.default_rng(4)
    for _ in range(30):
        problem = chain(rng)
        best = eliminate(problem).seconds
        # one path is exact; two passes in turn are where the passes share no tensor
        assert shortest_path(problem, "combined").seconds == pytest.approx(best)
        one_pass = Problem(
            problem.domains,
            tuple(Table(t.kernel, t.variables, t.seconds, t.reads, t.writes) for t in problem.tables),
        )
        assert shortest_path(one_pass).seconds == pytest.approx(best)


def test_a_residual_misleads_the_shortest_path():
    """x is read again at the end: the path chooses its order for its first reader alone."""
    two = ("a", "b")
    first = np.array([[0.0, 0.0], [1.0, 1.0]])  # of x, y: x = a is cheaper by 1
    last = np.array([[[9.0, 9.0], [0.0, 0.0]]] * 2)  # of y, x, z: x = a costs 9 more
    problem = Problem(
        {"x": two, "y": two, "z": two},
        (
            Table("make", ("x",), np.zeros(2), (), ("x",)),
            Table("first", ("x", "y"), first, ("x",), ("y",)),
            Table("last", ("y", "x", "z"), last, ("y", "x"), ("z",)),
        ),
    )
    assert eliminate(problem).seconds == 1.0
    assert shortest_path(problem).seconds == 9.0


def test_a_wide_problem_goes_to_the_integer_program_and_says_so():
    rng = np.random.default_rng(5)
    names = [f"t{i}" for i in range(9)]
    tables = [
        Table(f"{u}{v}", (u, v), rng.integers(1, 99, (3, 3)).astype(float), (u,), (v,))
        for u in names
        for v in names
        if u < v
    ]
    problem = Problem(dict.fromkeys(names, ("a", "b", "c")), tuple(tables))
    with pytest.raises(TooWide, match=r"would join 9 variables in a table of 1\.97e"):
        eliminate(problem, most_entries=1000)
    wide, narrow = exact(problem, most_entries=1000), exact(problem)
    assert (wide.method, narrow.method) == ("integer program", "elimination")
    assert wide.seconds == narrow.seconds == brute_force(problem)
    assert wide.optimal
    assert "would join" in wide.note
    assert not narrow.note
    stopped = exact(problem, most_entries=1000, limit_s=0.0)
    assert "not proven to be the best" in stopped.note
    assert "after 0 s" in stopped.note
    assert narrow.seconds <= stopped.seconds <= shortest_path(problem).seconds
    assert stopped.gap > 0


def test_labels_that_are_left_out_are_never_needed():
    rng = np.random.default_rng(6)
    fewer = 0
    for _ in range(60):
        problem = random_problem(rng, kernels=3, impossible=0.2, equal=False)
        kept = undominated(problem)
        best = brute_force(problem)
        names = list(problem.domains)
        labels = [[problem.domains[v][i] for i in kept[v]] for v in names]
        restricted = min(problem.seconds(dict(zip(names, ls, strict=True))) for ls in product(*labels))
        assert restricted == best
        fewer += sum(map(len, labels)) < sum(map(len, problem.domains.values()))
    assert fewer > 30


def test_a_copy_is_paid_once_and_only_where_it_pays():
    orders = ("a", "b")
    wants_a, wants_b = np.array([0.0, 5.0]), np.array([5.0, 0.0])
    tables = (
        Table("make", ("x",), wants_a, (), ("x",)),
        Table("p", ("x",), wants_b, ("x",), ()),
        Table("q", ("x",), wants_b, ("x",), ()),
        Table("r", ("x",), 4 * wants_a, ("x",), ()),
    )
    problem = Problem({"x": orders}, tables)
    assert eliminate(problem).seconds == 10.0
    for price, seconds in ((3.0, 3.0), (9.0, 9.0), (11.0, 10.0)):
        copied = add_copies(problem, "x", lambda a, b, price=price: price if a != b else 0.0)
        best = eliminate(copied)
        assert best.seconds == seconds == integer(copied).seconds
        assert best.labels["x"] == "a"
        assert (best.labels["x.copy"] == "b") == (price < 10)


def test_labels_that_make_no_difference_are_the_first_ones():
    two = ("a", "b")
    flat, sloped = np.array([[0.1, 0.1 + 1e-17], [0.3, 0.3]]), np.array([2.0, 1.0])
    problem = Problem(
        {"x": two, "y": two, "z": two}, (Table("k", ("x", "y"), flat), Table("z", ("z",), sloped))
    )
    choice = replace(eliminate(problem), labels={"x": "a", "y": "b", "z": "b"})
    assert settled(problem, choice).labels == {"x": "a", "y": "a", "z": "b"}


def test_problems_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="expected a table of shape"):
        Problem({"x": ("a",)}, (Table("k", ("x",), np.zeros(2)),))
    with pytest.raises(InputError, match="without a domain"):
        Problem({}, (Table("k", ("x",), np.zeros(1)),))
    with pytest.raises(InputError, match="the same labels"):
        Problem({"x": ("a",), "y": ("b",)}, (), (("x", "y"),))
    with pytest.raises(InputError, match="seconds >= 0"):
        Table("k", ("x",), np.array([-1.0]))
    with pytest.raises(InputError, match="one axis per variable"):
        Table("k", ("x", "x"), np.zeros((1, 1)))
