"""Kernels that wait themselves for what they depend on: where, and that nothing moves before the wait."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import checked, kernel, run
from kernels_apart import without_chains
from runtime_samples import diamond

import tilewright as tw
from tilewright.codegen import emit_cuda, emit_opencl
from tilewright.codegen.builders import nvrtc
from tilewright.codegen.builders.nvrtc import compile_cuda, load_nvrtc
from tilewright.compilation.kernel_builds import kernel_codes
from tilewright.compilation.lowering import build, lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Func, InputError, parse, walk
from tilewright.ir.thread.launch_ops import RELEASE, WAIT
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.runtime.plan.check import find_faults
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json

#: a map, a contraction through shared memory, a pool, a dense layer; two inputs that are no constants
NETWORK = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 8, 12, 12), float32], %y: Tensor[(1, 8, 12, 12), float32],
          %w: Tensor[(16, 8, 3, 3), float32], %d: Tensor[(10, 16), float32]) {
  %0 = add(exp(%x), %y);
  %1 = nn.conv2d(%0, %w, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  %2 = nn.max_pool2d(nn.relu(%1), pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  %3 = nn.batch_flatten(nn.global_avg_pool2d(%2));
  nn.softmax(nn.dense(%3, %d, units=10))
}
"""


@pytest.fixture(scope="module", autouse=True)
def kernels_apart():
    with without_chains():
        yield


PARAMS = {"x": "f32[64, 32]", "w": "f32[32]", "y": "f32[64, 32]"}
BODY = """
%r = thread.alloc() : f32[1] in reg
%0 = thread.load(%w, at = [tid]) : f32
thread.store(%0, %r, at = [0])
WAIT
RELEASE
thread.loop(var = i, extent = 64, unroll = 4) {
  %1 = thread.load(%x, at = [i, tid]) : f32
  %2 = thread.load(%r, at = [0]) : f32
  %3 = scalar.mul(%1, %2) : f32
  thread.store(%3, %y, at = [i, tid])
}
"""


def waiting(wait: str = WAIT, release: str = RELEASE, constants: str = "[1]") -> Func:
    body = BODY.replace("WAIT", f"{wait}()" if wait else "").replace(
        "RELEASE", f"{release}()" if release else ""
    )
    buffers = ", ".join(f"%{name}: {type_}" for name, type_ in PARAMS.items())
    head = f"{buffers}, grid = [1, 1, 1], block = 32, constant_params = {constants}"
    return checked(parse(f"module @m {{ thread.func @k({head}) {{ {body}\nthread.return() }} }}"))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("overlap") / "n.relay"
    path.write_text(NETWORK)
    return tw.frontends.relay.load(str(path), params="random", inputs=("x", "y"), seed=0)


def lowered(network, target):
    return lower(network, resolve_target(target))


@pytest.mark.parametrize(
    ("target", "waits"),
    [
        ("cuda:sm_90a", True),
        ("emulator:sm_90a", True),
        ("null:sm_100", True),
        ("cuda:sm_80", False),
        ("emulator:sm_89", False),
        ("opencl", False),
    ],
)
def test_the_architecture_decides(network, target, waits):
    low = lower(network, resolve_target(target), relays="never")
    kernels = [f for f in low.thread.funcs if f.name != "main"]
    assert len(kernels) >= 4
    for f in kernels:
        names = [op.name for op in f.body.ops]
        assert [names.count(WAIT), names.count(RELEASE)] == [int(waits), 0]
    assert all(s.overlaps is waits for s in low.sources.values())
    assert all(("griddepcontrol" in s.source) is waits for s in low.sources.values())


def test_weights_alone_are_constants(network):
    low = lowered(network, "cuda:sm_90a")
    main = low.thread.main
    fixed = {op.result for op in main.body.ops if op.name == "tensor.constant"}
    seen = set()
    for op in main.body.ops:
        if op.name == "tensor.call":
            positions = low.thread[op["callee"].name]["constant_params"]
            assert all(op.operands[i] in fixed for i in positions)
            seen.update(positions)
    assert seen


def test_a_kernel_that_waits_already_stays():
    head = "%x: f32[8], grid = [1, 1, 1], block = 8"
    module = parse(f"module @m {{ thread.func @k({head}) {{ {COPY} thread.return() }} }}")
    context, passes = PassContext("cuda:sm_90a"), Pipeline.parse("overlap-launches")
    out = run_pipeline(module, passes, context)
    assert [op.name for op in out["k"].body.ops][:2] == [WAIT, "thread.load"]
    assert run_pipeline(out, passes, context) is out


COPY = "%v = thread.load(%x, at = [tid]) : f32\nthread.store(%v, %x, at = [7 - tid])"


@pytest.mark.parametrize(
    ("func", "fault"),
    [
        (lambda: waiting(constants="[]"), "touches memory that other launches write"),
        (lambda: waiting(constants="[3]"), "expected constant_params to be positions among 3 parameters"),
        (lambda: waiting(release=WAIT), "expected one thread.wait_for_launches per kernel"),
        (
            lambda: kernel(f"thread.loop(var = i, extent = 2) {{ {WAIT}() }}", PARAMS),
            "at the top of a kernel, outside of loops and conditions",
        ),
    ],
)
def test_the_verifier_refuses(func, fault):
    with pytest.raises(InputError, match=fault):
        func()


def test_nothing_is_computed_differently(network):
    inputs = [np.random.default_rng(3).standard_normal((1, 8, 12, 12)).astype(np.float32) for _ in range(2)]
    with tw.compile(network, target="emulator:sm_90a", progress=False) as exe:
        got = exe(*inputs)
    wanted = tw.interpret(network, *inputs)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["opencl", "emulator"])
