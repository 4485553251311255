"""What a report says of the layouts of a network's values."""

from __future__ import annotations

from typing import Any

from tilewright.ir import Func, Pairs


def layout_facts(main: Func) -> dict[str, Any]:
    """How many values of @main keep their channels last, of how many; origins of ops that convert for it.

    The pass choose-layouts leaves the numbers at @main; without them every value is as the network has it.
    """
    given = main.get("layouts")
    found: dict[str, Any] = given.as_dict() if isinstance(given, Pairs) else {}
    return {
        "channels_last": int(found.get("channels_last", 0)),
        "values": int(found.get("values", 0)),
        "conversions": [str(loc) for loc in found.get("conversions", ())],
    }


def layout_text(facts: dict[str, Any]) -> str:
    """One line about `layout_facts`; empty where no value changed its layout."""
    if not facts["channels_last"]:
        return ""
    converting = facts["conversions"]
    named = f" ({', '.join(converting)})" if converting else ""
    count = f"{len(converting)} conversion kernel{'' if len(converting) == 1 else 's'}{named}"
    return f"layouts: {facts['channels_last']} of {facts['values']} values channels-last, {count}"
