"""The intermediate representation: types, nodes, ops of four levels, text, verifier, reference semantics."""

from tilewright.ir import graph_ops, plan_ops, scalar_ops, tensor, thread  # noqa: F401  (importing defines the ops)
from tilewright.ir.builder import Builder, scalar_body, structured
from tilewright.ir.constants import Constants, load_constants, save_constants
from tilewright.ir.errors import InputError, TilewrightError, UnsupportedError, WorkError
from tilewright.ir.expr import BinOp, Expr, Sym
from tilewright.ir.interpreter.run import interpret
from tilewright.ir.modules.compare import equal, equal_funcs
from tilewright.ir.modules.parser import parse, parse_file
from tilewright.ir.modules.printer import show, show_func, show_op
from tilewright.ir.modules.verifier import Fault, VerifyError, verify
from tilewright.ir.nodes import Attr, Block, Func, Level, Module, Op, Pairs, Ref, Value, backward_slice, walk
from tilewright.ir.opdef import REQUIRED, AttrDef, OpDef, define, op_def, op_defs
from tilewright.ir.typed_attributes import AttrRecord, Sizes
from tilewright.ir.types import ArrayType, ScalarType, TensorType, Type, dtype_name, numpy_dtype, widened

__all__ = [
    "REQUIRED",
    "ArrayType",
    "Attr",
    "AttrDef",
    "AttrRecord",
    "BinOp",
    "Block",
    "Builder",
    "Constants",
    "Expr",
    "Fault",
    "Func",
    "InputError",
    "Level",
    "Module",
    "Op",
    "OpDef",
    "Pairs",
    "Ref",
    "ScalarType",
    "Sizes",
    "Sym",
    "TensorType",
    "TilewrightError",
    "Type",
    "UnsupportedError",
    "Value",
    "VerifyError",
    "WorkError",
    "backward_slice",
    "define",
    "dtype_name",
    "equal",
    "equal_funcs",
    "interpret",
    "load_constants",
    "numpy_dtype",
    "op_def",
    "op_defs",
    "parse",
    "parse_file",
    "save_constants",
    "scalar_body",
    "show",
    "show_func",
    "show_op",
    "structured",
    "verify",
    "walk",
    "widened",
]  # fmt: skip
