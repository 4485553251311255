"""Library kernels that compute what a generated kernel computes: programs to be timed beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol, runtime_checkable

from tilewright.costmodel import Hardware
from tilewright.ir import Func, Module, Op, Value
from tilewright.ir.tensor.ops import REDUCING
from tilewright.libraries.matching.attention import attentions_in
from tilewright.libraries.matching.attention_backward import gradients_in
from tilewright.libraries.matching.convolution import convolution_of
from tilewright.libraries.matching.epilogue import EpilogueMatch, absorbed
from tilewright.libraries.matching.library_call import LibraryCall
from tilewright.libraries.matching.matmul import products_of
from tilewright.libraries.matching.norm import norms_in
from tilewright.libraries.program import inlined, program_around, with_kernel
from tilewright.libraries.weights import with_packed_weights, with_wide_bias
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.kernels.decision import cost_of
from tilewright.passes.kernels.matrix.choice import sums_columns
from tilewright.passes.pipelines import TENSOR
from tilewright.runtime.errors import DeviceMissingError
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.problem import Problem, nbytes

#: workspace that an algorithm may take: what NVIDIA advises for Hopper
WORKSPACE_BYTES = 32 << 20
#: algorithms of one way to leave work to a library in a turn, so that turns take about as long
PER_TURN = {"cublaslt": 4, "cudnn": 1}


@runtime_checkable
class LibraryDevice(Protocol):
    """A device that libraries run on."""

    @property
    def name(self) -> str:
        """The name that a person reads."""
        ...

    def library_version(self, provider: str) -> str:
        """The version that stored algorithms of a library depend on; raises `DeviceMissingError`."""
        ...

    def library_kernels(
        self, provider: str, problem: Problem, workspace_bytes: int
    ) -> Iterable[LibraryKernel]:
        """The algorithms a library has for a problem, most promising first."""
        ...


def library_candidates(
    kernel: Func,
    hardware: Hardware,
    device: LibraryDevice,
    *,
    workspace_bytes: int = WORKSPACE_BYTES,
    missing: dict[str, str] | None = None,
) -> Iterator[Module]:
    """Programs with library kernels that compute what a kernel with chosen parameters does.

    kernel: tensor level, outlined. Of each way to leave work to a library, all algorithms that the library
    has on this device; a program's @main takes and gives what the kernel does. None where no library fits.
    The ways take turns, those that take most ops along first, each with its most promising algorithms; an
    algorithm is prepared when its program is asked for.
    missing: libraries that are not installed, and why; they are not asked, and those found missing are added.
    Without it they raise `DeviceMissingError`.
    """
    ways: list[tuple[int, Iterator[Module]]] = []
    for provider, find in FINDERS.items():
        calls = find(kernel)
        # Plans of cuDNN take long to build: what takes less along is asked for where nothing else is there.
        by_ops = sorted(calls, key=lambda call: -len(call.ops))
        for some in [calls] if provider == "cudnn" else [[call] for call in by_ops]:
            programs = _programs(kernel, some, hardware, device, workspace_bytes)
            ways.append((PER_TURN[provider], _unless_missing(provider, programs, missing)))
    return _round_robin(ways)


def _programs(
    kernel: Func,
    calls: Sequence[LibraryCall],
    hardware: Hardware,
    device: LibraryDevice,
    workspace_bytes: int,
) -> Iterator[Module]:
    """The programs of the first of these ways for which there are any."""
    for call in calls:
        prepared: Module | None = None
        most = max(workspace_bytes, call.problem.workspace_share * nbytes(call.problem))
        for algorithm in device.library_kernels(call.provider, call.problem, most):
            prepared = prepared or _with_parameters(program_around(call.kernel or kernel, call), hardware)
            yield with_kernel(prepared, algorithm, cost_of(kernel))
        if prepared is not None:
            return


def _unless_missing(
    provider: str, programs: Iterator[Module], missing: dict[str, str] | None
) -> Iterator[Module]:
    if missing is None:
        yield from programs
    elif provider not in missing:
        try:
            yield from programs
        except DeviceMissingError as error:
            missing[provider] = str(error)


def _round_robin(ways: Sequence[tuple[int, Iterator[Module]]]) -> Iterator[Module]:
    """Round-robin over the ways until all are exhausted: `count` programs of each in turn."""
    while ways:
        left = []
        for count, programs in ways:
            taken = 0
            for program in islice(programs, count):
                taken += 1
                yield program
            if taken == count:
                left.append((count, programs))
        ways = left


def program_with(f: Func, kernel: LibraryKernel, hardware: Hardware) -> Module | None:
    """The program that computes a kernel with this library kernel; None where it is none of the ways."""
    for call in FINDERS[kernel.provider](f):
        if call.problem == kernel.problem:
            prepared = _with_parameters(program_around(call.kernel or f, call), hardware)
            return with_kernel(prepared, kernel, cost_of(f))
    return None


def products_in(kernel: Func) -> list[LibraryCall]:
    """The ways to leave a matrix product to cuBLASLt, by structure alone: no device is asked."""
    contract = _only_contract(kernel)
    if contract is None:
        return []
    calls = [
        _call(kernel, contract, product.first, x, "cublaslt")
        for product in products_of(contract)
        for x in absorbed(kernel, contract, product)
    ]
    return [call for call in calls if call is not None]


def convolutions_in(kernel: Func) -> list[LibraryCall]:
    """The ways to leave a convolution to cuDNN, those that take most ops along first."""
    contract = _only_contract(kernel)
    convolution = convolution_of(contract) if contract is not None else None
    if contract is None or convolution is None:
        return []
    taps = convolution.problem.b.dims[2:] != (1, 1) or convolution.problem.strides != (1, 1)
    if convolution.problem.a.dims[1] != convolution.problem.b.dims[1] and not taps:
        return []  # products of matrices side by side: a library of products has them
    weights: tuple[Op, ...] = ()
    if not convolution.fits:
        kernel, contract, rearranged = with_packed_weights(kernel, contract, convolution)
        convolution, weights = convolution_of(contract), (rearranged,)
        if convolution is None or not convolution.fits:
            return []
    calls = [_call(kernel, contract, 0, x, "cudnn", weights) for x in absorbed(kernel, contract, convolution)]
    return [call for call in calls if call is not None][::-1]


def graphs_in(kernel: Func) -> list[LibraryCall]:
    """The ways to leave a convolution, attention, its gradients or a normalisation to cuDNN."""
    return convolutions_in(kernel) or attentions_in(kernel) or gradients_in(kernel) or norms_in(kernel)


#: what finds the work of each library in a kernel
FINDERS: dict[str, Callable[[Func], list[LibraryCall]]] = {"cublaslt": products_in, "cudnn": graphs_in}


def _only_contract(kernel: Func) -> Op | None:
    """The only contraction of a kernel; None where it also sums columns of what that computes."""
    contracts = [op for op in kernel.body.ops if op.name == "tensor.contract"]
    return contracts[0] if len(contracts) == 1 and not sums_columns(kernel) else None


def _call(
    kernel: Func,
    contract: Op,
    first: int,
    match: EpilogueMatch,
    provider: str,
    weights: tuple[Op, ...] = (),
) -> LibraryCall | None:
    """The call that computes what was found; None where its arguments are not distinct."""
    if match.widened and match.bias is not None:
        if weights:
            return None  # one kernel prepares one array
        reader = next(op for op in match.ops if match.bias in op.operands)
        kernel, fresh, widening = with_wide_bias(kernel, reader, match.bias)
        ops = tuple(fresh if op is reader else op for op in match.ops)
        match, weights = replace(match, ops=ops, bias=widening.result), (widening,)
    operands = _operands(contract, first, match)
    return LibraryCall(match.problem, operands, match.ops, provider, weights, kernel) if operands else None


def _operands(contract: Op, first: int, match: EpilogueMatch) -> tuple[Value, ...]:
    """The arguments of a call; none where a value would play two roles except both factors."""
    factors = contract.operands[first], contract.operands[1 - first]
    added = tuple(v for v in (match.bias, match.residual) if v is not None)
    return (*factors, *added) if len({*factors, *added}) == len(set(factors)) + len(added) else ()


def _with_parameters(program: Module, hardware: Hardware) -> Module:
    """Templates and parameters for the generated kernels of a program, by the model.

    What stands before or behind a library is as many kernels as fusion makes of it: a norm that the generated
    kernel applied where it read its rows is sums and maps over them, which no one kernel need hold.
    """
    context = PassContext(hardware=hardware, reproducer_folder=None, verify_each=False)
    program = inlined(program, _in_kernels(program, context))
    others = program.with_funcs(tuple(f for f in program.funcs if not f.name.endswith("_library")))
    chosen = run_pipeline(others, TENSOR.only("choose-parameters"), context)
    by_name = {f.name: f for f in chosen.funcs}
    return program.with_funcs(tuple(by_name.get(f.name, f) for f in program.funcs))


def _in_kernels(program: Module, context: PassContext) -> dict[str, Module]:
    """By name the functions of a program that fusion makes several kernels of, as these."""
    pieces: dict[str, Module] = {}
    for f in program.funcs:
        if (
            f is program.main
            or f.name.endswith("_library")
            or not any(op.name in REDUCING for op in f.body.ops)
        ):
            continue
        entry = replace(f, name=program.main.name)
        fused = run_pipeline(program.with_funcs((entry,)), TENSOR.only("fuse-kernels"), context)
        if len(fused.funcs) > 2:
            pieces[f.name] = fused
    return pieces
