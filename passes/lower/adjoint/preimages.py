"""The points of an iteration domain that read a given element, as functions of its index: inverse reads.

A read is a system of linear equations between the index of the element and the dimensions of the domain;
`x // n` and `x % n` are digits of x, unknowns of their own. Equations are solved one after another. One with
several unknowns leaves all but one of them free: a window y * stride + tap = e has the taps as free
dimension, of which only those of the right remainder are visited (phases).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import gcd, prod

from tilewright.ir.expr import BinOp, Expr, Sym, substitute, symbols
from tilewright.ir.simplify import Linear, Ranges, interval, linear, multiple_of, simplify, within
from tilewright.passes.lower.adjoint.tabulated import Rising, linear_at, rising

#: unknowns of one equation of which every order of solving is compared
_COMPARED = 5


@dataclass(frozen=True)
class Preimage:
    """Points that read the element at index `target` (names of its dimensions), one per value of `free`.

    at: the value of every dimension of the domain. A point exists where every expression of `zeros` is 0 and
    every one of `within` lies from 0 up to its extent; `leaving` are the dimensions whose value may leave
    their extent, where no point exists either.
    """

    target: Mapping[str, int]
    at: Mapping[str, Expr]
    free: Mapping[str, int]
    zeros: tuple[Expr, ...]
    within: tuple[tuple[Expr, int], ...]
    leaving: tuple[str, ...]

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The range of every dimension of the target, and of the free ones."""
        return {k: (0, n - 1) for k, n in {**self.target, **self.free}.items()}

    @property
    def visited(self) -> int:
        """Points tried for all elements together."""
        return prod(self.target.values()) * prod(self.free.values())


class _Unsolved(Exception):
    """The read is no system of this kind."""


def preimage(read: Sequence[Expr], domain: Mapping[str, int], shape: Sequence[int]) -> Preimage | None:
    """The points of `domain` that read the element of an operand of `shape`; None where no form is known."""
    ranges = {k: (0, n - 1) for k, n in domain.items()}
    forms = [linear(e, ranges) for e in read]
    target = _target_names(forms, domain, shape)
    system = _System(domain, target, ranges)
    try:
        for place, form in _joined(forms, target, domain):
            if not system.follow(place, form):
                system.readings.append((place, form))
        return system.solved()
    except _Unsolved:
        return None


def _joined(
    forms: Sequence[Linear], target: Mapping[str, int], domain: Mapping[str, int]
) -> list[tuple[Expr, Linear]]:
    """Places in the target and what they are read as; several dimensions are one where that is linear.

    Indices that stay inside their extents are the digits of their row-major place.
    """
    ranges = {k: (0, n - 1) for k, n in domain.items()}
    inside = [within(f.expr(), n, ranges) for f, n in zip(forms, target.values(), strict=True)]
    names, out, first = list(target), [], 0
    while first < len(forms):
        last = first + 1
        alone = _linear_form(forms[first].expr(), domain, ranges) or forms[first]
        if inside[first] and not _is_plain(alone):
            while last < len(forms) and inside[last]:
                last += 1
        for end in range(last, first, -1):
            place, whole = (
                _row_major(e, [target[k] for k in names[first:end]])
                for e in ([Sym(k) for k in names[first:end]], [f.expr() for f in forms[first:end]])
            )
            form = _linear_form(whole, domain, ranges) if end > first + 1 else alone
            if form is not None:
                out.append((place, form))
                first = end
                break
    return out


def _linear_form(e: Expr, domain: Mapping[str, int], ranges: Ranges) -> Linear | None:
    """The form of an expression that is linear, as its text or as its values show."""
    form = linear(e, ranges)
    if _is_plain(form):
        return form
    measured = linear_at(e, domain)
    return None if measured is None else Linear.of({Sym(k): c for k, c in measured[0].items()}, measured[1])


def _is_plain(form: Linear) -> bool:
    return all(isinstance(atom, Sym) for atom, _ in form.terms)


