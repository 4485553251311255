"""C expressions of the elementwise scalar ops, by op and kind of dtype.

A form marked native also holds for whole vectors where the language has them; others go lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.codegen.dialect import Dialect
from tilewright.ir.types import FLOATS, itemsize


@dataclass(frozen=True)
class Operands:
    """The input of a form: operand texts, the dtype computed in, lanes of a native vector, constants.

    limits: of each operand the least and the largest number that it can be, where it is an index.
    """

    dialect: Dialect
    need: Callable[[str, str], str]
    dtype: str
    texts: tuple[str, ...]
    constants: tuple[float | int | bool | None, ...]
    limits: tuple[tuple[float, float] | None, ...]
    lanes: int = 1

    @property
    def type(self) -> str:
        """The C type computed in."""
        return self.dialect.reg_type(self.dtype, self.lanes)

    @property
    def opencl(self) -> bool:
        return self.dialect.native_vectors


@dataclass(frozen=True)
class Form:
    """The text of one op on one kind of dtype."""

    text: Callable[[Operands], str]
    native: bool = True


def kind_of(dtype: str) -> str:
    """`float`, `int`, `uint` or `bool`."""
    if dtype in FLOATS:
        return "float"
    return "bool" if dtype == "bool" else ("uint" if dtype.startswith("u") else "int")


def form_of(op: str, dtype: str) -> Form | None:
    """The form of `scalar.<op>` on a dtype."""
    return FORMS.get((op, kind_of(dtype)))


def _infix(operator: str) -> Form:
    return Form(lambda o: f"{o.texts[0]} {operator} {o.texts[1]}")


def _wrapping(operator: str) -> Form:
    """Integer arithmetic that wraps around: done unsigned, since C leaves signed overflow undefined."""

    def text(o: Operands) -> str:
        a, b = o.texts
        if o.lanes > 1:
            return f"{a} {operator} {b}"
        if o.dtype in ("i32", "i64", "index"):
            u = o.dialect.reg_type("u32" if o.dtype == "i32" else "u64")
            return f"({o.type})(({u}){a} {operator} ({u}){b})"
        return f"({o.type})({a} {operator} {b})"

    return Form(text)


def _math(function: str, arity: int = 1) -> Form:
    return Form(lambda o: o.dialect.call(function, o.dtype, o.texts[:arity]))


def _typed(function: str) -> Form:
    return Form(lambda o: f"{o.need(function, _integer(o.dtype))}({', '.join(o.texts)})", native=False)


def _shift(function: str, operator: str) -> Form:
    """A shift by any number of bits; C's own where the number is known to be one of those that there are."""
    checked = _typed(function)

    def text(o: Operands) -> str:
        limits = o.limits[1]
        if limits is None or limits[0] < 0 or limits[1] >= 8 * itemsize(_integer(o.dtype)):
            return checked.text(o)
        a = f"({o.dialect.reg_type(_unsigned(o.dtype))}){o.texts[0]}" if operator == "<<" else o.texts[0]
        return f"({o.type})({a} {operator} {o.texts[1]})"

    return Form(text, native=False)


def _integer(dtype: str) -> str:
    return "i64" if dtype == "index" else dtype


def _float_helper(function: str) -> Form:
    return Form(lambda o: f"{o.need(f'{function}_{o.dtype}', '')}({', '.join(o.texts)})", native=False)


def _compare(operator: str) -> Form:
    def text(o: Operands) -> str:
        return as_bool(f"{o.texts[0]} {operator} {o.texts[1]}", o.lanes)

    return Form(text)


def as_bool(mask: str, lanes: int) -> str:
    """A comparison as 0 or 1: vector comparisons give 0 or -1."""
    return mask if lanes == 1 else f"as_uchar{lanes}(-convert_char{lanes}({mask}))"


