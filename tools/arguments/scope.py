"""Scopes of options: for which networks, targets and other options an option has a meaning."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from tilewright.runtime.errors import InputError

#: what names of networks that are built, not read, begin with
ZOO = "zoo:"


class NetworkKind(Enum):
    """The kind of thing that an argument NET names."""

    RELAY = "Relay network"
    IR = "file of Tilewright IR"
    ONNX = "ONNX file"
    EXPORTED = "exported program"
    ZOO = "network of the zoo"
    SAVED = "saved executable"

    @staticmethod
    def of(network: str) -> NetworkKind:
        """The kind by the beginning and the suffix of a name; without a known suffix it is Relay."""
        if network.startswith(ZOO):
            return NetworkKind.ZOO
        suffixes = {
            ".ir": NetworkKind.IR,
            ".onnx": NetworkKind.ONNX,
            ".pt2": NetworkKind.EXPORTED,
            ".tw": NetworkKind.SAVED,
        }
        return suffixes.get(PurePath(network).suffix, NetworkKind.RELAY)


ANYTHING = frozenset(NetworkKind)
#: all that is compiled first
NETWORKS = ANYTHING - {NetworkKind.SAVED}
#: all whose weights are not in the file, so that random ones may be drawn
WITHOUT_WEIGHTS = frozenset({NetworkKind.RELAY, NetworkKind.ZOO})


@dataclass(frozen=True)
class OptionScope:
    """The cases in which an option has a meaning: in others it is refused, so that nobody trusts in it.

    inputs: what the network may be. kernels: the target must be one that has kernels, not the interpreter.
    needs: options of which one at least must be given, or options with a value (`--tune measure`) that they
    must have. without: options that must not be given.
    """

    inputs: frozenset[NetworkKind] = ANYTHING
    kernels: bool = False
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


#: options of a compilation
COMPILED = OptionScope(NETWORKS, kernels=True)


def check_scope(flag: str, scope: OptionScope, arguments: argparse.Namespace) -> None:
    """Raise InputError where `flag` was given and has no meaning beside the other arguments."""
    for network in _networks(arguments):
        if (kind := NetworkKind.of(network)) not in scope.inputs:
            raise InputError(
                f"{flag}: expected {_listed(scope.inputs)} with this option, got the {kind.value} {network}"
            )
    if scope.kernels and getattr(arguments, "target", "") == "reference":
        raise InputError(
            f"{flag}: expected a target with kernels with this option, got reference, which interprets"
        )
    if scope.needs and not any(_is_given(other, arguments) for other in scope.needs):
        raise InputError(f"{flag}: expected {' or '.join(scope.needs)} with this option")
    for other in scope.without:
        if _is_given(other, arguments):
            raise InputError(f"{flag}: expected this option without {other}")


def _networks(arguments: argparse.Namespace) -> Iterable[str]:
    """The networks of the command: one argument NET, or several."""
    one = getattr(arguments, "network", None)
    return [one] if isinstance(one, str) else getattr(arguments, "networks", None) or ()


def _is_given(option: str, arguments: argparse.Namespace) -> bool:
    flag, _, value = option.partition(" ")
    name = flag.lstrip("-").replace("-", "_")
    return getattr(arguments, name, None) == value if value else name in arguments.given


def _listed(kinds: Iterable[NetworkKind]) -> str:
    known = frozenset(kinds)
    if known == NETWORKS:
        return "a network"
    *rest, last = [f"{'an' if k.value[0] in 'aeiouO' else 'a'} {k.value}" for k in NetworkKind if k in known]
    return f"{', '.join(rest)} or {last}" if rest else last
