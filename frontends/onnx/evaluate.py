"""Runs an ONNX graph symbolically: subgraphs and functions vanish, nodes become graph ops by their rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontends.importing.emitter import Absent, Result
from tilewright.frontends.importing.findings import OPERATORS, Findings
from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.emission import FoldingEmitter, NotConstant
from tilewright.frontends.onnx.node import POISON, Node, Poison, Rules
from tilewright.frontends.onnx.schema import check_counts, schema_function
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value

#: Bounds on what unrolling and inlining may produce, so that a small file cannot ask for endless work.
MAX_NODES = 500_000
MAX_NESTED = 64
_ABSENT_NAME = ""
#: Entries so low are those of masks, which are added before a softmax.
_MASKED = -1e4


class Scope:
    """Values by name; what is missing is looked for further out."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.values: dict[str, Result] = {_ABSENT_NAME: None}
        self._outer = outer

    def find(self, name: str) -> Result:
        """The value of `name`; raises InputError where there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope._outer
        raise InputError(f"expected a value named '{name}' before its use, got none")


class Evaluator:
    """Evaluates the nodes of one model; what it cannot import goes to `findings` and poisons its outputs."""

    def __init__(self, model: syntax.Model, rules: Rules, emitter: FoldingEmitter) -> None:
        self.findings = Findings()
        self._unknown: list[str] = []
        self._model = model
        self._rules = rules
        self._emitter = emitter
        self._literals: dict[int, tuple[object, Value]] = {}
        self._nodes = 0
        self._nested = 0

    def error(self, choices: Collection[str]) -> UnsupportedError:
        """One error that lists all findings; `choices` are the inputs a caller may want to fix to a value."""
        message = self.findings.message()
        if not self._unknown:
            return UnsupportedError(message, where=self._model.file)
        if fixed := [name for name in self._unknown if name in choices]:
            options = " ".join(f"--constant {name}=..." for name in fixed)
            python = ", ".join(f"{name!r}: ..." for name in fixed)
            message += f"; {options} fixes a value at import (in Python constants={{{python}}})"
        return NotConstant(message, self._unknown, where=self._model.file)

    def graph(
        self,
        graph: syntax.Graph,
        arguments: Mapping[str, Result],
        opsets: Mapping[str, int],
        outer: Scope | None = None,
        attrs: Mapping[str, syntax.Attribute] | None = None,
    ) -> tuple[Result, ...]:
        """The outputs of a graph for values of its inputs; `attrs` are those of the enclosing function."""
        scope = Scope(outer)
        for name, array in graph.constants.items():
            scope.values[name] = array if isinstance(array, Absent) else self._literal(array, name)
        scope.values.update(arguments)
        used = (True,) * len(graph.outputs)
        return self._body(graph.nodes, graph.outputs, used, scope, opsets, attrs or {})

    def _literal(self, array: np.ndarray, name: str = "") -> Value:
        """The constant for an array of the file; one however often a loop passes it."""
        if id(array) not in self._literals:
            fresh = name if name and name not in self._emitter.constants else ""
            write = self._emitter.weight if fresh and _is_weight(array) else self._emitter.constant
            self._literals[id(array)] = (array, write(array, fresh))
        return self._literals[id(array)][1]

    def _body(
        self,
        nodes: Sequence[syntax.Node],
        outputs: Sequence[str],
        wanted_outputs: Sequence[bool],
        scope: Scope,
        opsets: Mapping[str, int],
        attrs: Mapping[str, syntax.Attribute],
    ) -> tuple[Result, ...]:
        if self._nested >= MAX_NESTED:
            raise UnsupportedError(
                f"expected functions and subgraphs nested at most {MAX_NESTED} deep", where=self._model.file
            )
        self._nested += 1
        try:
            for node in nodes:
                self._nodes += 1
                if self._nodes > MAX_NODES:
                    raise UnsupportedError(
                        f"expected at most {MAX_NODES} nodes after unrolling", where=self._model.file
                    )
                self._node(node, scope, opsets, attrs)
        finally:
            self._nested -= 1
        return tuple(
            scope.find(name) if wanted else Absent(f"the unused output '{name}'")
            for name, wanted in zip(outputs, wanted_outputs, strict=True)
        )

    def _node(
        self,
        node: syntax.Node,
        scope: Scope,
        opsets: Mapping[str, int],
        outer_attrs: Mapping[str, syntax.Attribute],
    ) -> None:
        """Binds the outputs of one node."""
        label = f"{node.domain}.{node.op}" if node.domain else node.op
        number = self._emitter.number(label)
        place = f"node '{node.name}'" if node.name else f"{label} number {number}"
        attrs = _resolved(node.attrs, outer_attrs)
        results: Result
        try:
            inputs = tuple(scope.find(name) for name in node.inputs)
            with self._emitter.builder.at(f"onnx:{label}#{number} {node.name}".rstrip()):
                results = self._apply(node, label, place, inputs, attrs, scope, opsets, outer_attrs)
        except UnsupportedError as error:
            self.findings.add("not imported", f"{label}: {error}", place)
            if isinstance(error, NotConstant):
                self._unknown += [name for name in error.inputs if name not in self._unknown]
            results = POISON
        except InputError as error:
            if error.where.startswith(self._model.file):
                raise  # of a node in a subgraph
            raise InputError(f"{label}: {error}", where=f"{self._model.file}, {place}") from None
        if isinstance(results, Poison):
            results = (POISON,) * len(node.outputs)
        elif not isinstance(results, tuple):
            results = (results,)
        if len(results) < len(node.outputs) and any(node.outputs[len(results) :]):
            raise InputError(
                f"{label}: expected at most {len(results)} outputs, got {len(node.outputs)}",
                where=f"{self._model.file}, {place}",
            )
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                scope.values[name] = value

    def _apply(
        self,
        node: syntax.Node,
        label: str,
        place: str,
        inputs: tuple[Result, ...],
        attrs: Mapping[str, syntax.Attribute],
        scope: Scope,
        opsets: Mapping[str, int],
        outer_attrs: Mapping[str, syntax.Attribute],
    ) -> Result:
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        function = self._model.functions.get((node.domain, node.op, node.overload))
        if function is None and node.domain not in opsets:
            raise InputError(
                f"expected the model to import a version of the domain '{node.domain or 'ai.onnx'}'"
            )
        if function is None:
            check_counts(node, node.inputs, opsets[node.domain])
        rule = None if function else self._rules.get(label)
        if function is None and rule is None:
            function = schema_function(node, attrs, inputs, opsets[node.domain])
            if function is None:
                self.findings.add(OPERATORS, label, place)
                return POISON
        if any(isinstance(v, Poison) for v in inputs):
            return POISON
        if function is not None:
            return self._call(function, inputs, tuple(map(bool, node.outputs)), attrs)
        assert rule is not None

        def run(graph: syntax.Graph, args: Sequence[Result]) -> tuple[Result, ...]:
            if len(args) != len(graph.inputs):
                raise InputError(f"expected a subgraph of {len(args)} inputs, got {len(graph.inputs)}")
            bound = {i.name: a for i, a in zip(graph.inputs, args, strict=True)}
            return self.graph(graph, bound, opsets, scope, outer_attrs)

        def attempt(graph: syntax.Graph) -> tuple[Result, ...] | str:
            findings, self.findings = self.findings, Findings()
            unknown = list(self._unknown)
            try:
                results = run(graph, ())
                return self.findings.message() or results
            except InputError as error:
                return str(error)
            finally:
                self.findings, self._unknown = findings, unknown

        values = {name: attr.value for name, attr in attrs.items()}
        call = Node(opsets[node.domain], inputs, values, tuple(map(bool, node.outputs)), run, attempt)
        results = rule(self._emitter, call)
        call.finish()
        return results

    def _call(
        self,
        function: syntax.Function,
        inputs: Sequence[Result],
        wanted: tuple[bool, ...],
        attrs: Mapping[str, syntax.Attribute],
    ) -> tuple[Result, ...]:
        """Inlines a function; inputs left out at the end are absent, as are outputs that nothing uses."""
        if len(wanted) > len(function.outputs):
            raise InputError(f"expected at most {len(function.outputs)} outputs, got {len(wanted)}")
        if len(inputs) > len(function.inputs):
            raise InputError(f"expected at most {len(function.inputs)} inputs, got {len(inputs)}")
        if unknown := sorted(attrs.keys() - function.attrs.keys()):
            raise InputError(f"unknown attribute {', '.join(map(repr, unknown))}")
        bound = {name: given for name, given in function.attrs.items() if given is not None} | dict(attrs)
        scope = Scope()
        scope.values.update(dict.fromkeys(function.inputs))
        scope.values.update(zip(function.inputs, inputs, strict=False))
        opsets = {**self._model.opsets, **function.opsets}
        outputs = function.outputs[: len(wanted)]
        return self._body(function.nodes, outputs, wanted, scope, opsets, bound)


def _resolved(
    attrs: Mapping[str, syntax.Attribute], outer: Mapping[str, syntax.Attribute]
) -> dict[str, syntax.Attribute]:
    """Attributes with references to those of the enclosing function replaced, or left out with them."""
    out = {}
    for name, attr in attrs.items():
        actual: Any = outer.get(attr.value.name) if isinstance(attr.value, syntax.Reference) else attr
        if actual is not None:
            out[name] = actual
    return out


def _is_weight(array: np.ndarray) -> bool:
    """Whether an initialiser looks like a weight. The format does not tell weights from literals.

    Floats of at least one dimension are: scalars are epsilons, factors and bounds. Masks hold very low
    entries.
    """
    floats = array.dtype.name in ("float16", "bfloat16", "float32", "float64")
    return floats and array.ndim > 0 and bool((array > _MASKED).all())