def _extreme(name: str, sign: str) -> Form:
    """nan where either operand is nan; one comparison where the second is a constant."""

    def text(o: Operands) -> str:
        a, b = o.texts
        if not o.opencl:
            return f"{o.need(f'{name}_{o.dtype}', '')}({a}, {b})"
        constant = o.constants[1]
        if constant is not None and constant == constant:
            return f"({b} {sign} {a} ? {b} : {a})"
        if o.lanes > 1:
            return f"(({a} {sign} {b}) | ({a} != {a}) ? {a} : {b})"
        return f"{o.need(f'{name}_{o.dtype}', '')}({a}, {b})"

    return Form(text)


def _int_extreme(sign: str) -> Form:
    def text(o: Operands) -> str:
        a, b = o.texts
        return f"({a} {sign} {b} ? {a} : {b})"

    return Form(text)


def _infinite(o: Operands) -> str:
    return o.dialect.literal(float("inf"), o.dtype)


def _classify(operator: str) -> Form:
    return Form(
        lambda o: as_bool(f"{o.dialect.call('fabs', o.dtype, o.texts)} {operator} {_infinite(o)}", o.lanes)
    )


def _unsigned(dtype: str) -> str:
    return "u64" if dtype == "index" else "u" + dtype[1:]


def _float_fma(o: Operands) -> str:
    """OpenCL contracts the plain form; a call of fma would cost PoCL every vector register around it."""
    a, b, c = o.texts
    return f"{a} * {b} + {c}" if o.opencl else o.dialect.call("fma", o.dtype, o.texts)


def _fma(o: Operands) -> str:
    a, b, c = o.texts
    u = o.dialect.reg_type("u64" if o.dtype in ("i64", "u64", "index") else "u32")
    return f"({o.type})(({u}){a} * ({u}){b} + ({u}){c})"


def _sigmoid(o: Operands) -> str:
    """In CUDA without the exact division, whose rare cases are a call: within 2e-6 for results above 1e-7."""
    (a,) = o.texts
    if o.dtype == "f32" and not o.opencl:
        return f"__fdividef(1.0f, 1.0f + __expf(-{a}))"
    one = o.dialect.literal(1.0, o.dtype)
    return f"{one} / ({one} + {o.dialect.call('exp', o.dtype, (f'-{a}',))})"


def _erf(o: Operands) -> str:
    """In CUDA a ratio of two polynomials, which takes half as long as the library's: within 8 ulp."""
    if o.dtype == "f32" and not o.opencl:
        return f"{o.need('erf_ratio', '')}({o.texts[0]})"
    return o.dialect.call("erf", o.dtype, o.texts[:1])


def _erfc(o: Operands) -> str:
    """In CUDA a power of two, which takes half as long as `erf`: within 1.6e-7; in OpenCL one minus `erf`."""
    (a,) = o.texts
    if o.opencl:
        return f"{o.dialect.literal(1.0, o.dtype)} - {o.dialect.call('erf', o.dtype, (a,))}"
    return f"{o.need('erfc_power', '')}({a})" if o.dtype == "f32" else o.dialect.call("erfc", o.dtype, (a,))


def _narrow_gelu(o: Operands) -> str:
    """In CUDA a power of two, within 1e-4 of the result or of 2 ** -14; elsewhere by `erf`."""
    a, scale = o.texts
    if o.dtype == "f32" and not o.opencl:
        return f"{o.need('narrow_gelu', '')}({a}, {scale})"
    half, root = (o.dialect.literal(v, o.dtype) for v in (0.5, 0.7071067811865476))
    return f"{a} * ({half} + {half} * {o.dialect.call('erf', o.dtype, (f'{a} * {scale} * {root}',))})"


FORMS: dict[tuple[str, str], Form] = {}


def _define(kinds: str, forms: dict[str, Form]) -> None:
    for kind in kinds.split():
        FORMS.update({(name, kind): form for name, form in forms.items()})


