"""Choice by measurement: the same results, the model's choice among the candidates, what is on record."""

import numpy as np
from decision_samples import parameters, template
from template_kernels import CASES, prepared

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Level
from tilewright.passes.kernels.contract.choice import contract_candidates
from tilewright.tuning import tuner as tuning


def test_measured_results_are_right_and_recorded(data_dir, monkeypatch):
    monkeypatch.setattr(tuning, "PATIENCE", 3)
    module = tw.frontends.relay.load(
        str(data_dir / "relay" / "mlp.relay"), params="random", inputs=("data",), seed=0
    )
    x = np.random.default_rng(1).standard_normal((1, 1, 28, 28)).astype(np.float32)
    with tw.compile(module, target="opencl", tune="measure", progress=False) as exe:
        (got,) = exe(x)
        report = exe.report()
    np.testing.assert_allclose(got, tw.interpret(module, x)[0], rtol=1e-5, atol=1e-6)
    assert report["chosen_by"] == "measurement"
    measured = [k for k in report["kernels"] if k["template"] == "contract"]
    assert len(measured) == 3
    assert all(k["measured_s"] > 0 for k in measured)


def test_candidates_differ_and_begin_with_the_model_s_choice():
    target = resolve_target("cuda:sm_90a")
    module = prepared(next(c for c in CASES if c.name == "contract-model"), "cuda:sm_90a")
    (kernel,) = (f for f in module.funcs if template(f) == "contract")
    variants = contract_candidates(kernel, target.hardware, 6)
    assert variants[0] is kernel
    assert len({str(parameters(v)) for v in variants}) == len(variants) > 3
    for v in variants:
        lowered = lower(module.with_funcs(tuple(v if f is kernel else f for f in module.funcs)), target)
        assert any(f.level is Level.THREAD for f in lowered.thread.funcs)
