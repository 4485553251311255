"""Roles and channels: their text, what the verifier says of wrong ones, what NVRTC makes of right ones."""

import pytest

from tilewright.codegen import emit_cuda, emit_opencl
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import UnsupportedError, parse, show, verify
from tilewright.ir.modules.verifier import VerifyError
from tilewright.ir.thread.channel_ops import channels_of, fills_before
from tilewright.ir.thread.role_ops import issued_by_one, roles_of

TEXT = """module @m {
  thread.func @k(%x: f32[8, 128], %y: f32[8, 128], grid = [1, 1, 1], block = 256) {
    %tiles = thread.alloc() : f32[3, 128] in shared
    %ring = thread.channel(%tiles, slots = 3) : u64[2, 3] in shared
    thread.role(name = "copy", registers = 40) {
      thread.loop(var = i, extent = 8) {
        thread.acquire(%ring, item = i)
        thread.copy_async(%x, %tiles, src = [i, tid], dst = [i % 3, tid])
        thread.publish(%ring, item = i)
      }
    }
    thread.role(name = "add", registers = 232) {
      thread.loop(var = i, extent = 8) {
        thread.receive(%ring, item = i)
        %0 = thread.load(%tiles, at = [i % 3, tid]) : f32
        thread.store(%0, %y, at = [i, tid])
        thread.release(%ring, item = i)
      }
    }
    thread.return()
  }
}
"""


def test_text_comes_back():
    module = parse(TEXT)
    verify(module)
    assert show(module) == TEXT


def test_channels_know_their_roles_and_fills():
    func = parse(TEXT).funcs[0]
    (channel,) = channels_of(func)
    copy, add = roles_of(func)
    assert (channel.name, channel.slots, channel.producers, channel.consumers) == ("ring", 3, (copy,), (add,))
    block = copy.body.ops[0].body
    fills = fills_before(block, block.ops[-1], channel.buffers)
    assert (fills.nbytes, fills.copies, fills.stores) == (0, True, False)
    assert not issued_by_one(copy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("block = 256", "block = 384", "expected roles of 384 threads together, got 256"),
        ("registers = 232", "registers = 228", "in multiples of 8, got 228"),
        ('"copy", registers', '"copy", warps = 6, registers', "warps in multiples of 4, got 6"),
        ('"add"', '"copy"', "expected a name of its own for each role, got 'copy'"),
        ("f32[3, 128] in", "f32[2, 128] in", "3 slots as first dimension"),
        ("thread.receive(%ring", "thread.receive(%y", "expected a channel"),
        ("thread.receive(%ring, item = i)", "thread.barrier()", None),
        ("thread.return()", "thread.barrier()\n    thread.return()", "nothing but roles"),
    ],
)  # fmt: skip
def test_wrong_roles_are_refused(old, new, message):
    module = parse(TEXT.replace(old, new))
    if message is None:  # items are checked by a pass, not by the verifier
        verify(module)
        return
    with pytest.raises(VerifyError, match=message):
        verify(module)


def test_too_many_registers_are_refused():
    text = TEXT.replace('"copy", registers = 40', '"copy", warps = 8, registers = 152').replace("256", "384")
    with pytest.raises(VerifyError, match="the 64512 registers that the block has at launch, got 68608"):
        verify(parse(text))


def test_a_role_inside_a_loop_is_refused():
    loops = "thread.loop(var = j, extent = 2) {", "}"
    text = TEXT.replace('thread.role(name = "add"', f'{loops[0]} thread.role(name = "add"')
    with pytest.raises(VerifyError, match="roles at the top"):
        verify(parse(text.replace("thread.return()", f"{loops[1]}\n    thread.return()")))


def test_roles_compile_for_hopper():
    text = emit_cuda(parse(TEXT).funcs[0]).source
    built = compile_cuda(text, arch="sm_90a", flags=("-DTW_SPIN_LIMIT=67108864",))
    assert built.kernels["k"].spill_bytes == 0
    for words in ("arrive.noinc", "try_wait.parity", "tw_channel<3, 128, 4>"):
        assert words in text
    assert "setmaxnreg" not in text  # 256 threads have all the registers that they can have
    wide = TEXT.replace("block = 256", "block = 384").replace('"add", reg', '"add", warps = 8, reg')
    text = emit_cuda(parse(wide).funcs[0]).source
    assert compile_cuda(text, arch="sm_90a").kernels["k"].registers == 168
    for words in ("setmaxnreg.dec", "setmaxnreg.inc"):
        assert words in text
    assert "release.cluster" not in text.replace("fence.mbarrier_init.release.cluster", "")


def test_other_languages_have_none():
    with pytest.raises(UnsupportedError, match="roles"):
        emit_opencl(parse(TEXT).funcs[0])
