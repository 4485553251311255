"""The plan level: plans as text and back, faults with their lines, hostile text, readable differences."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from concat_networks import dense_block
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_samples import SIZE, diamond, floats, launch, source
from test_communication_nccl_plans import plan_of as communicating
from test_library_plan import kernel as matmul
from unbuilt_plans import on_one_stream, plan_of

import tilewright as tw
from tilewright.ir import Level, Module, equal
from tilewright.ir.modules.verifier import VerifyError
from tilewright.plan_text.reading import plan_of_module
from tilewright.plan_text.writing import plan_module
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.libraries.attention import AttentionProblem
from tilewright.runtime.libraries.convolution import Array4, ConvolutionProblem
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.norm import NormProblem
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import (
    Buffer,
    ExecutionPlan,
    KernelCode,
    KernelContract,
    KernelResources,
    Launch,
)
from tilewright.runtime.streams import plan_streams
from tilewright.runtime.streams.assignment import with_streams

IMAGE = Array4((1, 8, 4, 4), (128, 16, 4, 1))
ROWS = Array4((4, 16, 1, 1), (16, 1, 1, 1))
HEADS = Array4((1, 2, 8, 16), (256, 128, 16, 1))
PROBLEMS = {
    "convolution": ConvolutionProblem(
        IMAGE, Array4((8, 8, 3, 3), (72, 9, 3, 1)), IMAGE, "float16", "float16",
        (1, 1), (1, 1), (1, 1), (1, 1), epilogue="relu_bias",
    ),
    "attention": AttentionProblem(HEADS, HEADS, HEADS, HEADS, "float16", 0.1, causal=True),
    "norm": NormProblem("layer", ROWS, ROWS, "float16", "float16", "float32", 1e-5),
}  # fmt: skip


def library_plan(kernel: LibraryKernel) -> ExecutionPlan:
    """One call of a library on buffers that are as large as it needs."""
    buffers = [
        Buffer(
            argument.role,
            argument.dtype,
            (argument.span,),
            "arena" if argument.role == "workspace" else "output" if argument.written else "input",
            max(1, argument.span * DTYPES[argument.dtype].itemsize),
        )
        for argument in kernel.arguments()
    ]
    names = {kind: tuple(b.name for b in buffers if b.kind == kind) for kind in ("input", "output")}
    call = Launch("call", tuple(b.name for b in buffers), (1, 1, 1), 1, writes=kernel.writes)
    code = KernelCode("call", "call", "library", kernel.to_json())
    plan = ExecutionPlan("cuda", tuple(buffers), (code,), (call,), names["input"], names["output"], 0)
    return validate(place_arena(plan))


def odd_plan() -> ExecutionPlan:
    """Names that no text holds unquoted, labels, binaries, resources, a contract, unused parts."""
    grid = (SIZE // 128, 1, 1)
    contract = KernelContract(grid, 128, 0, (4 * SIZE, 4 * SIZE), (1,))
    resources = KernelResources(40, 8, 512)
    scale = KernelCode(
        "0-scale", "scale", "cuda", source("scale", "cuda"), b"\x7fELF", "sm_90a", resources,
        overlaps=True, contract=contract,
    )  # fmt: skip
    unused = KernelCode("unused", "shift", "cuda", source("shift", "cuda"))
    buffers = (
        floats("input:0", "input", label="input ids"),
        Buffer("flag", "bool", (), "constant", 1, label="a flag"),
        Buffer("never/used", "bfloat16", (0, 3), "arena", 0),
        floats("a%b", "arena"),
        floats("second", "input"),
        floats("4", "output"),
    )
    launches = (launch("0-scale", "second", "a%b"), launch("0-scale", "a%b", "4", deps=(0,)))
    plan = ExecutionPlan(
        "cuda:sm_90a", buffers, (scale, unused), launches, ("second", "input:0"), ("4", "4"), 0
    )
    return validate(place_arena(plan))


@cache
def joined() -> ExecutionPlan:
    return plan_of(dense_block(1, 2), "opencl")


PLANS: dict[str, Callable[[], ExecutionPlan]] = {
    "diamond": diamond,
    "odd": odd_plan,
    "joined": joined,
    "joined-in-place": lambda: on_one_stream(plan_of(dense_block(1, 2), "cuda:sm_90a")),
    "exchange": lambda: communicating(0),
    "matmul": lambda: library_plan(matmul()),
    **{
        name: lambda p=problem: library_plan(LibraryKernel("cudnn", "9.10.0", p, "eng0", 4096))
        for name, problem in PROBLEMS.items()
    },
}


def read_back(module: Module, plan: ExecutionPlan) -> ExecutionPlan:
    """The plan of a module, with the text and the binaries of the kernels of `plan`."""
    sources = {k.name: k.source for k in plan.kernels}
    binaries = {k.name: k.binary for k in plan.kernels if k.binary is not None}
    return plan_of_module(module, sources=sources, binaries=binaries)


@pytest.mark.parametrize("name", PLANS)
def test_the_text_of_a_plan_parses_back_to_an_equal_plan(name: str) -> None:
    plan = PLANS[name]()
    module = plan_module(plan)
    text = tw.show(module)
    again = tw.parse(text)
    tw.verify(again)
    assert equal(again, module)
    assert tw.show(again) == text
    assert read_back(again, plan) == plan
    assert len(text.splitlines()) == 5 + len(plan.kernels) + len(plan.buffers) + len(plan.launches)


def test_decisions_are_typed_attributes_of_one_line() -> None:
    text = tw.show(plan_module(library_plan(matmul())))
    assert '{"' not in text
    assert "\\" not in text
    (kernel,) = re.findall(r"plan\.library\((.*)\)\n", text)
    assert 'provider = "cublaslt", operation = "matmul", problem = (m: 4, n: 6, k: 8, ' in kernel
    assert "a: (ld: 4, stride: 32, start: 0)" in kernel
    (call,) = re.findall(r"plan\.call\((.*)\)\n", text)
    assert call.startswith("%A, %B, %D, %workspace, kernel = ") or call.count("%") == 4


@pytest.mark.parametrize("name", ["matmul", "norm", "exchange"])
def test_element_types_have_the_names_of_the_ir_and_older_texts_are_read(name: str) -> None:
    plan = PLANS[name]()
    text = tw.show(plan_module(plan))
    assert "float" not in text
    older = re.sub(r'"f(16|32)"', r'"float\1"', text)
    assert older != text
    assert read_back(tw.parse(older), plan) == plan


def test_lifetimes_results_in_place_and_early_starts_are_shown() -> None:
    plan = diamond(language="cuda")
    early = tuple(replace(k, overlaps=k.name != "join") for k in plan.kernels)
    over = launch("shift", "t0", "t1", deps=(0, 2), in_place=((0, 1),))
    first, shift, scale, join = plan.launches
    plan = plan.replace(kernels=early, launches=(first, replace(scale, deps=(0,)), replace(over, deps=(0, 1)),
                        replace(join, deps=(1, 2))))  # fmt: skip
    text = tw.show(plan_module(validate(place_arena(plan))))
    assert 'live = ["scale", "shift"]' in text
    assert 'in_place_of = "t0"' in text
    assert 'after = ["scale", "scale#2"], programmatic = ["scale", "scale#2"]' in text
    assert 'after = ["scale#2", "shift"], grid' in text
    assert shift.kernel == over.kernel


#: what is replaced in the text of the diamond, by what, words of the error, and the text of the line it names
FAULTS = [
    ("stream = 1", "stream = 1024", "expected stream in 0..1023, got 1024", "stream = 1024"),
    ("block = 128", "block = 5000", "expected block in 1..4096", "%x, %t0"),
    ("grid = [8, 1, 1]", "grid = [8, 1]", "expected a grid of three extents", "%x, %t0"),
    ("offset = 4096", "offset = 4097", "offset 4097 is not a multiple of 256", "offset = 4097"),
    ("offset = 8192", "offset = 0", "share arena bytes, but their uses may interleave", "%t2 ="),
    ("arena_bytes = 12288", "arena_bytes = 12000", "ends at byte 12288 of an arena of 12000", "%t2 ="),
    ("bytes = 4096)", "bytes = 4095)", "expected nbytes in 4096..", "%x ="),
    ("%t1 = plan.arena(offset = 4096, bytes = 4096", "%t1 = plan.arena(offset = 4096, bytes = 99999999999999",
     "expected nbytes in", "99999999999999"),
    ('after = ["shift", "scale#2"]', 'after = ["shift"]', "no dependency orders them", '"join", stream'),
    ('after = ["scale"], grid', 'after = ["join"], grid', "launches above this one, got 'join'",
     '"shift", stream'),
    ('name = "scale#2", ', "", "two launches are called 'scale'", "stream = 1"),
    ('kernel = "shift"', 'kernel = "shirt"', "there is no kernel 'shirt'", "shirt"),
    ("plan.launch(%t0, %t1", "plan.call(%t0, %t1", "expected plan.launch of a plan.kernel", "plan.call"),
    ("writes = [3]", "writes = [4]", "expected writes to be positions of arguments", '"join", stream'),
    ("writes = [3]", "writes = [2]", "writes 'w', which is of kind constant", '"join", stream'),
    ('live = ["shift", "join"]', 'live = ["shift", "shift"]', "expected live = ['shift', 'join']", "%t1 ="),
    ("position = 0", "position = 1", "expected a position among 1 inputs, got 1", "%x ="),
    ('name = "shift", language = "opencl"', 'name = "shift", language = "perl"',
     "the language cuda or opencl", "perl"),
    ('name = "shift", language', 'name = "sh ift", language', "there is no kernel 'shift'", "%t0, %t1"),
    ("%w = plan.constant", "%x.1 = plan.constant", "use of undefined value %w", "%w, %y"),
    ('kernel = "join"', 'kernel = "join", programmatic = ["shift"]', "expected programmatic = []",
     "programmatic"),
    ("-> f32[1024]", "-> f32[1023]", "expected to return (f32[1023])", "plan.return"),
    ('stream = 0, after = ["scale"]', 'stream = 0, before = ["scale"]', "unknown attribute 'before'",
     "before ="),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words", "line"), FAULTS, ids=[f[2] for f in FAULTS])
def test_a_fault_is_told_with_its_line(old: str, new: str, words: str, line: str) -> None:
    text = tw.show(plan_module(diamond()))
    assert old in text
    text = text.replace(old, new, 1)
    with pytest.raises(tw.InputError) as raised:
        tw.verify(tw.parse(text))
    message = str(raised.value)
    assert words in message
    number = next(i for i, t in enumerate(text.splitlines(), 1) if line in t)
    assert f"@main, line {number}: " in message or f":{number}:" in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('operation = "matmul"', 'operation = "bite"', "expected operation among"),
        ("problem = (m: 4", "problem = (m: 0", "expected m in 1.."),
        ("problem = (m: 4", "problem = (m: 4, m: 4", "a name occurs twice"),
        ("problem = (m: 4", "problem = (m: x", "expected numbers, texts, lists and pairs, got x"),
        ("problem = (m: 4", "problem = (mm: 4", "misses 'm'"),
        ("problem = (m: 4", "problem = (m: inf", "not JSON"),
        ("workspace_bytes = 512", "workspace_bytes = 99999999999999", "expected workspace_bytes in"),
        ("writes = [3, 4]", "writes = [3]", "expected it to write the arguments"),
    ],
)
def test_faults_of_library_calls(old: str, new: str, words: str) -> None:
    text = tw.show(plan_module(library_plan(matmul())))
    old = old if old in text else re.search(r"writes = \[.*?\]", text)[0]  # type: ignore[index]
    with pytest.raises(VerifyError, match=r"line \d+") as raised:
        tw.verify(tw.parse(text.replace(old, new, 1)))
    assert words in str(raised.value)


@settings(max_examples=30)
@given(st.data())
def test_any_changed_number_is_read_or_refused_cleanly(data: st.DataObject) -> None:
    text = tw.show(plan_module(odd_plan()))
    numbers = list(re.finditer(r"(?<![\w.\"#%@])\d+(?![\w\".])", text))
    chosen = data.draw(st.sampled_from(numbers))
    value = data.draw(st.sampled_from([-1, 0, 1, 2**31, 2**46, 2**63, 10**19, 10**25]))
    changed = text[: chosen.start()] + str(value) + text[chosen.end() :]
    try:
        module = tw.parse(changed)
        tw.verify(module)
    except tw.InputError:
        return
    validate(read_back(module, odd_plan()))


def test_text_and_binaries_are_those_that_the_module_names() -> None:
    plan = odd_plan()
    module = plan_module(plan)
    sources = {k.name: k.source for k in plan.kernels}
    with pytest.raises(tw.InputError, match="expected the source of kernel '0-scale', got none"):
        plan_of_module(module)
    with pytest.raises(tw.InputError, match="expected the binary of kernel '0-scale', got none"):
        plan_of_module(module, sources=sources)
    with pytest.raises(tw.InputError, match="source of kernel 'unused' of digest"):
        read_back(module, plan.replace(kernels=tuple(replace(k, source=plan.kernels[0].source)
                                                     for k in plan.kernels)))  # fmt: skip


def difference(one: ExecutionPlan, other: ExecutionPlan) -> tuple[set[str], set[str]]:
    """Lines that only one text has, and those that only the other has."""
    lines = [set(tw.show(plan_module(p)).splitlines()) for p in (one, other)]
    return lines[0] - lines[1], lines[1] - lines[0]


def test_a_launch_more_changes_no_other_line() -> None:
    plan = diamond()
    extra = KernelCode("extra", "shift", "opencl", source("shift", "opencl"))
    later = tuple(replace(x, deps=tuple(dep + 1 for dep in x.deps)) for x in plan.launches)
    (x, w, y, *rest), size = plan.buffers, plan.arena_bytes
    more = plan.replace(
        kernels=(*plan.kernels, extra),
        buffers=(x, w, y, floats("t9", "arena", offset=size), *rest),
        launches=(launch("extra", "x", "t9"), *later),
        arena_bytes=size + 4 * SIZE,
    )
    gone, new = difference(plan, more)
    assert [line.split()[0] for line in gone] == ["plan.func"]
    starts = sorted(line.strip().split("(")[0] for line in new)
    assert starts == ["%t9 = plan.arena", "plan.func @main", "plan.kernel", "plan.launch"]


def test_other_streams_change_only_the_lines_that_say_so() -> None:
    plan = diamond()
    serial, exact = (with_streams(plan, plan_streams(plan.dag, p)) for p in ("serial", "exact"))
    changed = difference(serial, exact)[1]
    assert any(re.match(r"\s+plan\.launch\b", line) for line in changed)
    for line in changed:
        assert re.match(r"\s+(plan\.(func|launch)\b|%\S+ = plan\.(arena|view)\()", line), line


def test_what_was_compiled_shows_every_level() -> None:
    module = dense_block(1, 1)
    executable = tw.compile(module, target="opencl")
    text = tw.show(executable)
    assert text == tw.show(executable, level="plan")
    parsed = tw.parse(text)
    assert parsed.main.level is Level.PLAN
    assert read_back(parsed, executable.plan) == executable.plan
    for level in ("graph", "tensor", "thread"):
        assert tw.show(executable, level=level) == executable.artifact.texts[level]
        tw.verify(tw.parse(tw.show(executable, level=level, locations=False)))
    with pytest.raises(
        tw.InputError, match="expected a level among graph, tensor, thread, plan, got 'cubin'"
    ):
        tw.show(executable, level="cubin")
    with pytest.raises(tw.InputError, match="expected no level with a Module"):
        tw.show(module, level="plan")
    with pytest.raises(tw.InputError, match="expected a Module or an Executable, got int"):
        tw.show(3)  # type: ignore[arg-type]


def test_a_plan_is_no_network() -> None:
    module = plan_module(diamond())
    with pytest.raises(tw.InputError, match="expected a network, got a plan"):
        tw.compile(module, target="opencl")
    with pytest.raises(tw.InputError, match=r"@main is a plan\.func"):
        tw.interpret(module)
