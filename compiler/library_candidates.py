"""Library kernels that compute what a generated kernel computes: programs to be timed beside it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol, runtime_checkable

from tilewright.costmodel import Hardware
from tilewright.ir import Func, Module, Op
from tilewright.library_epilogue import Absorbed, absorbed
from tilewright.library_matmul import Product, products_of
from tilewright.library_program import Call, program_around, with_kernel
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.problem import Problem

#: workspace that an algorithm may take: what NVIDIA advises for Hopper
WORKSPACE_BYTES = 32 << 20


@runtime_checkable
class LibraryDevice(Protocol):
    """A device that libraries run on."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        ...

    def library_kernels(self, provider: str, problem: Problem, workspace_bytes: int) -> list[LibraryKernel]:
        """The algorithms a library has for a problem."""
        ...


def library_candidates(
    kernel: Func, hardware: Hardware, device: LibraryDevice, *, workspace_bytes: int = WORKSPACE_BYTES
) -> list[Module]:
    """Programs with library kernels that compute what a kernel with chosen parameters does.

    kernel: tensor level, outlined. Of each way to leave work to a library, all algorithms that the library
    has on this device; a program's @main takes and gives what the kernel does. None where no library fits.
    Raises `DeviceMissingError` where a library is not installed.
    """
    programs = []
    for call in library_calls(kernel):
        found = device.library_kernels("cublaslt", call.problem, workspace_bytes)
        if found:
            prepared = _with_parameters(program_around(kernel, call), hardware)
            programs += [with_kernel(prepared, k, kernel.get("cost")) for k in found]
    return programs


def library_calls(kernel: Func) -> list[Call]:
    """The ways to leave part of a kernel to a library, by structure alone: no device is asked."""
    contracts = [op for op in kernel.body.ops if op.name == "tensor.contract"]
    if len(contracts) != 1:
        return []
    (contract,) = contracts
    calls = partial(_calls, contract)
    return [c for product in products_of(contract) for x in absorbed(kernel, contract, product)
            for c in calls(product, x)]  # fmt: skip


def _calls(contract: Op, product: Product, found: Absorbed) -> Iterator[Call]:
    first, second = product.first, 1 - product.first
    operands = [contract.operands[first], contract.operands[second]]
    operands += [v for v in (found.bias, found.residual) if v is not None]
    # A value that comes twice would be one parameter of two roles.
    if len(set(operands)) == len(operands):
        yield Call(found.problem, tuple(operands), found.ops)


def _with_parameters(program: Module, hardware: Hardware) -> Module:
    """Skeletons and parameters for the generated kernels of a program, by the model."""
    others = program.with_funcs(tuple(f for f in program.funcs if not f.name.endswith("_library")))
    context = PassContext(hardware=hardware, reproducer_folder=None, verify_each=False)
    chosen = run_pipeline(others, Pipeline.parse("choose-parameters"), context)
    by_name = {f.name: f for f in chosen.funcs}
    return program.with_funcs(tuple(by_name.get(f.name, f) for f in program.funcs))
