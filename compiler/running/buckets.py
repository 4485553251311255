"""Input shapes as a caller names them, and which of several sets of shapes a call means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir import InputError, Module
from tilewright.ir.errors import expect
from tilewright.runtime.dlpack import view_capsule

Shape = tuple[int, ...]
#: shapes by input name, or the shape of the only input
ShapesOption = Mapping[str, Sequence[int]] | Sequence[int]


class Buckets:
    """Sets of input shapes, in the caller's order: every bucket has a shape for every input."""

    def __init__(self, names: Sequence[str], shapes: Sequence[Sequence[Shape]]) -> None:
        self.names = tuple(names)
        self.shapes = tuple(tuple(bucket) for bucket in shapes)
        self._index = {bucket: i for i, bucket in enumerate(self.shapes)}
        if len(self._index) < len(self.shapes):
            double = next(b for b in self.shapes if self.shapes.count(b) > 1)
            raise InputError(f"expected different shapes, got {self.text(double)} twice")

    @classmethod
    def of(cls, module: Module, given: Sequence[ShapesOption]) -> Buckets:
        """The buckets a caller asks for; inputs a mapping does not name keep the module's shapes.

        Raises InputError where a plain shape is given to a module of several inputs, for unknown names, and
        where there is no bucket.
        """
        if isinstance(given, Mapping) or not isinstance(given, Sequence) or not given:
            raise InputError("expected a list of shapes with at least one mapping of input names to shapes")
        names = module.input_names
        own = {n: t.shape for n, t in zip(names, module.input_types, strict=True)}
        buckets = []
        for shapes in given:
            named = cls.named(names, shapes)
            buckets.append([tuple(named.get(n, own[n])) for n in names])
        return cls(names, buckets)

    @staticmethod
    def named(names: Sequence[str], shapes: ShapesOption) -> Mapping[str, Sequence[int]]:
        """Shapes by input name; a plain shape is that of the only input."""
        if isinstance(shapes, Mapping):
            unknown = [n for n in shapes if n not in names]
            if unknown:
                raise InputError(f"unknown input '{unknown[0]}'; the inputs are {', '.join(names)}")
            return shapes
        if len(names) != 1:
            raise InputError(f"expected shapes by input name ({', '.join(names)}), got {shapes}")
        return {names[0]: expect(shapes, Sequence, "shapes by input name, or a list of extents")}

    def of_arrays(self, inputs: Sequence[object]) -> int:
        """The bucket of these arrays (anything with a shape, or a DLPack object), which are not copied.

        Raises InputError where there is none.
        """
        try:
            return self._index[tuple([x.shape for x in inputs])]  # type: ignore[attr-defined]
        except (AttributeError, KeyError, TypeError):
            if len(inputs) != len(self.names):
                names = ", ".join(self.names) or "none"
                raise InputError(f"expected {len(self.names)} inputs ({names}), got {len(inputs)}") from None
            return self.find([_shape_of(x, n) for x, n in zip(inputs, self.names, strict=True)])

    def of_shapes(self, shapes: ShapesOption) -> int:
        """The bucket of shapes by input name; inputs that are not named may have any. Raises InputError."""
        extents = {n: tuple(s) for n, s in self.named(self.names, shapes).items()}
        fits = [
            i
            for i, bucket in enumerate(self.shapes)
            if all(extents.get(n, s) == s for n, s in zip(self.names, bucket, strict=True))
        ]
        if len(fits) == 1:
            return fits[0]
        text = ", ".join(f"{n} {list(s)}" for n, s in extents.items())
        raise InputError(f"expected shapes of one bucket, got {text}; {len(fits)} have them of {self}")

    def find(self, shapes: Sequence[Shape]) -> int:
        """The bucket of one shape per input; raises InputError that lists the buckets."""
        index = self._index.get(tuple(shapes))
        if index is None:
            raise InputError(f"no plan for inputs {self.text(shapes)}; compiled for {self}")
        return index

    def text(self, bucket: Sequence[Shape]) -> str:
        """`data [1, 3, 224, 224], mask [1, 64]`."""
        return ", ".join(f"{n} {list(s)}" for n, s in zip(self.names, bucket, strict=True))

    def __str__(self) -> str:
        return "; ".join(map(self.text, self.shapes))

    def as_mappings(self) -> tuple[dict[str, Shape], ...]:
        """Shapes by input name, per bucket."""
        return tuple(dict(zip(self.names, bucket, strict=True)) for bucket in self.shapes)


def _shape_of(value: Any, name: str) -> Shape:
    """The shape of an array or a DLPack object, whose memory is only looked at."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(int(n) for n in shape)
    if not hasattr(value, "__dlpack__"):
        raise InputError(f"input '{name}': expected a NumPy or DLPack array, got {type(value).__name__}")
    try:
        return view_capsule(value.__dlpack__()).shape
    except (InputError, BufferError, RuntimeError, TypeError, ValueError) as e:
        raise InputError(f"input '{name}': cannot be exported through DLPack ({e})") from None