def _has_digits_only(form: Linear) -> bool:
    """Whether the form is made of dimensions, quotients and remainders."""
    ops = {x.op for atom, _ in form.terms for x in _parts(atom) if isinstance(x, BinOp)}
    return ops.isdisjoint({"min", "max"})


def _parts(e: Expr) -> list[Expr]:
    return [e, *_parts(e.lhs), *_parts(e.rhs)] if isinstance(e, BinOp) else [e]


def _row_major(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    place: Expr = 0
    for e, n in zip(index, shape, strict=True):
        place = place * n + e
    return place


def _target_names(forms: Sequence[Linear], domain: Mapping[str, int], shape: Sequence[int]) -> dict[str, int]:
    """Names of the element's dimensions: that of the domain's dimension where it is read as it is."""
    names: dict[str, int] = {}
    for form, n in zip(forms, shape, strict=True):
        plain = form.terms[0][0] if len(form.terms) == 1 and form.terms[0][1] == 1 else None
        name = plain.name if isinstance(plain, Sym) else ""
        if not name or form.constant or name in names:
            name = next(s for s in (f"e{k}" for k in range(len(names) + len(shape) + len(domain)))
                        if s not in domain and s not in names)  # fmt: skip
        names[name] = n
    return names


@dataclass
class _Equation:
    """sum of coefficient * unknown = known."""

    terms: dict[str, int]
    known: Expr


@dataclass
class _System:
    domain: Mapping[str, int]
    target: dict[str, int]
    ranges: Ranges
    extents: dict[str, int] = field(default_factory=dict)
    equations: list[_Equation] = field(default_factory=list)
    digits: dict[Expr, dict[str, int]] = field(default_factory=dict)
    bases: dict[Expr, int] = field(default_factory=dict)
    readings: list[tuple[Expr, Linear]] = field(default_factory=list)
    followed: dict[str, Rising] = field(default_factory=dict)
    runs: list[tuple[Expr, int]] = field(default_factory=list)
    free: dict[str, int] = field(default_factory=dict)
    zeros: list[Expr] = field(default_factory=list)
    values: dict[str, Expr] = field(default_factory=dict)
    tops: set[str] = field(default_factory=set)

    def follow(self, place: Expr, form: Linear) -> bool:
        """Solve for a dimension of the domain that alone is read, in an index that never falls along it.

        True where that is so; plain indices are left to the equations.
        """
        line = {x for atom, _ in form.terms for x in symbols(atom)}
        if _is_plain(form) or len(line) != 1 or not isinstance(place, Sym) or _has_digits_only(form):
            return False
        (name,) = line
        run = rising(form.expr(), name, self.domain[name], place.name, self.target[place.name])
        if run is None or name in self.followed:
            raise _Unsolved
        self.followed[name] = run
        return True

    def solved(self) -> Preimage:
        """The points where the forms have the values beside them."""
        # Unknowns are named apart from the target, whose dimensions may have the names of the domain's, and
        # digits (#) apart from dimensions (?): those of an adjoint that is transposed again may be digits.
        self.extents = {f"?{k}": n for k, n in self.domain.items()}
        for name, run in self.followed.items():
            if any(name in symbols(atom) for _, form in self.readings for atom, _ in form.terms):
                raise _Unsolved
            step = self._free_dim(f"?{name}_step", run.most)
            self.values[f"?{name}"] = self._simple(run.first + step)
            self.runs.append((self._simple(run.stop - 1 - (run.first + step)), run.most))
        self._split_digits([form for _, form in self.readings])
        for value, form in self.readings:
            terms, constant = self._terms(form)
            self.equations.append(_Equation(terms, value - constant))
        while self.equations:
            self._solve(self.equations.pop(self._easiest()))
        for v, n in self.extents.items():
            if v not in self.values:
                self.values[v] = self._free_dim(v, n)
        return self._preimage()

    # -- digits ------------------------------------------------------------------------------------------
    def _split_digits(self, forms: Sequence[Linear]) -> None:
        """Name the digits of every expression of which a quotient or a remainder is read."""
        divisors: dict[Expr, set[int]] = {}
        for form in forms:
            self._collect(form, divisors)
        while divisors:  # an expression made of digits of another one is split after that
            ready = [x for x in divisors if self._inner(x).isdisjoint(divisors)]
            for whole in ready:
                self._split(whole, sorted(divisors.pop(whole)))

    def _inner(self, whole: Expr) -> set[Expr]:
        atoms = [a for a, _ in linear(whole, self.ranges).terms if not isinstance(a, Sym)]
        return {self._digit(a)[0] for a in atoms}

    def _collect(self, form: Linear, divisors: dict[Expr, set[int]]) -> None:
        for atom, _ in form.terms:
            if isinstance(atom, Sym):
                continue
            whole, _, steps = self._digit(atom)
            divisors.setdefault(whole, set()).update(steps)
            self._collect(linear(whole, self.ranges), divisors)

    def _digit(self, atom: BinOp) -> tuple[Expr, tuple[int, int | None], set[int]]:
        """x, (low, high) and divisors of an atom (x // low) % (high // low); high is none for x // low."""
        if atom.op not in ("//", "%") or not isinstance(atom.rhs, int):
            raise _Unsolved
        inner: Expr = atom.lhs
        step, last = 1, atom.rhs
        while isinstance(inner, BinOp) and inner.op == "//" and isinstance(inner.rhs, int):
            step *= inner.rhs
            inner = inner.lhs
        if atom.op == "//":
            return inner, (step * last, None), {step * last}
        return inner, (step, step * last), {step, step * last} - {1}

    def _split(self, whole: Expr, divisors: Sequence[int]) -> None:
        low, high = interval(whole, self.ranges)
        if abs(low) == float("inf") or abs(high) == float("inf"):
            raise _Unsolved
        terms, constant = self._terms(linear(whole, self.ranges))
        step, digits = 1, {}
        for n in divisors:
            if n % step:
                raise _Unsolved
            name = f"#digit{len(self.extents)}"
            self.extents[name], digits[name] = n // step, step
            step = n
        top, first = f"#digit{len(self.extents)}", int(low) // step
        self.extents[top], digits[top] = int(high) // step + 1 - first, step
        self.tops.add(top)
        self.digits[whole], self.bases[whole] = digits, first * step
        known = self.bases[whole] - constant
        self.equations.append(_Equation(_added(terms, {v: -w for v, w in digits.items()}), known))

    def _terms(self, form: Linear) -> tuple[dict[str, int], int]:
        """The linear form over unknowns, quotients and remainders by their digits; its constant."""
        out: dict[str, int] = {}
        constant = form.constant
        for atom, c in form.terms:
            if isinstance(atom, Sym):
                out = _added(out, {f"?{atom.name}": c})
                continue
            whole, (low, high), _ = self._digit(atom)
            weights = self.digits[whole].items()
            out = _added(
                out, {v: w // low * c for v, w in weights if w >= low and (high is None or w < high)}
            )
            constant += self.bases[whole] // low * c if high is None else 0
        return out, constant

    # -- equations -----------------------------------------------------------------------------------------
    def _easiest(self) -> int:
        """The place of the equation that leaves the fewest points to visit, and then the fewest unknowns."""

        def effort(place: int) -> tuple[int, int]:
            steps = self._unknown(self.equations[place])
            return self._visited(self._order(steps), steps), len(steps)

        return min(range(len(self.equations)), key=effort)

    def _unknown(self, q: _Equation) -> dict[str, int]:
        """The coefficients of unknowns without a value, free of common divisors."""
        left = {v: c for v, c in q.terms.items() if v not in self.values}
        divisor = gcd(*left.values()) or 1
        return {v: c // divisor for v, c in left.items()}

    def _solve(self, q: _Equation) -> None:
        known, steps = q.known, self._unknown(q)
        for v, c in q.terms.items():
            if v in self.values:
                known = known - self.values[v] * c
        known = self._simple(known)
        if not steps:
            self._test_zero(known)
            return
        divisor = gcd(*(q.terms[v] for v in steps))
        if divisor > 1:
            self._test_multiple(known, divisor)
            known = self._simple(known // divisor)
        self._parametrise(steps, known, self._order(steps))

    def _order(self, steps: Mapping[str, int]) -> Sequence[str]:
        """The unknowns in the order in which they become free, the one that is solved for last."""
        own = sorted(steps, key=lambda v: (abs(steps[v]), self.extents[v]))
        if len(steps) > _COMPARED:
            return own
        return min(permutations(own), key=lambda order: self._visited(order, steps))

    def _visited(self, order: Sequence[str], steps: Mapping[str, int]) -> int:
        count, scale = 1, 1
        for k, v in enumerate(order[:-1]):
            rest = gcd(*(steps[u] // scale for u in order[k + 1 :]))
            count *= -(-self.extents[v] // rest)
            scale *= rest
        return count

    def _parametrise(self, steps: Mapping[str, int], known: Expr, order: Sequence[str]) -> None:
        """Give values to unknowns whose sum of multiples is `known`: multiples without a common divisor."""
        scale = 1
        for k, v in enumerate(order[:-1]):
            step = steps[v] // scale
            rest = gcd(*(steps[u] // scale for u in order[k + 1 :]))
            phase = self._simple(known * pow(step, -1, rest) % rest) if rest > 1 else 0
            place = self._free_dim(v if rest == 1 else f"{v}_step", -(-self.extents[v] // rest))
            self.values[v] = self._simple(place * rest + phase)
            scale *= rest
            # what is left is a multiple of `rest`; with a step of 1 rounding down says the same
            quotient = known // rest if step == 1 else (known - step * phase) // rest
            known = self._simple(quotient - step * place)
        last = order[-1]
        self.values[last] = self._simple(known * (steps[last] // scale))

    def _free_dim(self, v: str, extent: int) -> Expr:
        if extent == 1:
            return 0
        name = v[1:]
        while name in self.target or name in self.free:
            name += "_"
        self.free[name] = extent
        return Sym(name)

    def _simple(self, e: Expr) -> Expr:
        return simplify(e, {k: (0, n - 1) for k, n in {**self.target, **self.free}.items()})

    def _test_zero(self, e: Expr) -> None:
        if e != 0:
            self.zeros.append(e)

    def _test_multiple(self, e: Expr, n: int) -> None:
        ranges = {k: (0, m - 1) for k, m in {**self.target, **self.free}.items()}
        if multiple_of(e, ranges) % n:
            self._test_zero(self._simple(e % n))

    def _preimage(self) -> Preimage:
        ranges = {k: (0, n - 1) for k, n in {**self.target, **self.free}.items()}
        at = {k: self._simple(self.values[f"?{k}"]) for k in self.domain}

        def leaves(v: str) -> bool:
            low, high = interval(self._simple(self.values[v]), ranges)
            return low < 0 or high >= self.extents[v]

        digits = [v for v in self.extents if v.startswith("#") and v not in self.tops]
        return Preimage(
            self.target,
            at,
            self.free,
            tuple(self.zeros),
            (*self.runs, *((self._simple(self.values[v]), self.extents[v]) for v in digits if leaves(v))),
            tuple(k for k in self.domain if k not in self.followed and leaves(f"?{k}")),
        )


def _added(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    out = dict(a)
    for v, c in b.items():
        out[v] = out.get(v, 0) + c
    return {v: c for v, c in out.items() if c}


def placed(read: Sequence[Expr], at: Mapping[str, Expr], ranges: Ranges) -> tuple[Expr, ...]:
    """The read at the points of a preimage."""
    return tuple(simplify(substitute(e, at), ranges) for e in read)


def mentioned(exprs: Sequence[Expr]) -> set[str]:
    """Names of all symbols of some expressions."""
    return {s for e in exprs for s in symbols(e)}
