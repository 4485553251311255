"""Options that cannot apply are refused in one sentence, before anything is read; those that can are not."""

import pytest
from command_samples import refused

from tilewright.runtime.errors import InputError
from tilewright.tools.arguments.parsing import CommandParser, whole
from tilewright.tools.arguments.scope import NETWORKS, NetworkKind, OptionScope
from tilewright.tools.cli import parser

COMPILED_ONLY = (
    "--tune measure", "--precision fp16", "--conv-algorithm fft", "--no-libraries", "--streams exact",
    "--partitioner none", "--workspace any",
)  # fmt: skip


@pytest.mark.parametrize("option", [*COMPILED_ONLY, "--params w.npz", "--inputs data"])
@pytest.mark.parametrize("command", ["run net.tw", "report net.tw -o page.html"])
def test_a_saved_executable_takes_no_option_of_compiling(capsys, command, option):
    code, err = refused(capsys, *command.split(), *option.split())
    flag = option.split()[0]
    assert code == 2
    assert err.startswith(f"error: {flag}: expected a ")
    assert err.endswith("with this option, got the saved executable net.tw\n")


@pytest.mark.parametrize("option", [o for o in COMPILED_ONLY if "precision" not in o])
@pytest.mark.parametrize("command", ["run", "compile"])
def test_the_interpreter_takes_no_option_of_kernels(capsys, command, option):
    code, err = refused(capsys, command, "net.relay", "--target", "reference", *option.split())
    assert (code, "expected a target with kernels with this option, got reference" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "run net.onnx --params w.npz",
            "--params: expected a Relay network with this option, got the ONNX file",
        ),
        ("run net.pt2 --inputs x", "--inputs: expected a Relay network with this option, got the exported"),
        (
            "compile net.ir --seed 3",
            "--seed: expected a Relay network or a network of the zoo with this option",
        ),
        ("compile zoo:gpt_tiny --params random", "--params: expected a Relay network"),
        ("run net.relay --budget 5s", "--budget: expected --tune measure with this option"),
        ("run net.relay --budget 5s --tune model", "--budget: expected --tune measure with this option"),
        ("run net.relay --transport host", "--transport: expected --devices or --mode with this option"),
        ("run net.relay --memory-cap 1GiB --mode space", "--memory-cap: expected this option without --mode"),
        ("run net.tw --check", "--check: expected a network with this option, got the saved executable"),
        ("streams g.json --order", "--order: expected --json with this option"),
        ("calibrate --show --output c.toml", "--output: expected this option without --show"),
        ("db export --tuning-db a.sqlite --used-by n.tw x", "--used-by: expected this option without"),
        ("bench mlp --sizes 64", "--sizes: expected --kernels with this option"),
        ("cluster plan --model m --precision fp16", "--precision: expected --devices with this option"),
        ("cluster plan --model n.relay --devices 2 --memory 1GiB", "--memory: expected --measure-here"),
        ("run net.relay --repeats 99999999999999999999", "--repeats: expected an integer from 1 to"),
        (
            "run net.relay --memory-cap 1GiB --micro-batches 999999999999",
            "--micro-batches: expected an integer",
        ),
        ("run net.relay --precision xyz", "--precision: invalid choice: 'xyz'"),
        ("run net.relay --repeats abc", "--repeats: expected an integer from 1 to 1000000000, got 'abc'"),
        ("run", "the following arguments are required: NET"),
        ("nothing", "COMMAND: invalid choice: 'nothing'"),
    ],
)
def test_what_has_no_meaning_is_refused(capsys, arguments, told):
    code, err = refused(capsys, *arguments.split())
    assert code == 2
    assert err.startswith(f"error: {told}")


@pytest.mark.parametrize(
    "arguments",
    [
        "run net.tw --target opencl --repeats 3 --seed 4 --input x.npz",
        "run net.relay --tune measure --budget 5s --tuning-db t.sqlite",
        "run net.relay --target reference --precision fp16",
        "run net.relay --tune measure",
        "tune net.relay --budget 5s",
        "bench --kernels gemm --sizes 64",
        "run net.relay --mode space --timeout 3 --transport host",
        "compile net.relay --seed 3 --params random --inputs data",
    ],
)
def test_what_has_a_meaning_is_taken(arguments):
    parser().parse_args(arguments.split())


def test_defaults_are_not_given():
    space = parser().parse_args(["run", "net.relay", "--seed", "0"])
    assert space.given == {"seed"}
    assert (space.seed, space.repeats, space.tune, space.params, space.shape) == (
        0,
        10,
        "model",
        "random",
        [],
    )


def test_a_value_may_begin_with_a_minus_sign():
    p = CommandParser()
    p.add_argument("--size")
    p.add_argument("--count", type=whole(-5, 5))
    assert p.parse_args(["--size", "-5GiB", "--count", "-3"]).size == "-5GiB"
    with pytest.raises(InputError, match="--count: expected an integer from -5 to 5, got '-6'"):
        p.parse_args(["--count", "-6"])


def test_a_scope_counts_only_for_what_is_given():
    p = CommandParser()
    p.add_argument("network")
    p.add_scoped(p, OptionScope(NETWORKS), "--depth", type=int, default=1)
    assert p.parse_args(["net.tw"]).depth == 1
    with pytest.raises(InputError, match="--depth: expected a network"):
        p.parse_args(["net.tw", "--depth", "1"])
    assert NetworkKind.of("zoo:net.tw") is NetworkKind.ZOO
