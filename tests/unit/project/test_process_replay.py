"""Process replay: what renaming hides and what it does not, commits of a tiny repository, a real network."""

import copy
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen.builders.cubin import read_resources
from tilewright.tools.process_replay import __main__ as replay
from tilewright.tools.process_replay import recording
from tilewright.tools.process_replay.comparison import compare
from tilewright.tools.process_replay.normalise import renamed_ir, renamed_source
from tilewright.tools.process_replay.recorder import empty_cubin, read
from tilewright.tools.process_replay.recording import Child, Networks, ReplayCase
from tilewright.tools.process_replay.snapshot import link_package

ROOT = Path(__file__).parents[3]
CASE = ReplayCase("net", "cuda:sm_90a", "fp32")
KERNEL = """
static __device__ float tw_gelu(float x) { return x * erff(x); }
extern "C" __global__ void __launch_bounds__(64, 1) relu_0(
    const float* data,
    float* __restrict__ out) {
    __shared__ __align__(16) float tile[8][10];
    const int tid = (int)threadIdx.x;
    // relay:nn.relu#0
    for (int i = 0; i < 4; ++i) {
        const float4 data_v = *(const float4*)&data[i * 64 + tid];
        out[tid * i] = fmaxf(data_v.x * tile[tid][i], 0.0f);
    }
    __syncthreads();
}
"""


@pytest.mark.parametrize(
    "renames",
    [
        {"relu_0": "activation_7"},
        {"data": "arg0", "data_v": "arg0_v", "tid": "thread"},
        {"tile": "shared", "out": "result", "i": "step", "x": "given"},
    ],
)
def test_names_make_no_difference(renames):
    other = KERNEL
    for old, new in renames.items():
        other = with_name(other, old, new)
    assert other != KERNEL
    entry = renames.get("relu_0", "relu_0")
    assert renamed_source(other, entry) == renamed_source(KERNEL, "relu_0")


def with_name(text, old, new):
    return re.sub(rf"(?<![\w.]){old}\b", new, text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("erff", "expf"),
        ("fmaxf", "fminf"),
        ("data_v.x", "data_v.y"),
        ("i < 4", "i <= 4"),
        ("    __syncthreads();\n", ""),
        ("i * 64 + tid", "tid * 64 + i"),
        ("0.0f", "0.0f + INFINITY"),
        ("threadIdx.x", "blockIdx.x"),
        ("float4 data_v", "float2 data_v"),
        ("tile[tid][i]", "tile[i][tid]"),
        ("__launch_bounds__(64, 1)", "__launch_bounds__(64, 2)"),
    ],
)
def test_anything_but_a_name_makes_one(old, new):
    assert old in KERNEL
    changed = KERNEL.replace(old, new)
    assert renamed_source(changed, "relu_0") != renamed_source(KERNEL, "relu_0")


def test_names_without_a_declaration_keep_their_meaning():
    """A name that the text does not declare is one of the language, even where it stands behind a product."""
    text = "void k(float a) { float v = a * INFINITY; g(a * NAN); *p = a; }"
    out = renamed_source(text, "k")
    assert out == "void kernel(float v0) { float v1 = v0 * INFINITY; g(v0 * NAN); *p = v0; }"


def test_values_of_the_ir_are_numbered():
    text = 'func @f(%x) { %1 = op(%x, callee = @g) loc "at %x" }'
    assert renamed_ir(text) == 'func @0(%1) { %2 = op(%1, callee = @3) loc "at %x" }'
    assert renamed_ir(text.replace("%x)", "%y)").replace("(%x,", "(%y,")) == renamed_ir(text)
    assert renamed_ir(text.replace("op(%x", "op(%1")) != renamed_ir(text)


def record(**changes):
    """The record of a plan of two launches, the second of which reads what the first writes."""
    buffers = [
        {
            "name": "x",
            "dtype": "float32",
            "shape": [4],
            "kind": "input",
            "nbytes": 16,
            "offset": 0,
            "base": "",
        },
        {
            "name": "t",
            "dtype": "float32",
            "shape": [4],
            "kind": "arena",
            "nbytes": 16,
            "offset": 256,
            "base": "",
        },
        {
            "name": "y",
            "dtype": "float32",
            "shape": [4],
            "kind": "output",
            "nbytes": 16,
            "offset": 0,
            "base": "",
        },
    ]
    kernels = [
        {"name": "relu_0", "entry": "relu_0", "source": KERNEL, "overlaps": True},
        {"name": "sum_0", "entry": "sum_0", "source": "void sum_0(float a) { a; }", "overlaps": False},
    ]
    launches = [
        {"kernel": "relu_0", "args": ["x", "t"], "grid": [2, 1, 1], "block": 64, "deps": [], "stream": 0},
        {"kernel": "sum_0", "args": ["t", "y"], "grid": [1, 1, 1], "block": 32, "deps": [0], "stream": 3},
    ]
    plan = {
        "arena_bytes": 512, "inputs": ["x"], "outputs": ["y"],
        "buffers": buffers, "kernels": kernels, "launches": launches,
    }  # fmt: skip
    made = {"plan": plan, "constants": {}, "texts": {"graph": "%x = a()"}, "error": "", **changes}
    return copy.deepcopy(made)