def test_a_kernel_alone_has_nothing_to_wait_for(device):
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((64, 32)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    np.testing.assert_array_equal(run(waiting(), device, [x, w])["y"], x * w)


def test_text():
    text = emit_cuda(waiting()).source
    # read before the wait: no promise that lets the compiler read it later; written by others: another name
    assert "k(const float* x_given, const float* w, float* y_given) {" in text
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index("tw_wait_for_launches();")
    assert lines[at + 1 : at + 4] == [
        "const float* x = tw_after_wait(x_given);",
        "float* y = tw_after_wait(y_given);",
        "tw_release_dependents();",
    ]
    assert "griddep" not in emit_opencl(waiting()).source
    assert emit_cuda(waiting()).overlaps
    assert emit_cuda(waiting(release="")).overlaps


def test_constants_read_later_keep_their_promise():
    func = waiting(constants="[0, 1]")
    assert "const float* __restrict__ x," in emit_cuda(func).source


def ptx(source: str, arch: str = "90a") -> str:
    try:
        api = load_nvrtc()
    except tw.WorkError as error:
        pytest.skip(str(error))
    _, program = api.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    flags = [f"--gpu-architecture=compute_{arch}".encode(), *(f.encode() for f in nvrtc.BASE_FLAGS)]
    assert int(api.nvrtcCompileProgram(program, len(flags), flags)[0]) == 0
    text = bytearray(api.nvrtcGetPTXSize(program)[1])
    api.nvrtcGetPTX(program, text)
    api.nvrtcDestroyProgram(program)
    return text.decode()


def traffic(text: str) -> list[str]:
    """The instructions on global memory and on launches, in order."""
    return re.findall(
        r"^\s*(?:@%\w+ )?((?:ld|st)\.global[.\w]*|(?:ld|st)\.[fbu]\d+|griddepcontrol\.\w+)", text, re.M
    )


def test_ptx_keeps_the_order_and_reads_activations_coherently():
    found = traffic(ptx(emit_cuda(waiting()).source))
    at = found.index("griddepcontrol.wait")
    assert found[:at] == ["ld.global.f32"]
    assert found[at + 1] == "griddepcontrol.launch_dependents"
    assert found[at + 2 :] == ["ld.global.f32", "st.global.f32"] * 4


def test_ptx_without_new_pointers_would_read_by_the_incoherent_path():
    """The danger is real: the same kernel with plain parameters and the same wait."""
    text = emit_cuda(waiting()).source
    for name, kind in (("x", "const float*"), ("y", "float*")):
        text = text.replace(f"{kind} {name}_given", f"{kind} __restrict__ {name}")
        text = text.replace(f"    {kind} {name} = tw_after_wait({name}_given);\n", "")
    assert "ld.global.nc.f32" in traffic(ptx(text))


def test_ptx_of_a_network(network):
    """Whatever is read incoherently is a constant: a kernel without constants reads nothing that way."""
    low = lowered(network, "cuda:sm_90a")
    checked_kernels = 0
    for name, source in low.sources.items():
        func = low.thread[name]
        found = traffic(ptx(source.source))
        at = found.index("griddepcontrol.wait")
        assert not any(access.startswith("st.") for access in found[:at])
        assert all(access.startswith(("ld.global", "st.global", "griddep")) for access in found)
        if not func["constant_params"]:
            checked_kernels += 1
            assert not any(".nc" in access for access in found)
            assert found[0] == "griddepcontrol.wait"
    assert checked_kernels >= 2


def test_older_architectures_compile_the_text_without_the_instructions():
    source = emit_cuda(waiting()).source
    assert compile_cuda(source, arch="sm_80").kernels["k"].registers > 0
    assert "griddepcontrol" not in ptx(source, "80")
    assert "griddepcontrol.wait" in ptx(source, "90a")


def test_unrolled_loops_store_last(network):
    low = lowered(network, "cuda:sm_90a")
    for f in low.thread.funcs:
        for op in walk(f.body):
            if op.name == "thread.loop" and op["unroll"] == 1 and op["extent"] > 1:
                spaces = {
                    (o.name, v.tensor.space)
                    for o in walk(op.body)
                    if o.name in ("thread.load", "thread.store")
                    for v in o.operands[-1:]
                }
                assert not {("thread.load", "global"), ("thread.store", "global")} <= spaces


# -- plans


def test_plans_carry_it(network):
    target = resolve_target("null:sm_90a")
    plan = build(lower(network, target))
    assert all(k.overlaps for k in plan.kernels)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_plans_for_older_architectures_never_do():
    sources = {"k": emit_cuda(waiting())}
    codes = {arch: kernel_codes(sources, resolve_target(f"null:{arch}"))["k"] for arch in ("sm_80", "sm_90a")}
    assert [codes[arch].overlaps for arch in codes] == [False, True]


def test_plans_of_older_files_and_odd_values():
    plan = diamond()
    text = plan_to_json(plan)
    assert '"overlaps": false' in text
    assert plan_from_json(text.replace(', "overlaps": false', "")) == plan
    with pytest.raises(InputError, match="expected overlaps to be of type bool"):
        plan_from_json(text.replace('"overlaps": false', '"overlaps": 1', 1))
    odd = plan.replace(kernels=(replace(plan.kernels[0], overlaps=1), *plan.kernels[1:]))
    assert any("expected overlaps to be true or false" in fault for fault in find_faults(odd))
    assert json.loads(text)["kernels"][0]["overlaps"] is False
