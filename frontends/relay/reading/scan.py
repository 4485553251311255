"""Prepares Relay text for lexing: cuts the metadata section off, blanks comments and keeps what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.errors import InputError

_MARK = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*|#\[metadata\]')
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_NOT_NEWLINE = re.compile(r"[^\n]")


@dataclass(frozen=True, slots=True)
class Source:
    """`code` keeps the file's offsets; `notes` maps the end of the code before a comment to its text."""

    file: str
    code: str
    notes: Mapping[int, str]
    metadata: str
    metadata_line: int

    def place(self, offset: int) -> str:
        """`file:line:column` of a character."""
        line = self.code.count("\n", 0, offset) + 1
        return f"{self.file}:{line}:{offset - self.code.rfind(chr(10), 0, offset)}"


def scan(text: str, file: str) -> Source:
    """Split `text` into code, comments and metadata in one pass; an unclosed comment is an InputError."""
    pieces: list[str] = []
    notes: dict[int, str] = {}
    metadata, metadata_line = "", 0
    position = anchor = 0
    while (mark := _MARK.search(text, position)) is not None:
        between = text[position : mark.start()]
        if stripped := between.rstrip():
            anchor = position + len(stripped)
        pieces.append(between)
        token = mark[0]
        if token == "#[metadata]":
            metadata = text[mark.end() :]
            metadata_line = text.count("\n", 0, mark.end()) + 1
            position = len(text)
            break
        end = mark.end()
        if token == "/*":
            end = _comment_end(text, mark.start(), file)
            notes.setdefault(anchor, text[mark.end() : end - 2])
        if token.startswith('"'):
            anchor = end
            pieces.append(token)
        else:
            pieces.append(_NOT_NEWLINE.sub(" ", text[mark.start() : end]))
        position = end
    pieces.append(text[position:])
    return Source(file, "".join(pieces), notes, metadata, metadata_line)


def _comment_end(text: str, start: int, file: str) -> int:
    """Offset behind the `*/` that closes the (possibly nested) comment opened at `start`."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    line = text.count("\n", 0, start) + 1
    column = start - text.rfind("\n", 0, start)
    raise InputError(
        "expected '*/' to close this comment, got the end of the file", where=f"{file}:{line}:{column}"
    )