def renamed_record():
    """The same under other names, with kernels and buffers in another order and streams of other numbers."""
    text = json.dumps(record()["plan"]).replace("relu_0", "activation_3").replace("sum_0", "total")
    plan = json.loads(text.replace('"t"', '"activation_3.out"').replace('"stream": 3', '"stream": 1'))
    plan["kernels"].reverse()
    plan["buffers"].reverse()
    return {**record(), "plan": {**plan, "unused_field": []}, "texts": {"graph": "%y = a()"}}


def test_a_renamed_plan_is_the_same():
    assert compare(CASE, record(), renamed_record(), texts=True).same


def changed(path, value):
    other = renamed_record()
    at = other["plan"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return other


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("buffers", 1, "offset"), 128),
        (("buffers", 1, "dtype"), "float16"),
        (("launches", 1, "deps"), []),
        (("launches", 1, "stream"), 0),
        (("launches", 0, "grid"), [3, 1, 1]),
        (("launches", 0, "block"), 128),
        (("launches", 0, "shared_bytes"), 1024),
        (("launches", 1, "args"), ["x", "y"]),
        (("arena_bytes",), 1024),
        (("programmatic",), [[0, 1]]),
    ],
)
def test_a_changed_plan_is_found(path, value):
    found = compare(CASE, record(), changed(path, value))
    assert not found.changes
    assert found.short() == "plan"
    assert compare(CASE, record(), changed(path, value), left_out=[path[-1]]).same == (path[-1] != "args")


def test_a_changed_constant_and_a_changed_kernel_are_found():
    assert compare(CASE, record(constants={"x": "a"}), record(constants={"x": "b"})).short() == "plan"
    other = changed(
        ("kernels", 1, "source"), KERNEL.replace("relu_0", "activation_3").replace("i < 4", "i < 5")
    )
    found = compare(CASE, record(), other)
    assert [str(c) for c in found.changes] == ["relu_0 -> activation_3: differs"]
    assert not found.plan
    assert any(line.startswith("+") and "< 5" in line for line in found.changes[0].diff)
    assert compare(CASE, record(), changed(("kernels", 0, "overlaps"), True)).short() == "1 of 2 kernels"
    commented = changed(
        ("kernels", 1, "source"), KERNEL.replace("relu_0", "activation_3").replace("#0", "#1")
    )
    assert str(compare(CASE, record(), commented).changes[0]).endswith("comments differ")


def test_an_error_of_one_side_is_a_difference():
    failed = record(plan=None, error="InputError: no")
    assert compare(CASE, failed, failed).same
    assert compare(CASE, record(), failed).error == "BASE: compiles; HEAD: InputError: no"


def test_the_empty_binary_names_its_kernels():
    assert {n: r.registers for n, r in read_resources(empty_cubin(KERNEL.encode())).items()} == {"relu_0": 64}


PACKAGE = """
from dataclasses import dataclass
from tilewright import frontends
from tilewright.codegen.text import SOURCE


@dataclass(frozen=True)
class Plan:
    target: str
    inputs: tuple
    outputs: tuple
    buffers: tuple
    kernels: tuple
    launches: tuple


@dataclass(frozen=True)
class Executable:
    plan: Plan


def compile(module, *, target, precision, progress):
    buffers = tuple({"name": n, "kind": k} for n, k in (("x", "input"), ("y", "output")))
    kernel = {"name": "k", "entry": "k", "source": SOURCE}
    launch = {"kernel": "k", "args": ["x", "y"]}
    return Executable(Plan(target, ("x",), ("y",), buffers, (kernel,), (launch,)))
"""


class Repository:
    """A repository with a package that compiles nothing, but answers as ours does."""

    def __init__(self, folder):
        self.folder = folder
        self.git("init", "-q")
        data = folder / "tests" / "data" / "relay"
        (data / "ref").mkdir(parents=True)
        (data / "net.relay").write_text("def @main() {}")
        np.savez(data / "ref" / "net.npz", inputs=json.dumps({"x": [[4], "float32"]}))
        self.write("compiler/__init__.py", PACKAGE)
        self.write("frontends/__init__.py", "from tilewright.frontends import relay")
        self.write("frontends/relay.py", "def load(path, *, params, inputs, seed):\n    return path")
        self.map("codegen")
        self.source("codegen", "void k(float a) { a + 1; }")

    def git(self, *arguments):
        named = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(self.folder), *named, *arguments], check=True, capture_output=True)

    def write(self, path, text):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def map(self, codegen):
        folders = {
            "tilewright": "compiler",
            "tilewright.frontends": "frontends",
            "tilewright.codegen": codegen,
        }
        lines = "".join(f'"{package}" = "{folder}"\n' for package, folder in folders.items())
        self.write("pyproject.toml", f"[tool.setuptools.package-dir]\n{lines}")

    def source(self, folder, text):
        self.write(f"{folder}/__init__.py", "")
        self.write(f"{folder}/text.py", f"SOURCE = {text!r}")

    def commit(self, tag):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", tag)
        self.git("tag", tag)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    folder = tmp_path / "repository"
    folder.mkdir()
    made = Repository(folder)
    monkeypatch.chdir(made.folder)
    made.commit("first")
    made.map("emission/text")
    made.source("emission/text", "void k(float b) { b + 1; }")
    (made.folder / "codegen" / "text.py").unlink()
    made.commit("moved")
    return made


