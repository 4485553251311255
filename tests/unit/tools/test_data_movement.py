"""`explain --mue` and the report: operator classes, words, bytes by definition and by cut, MUE, and sums."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import pytest
from command_samples import printed, refused

from tilewright.ir import parse
from tilewright.ir.facts import WorkClass
from tilewright.passes.analysis.work.global_traffic import moved_bytes
from tilewright.passes.analysis.work.operator_work import class_of_work, kernel_work
from tilewright.tools.cli import main
from tilewright.tools.data_movement.kernel_rows import efficiency, part_of

STEP = ("explain", "zoo:linear_classifier", "--mue", "--train", "sgd", "--target", "cuda:sm_90a:h200")
DIGITS = ("explain", "zoo:digits", "--mue", "--target", "cuda:sm_90a:h200")


@pytest.fixture(scope="module")
def step():
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([*STEP, "--json"]) == 0
    return json.loads(out.getvalue())


def test_mue_is_compulsory_bytes_over_what_the_memory_could_move(step):
    for k in step["kernels"]:
        assert k["mue"] == pytest.approx(
            100 * k["compulsory_bytes"] / (k["seconds"] * step["dram_bytes_per_s"])
        )
        assert k["memory_bound"] == (k["mue"] > k["peak_share"])
        assert not k["measured"]
    assert step["times"] == "modelled"
    assert efficiency(30.0, 60.0, 2.0, 20.0) == pytest.approx(75.0)
    assert efficiency(30.0, 90.0, 2.0, 20.0) == pytest.approx(75.0)  # what it moves in vain cancels


def test_kernels_move_at_least_what_they_must(step):
    assert all(k["moved_bytes"] >= k["compulsory_bytes"] > 0 for k in step["kernels"])


def test_sums_are_those_of_the_kernels(step):
    *classes, everything = step["totals"]
    assert [c["work"] for c in classes] == [c.value for c in WorkClass]
    for key in ("launches", "flops", "compulsory_bytes", "moved_bytes", "memory_bound"):
        assert sum(c[key] for c in classes) == everything[key]
    assert sum(c["share"] for c in classes) == pytest.approx(100)
    assert everything["seconds"] == pytest.approx(sum(k["calls"] * k["seconds"] for k in step["kernels"]))
    assert {k["part"] for k in step["kernels"]} >= {"forward", "loss", "optimizer"}


def test_the_text_has_a_row_per_kernel_and_sums(capsys):
    text = printed(capsys, *DIGITS, "--precision", "tf32")
    assert "times modelled; bandwidth 4800 GB/s" in text
    assert text.count("tensor contraction") == 4 + 1
    assert "statistical normalisation" in text
    code, message = refused(capsys, *DIGITS, "--partitioners")
    assert code == 2
    assert "--partitioners" in message


@pytest.mark.parametrize(
    ("location", "part"),
    [("zoo:head", "forward"), ("zoo:head'", "backward"), ("optimizer", "optimizer"), ("", "forward")],
)
def test_parts_follow_locations(location, part):
    assert part_of(location) == part


KERNELS = """module @m {
  tensor.func @pooled(%x: f32[4, 10]) {
    %s = tensor.window(%x, par = (i: 4, j: 4), red = (r: 2),
        reads = [[i, j * 2 + r]], init = [0.0]) : f32[4, 4] {
      ^(%a: f32, %acc: f32)
      %t = scalar.add(%a, %acc) : f32
      scalar.yield(%t)
    }
    %y = tensor.map(%s, %x, par = (i: 4, j: 4), reads = [[i, j], [i, 9]]) : f32[4, 4] {
      ^(%a: f32, %b: f32)
      %m = scalar.mul(%a, %b) : f32
      scalar.yield(%m)
    }
    tensor.return(%y)
  }
}
"""


def test_words_are_counted_once():
    work = kernel_work(parse(KERNELS).funcs[0])
    # columns 0 to 7 and column 9 of the operand; sums of two, then a product
    assert (work.words_in, work.words_out) == (4 * 9, 4 * 4)
    assert work.flops == 4 * 4 * 2 + 4 * 4
    assert work.compulsory_bytes == 4 * (4 * 9 + 4 * 4)
    assert work.work is WorkClass.NORMALISATION


def test_a_kernel_without_ops_of_work_is_element_wise():
    assert class_of_work(()) is WorkClass.ELEMENTWISE


THREADS = """module @m {
  thread.func @rows(%x: f32[6, 1024], %s: f32[6], %y: f32[6, 1024], grid = [8, 1, 1], block = 64) {
    %c = scalar.const(value = 1.0, dtype = "f32") : f32
    thread.if(mask = [[bid.x, 0, 6]]) {
      thread.loop(var = a, extent = 16) {
        %v = thread.load(%x, at = [bid.x, a * 64 + tid]) : f32
        %w = thread.load(%x, at = [bid.x, (a * 64 + tid + 1) % 1024]) : f32
      }
      thread.loop(var = b, extent = 16) {
        %v = thread.load(%x, at = [bid.x, b * 64 + tid]) : f32
        %f = thread.load(%s, at = [bid.x]) : f32
        thread.store(%v, %y, at = [bid.x, b * 64 + tid])
      }
      thread.atomic_add(%c, %s, at = [bid.x], mask = [[tid, 0, 1]])
    }
  }
}
"""


def test_bytes_by_the_cut_are_those_of_passes_and_blocks():
    rows, sector = 6, 32
    passes = 2 * rows * 4096  # neighbours that overlap are read once per pass
    scale = rows * sector
    assert moved_bytes(parse(THREADS).funcs[0]) == passes + scale + rows * 4096 + 2 * rows * sector


SMALL_LAYER = "zoo:encoder_layer{batch=1,sequence=64,width=64,heads=1,hidden=64,projections=joined}"


def test_a_network_is_shown_with_its_backward_pass(capsys):
    shown = ("explain", SMALL_LAYER, "--vjp", "f16", "--precision", "fp16", "--target", "cuda:sm_90a:h200")
    facts = json.loads(printed(capsys, *shown, "--partitioner", "maximal", "--mue", "--json"))
    *_, everything = facts["totals"]
    assert everything["launches"] == 18 + 14 + 1  # products, the published kernels, the number of the run
    assert {k["part"] for k in facts["kernels"]} == {"forward", "backward"}


def test_a_backward_pass_is_that_of_a_network_or_of_its_step(capsys):
    code, message = refused(capsys, "explain", SMALL_LAYER, "--vjp", "f16", "--train", "sgd")
    assert code == 2
    assert "--vjp: expected this option without --train" in message
