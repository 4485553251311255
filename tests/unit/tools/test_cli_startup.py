"""What answers at once: help, versions and refusals load nothing heavy; an interrupt is always told."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import tilewright as tw
from tilewright.compilation.option_values import RANK_TIMEOUT_S, ClusterMode, DivisionMode, Precision

NETWORKS = Path(__file__).parents[2] / "data" / "relay"
HEAVY = (
    "numpy",
    "scipy",
    "lark",
    "pyopencl",
    "cuda",
    "safetensors",
    "tqdm",
    "ml_dtypes",
    "matplotlib",
    "onnx",
)
PAGES = """
import sys
from tilewright.tools.cli import COMMANDS, main
from tilewright.tools.irdump import command as irdump

ACTIONS = {"db": ("merge", "export", "import"), "partition": ("count", "search", "network"),
           "cluster": ("plan", "table", "validate")}
def asked(main, *arguments):
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code
for page in ([], *([c] for c in COMMANDS), *([c, a] for c, names in ACTIONS.items() for a in names)):
    assert asked(main, *page, "--help") == 0
for entry in (main, irdump.main):
    assert asked(entry, "--version") == 0
assert asked(irdump.main, "--help") == 0
assert asked(main, "run", "net.tw", "--precision", "fp16") == 2
assert asked(main, "run", "net.relay", "--repeats", "many") == 2
print("loaded:", *sorted(set(sys.argv[1:]) & set(sys.modules)))
"""
FIRST_RESULT = """
import sys
import numpy as np
import tilewright as tw
exe = tw.compile(tw.frontends.relay.load(sys.argv[1], params="random"), target="opencl")
exe(*(np.zeros(t.shape, t.dtype) for t in exe.input_types))
names = ("scipy", "tilewright.tuning.tuner", "tilewright.libraries.choice")
print("loaded:", *sorted(set(names) & set(sys.modules)))
"""
INTERRUPTED = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            raise KeyboardInterrupt
from tilewright.tools.cli import main
from tilewright.tools.irdump import command as irdump
sys.meta_path.insert(0, Interrupt())
print(main(["explain", "net.relay"]), irdump.main(["net.relay"]))
"""


def python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_help_and_refusals_load_nothing_heavy():
    done = python(PAGES, *HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert f"tilewright {tw.__version__}\n" in done.stdout
    assert f"irdump {tw.__version__}\n" in done.stdout


def test_a_first_result_loads_nothing_that_only_measuring_needs():
    done = python(FIRST_RESULT, str(NETWORKS / "resnet20_cifar.relay"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_importing_the_package_loads_nothing_heavy():
    done = python("import sys, tilewright\nprint(set(sys.argv[1:]) & set(sys.modules))", *HEAVY)
    assert done.stdout == "set()\n"


def test_an_interrupt_during_imports_is_told():
    done = python(INTERRUPTED)
    assert done.stdout == "130 130\n"
    assert done.stderr == "error: interrupted\nirdump: error: interrupted\n"


def test_every_public_name_is_there_and_no_other():
    assert {name: getattr(tw, name) for name in tw.__all__}
    assert set(tw.__all__) <= set(dir(tw))
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        tw.compil  # noqa: B018


def test_choices_are_those_of_the_work():
    from tilewright.costmodel.cluster.modes.search import MODES as CLUSTER_MODES
    from tilewright.distributed import MODES
    from tilewright.passes.pipelines import PRECISIONS
    from tilewright.runtime.communication.communicator import TIMEOUT_S

    assert get_args(Precision) == tuple(PRECISIONS)
    assert get_args(DivisionMode) == tuple(MODES)
    assert get_args(ClusterMode) == CLUSTER_MODES
    assert RANK_TIMEOUT_S == TIMEOUT_S


def test_a_reader_of_networks_waits_for_no_other():
    used = "import sys, tilewright as tw; tw.frontends.relay.load; import tilewright.frontends as f\n"
    shown = 'print([n for n in f.__all__ if f"tilewright.frontends.{n}" in sys.modules], f.zoo.__name__)'
    done = python(used + shown)
    assert (done.stdout.strip(), done.stderr) == ("['relay'] tilewright.frontends.zoo", "")
