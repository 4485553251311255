"""Channels of kernels are checked: what is wrong is named by role, channel and item before anything runs."""

import pytest

from tilewright.ir import InputError, parse, verify
from tilewright.passes.thread.channel_order import check_channels

HEAD = """module @m {
  thread.func @k(%x: f32[8, 128], %y: f32[8, 128], grid = [2, 1, 1], block = BLOCK) {
    %tiles = thread.alloc() : f32[3, 128] in shared
    %ring = thread.channel(%tiles, slots = 3) : u64[2, 3] in shared
"""
COPY = """
    thread.role(name = "copy") {
      thread.loop(var = i, extent = 8) {
        thread.acquire(%ring, item = i)
        thread.copy_async(%x, %tiles, src = [i, tid], dst = [i % 3, tid])
        thread.publish(%ring, item = i)
      }
    }
"""
READ = """
    thread.role(name = "read") {
      thread.loop(var = i, extent = 8) {
        thread.receive(%ring, item = i)
        %0 = thread.load(%tiles, at = [i % 3, tid]) : f32
        thread.store(%0, %y, at = [i, tid])
        thread.release(%ring, item = i)
      }
    }
"""


def checked(*roles: str, head: str = HEAD) -> None:
    text = head.replace("BLOCK", str(128 * len(roles))) + "".join(roles) + "thread.return() } }"
    module = parse(text)
    verify(module)
    check_channels(module.funcs[0])


def test_a_right_channel_passes():
    checked(COPY, READ)
    checked(COPY, READ, READ.replace('"read"', '"again"'))


RELEASE, RECEIVE = "thread.release(%ring, item = i)", "thread.receive(%ring, item = i)"
LOAD = "at = [i % 3, tid]) : f32"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (RELEASE, "", "role read waits to receive item 3 .* holds all 3 slots"),
        (RELEASE, RELEASE.replace("= i", "= i + 1"), "releases item 1 .* item 0 is the next"),
        (RECEIVE, RECEIVE.replace("= i", "= i + 1"), "reads slot 0 of tiles"),
        (LOAD, LOAD.replace("[i", "[(i + 1)"), "reads slot 1 of tiles, which holds no item"),
        ("dst = [i % 3, tid]", "dst = [0, tid]", "role copy fills slot 0 of tiles, .* acquired"),
        ("8) {\n        thread.receive", "7) {\n        thread.receive", "items 0 to 7"),
        (LOAD, LOAD.replace("[i", "[tid"), "depends on 'tid'"),
    ],
)
def test_items_and_slots(old, new, message):
    assert old in COPY + READ
    with pytest.raises(InputError, match=message):
        checked(COPY.replace(old, new), READ.replace(old, new))


BLOCKS = "thread.if(mask = [[i + bid.x, 0, 8]]) {"


def test_an_item_that_only_some_blocks_receive():
    guarded = READ.replace(
        "thread.loop(var = i, extent = 8) {", f"thread.loop(var = i, extent = 8) {{ {BLOCKS}"
    )
    with pytest.raises(InputError, match="items 0 to 7 of channel ring to be received once"):
        checked(COPY, guarded.replace("item = i)\n      }", "item = i) }\n      }"))
    with pytest.raises(InputError, match="depends on 'tid'"):
        checked(COPY, guarded.replace("bid.x", "tid").replace("item = i)\n      }", "item = i) }\n      }"))


TWO = HEAD + "    %back = thread.channel(slots = 1) : u64[2, 1] in shared\n"


def test_roles_that_wait_for_each_other():
    """The copier waits for an answer that the reader gives after an item the copier has not published."""
    asks = COPY.replace("thread.publish(%ring, item = i)",
                        "thread.receive(%back, item = i) thread.release(%back, item = i)"
                        " thread.publish(%ring, item = i)")  # fmt: skip
    answers = READ.replace("thread.release(%ring, item = i)",
                           "thread.release(%ring, item = i) thread.acquire(%back, item = i)"
                           " thread.publish(%back, item = i)")  # fmt: skip
    message = (
        "wait for each other for ever: role copy waits to receive item 0 of channel back, "
        "role read waits to receive item 0 of channel ring"
    )
    with pytest.raises(InputError, match=message):
        checked(asks, answers, head=TWO)


DIVIDED = HEAD.replace("slots = 3)", "slots = 3, divided = true)")


def half(name: str, of: str) -> str:
    return READ.replace('"read"', f'"{name}"').replace("extent = 8", "extent = 4").replace("= i)", f"= {of})")


def test_items_divided_among_consumers_by_turns_of_slots():
    """Every item of a slot goes to one consumer, so that each sees all phases of it; by turns it does not."""
    two = (
        DIVIDED.replace("slots = 3", "slots = 2")
        .replace("[3, 128]", "[2, 128]")
        .replace("u64[2, 3]", "u64[2, 2]")
    )
    copy = COPY.replace("% 3", "% 2")
    even, odd = (half(n, f"i * 2 + {k}").replace("[i % 3", f"[{k}") for k, n in enumerate(("even", "odd")))
    checked(copy, even, odd, head=two)
    even, odd = (
        half(n, f"i * 2 + {k}").replace("[i % 3", f"[(i * 2 + {k}) % 3")
        for k, n in enumerate(("even", "odd"))
    )
    with pytest.raises(InputError, match="cannot know that item 1 in its slot"):
        checked(COPY, even, odd, head=DIVIDED)
