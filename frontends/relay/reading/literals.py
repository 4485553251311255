"""Values of Relay's number, string and `meta[...]` tokens."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(-*)(inf|nan|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)(?:([fi])([0-9]*))?")
_META = re.compile(r"meta\s*\[\s*([^\s\]]+)\s*\]\s*\[\s*([0-9]+)\s*\]")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_MAX_DIGITS = 40


def number(token: str) -> tuple[int | float, str]:
    """`(value, dtype)` of a number token; minus signs cancel in pairs. Raises ValueError with the reason."""
    match = _NUMBER.fullmatch(token)
    if match is None:
        raise ValueError(f"expected a number, got '{token}'")
    minus, digits, kind, bits = match.groups()
    negative = len(minus) % 2 == 1
    if kind == "i" or (kind is None and digits.isdigit()):
        return _integer(digits, negative, int(bits) if bits else None, token)
    if len(digits) > 400:
        raise ValueError(f"expected a number of at most 400 characters, got {len(digits)}")
    value = float(digits)
    return (-value if negative else value), f"float{bits or 32}"


def _integer(digits: str, negative: bool, bits: int | None, token: str) -> tuple[int, str]:
    if not digits.isdigit():
        raise ValueError(f"expected an integer before the suffix i{bits}, got '{token}'")
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"expected an integer of 64 bits, got one of {len(digits)} digits")
    value = -int(digits) if negative else int(digits)
    if bits is None:
        bits = 32 if -(2**31) <= value < 2**31 else 64
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError(f"expected an integer of {bits} bits, got {token}")
    return value, f"int{bits}"


def string(token: str) -> str:
    """The text between the quotes; escapes of TVM's printer are undone, any other backslash is kept."""
    body = token[1:-1]
    return _ESCAPE.sub(_unescape, body) if "\\" in body and token[0] == '"' else body


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) == 3:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code if code in "\"\\'" else match[0])


def meta(token: str) -> tuple[str, int]:
    """`(type key, index)` of `meta[key][index]`. Raises ValueError with the reason."""
    match = _META.fullmatch(token)
    if match is None or len(match[2]) > 9:
        raise ValueError(f"expected meta[type.key][index], got '{token}'")
    return match[1], int(match[2])
