"""Which OpenCL devices are used: verdicts of the self-test, how long they last, the width of vectors."""

import json
import re
import signal
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.errors import DeviceMissingError
from tilewright.runtime.opencl import platforms, trust

#: a vector type of OpenCL C: bits of an element, then the lanes
ELEMENTS = "(u?char)|(u?short|half)|(u?int|float)|(u?long|double)"
VECTOR = re.compile(rf"\b(?:{ELEMENTS})(2|3|4|8|16)\b")


def device_of(platform, lanes=8):
    made_by = SimpleNamespace(name=platform, version=f"{platform} 1")
    return SimpleNamespace(
        name="a processor", version="1", driver_version="1", platform=made_by, native_vector_width_float=lanes
    )


POCL, OTHER = device_of("Portable Computing Language"), device_of("Another")


def lines(*facts):
    return "noise of the compiler\n".join(json.dumps(f) + "\n" for f in facts).encode()


FINISHED = lines({"bits": 256}, {"begins": "known_exp_float8"}, {"finished": True})
BEGUN = lines({"bits": 256}, {"begins": "known_exp_float8"})
WRONG = lines({"bits": 256}, {"ends": "known_select_double4", "right": False}, {"finished": True})


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """Makes self-tests end as told, by the bits asked for; the returned list holds the bits tried."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(trust, "_verdicts", {})
    tried = []

    def ends(**ways):
        def run(command, **_options):
            tried.append(int(command[-1]))
            code, output = ways.get(f"at_{command[-1]}", ways.get("always"))
            if code is None:
                raise subprocess.TimeoutExpired(command, 1.0, output)
            return SimpleNamespace(
                returncode=code, stdout=output, stderr=b"Traceback:\nImportError: no numpy\n"
            )

        monkeypatch.setattr(trust.subprocess, "run", run)
        trust._verdicts.clear()  # as in a new process
        return tried

    return ends


def test_a_right_device_is_tested_once(judged):
    tried = judged(always=(0, FINISHED))
    assert trust.verdict_on(POCL).bits == 256
    judged(always=(1, b""))
    assert trust.verdict_on(POCL).bits == 256
    assert tried == [512]


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (-signal.SIGSEGV, BEGUN, "its compiler crashed (SIGSEGV) on exp of float8 on this machine"),
        (-signal.SIGABRT, b"", "its compiler crashed (SIGABRT) on its first kernel on this machine"),
        (-signal.SIGXCPU, BEGUN, "its compiler took more than 120 s of the processor on exp of float8"),
        (1, BEGUN, "its compiler failed on exp of float8"),
        (0, WRONG, "it computes select of double4 wrongly on this machine"),
    ],
)
def test_a_device_that_fails_is_refused_for_good(judged, code, output, reason):
    tried = judged(always=(code, output))
    verdict = trust.verdict_on(POCL)
    assert (verdict.bits, verdict.reason[: len(reason)]) == (0, reason)
    assert tried in ([512, 128], [512, 256, 128])
    judged(always=(0, FINISHED))
    assert trust.verdict_on(POCL).bits == 0


def test_narrower_vectors_are_tried_where_wide_ones_fail(judged):
    tried = judged(at_512=(0, WRONG), always=(0, lines({"bits": 128}, {"finished": True})))
    assert trust.verdict_on(POCL).bits == 128
    assert tried == [512, 128]


def test_what_a_busy_machine_could_not_tell_is_asked_anew(judged, tmp_path):
    tried = judged(always=(None, BEGUN))
    assert (
        trust.verdict_on(POCL).reason == "its compiler took more than 600 s on exp of float8 on this machine"
    )
    assert trust.verdict_on(POCL).bits == 0
    assert tried == [512]
    assert not list(tmp_path.rglob("*.json"))
    judged(always=(0, FINISHED))
    assert trust.verdict_on(POCL).bits == 256


def test_a_test_that_could_not_start_says_nothing_of_the_device(judged, tmp_path):
    tried = judged(at_512=(1, b""), always=(0, FINISHED))
    assert trust.verdict_on(POCL).reason == "its self-test could not start: ImportError: no numpy"
    assert tried == [512]
    assert not list(tmp_path.rglob("*.json"))


def test_a_damaged_verdict_is_made_anew(judged, tmp_path):
    judged(always=(0, FINISHED))
    trust.verdict_on(POCL)
    (stored,) = tmp_path.rglob("*.json")
    for damage in ("", "[]", '{"bits": "many", "reason": ""}', '{"bits": 256}'):
        stored.write_text(damage)
        judged(always=(0, lines({"bits": 128}, {"finished": True})))
        assert trust.verdict_on(POCL).bits == 128


def test_refused_devices_are_passed_over_and_named(judged, monkeypatch):
    judged(always=(-signal.SIGSEGV, BEGUN))
    monkeypatch.setattr(trust, "list_opencl_devices", lambda: [POCL, OTHER])
    assert trust.find_device() == (OTHER, 256)
    with pytest.raises(
        DeviceMissingError, match=r"a processor \(Portable .*\) is refused: its compiler crashed"
    ):
        trust.find_device("pocl")


@pytest.mark.parametrize(("lanes", "bits"), [(1, 128), (4, 128), (8, 256), (16, 512), (64, 512)])
def test_a_trusted_device_says_its_width_within_bounds(lanes, bits):
    assert trust.verdict_on(device_of("Another", lanes)).bits == bits


@pytest.mark.parametrize("bits", [128, 256])
def test_code_holds_no_vector_wider_than_allowed(monkeypatch, bits):
    """Float vectors are as wide as allowed, and no vector of any element is wider."""
    monkeypatch.setattr(trust, "MOST_BITS", bits)
    monkeypatch.setattr(trust, "_verdicts", {})
    text = """module @m { graph.func @main(%x: f32[16, 64], %w: f32[64, 64], %d: f64[16, 64])
        -> f32[16, 64], f64[16, 64] {
      %0 = graph.dense(%x, %w) : f32[16, 64]
      %1 = graph.softmax(%0, axis = -1) : f32[16, 64]
      %2 = graph.exp(%d) : f64[16, 64]
      graph.return(%1, %2) } }"""
    rng = np.random.default_rng(0)
    x, w, d = (rng.standard_normal((rows, 64)) for rows in (16, 64, 16))
    x, w = x.astype(np.float32), w.astype(np.float32)
    executable = tw.compile(tw.parse(text), target="opencl")
    widths = {
        8 * 2**size * int(found[5])
        for kernel in executable.plan.kernels
        for found in VECTOR.finditer(kernel.source)
        for size in range(4)
        if found[size + 1]
    }
    assert max(widths) == bits
    softmax, exp = executable(x, w, d)
    logits = x.astype(np.float64) @ w.T
    expected = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(softmax, expected / expected.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(exp, np.exp(d), rtol=1e-12)


def test_names_of_implementations():
    assert platforms.matches(POCL, "pocl")
    assert not platforms.matches(POCL, "intel")
    assert platforms.matches(OTHER, "PROCESSOR")


def test_another_processor_or_driver_is_tested_anew(judged, monkeypatch):
    tried = judged(always=(0, FINISHED))
    trust.verdict_on(POCL)
    monkeypatch.setattr(trust, "processor", lambda: "another")
    trust.verdict_on(POCL)
    trust.verdict_on(SimpleNamespace(**{**vars(POCL), "driver_version": "2"}))
    assert tried == [512] * 3