_define("float", {n: _infix(s) for n, s in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))})
_define("int uint", {n: _wrapping(s) for n, s in (("add", "+"), ("sub", "-"), ("mul", "*"))})
_define(
    "float int uint bool",
    {
        n: _compare(s)
        for n, s in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
    },
)
_define(
    "float",
    {
        name: _math(name)
        for name in (
            "exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
            "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "floor", "ceil", "trunc",
        )
    }
    | {
        "neg": Form(lambda o: f"-{o.texts[0]}"),
        "sigmoid": Form(_sigmoid),
        "erf": Form(_erf),
        "erfc": Form(_erfc),
        "narrow_gelu": Form(_narrow_gelu),
        "abs": _math("fabs"),
        "round": _math("rint"),
        "pow": _math("pow", 2),
        "atan2": _math("atan2", 2),
        "truncmod": _math("fmod", 2),
        "fma": Form(_float_fma),
        "mod": _float_helper("fmod"),
        "sign": _typed("sign"),
        "max": _extreme("max", ">"),
        "min": _extreme("min", "<"),
        "isnan": Form(lambda o: as_bool(f"{o.texts[0]} != {o.texts[0]}", o.lanes)),
        "isinf": _classify("=="),
        "isfinite": _classify("<"),
    },
)  # fmt: skip
_define(
    "int",
    {
        "neg": Form(
            lambda o: f"({o.type})(0 - ({o.dialect.reg_type(_unsigned(o.dtype))}){o.texts[0]})", native=False
        ),
        "abs": Form(
            lambda o: (
                f"({o.type})({o.texts[0]} < 0 ? 0 - ({o.dialect.reg_type(_unsigned(o.dtype))}){o.texts[0]}"
                f" : ({o.dialect.reg_type(_unsigned(o.dtype))}){o.texts[0]})"
            ),
            native=False,
        ),
        "sign": Form(lambda o: f"({o.texts[0]} > 0) - ({o.texts[0]} < 0)", native=False),
        "div": _typed("floordiv"),
        "mod": _typed("floormod"),
        "truncdiv": _typed("truncdiv"),
        "truncmod": _typed("truncmod"),
    },
)
_define(
    "uint",
    {
        "neg": Form(lambda o: f"({o.type})(0 - {o.texts[0]})", native=False),
        "abs": Form(lambda o: o.texts[0]),
        "sign": Form(lambda o: f"({o.type})({o.texts[0]} != 0)", native=False),
        "div": _typed("udiv"),
        "mod": _typed("umod"),
        "truncdiv": _typed("udiv"),
        "truncmod": _typed("umod"),
    },
)
_define("int uint", {"pow": _typed("ipow"), "shl": _shift("shl", "<<"), "shr": _shift("shr", ">>")})
_define(
    "int uint bool",
    {
        "max": _int_extreme(">"),
        "min": _int_extreme("<"),
        "bit_and": Form(lambda o: f"({o.type})({o.texts[0]} & {o.texts[1]})", native=False),
        "bit_or": Form(lambda o: f"({o.type})({o.texts[0]} | {o.texts[1]})", native=False),
        "bit_xor": Form(lambda o: f"({o.type})({o.texts[0]} ^ {o.texts[1]})", native=False),
        "fma": Form(_fma, native=False),
    },
)
_define("int uint", {"bit_not": Form(lambda o: f"({o.type})~{o.texts[0]}", native=False)})
_define(
    "bool",
    {
        "bit_not": Form(lambda o: f"!{o.texts[0]}", native=False),
        "not": Form(lambda o: f"!{o.texts[0]}", native=False),
        "and": Form(lambda o: f"{o.texts[0]} && {o.texts[1]}", native=False),
        "or": Form(lambda o: f"{o.texts[0]} || {o.texts[1]}", native=False),
        "xor": Form(lambda o: f"{o.texts[0]} != {o.texts[1]}", native=False),
        # on two truth values addition is `or` and multiplication `and`
        "add": Form(lambda o: f"{o.texts[0]} || {o.texts[1]}", native=False),
        "mul": Form(lambda o: f"{o.texts[0]} && {o.texts[1]}", native=False),
        "max": Form(lambda o: f"{o.texts[0]} || {o.texts[1]}", native=False),
        "min": Form(lambda o: f"{o.texts[0]} && {o.texts[1]}", native=False),
        "fma": Form(lambda o: f"({o.texts[0]} && {o.texts[1]}) || {o.texts[2]}", native=False),
    },
)