def test_commits_are_compared_and_kept(repository, tmp_path, capsys, monkeypatch):
    kept = ("--targets", "cuda:sm_90a", "--precisions", "fp32", "--cache", str(tmp_path / "cache"))
    assert replay.main(["first", "moved", *kept]) == 0
    assert "1 of 1 compilations are the same in first" in capsys.readouterr().out
    repository.source("emission/text", "void k(float b) { b + 2; }")
    assert replay.main(["first", *kept, "--diff", "--json", str(tmp_path / "out.json")]) == 1
    out = capsys.readouterr().out
    assert "net cuda:sm_90a fp32: 1 of 1 kernels" in out
    assert "+void kernel(float v0) { v0 + 2; }" in out
    assert "0 of 1 compilations are the same in first" in out
    assert json.loads((tmp_path / "out.json").read_text())["cases"][0]["changes"][0]["head"] == "k"
    repository.commit("wrong")
    assert replay.main(["moved", *kept]) == 1
    # Now every commit is recorded: nothing is compiled any more, also where only other files differ.
    repository.write("README.md", "text")
    repository.commit("documented")
    monkeypatch.setattr(recording, "Child", None)
    assert replay.main(["moved", "documented", *kept]) == 1
    assert replay.main(["documented", *kept]) == 0


def test_times_are_compared_round_by_round(repository, tmp_path, capsys):
    asked = ("--targets", "opencl", "--times", "2", "--json", str(tmp_path / "out.json"))
    assert replay.main(["first", "moved", *asked]) == 0
    assert "of the processor time of first" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "out.json").read_text())
    assert len(row["base_cpu_s"]) == len(row["head_cpu_s"]) == 2


def test_bad_arguments_and_commits_are_told(repository, tmp_path, capsys):
    kept = ("--cache", str(tmp_path / "cache"))
    assert replay.main(["nowhere", *kept]) == 2
    assert "expected a commit, got 'nowhere'" in capsys.readouterr().err
    assert replay.main(["first", *kept, "--networks", "vgg"]) == 2
    assert "expected a network among net, got 'vgg'" in capsys.readouterr().err
    assert replay.main(["first", *kept, "--data", str(tmp_path)]) == 2
    assert replay.main(["first", *kept, "--targets", "opencl", "--precisions", "tf32"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    repository.write("compiler/__init__.py", "")
    repository.commit("empty")
    assert replay.main(["empty", "first", *kept]) == 1
    assert "expected tw.compile and tw.frontends.relay.load in the commit" in capsys.readouterr().err
    repository.write("pyproject.toml", "")
    assert replay.main(["first", *kept]) == 2
    assert "expected a folder for tilewright" in capsys.readouterr().err


def test_a_network_of_this_tree_against_itself(tmp_path, data_dir):
    """The real recorder on the smallest network; then one change in a kernel and one in the plan."""
    root = link_package(ROOT, tmp_path / "root")
    networks = Networks(data_dir / "relay")
    case = ReplayCase("mlp", "cuda:sm_90a", "fp32")
    files = [str(tmp_path / f"{i}.json.gz") for i in range(2)]
    with Child(root, "this tree", tmp_path) as child:
        for file in files:
            answer = child.ask(networks.request(case, file))
            assert not answer["error"]
    base, head = map(read, files)
    assert len(base["plan"]["kernels"]) == 3
    assert set(base["texts"]) >= {"graph", "tensor", "thread"}
    assert compare(case, base, head, texts=True).same
    planted = copy.deepcopy(head)
    kernel = planted["plan"]["kernels"][0]
    kernel["source"] = kernel["source"].replace("__syncthreads();", "", 1)
    assert kernel["source"] != head["plan"]["kernels"][0]["source"]
    assert [c.base for c in compare(case, base, planted).changes] == [kernel["name"]]
    planted = copy.deepcopy(head)
    next(b for b in planted["plan"]["buffers"] if b["kind"] == "arena")["offset"] += 256
    assert compare(case, base, planted).short() == "plan"
