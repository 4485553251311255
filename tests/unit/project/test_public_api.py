"""The public surface: compile, call, save, load, show, parse, verify, interpret, and clear errors."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import equal


@pytest.fixture(scope="module")
def module(request):
    path = request.getfixturevalue("data_dir") / "relay" / "mlp.relay"
    return tw.frontends.relay.load(str(path), params="random", inputs=("data",), seed=0)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(3).standard_normal((1, 1, 28, 28)).astype(np.float32)


@pytest.fixture(scope="module")
def executable(module):
    with tw.compile(module, target="opencl") as exe:
        yield exe


def test_shapes_names_and_dtypes(module, executable):
    assert module.input_names == executable.input_names == ("data",)
    assert executable.input_types == module.input_types
    (t,) = executable.output_types
    assert (t.shape, t.dtype) == ((1, 10), "float32")
    assert np.zeros(t.shape, t.dtype).dtype == np.float32


def test_a_call_equals_the_interpreter(module, executable, x):
    (got,), (wanted,) = executable(x), tw.interpret(module, x)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_all_targets_agree(module, executable, x):
    (wanted,) = executable(x)
    for target in ("reference", "emulator"):
        (got,) = tw.compile(module, target=target)(x)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_save_and_load(executable, x, tmp_path):
    path = tmp_path / "mlp.tw"
    executable.save(path)
    with tw.load(path) as again:
        assert again.input_names == executable.input_names
        np.testing.assert_array_equal(again(x)[0], executable(x)[0])


@pytest.mark.parametrize("cut", [0, 10, 1000, -1])
def test_a_damaged_file_is_one_clear_error(executable, tmp_path, cut):
    path = tmp_path / "mlp.tw"
    executable.save(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(tw.InputError):
        tw.load(path)


def test_text_round_trip(module):
    again = tw.parse(tw.show(module), constants=module.constants)
    tw.verify(again)
    assert equal(module, again)


def test_the_report_names_parameters_and_bounds(executable):
    report = executable.report()
    assert report["launches"] == len(executable.plan.launches) == 4
    assert all(k["cost"]["bound_s"] > 0 and k["params"] for k in report["kernels"])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((), "1 input"),
        ((np.zeros((1, 1, 28, 27), np.float32),), "data"),
        ((np.zeros((1, 1, 28, 28), np.float64),), "float64"),
    ],
)
def test_wrong_inputs_are_named(executable, inputs, words):
    with pytest.raises(tw.InputError, match=words):
        executable(*inputs)


def test_wrong_arguments(module):
    with pytest.raises(tw.InputError, match="expected a target"):
        tw.compile(module, target="tpu")
    with pytest.raises(tw.InputError, match="tune"):
        tw.compile(module, target="opencl", tune="guess")
    with pytest.raises(tw.InputError, match="Module"):
        tw.compile("net.relay", target="opencl")


def test_cuda_without_a_gpu_is_failed_work(module, x):
    from tilewright.devices.targets import resolve_target

    if resolve_target("auto").kind == "cuda":
        pytest.skip("this machine has a GPU")
    exe = tw.compile(module, target="cuda:sm_90a")
    with pytest.raises(tw.WorkError):
        exe(x)


def test_constants_without_data_are_named(module):
    with pytest.raises(tw.InputError, match="constants have no data"):
        tw.compile(tw.parse(tw.show(module)), target="opencl")
