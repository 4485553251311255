"""NVRTC without a GPU: CUBINs for several architectures, true resource numbers, errors with their place."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_samples import BODIES, source

from tilewright.codegen.builders import nvrtc
from tilewright.codegen.builders.cache import BinaryCache
from tilewright.codegen.builders.compile_many import compile_cached, compile_many
from tilewright.codegen.builders.cubin import Resources, read_resources
from tilewright.codegen.builders.nvrtc import compile_cuda, supported_archs
from tilewright.ir.errors import InputError, WorkError

SPILLING = """
extern "C" __global__ void plain(float* y) { y[threadIdx.x] = 1.0f; }
extern "C" __global__ void __launch_bounds__(1024, 1) spills(const float* x, float* y, int n) {
  __shared__ float s[300];
  float v[96];
  for (int i = 0; i < 96; i++) v[i] = x[threadIdx.x * 96 + i];
  s[threadIdx.x % 300] = v[0];
  __syncthreads();
  for (int k = 0; k < n; k++) {
    #pragma unroll
    for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i * 7 + 3) % 96] + s[(i + k) % 300];
  }
  for (int i = 0; i < 96; i++) y[threadIdx.x * 96 + i] = v[i];
}
"""


def cuobjdump() -> str | None:
    beside = [Path(folder) / "nvidia" / "cu13" / "bin" / "cuobjdump" for folder in sys.path]
    return next((str(path) for path in beside if path.is_file()), shutil.which("cuobjdump"))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_cubins_without_a_gpu(arch):
    text = "\n".join(source(name, "cuda") for name in BODIES)
    binary = compile_cuda(text, arch=arch)
    assert binary.cubin.startswith(b"\x7fELF")
    assert binary.arch == arch
    assert set(binary.kernels) == set(BODIES)
    assert all(0 < r.registers <= 64 and r.spill_bytes == 0 for r in binary.kernels.values())
    assert binary.log == ""


def test_spills_and_shared_memory_are_seen():
    binary = compile_cuda(SPILLING, arch="sm_90a")
    spilling = binary.kernels["spills"]
    assert spilling.registers <= 64
    assert spilling.spill_bytes > 0
    assert spilling.static_shared_bytes == 1200
    assert binary.kernels["plain"] == Resources(binary.kernels["plain"].registers, 0, 0)


@pytest.mark.skipif(cuobjdump() is None, reason="cuobjdump is not installed")
def test_resources_agree_with_the_cubin_itself(tmp_path):
    (tmp_path / "k.cubin").write_bytes(compile_cuda(SPILLING, arch="sm_80").cubin)
    tool = cuobjdump()
    assert tool is not None
    command = [tool, "--dump-resource-usage", str(tmp_path / "k.cubin")]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for head, usage in zip(
        *[iter(line for line in report.splitlines() if "Function" in line or "REG:" in line)] * 2, strict=True
    ):
        fields = dict(
            part.split(":") for part in usage.split() if part.startswith(("REG", "STACK", "SHARED"))
        )
        name = head.split()[1].rstrip(":")
        found[name] = Resources(int(fields["REG"]), int(fields["STACK"]), int(fields["SHARED"]))
    assert found == compile_cuda(SPILLING, arch="sm_80").kernels


def test_errors_show_the_lines_around():
    text = "\n" * 10 + "__global__ void k(float* p) {\n  p[0] = q;\n}\n"
    with pytest.raises(WorkError) as caught:
        compile_cuda(text)
    message = str(caught.value)
    assert 'identifier "q" is undefined' in message
    assert ">   12 |   p[0] = q;" in message
    assert "    11 | __global__ void k(float* p) {" in message


def test_warnings_are_kept_apart():
    binary = compile_cuda('extern "C" __global__ void k(float* p) { int unused = 3; p[0] = 1; }')
    assert "never referenced" in binary.log
    assert "Compiling entry function" not in binary.log


@pytest.mark.parametrize("arch", ["sm_50", "90a", "compute_80", "sm_80; rm", ""])
def test_unknown_architectures(arch):
    assert 90 in supported_archs()
    with pytest.raises(InputError, match="sm_90"):
        compile_cuda("", arch=arch)


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(200), b"garbage" * 100])
def test_what_is_no_cubin_is_an_error(data):
    with pytest.raises(WorkError, match="CUBIN"):
        read_resources(data)


def test_missing_nvrtc_says_what_to_install(monkeypatch):
    nvrtc.load_nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(WorkError, match=r"pip install 'tilewright\[cuda\]'"):
        compile_cuda("")


def test_the_longest_texts_are_compiled_first(tmp_path, monkeypatch):
    sources = [("k", source(name, "cuda")) for name in BODIES]
    begun: list[str] = []

    def note(text: str, **options: object) -> object:
        begun.append(text)
        return compile_cuda(text, **options)

    monkeypatch.setattr("tilewright.codegen.builders.compile_many.compile_cuda", note)
    compile_many(sources, arch="sm_80", cache=BinaryCache(tmp_path), jobs=1, progress=False)
    assert begun == sorted(begun, key=len, reverse=True)
    assert begun != [text for _, text in sources]


def test_many_in_order_through_the_cache(tmp_path, monkeypatch):
    cache = BinaryCache(tmp_path)
    sources = [(f"{name}{n}", source(name, "cuda")) for n in range(2) for name in BODIES]
    first = compile_many(sources, arch="sm_80", cache=cache, progress=False)
    assert [set(binary.kernels) for binary in first] == [{name} for name in BODIES] * 2
    assert len(list(tmp_path.rglob("*.bin"))) == len(BODIES)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("tilewright.codegen.builders.compile_many.compile_cuda", refuse)
    assert compile_many(sources, arch="sm_80", cache=cache, progress=False) == first
    with pytest.raises(AssertionError):
        compile_cached(sources[0][1], arch="sm_90a", cache=cache)
    with pytest.raises(AssertionError):
        compile_cached(sources[0][1], arch="sm_80", flags=("-lineinfo",), cache=cache)


def test_a_damaged_entry_is_rebuilt(tmp_path):
    cache = BinaryCache(tmp_path)
    text = source("scale", "cuda")
    good = compile_cached(text, cache=cache)
    (entry,) = tmp_path.rglob("*.bin")
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert compile_cached(text, cache=cache) == good
    assert compile_cached(text, cache=cache) == good


def test_the_failing_kernel_is_named(tmp_path):
    sources = [
        ("good", source("scale", "cuda")),
        ("bad one", "nonsense"),
        ("also good", source("join", "cuda")),
    ]
    with pytest.raises(WorkError, match="kernel 'bad one': NVRTC refused"):
        compile_many(sources, cache=BinaryCache(tmp_path), progress=False)
    assert compile_many([], cache=BinaryCache(tmp_path)) == []


def test_the_bar_is_drawn_only_when_asked(tmp_path, capsys):
    compile_many([("k", source("scale", "cuda"))], cache=BinaryCache(tmp_path))
    assert capsys.readouterr().err == ""
    compile_many([("k", source("scale", "cuda"))], cache=BinaryCache(tmp_path), progress=True)
    assert "compiling" in capsys.readouterr().err
