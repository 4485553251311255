"""The service that passes ask for costs: `PassContext.estimator`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from tilewright.costmodel import CpuHardware, Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Builder, Constants, Func, Level, Module, Op, TensorType, Type, Value
from tilewright.ir.nodes import Attr
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.estimation.algorithms import alternative, kernels_of, kernels_s
from tilewright.passes.estimation.outlined import outlined_s, structure_of
from tilewright.passes.framework.context import AlgorithmCost
from tilewright.passes.graph.products.parallel_products import CONVOLUTIONS, PRODUCTS
from tilewright.passes.pipelines import ESTIMATES, estimates, partitioned

T = TypeVar("T")
#: answers after which the memo is emptied
MEMO_ENTRIES = 200_000
_SPATIAL = {"graph.conv1d": "W", "graph.conv2d": "HW", "graph.conv3d": "DHW"}


class KernelEstimator:
    """Makes kernels of pieces by the pipelines of `ESTIMATES` and adds up their estimates."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}
        self._numbers: dict[Hashable, int] = {}

    def remembered(self, question: Hashable, answer: Callable[[], T]) -> T:
        """See `Estimator`."""
        if question not in self._answers:
            value = answer()
            if len(self._answers) >= MEMO_ENTRIES:
                self._answers.clear()
            self._answers[question] = value
        known: T = self._answers[question]
        return known

    def number_of(self, structure: Hashable) -> int:
        """See `Estimator`."""
        return self._numbers.setdefault(structure, len(self._numbers))

    def algorithm_cost(
        self,
        op: Op,
        algorithm: str,
        hardware: Hardware,
        *,
        constant_weight: bool,
        parts: bool = True,
        factors: str = "",
    ) -> AlgorithmCost:
        """See `Estimator`. parts: long sums are cut into parts where the pass split-reductions would do so.

        On a CPU direct sums read and write images with their channels last, as the pass choose-layouts lets
        them.
        """
        types = tuple(v.type for v in op.operands)
        attrs: dict[str, Attr] = {**op.attributes, "algorithm": algorithm}
        result = op.result.type
        if isinstance(hardware, CpuHardware) and algorithm == "direct" and attrs["data_layout"] == "NCHW":
            attrs["data_layout"] = "NHWC"
            types = (_channels_last_image(types[0]), *types[1:])
            result = _channels_last_image(result)

        def answer() -> AlgorithmCost:
            conv = Op("graph.conv2d", tuple(map(Value, types)), tuple(attrs.items()), (Value(result),))
            constants = [conv.operands[1]] if constant_weight else []
            kernels = alternative([conv], constants, hardware, parts=parts, factors=factors)
            return AlgorithmCost(kernels.estimate_s(), kernels.working_bytes())

        key = ("algorithm", types, tuple(attrs.items()), result, hardware, constant_weight, parts, factors)
        return self.remembered(key, answer)

    def product_s(self, op: Op, hardware: Hardware, *, factors: str = "") -> float:
        """See `Estimator`."""
        types, attrs = tuple(v.type for v in op.operands), op.attrs
        cores = isinstance(hardware, GpuHardware) and (factors or op.operands[0].tensor.dtype != "f32")
        if cores and op.name in CONVOLUTIONS:
            types, attrs = _channels_last(op)

        def answer() -> float:
            x, weight = (Value(t, hint) for t, hint in zip(types, ("x", "w"), strict=True))
            b = Builder()
            (result,) = b.emit(op.name, (x, weight), dict(attrs))
            b.do("graph.return", result)
            main = Func(Level.GRAPH, "main", b.block((x, weight)), (result.type,))
            module = Module("product", (main,), constants=Constants({}))
            context = PassContext(hardware=hardware, reproducer_folder=None)
            return kernels_s(run_pipeline(module, estimates("product", factors), context))

        return self.remembered(("product", op.name, types, attrs, hardware, factors), answer)

    def op_s(self, op: Op, hardware: Hardware, *, factors: str = "") -> float:
        """See `Estimator`."""
        if op.name in PRODUCTS:
            return self.product_s(op, hardware, factors=factors)
        types, results = (tuple(v.type for v in vs) for vs in (op.operands, op.results))

        def answer() -> float:
            alone = Op(op.name, tuple(map(Value, types)), op.attrs, tuple(map(Value, results)))
            return alternative([alone], (), hardware).estimate_s()

        return self.remembered(("op", op.name, types, op.attrs, results, hardware), answer)

    def outlined_s(self, kernel: Func, hardware: Hardware, bytes_per_s: float | None = None) -> float:
        """See `Estimator`."""
        question = ("outlined", structure_of(kernel), hardware, bytes_per_s)
        return self.remembered(question, lambda: outlined_s(kernel, hardware, bytes_per_s))

    def program_s(self, params: Sequence[Value], ops: Sequence[Op], hardware: Hardware) -> float:
        """See `Estimator`."""
        return kernels_of(params, ops, 0, hardware).estimate_s()

    def stored_kernels(
        self, module: Module, ctx: PassContext, *, factors: str = "", spares: bool = True
    ) -> Module:
        """See `Estimator`."""
        graph = module.main.level is Level.GRAPH
        pipeline = estimates("stored of a graph" if graph else "stored", factors)
        if not spares:
            pipeline = pipeline.replace("fuse-kernels", "fuse-kernels{share=0.0}")
        return run_pipeline(module, pipeline, ctx)

    def inlined(self, module: Module, ctx: PassContext, *, partitioner: str = "rules") -> Module:
        """See `Estimator`."""
        return run_pipeline(module, partitioned(ESTIMATES["inlined"], partitioner), ctx)

    def grouped(self, module: Module, ctx: PassContext, *, partitioner: str = "rules") -> Module:
        """See `Estimator`."""
        return run_pipeline(module, partitioned(ESTIMATES["grouped"], partitioner), ctx)

    def laid_out(
        self, module: Module, ctx: PassContext, *, chains: bool, partitioner: str = "rules"
    ) -> Module:
        """See `Estimator`."""
        pipeline = ESTIMATES["laid out in chains" if chains else "laid out"]
        return run_pipeline(module, partitioned(pipeline, partitioner), ctx)

    def kernel(self, func: Func, ctx: PassContext) -> Func:
        """See `Estimator`."""
        return _after(ESTIMATES["kernel"], func, ctx)

    def canonical(self, func: Func, ctx: PassContext) -> Func:
        """See `Estimator`."""
        return _after(ESTIMATES["canonical"], func, ctx)


def _after(pipeline: Pipeline, func: Func, ctx: PassContext) -> Func:
    """A function after passes of functions, without the checks and instruments that modules get."""
    for p in pipeline:
        func = p.definition.run(func, ctx, **dict(p.options))
    return func


def _channels_last_image(image: Type) -> Type:
    """The type of an image in NCHW as NHWC."""
    assert isinstance(image, TensorType)
    n, c, h, w = image.shape
    return TensorType(image.dtype, (n, h, w, c))


def _channels_last(op: Op) -> tuple[tuple[Type, ...], tuple[tuple[str, Attr], ...]]:
    """Types and attributes of a convolution with channels innermost, as tensor cores get them."""
    sizes = _SPATIAL[op.name]
    layouts = {"data_layout": f"N{sizes}C", "kernel_layout": f"{sizes}IO"}
    types: list[Type] = []
    for v, key in zip(op.operands, layouts, strict=True):
        t, layout = v.tensor, str(op[key])
        types.append(TensorType(t.dtype, tuple(t.shape[layout.index(d)] for d in layouts[key])))
    return tuple(types), tuple((k, layouts.get(k, a)) for k, a in op.attrs)


ESTIMATOR = KernelEstimator()
