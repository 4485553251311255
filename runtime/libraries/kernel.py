"""The record of a library kernel in a plan: provider, problem, algorithm, workspace, version, as JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.attention import AttentionBackwardProblem, AttentionProblem
from tilewright.runtime.libraries.convolution import ConvolutionProblem
from tilewright.runtime.libraries.matmul import MatmulProblem
from tilewright.runtime.libraries.norm import NormProblem
from tilewright.runtime.libraries.problem import Argument, check_among, check_range
from tilewright.runtime.strict_json import JsonFields, load_strict_json, read_dataclass

#: the problem of each operation, and the operations of each library
PROBLEMS: dict[str, type] = {
    "matmul": MatmulProblem,
    "convolution": ConvolutionProblem,
    "attention": AttentionProblem,
    "attention_backward": AttentionBackwardProblem,
    "norm": NormProblem,
}
OPERATIONS = {"cublaslt": ("matmul",), "cudnn": ("convolution", "attention", "attention_backward", "norm")}
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
    problem: Any  # of a type in `PROBLEMS`
    algorithm: str
    workspace_bytes: int

    @property
    def operation(self) -> str:
        """The operation of the library: one of the names in `PROBLEMS`."""
        return next(name for name, kind in PROBLEMS.items() if kind is type(self.problem))

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
        fields = JsonFields(load_strict_json(text, where), where, keys)
        operation = fields.text("operation")
        check_among("operation", operation, tuple(PROBLEMS))
        kernel = LibraryKernel(
            provider=fields.text("provider"),
            version=fields.text("version"),
            problem=read_dataclass(PROBLEMS[operation], fields.mapping("problem"), f"{where}.problem"),
            algorithm=fields.text("algorithm"),
            workspace_bytes=fields.integer("workspace_bytes"),
        )
        kernel.check()
        return kernel

    def check(self) -> None:
        """Raise `InputError` where something is no value of its field."""
        check_among("provider", self.provider, tuple(OPERATIONS))
        self.problem.check()
        if not _VERSION.fullmatch(self.version):
            raise InputError(f"expected a version of {self.provider}, got {self.version!r:.100}")
        if not _ALGORITHM[self.provider].fullmatch(self.algorithm):
            form = "an algorithm in hex" if self.provider == "cublaslt" else "the name of a plan"
            raise InputError(f"expected {form}, got {self.algorithm!r:.100}")
        if self.operation not in OPERATIONS[self.provider]:
            raise InputError(f"{self.provider} computes no {self.operation}")
        check_range("workspace_bytes", self.workspace_bytes, 0, MAX_WORKSPACE_BYTES)
