"""Vectors of OpenCL kernels: no wider in bits than the device takes them, and told of to its compiler."""

import re

import pytest

from tilewright.compilation.lowering import lower
from tilewright.costmodel import fill_from_machine, load_hardware
from tilewright.devices.targets import Target
from tilewright.ir import parse

BYTES = {
    "float": 4,
    "double": 8,
    "int": 4,
    "uint": 4,
    "long": 8,
    "ulong": 8,
    "short": 2,
    "ushort": 2,
    "char": 1,
}
BYTES["uchar"] = 1
VECTOR = re.compile(rf"\b({'|'.join(BYTES)})(2|4|8|16)\b")
ELEMENTWISE = "%0 = graph.exp(%x) : {t}[64, 64]\n%1 = graph.add(%0, %x) : {t}[64, 64]\ngraph.return(%1)"
SOFTMAX = "%0 = graph.softmax(%x, axis = 1) : {t}[64, 64]\ngraph.return(%0)"
DENSE = "%0 = graph.dense(%x, %x) : {t}[64, 64]\ngraph.return(%0)"
WIDENED = '%0 = graph.cast(%x, dtype = "f64") : f64[64, 64]\n%1 = graph.multiply(%0, %0) : f64[64, 64]\n'
WIDENED += "graph.return(%1)"
COUNTED = '%0 = graph.cast(%x, dtype = "i64") : i64[64, 64]\n%1 = graph.add(%0, %0) : i64[64, 64]\n'
COUNTED += "graph.return(%1)"


def sources(body: str, t: str, bits: int) -> str:
    """The emitted kernels of a network of one op or two, for a CPU whose vectors have `bits`."""
    result = re.search(r"(\w+\[64, 64\])\n*graph.return", body.format(t=t))[1]
    text = f"module @m {{ graph.func @main(%x: {t}[64, 64]) -> {result} {{ {body.format(t=t)} }} }}"
    target = Target("opencl", "", fill_from_machine(load_hardware("opencl"), bits))
    return "\n".join(s.source for s in lower(parse(text), target).sources.values())


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize(
    ("body", "t"),
    [
        (ELEMENTWISE, "f32"),
        (ELEMENTWISE, "f64"),
        (SOFTMAX, "f64"),
        (DENSE, "f32"),
        (DENSE, "f64"),
        (WIDENED, "f32"),
        (COUNTED, "f32"),
    ],
)
def test_no_value_is_wider_than_the_vectors_of_the_device(body, t, bits):
    text = sources(body, t, bits)
    widths = {m[0]: 8 * BYTES[m[1]] * int(m[2]) for m in VECTOR.finditer(text)}
    assert widths, "expected vectors"
    assert max(widths.values()) <= bits, widths


def test_kernels_with_vectors_say_so():
    (head,) = re.findall(r"__kernel .*", sources(ELEMENTWISE, "f32", 256))
    assert head.startswith("__kernel __attribute__((vec_type_hint(float8))) __attribute__((reqd_work")


def test_kernels_without_vectors_leave_that_to_the_compiler():
    body = "%0 = graph.transpose(%x, axes = [1, 0]) : {t}[64, 64]\ngraph.return(%0)"
    text = sources(body, "f32", 256)
    assert bool(VECTOR.search(text)) == ("vec_type_hint" in text)
