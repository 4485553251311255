"""What a plan stores of a library kernel: provider, problem, algorithm, workspace and version, as JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.attention import AttentionProblem
from tilewright.runtime.libraries.convolution import Array4, ConvolutionProblem
from tilewright.runtime.libraries.matmul import MatmulProblem, Matrix
from tilewright.runtime.libraries.norm import NormProblem
from tilewright.runtime.libraries.problem import Argument, Problem, check_among, check_range
from tilewright.runtime.strict_json import Fields, load_strict_json

Provider = Literal["cublaslt", "cudnn"]
PROVIDERS: tuple[str, ...] = get_args(Provider)
MAX_WORKSPACE_BYTES = 1 << 36
_ALGORITHM = {"cublaslt": re.compile(r"[0-9a-f]{2,2048}"), "cudnn": re.compile(r"[ -~]{1,2048}")}
_VERSION = re.compile(r"\d{1,4}(\.\d{1,6}){1,3}")


@dataclass(frozen=True)
class LibraryKernel:
    """One operation of one library with the algorithm that was chosen for it.

    algorithm: what the library needs to run exactly this algorithm again (cuBLASLt: its bytes in hex, cuDNN:
    the name of a plan); it means something to this `version` only. The workspace is the last argument of a
    launch, also where it has no bytes.
    """

    provider: str
    version: str
    problem: Any  # one of those in `OPERATIONS`
    algorithm: str
    workspace_bytes: int

    @property
    def operation(self) -> str:
        """What the library computes: `matmul`, `convolution`, `attention` or `norm`."""
        return _OPERATION_OF[type(self.problem)]

    def arguments(self) -> tuple[Argument, ...]:
        """The buffers of a launch, the workspace last."""
        return (*self.problem.arguments(), Argument("workspace", "uint8", self.workspace_bytes, written=True))

    @property
    def writes(self) -> tuple[int, ...]:
        """Positions of the arguments that are written."""
        return tuple(i for i, a in enumerate(self.arguments()) if a.written)

    def to_json(self) -> str:
        """One line, the same for equal kernels."""
        problem = {k: v for k, v in dataclasses.asdict(self.problem).items() if v is not None}
        return json.dumps(
            {
                "provider": self.provider,
                "operation": self.operation,
                "version": self.version,
                "algorithm": self.algorithm,
                "workspace_bytes": self.workspace_bytes,
                "problem": problem,
            }
        )

    @staticmethod
    def from_json(text: str) -> LibraryKernel:
        """Read and check what `to_json` wrote; raises `InputError` for anything else."""
        where = "the library kernel"
        keys = ("provider", "operation", "version", "algorithm", "workspace_bytes", "problem")
        fields = Fields(load_strict_json(text, where), where, keys)
        operation = fields.text("operation")
        check_among("operation", operation, tuple(_READERS))
        kernel = LibraryKernel(
            provider=fields.text("provider"),
            version=fields.text("version"),
            problem=_READERS[operation](fields.mapping("problem"), f"{where}.problem"),
            algorithm=fields.text("algorithm"),
            workspace_bytes=fields.integer("workspace_bytes"),
        )
        kernel.check()
        return kernel

    def check(self) -> None:
        """Raise `InputError` where something is no value of its field."""
        check_among("provider", self.provider, PROVIDERS)
        self.problem.check()
        if not _VERSION.fullmatch(self.version):
            raise InputError(f"expected a version of {self.provider}, got {self.version!r:.100}")
        if not _ALGORITHM[self.provider].fullmatch(self.algorithm):
            form = "an algorithm in hex" if self.provider == "cublaslt" else "the name of a plan"
            raise InputError(f"expected {form}, got {self.algorithm!r:.100}")
        if type(self.problem) not in OPERATIONS[self.provider]:
            raise InputError(f"{self.provider} computes no {self.operation}")
        check_range("workspace_bytes", self.workspace_bytes, 0, MAX_WORKSPACE_BYTES)


def _read_matmul(data: Any, where: str) -> MatmulProblem:
    names = tuple(f.name for f in dataclasses.fields(MatmulProblem))
    fields = Fields(data, where, tuple(n for n in names if n != "c"), optional=("c",))
    read: dict[str, Any] = {name: fields.integer(name) for name in ("m", "n", "k", "batch")}
    read |= {name: fields.text(name) for name in ("dtype", "result", "epilogue")}
    read |= {name: fields.flag(name) for name in ("transposed_a", "transposed_b", "tf32")}
    read |= {role: _read_matrix(data[role], f"{where}.{role}") for role in "abcd" if role in data}
    return MatmulProblem(**read)


def _read_matrix(data: Any, where: str) -> Matrix:
    fields = Fields(data, where, ("ld", "stride", "start"))
    return Matrix(fields.integer("ld"), fields.integer("stride"), fields.integer("start"))


def _read_convolution(data: Any, where: str) -> ConvolutionProblem:
    names = tuple(f.name for f in dataclasses.fields(ConvolutionProblem))
    fields = Fields(data, where, tuple(n for n in names if n != "c"), optional=("c",))
    read: dict[str, Any] = {n: fields.text(n) for n in ("dtype", "result", "epilogue")}
    read |= {n: fields.integers(n) for n in ("before", "after", "strides", "dilations")}
    read |= {role: _read_array(data[role], f"{where}.{role}") for role in "abcd" if role in data}
    return ConvolutionProblem(**read, tf32=fields.flag("tf32"))


def _read_array(data: Any, where: str) -> Array4:
    fields = Fields(data, where, ("dims", "strides", "start"))
    return Array4(fields.integers("dims"), fields.integers("strides"), fields.integer("start"))


def _read_attention(data: Any, where: str) -> AttentionProblem:
    names = tuple(f.name for f in dataclasses.fields(AttentionProblem))
    fields = Fields(data, where, tuple(n for n in names if n != "bias"), optional=("bias",))
    arrays = (role for role in ("q", "k", "v", "d", "bias") if role in data)
    read: dict[str, Any] = {role: _read_array(data[role], f"{where}.{role}") for role in arrays}
    read |= {n: fields.text(n) for n in ("dtype", "bias_dtype")}
    return AttentionProblem(
        **read, scale=_number(data["scale"], f"{where}.scale"), causal=fields.flag("causal")
    )


def _read_norm(data: Any, where: str) -> NormProblem:
    fields = Fields(data, where, tuple(f.name for f in dataclasses.fields(NormProblem)))
    read: dict[str, Any] = {role: _read_array(data[role], f"{where}.{role}") for role in ("x", "d")}
    read |= {n: fields.text(n) for n in ("kind", "dtype", "result", "vectors")}
    epsilon = _number(data["epsilon"], f"{where}.epsilon")
    return NormProblem(**read, epsilon=epsilon, has_bias=fields.flag("has_bias"))


def _number(value: Any, where: str) -> float:
    if type(value) is not float:
        raise InputError(f"{where}: expected a number with a fraction, got {value!r:.100}")
    return value


_READERS: dict[str, Callable[[Any, str], Problem]] = {
    "matmul": _read_matmul,
    "convolution": _read_convolution,
    "attention": _read_attention,
    "norm": _read_norm,
}
_OPERATION_OF: dict[type, str] = {
    MatmulProblem: "matmul",
    ConvolutionProblem: "convolution",
    AttentionProblem: "attention",
    NormProblem: "norm",
}
#: what each library computes
OPERATIONS: dict[str, tuple[type, ...]] = {
    "cublaslt": (MatmulProblem,),
    "cudnn": (ConvolutionProblem, AttentionProblem, NormProblem),
}
