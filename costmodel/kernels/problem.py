"""Problems: the numbers that the cost model needs of a kernel, such as extents, windows and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from tilewright.costmodel.kernels.windows import WindowAxis, image_rows
from tilewright.ir.errors import InputError


@dataclass(frozen=True)
class ContractProblem:
    """A grouped convolution or matrix product.

    `h`, `w` are output extents; `c`, `k` are per group; `pad` is (top, left, bottom, right). A matrix product
    of M x K by K x N is n=1, h=1, w=M, k=N, c=K with a 1x1 window; a batched one uses `groups`. `extra_bytes`
    is compulsory global traffic of fused operands and outputs beyond input, weights and one output.
    `rows_inner`: neighbouring rows (`w`) of the input lie side by side in memory, else its channels do.
    """

    groups: int
    n: int
    k: int
    c: int
    h: int
    w: int
    f_h: int
    f_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad: tuple[int, int, int, int]
    h_in: int
    w_in: int
    element_bytes: int = 4
    extra_bytes: int = 0
    rows_inner: bool = True

    def __post_init__(self) -> None:
        _check_counts(self, allow_zero=("extra_bytes",))
        if len(self.pad) != 4 or min(self.pad) < 0:
            raise InputError(f"expected four non-negative paddings, got {self.pad}")
        for name, out, axis, trail in (
            ("h", self.h, self.axis_h, self.pad[2]),
            ("w", self.w, self.axis_w, self.pad[3]),
        ):
            last = (out - 1) * axis.stride + (axis.filter - 1) * axis.dilation
            if last >= axis.input_extent + axis.pad + trail:
                raise InputError(
                    f"output extent {name}={out} reaches past the padded input extent "
                    f"{axis.input_extent + axis.pad + trail}"
                )

    @property
    def axis_h(self) -> WindowAxis:
        """The vertical window axis."""
        return WindowAxis(self.h, self.h_in, self.f_h, self.stride_h, self.dilation_h, self.pad[0])

    @property
    def axis_w(self) -> WindowAxis:
        """The horizontal window axis."""
        return WindowAxis(self.w, self.w_in, self.f_w, self.stride_w, self.dilation_w, self.pad[1])

    @property
    def taps(self) -> int:
        """Filter positions, F_H F_W."""
        return self.f_h * self.f_w

    @property
    def flops(self) -> int:
        """2 G N K H W C F_H F_W: useful operations, taps on padding included as is the custom."""
        return 2 * self.groups * self.n * self.k * self.h * self.w * self.c * self.taps

    @property
    def output_bytes(self) -> int:
        """Bytes of the one output tensor."""
        return self.element_bytes * self.groups * self.n * self.k * self.h * self.w

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that cross DRAM at least once: touched input, weights, output, and `extra_bytes`.

        Input rows and columns that no window touches (stride larger than the filter, clipped edges) do not
        count.
        """
        pixels = image_rows(self.axis_h) * image_rows(self.axis_w)
        elements = self.n * self.c * pixels + self.k * self.c * self.taps
        return self.element_bytes * self.groups * elements + self.output_bytes + self.extra_bytes


def _repeated(shared: Iterable[tuple[int, int]], neighbours: int) -> float:
    """Operations that threads with so many neighbours repeat of those that more neighbours would share."""
    return sum(flops * (1.0 / min(neighbours, n) - 1.0 / n) for n, flops in shared)


@dataclass(frozen=True)
class StreamProblem:
    """A map: bytes in and out, output elements, and operations.

    Of the `reads` per element, `gathers` are at computed places, each with its own address and bounds checks;
    the others are where the element itself is. `flops` are those of threads that have all neighbours which
    share results; shared: (neighbours, operations whose results so many neighbouring elements share, counted
    for each element). results: arrays that a thread writes one after the
    other, each of which reads something that those before do not.
    """

    bytes_read: int
    bytes_written: int
    elements: int
    flops: int
    reads: int = 1
    gathers: int = 0
    shared: tuple[tuple[int, int], ...] = ()
    results: int = 1

    def __post_init__(self) -> None:
        _check_counts(self, allow_zero=("bytes_read", "bytes_written", "flops", "reads", "gathers"))

    @property
    def compulsory_bytes(self) -> float:
        """All bytes read and written."""
        return float(self.bytes_read + self.bytes_written)

    def flops_beside(self, neighbours: int) -> float:
        """Operations of threads that have so many neighbouring elements each."""
        return self.flops + _repeated(self.shared, neighbours)


