"""Pipelines as data: configured passes in order, read from text, printed, hashed and checked for order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Level
from tilewright.passes.framework.context import Pass
from tilewright.passes.framework.options import Option, unknown_option
from tilewright.passes.framework.registry import find_pass
from tilewright.passes.rewriting.names import did_you_mean

_TOKEN = re.compile(
    r'(?P<space>(?:\s|\#[^\n]*)+)|(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<word>[A-Za-z0-9_.+\-]+)|(?P<mark>[{}=,])'
)
MAX_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Configured passes in order. `Pipeline.parse(str(p)) == p`."""

    passes: tuple[Pass, ...] = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "pipeline") -> Pipeline:
        """Read `dce, fold-constants{max_elements=64}, graph-to-tensor`; lines and `# comments` are allowed.

        where: name of the source for messages. Raises InputError (`where:line:column: ...`) on bad syntax,
        unknown passes and options, bad values, and on an order that cannot work (see `check`).
        """
        pipeline = cls(tuple(_PipelineReader(text, where).passes()))
        try:
            pipeline.check()
        except InputError as e:
            raise InputError(str(e), where=where) from None
        return pipeline

    def __str__(self) -> str:
        return ", ".join(map(str, self.passes))

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def __len__(self) -> int:
        return len(self.passes)

    def __add__(self, other: Pipeline) -> Pipeline:
        return Pipeline(self.passes + other.passes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the passes in order."""
        return tuple(p.name for p in self.passes)

    def first(self, count: int) -> Pipeline:
        """The first `count` passes."""
        return Pipeline(self.passes[:count])

    def place_of(self, name: str) -> int:
        """The position of the pass of this name, from 0; raises InputError unless it occurs once."""
        count = self._count(name)
        if count > 1:
            raise InputError(f"expected a pass that occurs once, got '{name}', which occurs {count} times")
        return self.names.index(name)

    def until(self, name: str) -> Pipeline:
        """The passes before the one of this name, which occurs once."""
        return Pipeline(self.passes[: self.place_of(name)])

    def since(self, name: str) -> Pipeline:
        """The pass of this name, which occurs once, and those after it."""
        return Pipeline(self.passes[self.place_of(name) :])

    def after(self, name: str) -> Pipeline:
        """The passes after the one of this name, which occurs once."""
        return Pipeline(self.passes[self.place_of(name) + 1 :])

    def without(self, *names: str) -> Pipeline:
        """The others than the passes of these names, each of which occurs."""
        for name in names:
            self._count(name)
        return Pipeline(tuple(p for p in self.passes if p.name not in names))

    def only(self, *names: str) -> Pipeline:
        """The passes of these names, each of which occurs, in the order of this pipeline."""
        for name in names:
            self._count(name)
        return Pipeline(tuple(p for p in self.passes if p.name in names))

    def replace(self, name: str, new: Pipeline | str) -> Pipeline:
        """The pipeline with `new` in place of the pass of this name, which occurs once."""
        return self.until(name) + (Pipeline.parse(new) if isinstance(new, str) else new) + self.after(name)

    def is_part_of(self, other: Pipeline) -> bool:
        """True when `other` runs these passes, options included, in this order, perhaps among others."""
        rest = iter(other.passes)
        return all(p in rest for p in self.passes)

    def _count(self, name: str) -> int:
        """The number of times that the pass of this name occurs; raises InputError where it does not."""
        count = self.names.count(name)
        if not count:
            known = dict.fromkeys(self.names)
            listed = ", ".join(known) or "no pass"
            raise InputError(f"the pipeline has no pass '{name}'{did_you_mean(name, known)}; it has {listed}")
        return count

    def digest(self) -> str:
        """Hexadecimal SHA-256 of the passes with all options spelled out, for cache keys."""
        return hashlib.sha256(", ".join(p.spelled_out() for p in self.passes).encode()).hexdigest()

    def check(self, levels: Iterable[Level] | None = None, facts: Iterable[str] | None = None) -> None:
        """Raise InputError when the order cannot work; nothing runs.

        levels: levels of the functions at the start; None takes those of the first pass.
        facts: invariants known to hold at the start; None asks only that no pass needs what only a later one
        establishes (what the module brings itself is checked when the pipeline runs).
        """
        now = (
            set(levels)
            if levels is not None
            else set(self.passes[0].definition.levels if self.passes else ())
        )
        known = set(facts or ())
        for i, p in enumerate(self.passes):
            d = p.definition
            place = f"pass {i + 1} of {len(self)}, '{d.name}'"
            if not now & set(d.levels):
                accepted = " or ".join(x.value for x in d.levels)
                raise InputError(f"{place}: expected functions of level {accepted}, there are {_names(now)}")
            for fact in sorted(d.requires - known):
                later = [q.name for q in self.passes[i + 1 :] if fact in q.definition.newly_established]
                if facts is not None or later:
                    hint = f"; '{later[0]}' establishes it and comes later" if later else ""
                    raise InputError(f"{place}: requires '{fact}', which no earlier pass establishes{hint}")
            known = (known - d.breaks) | d.establishes | d.requires - d.breaks
            now = levels_after(p, now)


def levels_after(p: Pass, levels: set[Level]) -> set[Level]:
    """Levels of a module's functions after a pass. From the tensor level only kernels go on: @main stays."""
    if p.definition.to is None:
        return levels
    left = levels - set(p.definition.levels) if Level.GRAPH in p.definition.levels else levels
    return left | {p.definition.to}


def _names(levels: set[Level]) -> str:
    return " and ".join(sorted(x.value for x in levels)) or "none"


class _PipelineReader:
    """Recursive descent over the tokens of a pipeline."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.tokens = list(self._tokens())
        self.at = 0

    def fail(self, message: str, offset: int) -> InputError:
        line = self.text.count("\n", 0, offset) + 1
        column = offset - self.text.rfind("\n", 0, offset)
        return InputError(message, where=f"{self.where}:{line}:{column}")

    def _tokens(self) -> Iterator[tuple[str, int]]:
        if len(self.text) > MAX_CHARACTERS:
            raise self.fail(f"expected at most {MAX_CHARACTERS} characters, got {len(self.text)}", 0)
        offset = 0
        while offset < len(self.text):
            m = _TOKEN.match(self.text, offset)
            if m is None:
                raise self.fail(f"expected a pass name, an option or ',', got {self.text[offset]!r}", offset)
            if m.lastgroup != "space":
                yield m[0], offset
            offset = m.end()
        yield "", len(self.text)

    @property
    def token(self) -> str:
        return self.tokens[self.at][0]

    @property
    def offset(self) -> int:
        return self.tokens[self.at][1]

    def take(self) -> str:
        token = self.token
        self.at += 1
        return token

    def expect(self, mark: str, what: str) -> None:
        if self.token != mark:
            raise self.fail(f"expected {what}, got {_shown(self.token)}", self.offset)
        self.at += 1

    def word(self, what: str) -> str:
        if not self.token or self.token[0] in '{}=,"':
            raise self.fail(f"expected {what}, got {_shown(self.token)}", self.offset)
        return self.take()

    def passes(self) -> Iterator[Pass]:
        while self.token:
            yield self.one()
            if self.token:
                self.expect(",", "',' or '{' after a pass")

    def one(self) -> Pass:
        offset = self.offset
        name = self.word("a pass name")
        try:
            definition = find_pass(name)
        except InputError as e:
            raise self.fail(str(e), offset) from None
        options: dict[str, Option] = {}
        if self.token == "{":
            self.at += 1
            known = {o.name: o for o in definition.options}
            while self.token != "}":
                offset = self.offset
                key = self.word("an option name or '}'")
                if key not in known:
                    raise self.fail(f"pass '{name}': {unknown_option(key, known)}", offset)
                if key in options:
                    raise self.fail(f"pass '{name}': option '{key}' is given twice", offset)
                self.expect("=", "'=' after an option name")
                offset = self.offset
                if self.token in ("", "{", "}", ",", "="):
                    raise self.fail(f"expected a value, got {_shown(self.token)}", offset)
                try:
                    options[key] = known[key].read(self.take())
                except InputError as e:
                    raise self.fail(f"pass '{name}': {e}", offset) from None
                if self.token != "}":
                    self.expect(",", "',' or '}' after an option")
            self.at += 1
        return definition.configure(options)


def _shown(token: str) -> str:
    return f"'{token}'" if token else "the end of the text"
