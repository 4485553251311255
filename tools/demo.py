"""`python -m tilewright.tools.demo`: ResNet-18 from a Relay file to checked results, step by step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from tilewright.compilation.lowering import build, lower
from tilewright.compilation.planning import constants_of
from tilewright.compilation.report_facts import compilation_facts
from tilewright.devices.targets import resolve_target
from tilewright.frontends import relay
from tilewright.ir import InputError, TilewrightError, WorkError
from tilewright.running.checking import largest_error, random_inputs
from tilewright.running.executable import Artifact, Executable
from tilewright.running.interpreting import interpret

NETWORK = Path(__file__).resolve().parent.parent / "tests" / "data" / "relay" / "resnet18.relay"
TOLERANCE = 1e-4


def main(path: Path = NETWORK) -> int:
    """Run the demonstration; returns an exit code."""
    try:
        demonstrate(path)
    except TilewrightError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2 if isinstance(e, InputError) else 1
    return 0


class _Clock:
    def __init__(self) -> None:
        self.last = self.start = time.perf_counter()

    def say(self, what: str, detail: str) -> None:
        """Print one step with the seconds since the last."""
        now = time.perf_counter()
        print(f"{what:<10} {now - self.last:6.2f} s   {detail}", flush=True)
        self.last = time.perf_counter()


def demonstrate(path: Path) -> None:
    """Import, lower, build, run, check, time; raises WorkError where the result is wrong."""
    if not path.exists():
        raise InputError("no such file; run the demonstration from a checkout", where=str(path))
    clock = _Clock()
    module = relay.load(str(path), params="random")
    ops = module.main.body.ops
    weights = sum(a.nbytes for a in module.constants.values())
    clock.say(
        "import",
        f"{path.name}: {len(ops)} graph ops, {len(module.constants)} weights ({weights / 1e6:.0f} MB)",
    )
    target = resolve_target("auto")
    lowered = lower(module, target)
    calls = sum(1 for op in lowered.tensor.main.body.ops if op.name == "tensor.call")
    lines = sum(s.source.count("\n") for s in lowered.sources.values())
    clock.say(
        "lower",
        f"3 levels: {len(lowered.graph.main.body.ops)} graph ops after folding, {calls} kernel calls of "
        f"{len(lowered.sources)} kernels, {lines} lines of {target.language}",
    )
    plan = build(lowered)
    constants = constants_of(plan, lowered.thread.constants)
    exe = Executable(Artifact(plan, constants, compilation_facts(lowered)), str(target))
    exe.load()
    clock.say("build", f"{exe.device}, arena {plan.arena_bytes / 1e6:.2f} MB")
    inputs = random_inputs(exe.input_names, exe.input_types, seed=0)
    outputs = exe(*inputs)
    clock.say("run", f"output {outputs[0].dtype}{list(outputs[0].shape)}, class {int(np.argmax(outputs[0]))}")
    expected = interpret(module, *inputs, precision="fp64")
    error = largest_error(outputs, expected)
    clock.say("check", f"relative error {error:.1e} against the reference interpreter in float64")
    times = exe.time(*inputs, repeats=10)
    clock.say("time", f"median {1e3 * float(np.median(times)):.2f} ms per inference")
    slowest = sorted(exe.time_kernels(*inputs, repeats=3), key=lambda r: -r[1])[:5]
    for name, seconds in slowest:
        print(f"{'':21}{1e6 * seconds:8.0f} us  {name}")
    exe.close()
    print(f"done in {time.perf_counter() - clock.start:.1f} s")
    if error > TOLERANCE:
        raise WorkError(f"the result is wrong: relative error {error:.2e} is above {TOLERANCE:g}")


if __name__ == "__main__":
    sys.exit(main())