@dataclass(frozen=True)
class WindowProblem:
    """A window op without channel reduction (pooling, depthwise convolution).

    `planes` counts the independent images (batch times channels), `h`, `w` the outputs of one plane,
    `weight_bytes` the filter of all planes (0 for pooling), `image_bytes` the whole input, which windows of
    several planes may share (0: no two do), `weight_stride` the bytes from the filter of one innermost output
    to that of the next (0: they lie side by side). tap_work, tail_work: instructions per tap of an output
    beside conversions, and per output of what is computed from it.
    """

    planes: int
    h: int
    w: int
    f_h: int
    f_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad: tuple[int, int, int, int]
    h_in: int
    w_in: int
    weight_bytes: int = 0
    element_bytes: int = 4
    extra_bytes: int = 0
    image_bytes: int = 0
    weight_stride: int = 0
    tap_work: float = 1.0
    tail_work: float = 0.0

    def __post_init__(self) -> None:
        allow_zero = ("extra_bytes", "weight_bytes", "image_bytes", "weight_stride")
        _check_counts(self, allow_zero=allow_zero)
        if len(self.pad) != 4 or min(self.pad) < 0:
            raise InputError(f"expected four non-negative paddings, got {self.pad}")

    @property
    def axis_h(self) -> WindowAxis:
        """The vertical window axis."""
        return WindowAxis(self.h, self.h_in, self.f_h, self.stride_h, self.dilation_h, self.pad[0])

    @property
    def axis_w(self) -> WindowAxis:
        """The horizontal window axis."""
        return WindowAxis(self.w, self.w_in, self.f_w, self.stride_w, self.dilation_w, self.pad[1])

    @property
    def outputs(self) -> int:
        """Output elements of all planes."""
        return self.planes * self.h * self.w

    @property
    def taps(self) -> int:
        """Filter positions, F_H F_W."""
        return self.f_h * self.f_w

    @property
    def flops(self) -> int:
        """Two operations per tap with weights (depthwise), one without (pooling)."""
        return self.outputs * self.taps * (2 if self.weight_bytes else 1)

    @property
    def compulsory_bytes(self) -> float:
        """Touched input, weights, outputs and `extra_bytes`."""
        pixels = image_rows(self.axis_h) * image_rows(self.axis_w)
        image = self.element_bytes * self.planes * pixels
        if self.image_bytes:
            image = min(image, self.image_bytes)
        return image + self.element_bytes * self.outputs + self.weight_bytes + self.extra_bytes


@dataclass(frozen=True)
class RowReduceProblem:
    """A reduction of every row (softmax, mean, layer normalisation) that reads each row `passes` times.

    flops, shared: as of `StreamProblem`.
    """

    rows: int
    row_length: int
    bytes_read: int
    bytes_written: int
    flops: int
    passes: int = 1
    shared: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        _check_counts(self, allow_zero=("bytes_read", "bytes_written", "flops"))

    @property
    def compulsory_bytes(self) -> float:
        """All bytes read once and written once; later passes may hit the cache."""
        return float(self.bytes_read + self.bytes_written)

    def flops_beside(self, neighbours: int) -> float:
        """Operations of threads that have so many neighbouring elements each."""
        return self.flops + _repeated(self.shared, neighbours)


@dataclass(frozen=True)
class LineProblem:
    """Independent lines of `steps` that must be taken in order; each line owns `elements` results."""

    lines: int
    steps: int
    elements: int
    bytes_read: int
    bytes_written: int
    flops: int

    def __post_init__(self) -> None:
        _check_counts(self, allow_zero=("bytes_read", "bytes_written", "flops"))

    @property
    def compulsory_bytes(self) -> float:
        """All bytes read and written."""
        return float(self.bytes_read + self.bytes_written)


Problem = LineProblem | ContractProblem | StreamProblem | WindowProblem | RowReduceProblem
GlobalProblem = LineProblem | StreamProblem | WindowProblem | RowReduceProblem


def _check_counts(problem: object, allow_zero: tuple[str, ...]) -> None:
    for item in fields(problem):  # type: ignore[arg-type]
        value = getattr(problem, item.name)
        if item.name in ("pad", "rows_inner", "shared", "tap_work", "tail_work"):
            continue
        least = 0 if item.name in allow_zero else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            kind = type(problem).__name__
            raise InputError(f"expected {kind}.{item.name} to be a whole number >= {least}, got {value!r}")
