"""TVM's importer of exported programs, with our corrections, names of torch's nodes, and every type checked.

Importing this module imports torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tilewright.frontends.torch.corrections.arithmetic import ARITHMETIC
from tilewright.frontends.torch.corrections.attention import ATTENTION
from tilewright.frontends.torch.corrections.indexing import INDEXING
from tilewright.frontends.torch.corrections.nodes import FLOATS, Correction, TorchCall
from tilewright.frontends.torch.corrections.reduction import REDUCTION
from tilewright.frontends.torch.corrections.shape import SHAPE
from tilewright.frontends.torch.decompositions import FAILURES
from tilewright.frontends.torch.survey import operator_name, place_of
from tilewright.ir.errors import UnsupportedError


class _NamingBuilder:
    """TVM's builder, naming variables by the node of torch's graph that is being translated."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.node = ""

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        """A variable bound to an expression."""
        return self._builder.emit(expr, name_hint or self.node)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)


class _Translator(ExportedProgramImporter):  # type: ignore[misc]
    """Translates node by node; a failure names the node and its place in the model's source."""

    @property
    def block_builder(self) -> Any:
        """The builder of the module; TVM's importer makes it."""
        return self._named_builder

    @block_builder.setter
    def block_builder(self, builder: Any) -> None:
        self._named_builder = _NamingBuilder(builder)

    def create_convert_map(self) -> dict[str, Callable[[Any], Any]]:
        table: dict[str, Callable[[Any], Any]] = dict(super().create_convert_map())
        for corrections in (ARITHMETIC, ATTENTION, INDEXING, REDUCTION, SHAPE):
            table |= {name: self._bound(correction) for name, correction in corrections.items()}
        return {name: self._checked(convert) for name, convert in table.items()}

    def _bound(self, correction: Correction) -> Callable[[Any], Any]:
        return lambda node: correction(TorchCall(self, node))

    def _checked(self, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def translate(node: Any) -> Any:
            self._named_builder.node = node.name
            try:
                return self._typed(node, convert(node))
            except UnsupportedError as error:
                if error.where:
                    raise
                raise UnsupportedError(str(error), where=place_of(node)) from None
            except FAILURES as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                raise UnsupportedError(
                    f"TVM's importer cannot translate {operator_name(node)}: {lines[-1]}",
                    where=place_of(node),
                ) from error

        return translate

    def _typed(self, node: Any, result: Any) -> Any:
        """The translation of a node, known to have the type that torch gives the node.

        TVM's importer computes some products of 16-bit floats in float32; they are rounded here. Any other
        difference is an error: a network with other types is another network.
        """
        value = node.meta.get("val")
        if not hasattr(value, "dtype") or not hasattr(value, "shape") or not isinstance(result, relax.Expr):
            return result
        kind = result.ty
        if not isinstance(kind, relax.TensorType):
            return result
        expected = self._convert_data_type(value.dtype)
        got = str(kind.dtype)
        if got != expected and {got, expected} <= FLOATS:
            result, got = self.block_builder.emit(relax.op.astype(result, expected)), expected
        shape = (
            [int(d.value) if hasattr(d, "value") else -1 for d in kind.shape.values] if kind.shape else None
        )
        if got != expected or (shape is not None and shape != list(value.shape)):
            raise UnsupportedError(
                f"TVM's importer translates {operator_name(node)} to {got}{shape}, torch says "
                f"{expected}{list(value.shape)}",
                where=place_of(node),
            )
        return result


def operators() -> Mapping[str, Any]:
    """The operators that can be translated, by name."""
    return _Translator().convert_map


def translated(program: Any) -> Any:
    """The Relax module of a program in core operators; its parameters are attached, buffers are constants."""
    try:
        return _Translator().from_exported_program(
            program,
            keep_params_as_input=True,
            unwrap_unit_return_tuple=False,
            no_bind_return_tuple=False,
            custom_convert_map=None,
        )
    except UnsupportedError:
        raise
    except FAILURES as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedError(f"TVM's importer refuses the program: {lines[-1]}") from error
