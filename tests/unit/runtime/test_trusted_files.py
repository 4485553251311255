"""A saved executable is a program: host code is asked for, and what a plan tells to be wrong is refused."""

import hashlib
import json
import zipfile

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.plan.check import source_faults
from tilewright.tools.cli import main

CHAIN = """
module @net {
  graph.func @main(%x: f32[6, 64]) -> f32[6, 8], f32[6, 64] {
    %0 = graph.softmax(%x, axis = 1) : f32[6, 64]
    %1 = graph.reshape(%0, newshape = [6, 8, 8]) : f32[6, 8, 8]
    %2 = graph.sum(%1, axis = [2], keepdims = false) : f32[6, 8]
    %3 = graph.softmax(%2, axis = 1) : f32[6, 8]
    %4 = graph.cumsum(%x, axis = 1) : f32[6, 64]
    %5 = graph.softmax(%4, axis = 1) : f32[6, 64]
    graph.return(%3, %5)
  }
}
"""


RELU = """
module @net {
  graph.func @main(%x: f32[8]) -> f32[8] {
    %0 = graph.relu(%x) : f32[8]
    graph.return(%0)
  }
}
"""


def saved(path, target, text=CHAIN):
    exe = tw.compile(tw.parse(text), target=target, partitioner="none", streams="exact")
    exe.save(path)
    return exe.plan


def edited(path, change, member="plan.json"):
    """The file with `change` made to one of its members, and hashes that fit."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    members[member] = change(members[member].decode()).encode()
    manifest["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)


def fault(path, target="auto"):
    with pytest.raises(tw.InputError) as caught:
        tw.load(path, target)
    return str(caught.value)


def changed(edit):
    """A change of a plan's JSON by a function of its data."""

    def change(text):
        data = json.loads(text)
        edit(data)
        return json.dumps(data)

    return change


@pytest.mark.emulator
def test_host_code_is_run_only_when_asked_for(tmp_path, capsys):
    path = tmp_path / "net.tw"
    saved(path, "emulator:sm_80", RELU)
    assert 'expected --target emulator (in Python target="emulator")' in fault(path)
    assert main(["run", str(path)]) == 2
    assert "--target emulator" in capsys.readouterr().err
    assert main(["run", str(path), "--target", "emulator", "--repeats", "1"]) == 0
    with tw.load(path, target="emulator:sm_80") as exe:
        exe(np.zeros(8, np.float32))
    assert "expected a saved executable for opencl, got one for emulator:sm_80" in fault(path, "opencl")


def test_a_file_is_for_the_target_of_its_plan(tmp_path):
    path = tmp_path / "net.tw"
    saved(path, "opencl")
    tw.load(path, target="opencl")
    assert "expected a saved executable for cuda, got one for opencl" in fault(path, "cuda")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["manifest.json"] = members["manifest.json"].replace(
        b'"target": "opencl"\n', b'"target": "emulator:sm_80"\n'
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    assert "names the target of its plan" in fault(path)


def test_kernels_include_no_file(tmp_path):
    path = tmp_path / "net.tw"
    plan = saved(path, "opencl")
    edited(path, lambda text: '#include "secret.txt"\n' + text, f"kernels/{plan.kernels[0].name}.cl")
    assert "has the directive '#include \"secret.txt\"'" in fault(path)


@pytest.mark.parametrize(
    "text",
    [
        '#include "a"', '  #  include <a>', '/* a */ #include "a"', '/*\n*/#include "a"', '%:include "a"',
        '??=include "a"', '#inc\\\nlude "a"', '#define A \\\n#include "a"', '\r#include "a"', "#include a",
        '#embed "a"', '#if __has_include("a")', '#line 1 "a"', '#pragma GCC dependency "a"', "#import <a>",
        '#include_next "a"',
    ],
)  # fmt: skip
def test_directives_that_could_read_files_are_found(text):
    assert list(source_faults(f"int x;\n{text}\nint y;\n"))


def test_what_emitters_write_is_no_fault():
    text = "#if __CUDA_ARCH__ >= 800\n#pragma unroll\n#endif\n// conv#3\nint a;\n#pragma nounroll\n"
    assert not list(source_faults(text))


@pytest.mark.emulator
def test_the_emulator_takes_no_assembly(tmp_path):
    path = tmp_path / "net.tw"
    plan = saved(path, "emulator", RELU)
    edited(path, lambda t: t + 'asm(".incbin \\"secret\\"");\n', f"kernels/{plan.kernels[0].name}.cu")
    with tw.load(path, target="emulator") as exe, pytest.raises(tw.WorkError, match="poisoned"):
        exe(np.zeros(8, np.float32))


def test_missing_dependencies_are_found(tmp_path):
    path = tmp_path / "net.tw"
    plan = saved(path, "opencl")
    last = max(i for i, launch in enumerate(plan.launches) if launch.deps)
    edited(path, changed(lambda d: d["launches"][last].update(deps=[])))
    assert "which no launch before it writes" in fault(path)


def test_buffers_that_overlap_in_time_are_found(tmp_path):
    path = tmp_path / "net.tw"
    saved(path, "opencl")

    def together(data):
        for buffer in data["buffers"]:
            if buffer["kind"] == "arena":
                buffer["offset"] = 0

    edited(path, changed(together))
    assert "share arena bytes" in fault(path)


def test_launches_are_what_their_kernels_were_made_for(tmp_path):
    path = tmp_path / "net.tw"
    saved(path, "opencl")
    good = path.read_bytes()
    for key, value, wanted in (
        ("grid", [4096, 1, 1], "expected the grid"),
        ("block", 512, "expected the block"),
        ("writes", [], "expected writes"),
    ):
        path.write_bytes(good)
        edited(path, changed(lambda d, k=key, v=value: d["launches"][0].update({k: v})))
        assert wanted in fault(path)
        assert "that its kernel was made for" in fault(path)
    path.write_bytes(good)

    def smaller(data):
        x = next(b for b in data["buffers"] if b["name"] == "x")
        x.update(shape=[6, 32], nbytes=6 * 32 * 4)

    edited(path, changed(smaller))
    assert "its kernel touches 1536 bytes of an argument, 'x' holds 768" in fault(path)


def test_a_plan_that_orders_too_little_is_refused_in_bounded_time(tmp_path):
    path = tmp_path / "net.tw"
    saved(path, "opencl")

    def loose(data):
        first = data["launches"][0]
        data["launches"] += [{**first, "deps": []} for _ in range(3000)]

    edited(path, changed(loose))
    assert "no dependency orders them" in fault(path)
