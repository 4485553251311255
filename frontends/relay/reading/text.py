"""Relay modules from text: `#[version = "0.0.5"]`, functions, and an optional metadata section."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from tilewright.frontends.relay.reading.build import Builder
from tilewright.frontends.relay.reading.scan import Source, scan
from tilewright.frontends.tvm.ast import Module, Type
from tilewright.ir.errors import InputError

#: Characters of code (without metadata) accepted; the largest known network prints 0.2 million.
MAX_CODE = 32_000_000
#: The first line of texts of TVM 0.6 and older
_OLD_VERSION = re.compile(r"\s*v(\d+\.\d+\.\d+)\s")
_NAMES = {
    "$END": "the end of the file",
    "LOCAL": "%name",
    "GRAPH": "%number",
    "GLOBAL": "@name",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "META": "meta[...][...]",
    "BOOL": "True or False",
    "NONE": "None",
    "VERSION": '#[version = "0.0.5"]',
    "FIELD": "a field number",
    "ANY": "'?'",
    "MATCH": "'match'",
    "REF": "'ref'",
    "EQUALITY": "'=='",
    "ORDER": "'<'",
    "SIGN": "'+'",
    "FACTOR": "'*'",
}


def read_text(text: str, file: str) -> Module:
    """The module in `text`; `file` names it in messages.

    A text without definitions is one expression: a function becomes @main, anything else the body of a @main
    whose parameters are the free variables. Raises InputError with file, line, column and what was expected.
    """
    if old := _OLD_VERSION.match(text):
        raise InputError(f"expected Relay text of version 0.0.5, got {old[1]}", where=file)
    source = scan(text, file)
    if len(source.code) > MAX_CODE:
        raise InputError(
            f"expected at most {MAX_CODE} characters of code, got {len(source.code)}", where=file
        )
    builder = Builder(source, lambda note: parse_type(note, file))
    return builder.module(_parse(source, "start"))


def parse_type(text: str, file: str) -> Type | None:
    """The type in the `ty=` part of a comment; None where the comment is not a type after all."""
    source = Source(file, text, {}, "", 0)
    try:
        return Builder(source, lambda _: None).type(_parse(source, "type"))
    except InputError:
        return None


@cache
def _parser() -> Lark:
    grammar = files("tilewright.frontends.relay.reading").joinpath("grammar.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", start=["start", "type"], maybe_placeholders=False)


def _parse(source: Source, start: str) -> Tree[Token]:
    try:
        return _parser().parse(source.code, start=start)
    except UnexpectedInput as error:
        raise _syntax_error(error, source) from None


def _syntax_error(error: UnexpectedInput, source: Source) -> InputError:
    if isinstance(error, UnexpectedToken):
        got = "the end of the file" if error.token.type == "$END" else f"'{_clip(str(error.token))}'"
        expected = error.accepts or error.expected
    elif isinstance(error, UnexpectedCharacters):
        got, expected = f"'{error.char}'", error.allowed or set()
    else:
        got, expected = "something else", set()
    offset = error.pos_in_stream
    if offset is None or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        offset = len(source.code.rstrip())
    terminals = sorted({_name(terminal) for terminal in expected})
    return InputError(f"expected {_either(terminals)}, got {got}", where=source.place(offset))


def _name(terminal: str) -> str:
    if terminal in _NAMES:
        return _NAMES[terminal]
    for definition in _parser().terminals:
        if definition.name == terminal and definition.pattern.type == "str":
            return f"'{definition.pattern.value}'"
    return terminal.lower()


def _either(terminals: list[str]) -> str:
    shown = terminals if len(terminals) <= 8 else [*terminals[:7], f"one of {len(terminals) - 7} others"]
    return " or ".join(", ".join(shown).rsplit(", ", 1)) if shown else "Relay text"


def _clip(text: str) -> str:
    return text if len(text) <= 30 else text[:27] + "..."
