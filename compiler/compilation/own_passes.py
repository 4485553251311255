"""Passes of users in a compilation: given by level, run at one point of each stage of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import InputError, Level, Module
from tilewright.passes import Pass, PassContext, PassDef, Pipeline, run_pipeline
from tilewright.passes.framework.importing import import_passes
from tilewright.passes.pipelines import OWN_GRAPH_PASSES_END, around_own_passes

#: a pass, or several: configured, by definition with its defaults, or as the text of a pipeline
PassOption = Pass | PassDef[...] | Pipeline | str
#: passes that say themselves at which level they run, or passes by level
PassesOption = Sequence[PassOption] | Mapping[str, PassOption | Sequence[PassOption]]

_STAGES = tuple(level.value for level in (Level.GRAPH, Level.TENSOR, Level.THREAD))


@dataclass(frozen=True)
class OwnPasses:
    """Pipelines by level (`graph`, `tensor`, `thread`), in this order; levels without passes are left out."""

    pipelines: tuple[tuple[str, Pipeline], ...] = ()

    @staticmethod
    def of(given: PassesOption | OwnPasses, *, where: str = "passes") -> OwnPasses:
        """Passes by their level; raises InputError for what is no pass, or no pass of its level.

        A text may begin with its level, as in `graph: merge-relus, cse`; otherwise, and for everything else
        outside of a mapping, each pass must run at one level only.
        """
        if isinstance(given, OwnPasses):
            return given
        if isinstance(given, Mapping):
            pairs = [
                (p, _level(str(name), where))
                for name, several in given.items()
                for p in _each(several, where)
            ]
        else:
            pairs = [(p, "") for p in _each(given, where)]
        by_level: dict[str, list[Pass]] = {}
        for item, level in pairs:
            for p, own in _passes(item, level, where):
                by_level.setdefault(own, []).append(p)
        return OwnPasses(tuple((s, Pipeline(tuple(by_level[s]))) for s in _STAGES if s in by_level))

    def at(self, stage: str) -> Pipeline:
        """The passes of a level, which may be none."""
        return dict(self.pipelines).get(stage, Pipeline())

    def facts(self) -> dict[str, str]:
        """Their text by level."""
        return {stage: str(pipeline) for stage, pipeline in self.pipelines}

    def check(self, levels: Sequence[str], of: str) -> None:
        """Raise InputError where there are passes of other levels than those that `of` goes through."""
        for stage, pipeline in self.pipelines:
            if stage not in levels:
                raise InputError(f"expected no passes of the {stage} level for {of}, got {pipeline}")

    def run(
        self, module: Module, level: Level, pipeline: Pipeline, context: PassContext
    ) -> tuple[Module, Pipeline]:
        """The module after the own passes of a level, and what is left of the pipeline of its stage.

        The pipeline runs up to the point of own passes; after each of them the module is verified. A pass
        that cannot run there, since it needs what a later one establishes, but has a place in the pipeline,
        runs in that place with the options given. Nothing runs where there are none.
        """
        own = self.at(level.value)
        if not own.passes:
            return module, pipeline
        before, rest = around_own_passes(level, pipeline)
        placed = [p for p in own if _has_place(p, before, rest)]
        for p in placed:
            rest = rest.replace(p.name, Pipeline((p,)))
        module = run_pipeline(module, before, context)
        here = Pipeline(tuple(p for p in own if p not in placed))
        module = run_pipeline(module, here, replace(context, verify_each=True))
        if level is Level.GRAPH:
            module = run_pipeline(module, OWN_GRAPH_PASSES_END, context)
        return module, rest


def _has_place(p: Pass, before: Pipeline, rest: Pipeline) -> bool:
    """Return whether a pass needs what only `rest` establishes, which runs it."""
    if p.name not in rest.names:
        return False
    missing = p.definition.requires - _established(before)
    return bool(missing & _established(rest.until(p.name)))


def _established(pipeline: Pipeline) -> frozenset[str]:
    return frozenset(fact for p in pipeline for fact in p.definition.establishes)


NO_PASSES = OwnPasses()


def named_passes(imports: Sequence[str], texts: Sequence[str]) -> OwnPasses:
    """The passes of `--import FILE` and `--pass-pipeline 'LEVEL: ...'`; raises InputError."""
    import_passes(imports)
    return OwnPasses.of(tuple(texts), where="--pass-pipeline")


def _each(given: object, where: str) -> Sequence[PassOption]:
    if isinstance(given, Pass | PassDef | Pipeline | str):
        return (given,)
    if isinstance(given, Sequence):
        return given
    raise InputError(f"expected passes or their text, got {type(given).__name__}", where=where)


def _level(name: str, where: str) -> str:
    if name.strip() not in _STAGES:
        raise InputError(f"expected a level among {', '.join(_STAGES)}, got '{name.strip()}'", where=where)
    return name.strip()


def _passes(item: PassOption, level: str, where: str) -> Iterator[tuple[Pass, str]]:
    """The passes of one item, each with its level."""
    if isinstance(item, str):
        head, colon, rest = item.partition(":")
        if colon and not level and '"' not in head:
            level, item = _level(head, where), rest
        item = Pipeline.parse(item, where=where)
        if not item.passes:
            raise InputError("expected a pass, got none", where=where)
    if isinstance(item, PassDef):
        item = item()
    if not isinstance(item, Pass | Pipeline):
        raise InputError(f"expected a pass or its text, got {type(item).__name__}", where=where)
    for p in (item,) if isinstance(item, Pass) else item.passes:
        levels = [x.value for x in p.definition.levels]
        if p.definition.to is not None:
            raise InputError(
                f"pass '{p.name}' lowers to {p.definition.to.value}: expected one that keeps its level",
                where=where,
            )
        if not level and len(levels) > 1:
            raise InputError(
                f"pass '{p.name}' runs on {' and '.join(levels)}: expected its level as well, as in "
                f"'{levels[0]}: {p}'",
                where=where,
            )
        if (level or levels[0]) not in levels:
            raise InputError(f"pass '{p.name}' runs on {' and '.join(levels)}, not on {level}", where=where)
        yield p, level or levels[0]
