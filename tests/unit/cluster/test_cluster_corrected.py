"""The corrected model: regression values, an oracle of its formulas in plain loops, and its laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.costmodel.cluster import (
    Cluster,
    ClusterDevice,
    Link,
    Storage,
    Training,
    Transformer,
    evaluate,
    load_cluster,
    load_model,
    load_training,
    search,
)

SMALL = Transformer("small", layers=8, hidden=512, heads=8, sequence=256, vocabulary=4000)
PAIR = Cluster(
    name="pair",
    nodes=2,
    devices_per_node=4,
    device=ClusterDevice("D", 8e9, 900e9, {"fp16": 100e12, "fp32": 20e12}, 0.5),
    intra=Link(40e9, 2e-6, 15e-6, "device"),
    inter=Link(20e9, 4e-6, 20e-6, "node"),
    storage=Storage(4e9, 3e9, 1e12, "half", 2),
)
OPEN = Training(
    name="open",
    batch=64,
    micro_batches=(1, 2, 4),
    schedules=("PR", "AR"),
    recompute=(True, False),
    sharding=(0, 1),
    interleave=(1, 2),
    gradients=("device", "storage"),
)


def without_limits(cluster):
    device = replace(cluster.device, memory_bytes=1e18)
    return replace(cluster, device=device, storage=replace(cluster.storage, capacity_bytes=1e18))


@pytest.mark.parametrize(
    ("model", "cluster", "schedule", "place", "seconds"),
    [
        ("GPT-3", "A", "PR", (1, 4, 8, 1), 2249.4),
        ("GPT-3", "A", "AR", (8, 4, 1, 4), 2263.7),
        ("GPT-3", "B", "PR", (1, 16, 2, 1), 2602.7),
        ("GPT-3", "B", "AR", (2, 16, 1, 16), 2604.6),
        ("T-NLG", "A", "PR", (4, 4, 2, 1), 41.4),
        ("T-NLG", "A", "AR", (8, 4, 1, 8), 42.5),
    ],
)
def test_regression_values(model, cluster, schedule, place, seconds):
    """The best of each schedule; gradients of AR fill more than the memory of these devices."""
    training = replace(load_training(model), schedules=(schedule,))
    best = search(without_limits(load_cluster(cluster)), load_model(model), training, top=1).best
    assert (best["dp"], best["wp"], best["p"], best["micro_batch"]) == place
    assert best["total_s"] == pytest.approx(seconds, abs=0.05)


def test_parameter_residence_of_the_regression_values_fits_the_devices():
    for model, place in [("GPT-3", (1, 4, 8)), ("T-NLG", (4, 4, 2))]:
        best = search(load_cluster("A"), load_model(model), load_training(model)).best
        assert (best["schedule"], best["dp"], best["wp"], best["p"]) == ("PR", *place)


def seconds_by_hand(cluster, model, training, row):
    """One configuration's step, formula by formula (sharding 0 and 1, schedules PR and AR)."""
    dp, tp, p, b = row["dp"], row["wp"], row["p"], row["micro_batch"]
    layers, d, s, vocabulary, batch = (
        model.layers,
        model.hidden,
        model.sequence,
        model.vocabulary,
        training.batch,
    )
    r, v, node = int(row["recompute"]), row["interleave"], cluster.devices_per_node
    m = batch / (dp * b)
    psi = 12 * layers * d * d / (tp * p)
    act = 2 * s * d
    flops = (6 + 2 * r) * 12 * layers * d * d * s * batch * (1 + s / (6 * d)) + 6 * vocabulary * d * s * batch
    compute = flops / (dp * tp * p * cluster.device.efficiency * cluster.device.peak_flops_per_s["fp16"])
    inner = 0 if r else 2 * s * d * (4 + 12 / tp) + 5 * model.heads * s * s / tp
    through, kept = layers / p * batch / dp * act / tp, layers / p * batch / dp * inner
    if row["schedule"] == "PR":
        read, write = 4 * psi + 3 * through + kept, 2 * psi + 2 * through + kept
    elif row["gradients"] == "storage":
        read, write = 4 * psi * m + 2 * psi * (m - 1), 2 * psi * m
    else:
        read, write = 4 * psi * m, 2 * psi
    rate_r, rate_w = cluster.storage.read_bytes_per_s / 2, cluster.storage.write_bytes_per_s / 2
    state = 14 * psi / (dp if row["sharding"] else 1)

    def latency(link, calls, hops):
        return calls * link.call_s + hops * link.latency_s

    wp_link, wp_rate = (cluster.intra, 40e9) if tp <= node else (cluster.inter, 20e9 / node)
    calls = (4 + 2 * r) * layers / p * m
    t_wp = 0.0
    if tp > 1:
        volume = (4 + 2 * r) * layers / p * batch / dp * act
        t_wp = volume * 2 * (tp - 1) / tp / wp_rate + latency(wp_link, calls, 2 * (tp - 1) * calls)
    dp_link, dp_rate = (cluster.intra, 40e9) if tp * dp <= node else (cluster.inter, 20e9 / min(tp, node))
    buckets = min(layers / p, np.ceil(2 * psi / (25 * 2**20)))
    t_dp = 0.0
    if dp > 1:
        calls = buckets * (2 if row["sharding"] else 1)
        t_dp = 2 * (dp - 1) / dp * 2 * psi / dp_rate + latency(dp_link, calls, 2 * (dp - 1) * buckets)
    pp_link, pp_rate = (
        (cluster.intra, 40e9) if tp * dp * p <= node else (cluster.inter, 20e9 / min(tp * dp, node))
    )
    t_pp = 0.0
    if p > 1:
        t_pp = 2 * v * batch / dp * act / pp_rate + latency(pp_link, 2 * v * m, 2 * v * m)
    traffic = (3 + r) * (2 * psi * m + 2 * layers / p * batch / dp * act) / cluster.device.memory_bytes_per_s
    work = max(compute, traffic) * (1 + (p - 1) / (v * m))
    overlapped = max(work, read / rate_r + write / rate_w, t_wp + t_pp)
    return overlapped + t_dp + state / rate_r + state / rate_w


def test_every_configuration_equals_the_formulas_in_plain_loops():
    for cluster in (PAIR, replace(PAIR, device=replace(PAIR.device, memory_bytes_per_s=30e9))):
        check_by_hand(cluster)


def check_by_hand(cluster):
    found = evaluate(cluster, SMALL, OPEN)
    assert len(found.configurations) == 10 * 3 * 2 * 2 * 2 * 2 * 2
    for index in range(0, len(found.configurations), 3):
        row = found.row(index)
        assert row["total_s"] == pytest.approx(seconds_by_hand(cluster, SMALL, OPEN, row), rel=1e-9), row


def test_a_total_is_made_of_its_components():
    found = evaluate(PAIR, SMALL, OPEN)
    part = found.components_s
    lanes = [
        np.maximum(part["compute"], part["device_memory"]) + part["bubble"],
        part["storage_read"] + part["storage_write"],
        part["wp"] + part["pp"] + part["gather"],
    ]
    assert found.total_s == pytest.approx(np.maximum.reduce(lanes) + part["dp"] + part["optimizer"])
    full = evaluate(replace(PAIR, storage=replace(PAIR.storage, duplex="full")), SMALL, OPEN)
    assert (full.total_s <= found.total_s).all()
    assert (full.total_s < found.total_s).any()


def column(found, **wanted):
    """Index of the only configuration with these values."""
    rows = [found.configurations.row(i) for i in range(len(found.configurations))]
    (index,) = [i for i, row in enumerate(rows) if all(row[key] == value for key, value in wanted.items())]
    return index


def test_zero_stages_divide_what_they_say():
    training = Training("z", batch=64, schedules=("AR", "IM"), sharding=(0, 1, 2, 3), micro_batches=(4,))
    found = evaluate(PAIR, SMALL, training)
    psi, shards, m = 12 * 8 * 512**2, 8, 64 / 8 / 4
    memory = {
        key: found.memory_bytes[column(found, dp=8, schedule=key[0], sharding=key[1])]
        for key in [(s, z) for s in ("AR", "IM") for z in range(4)]
    }
    unit = 2 * 12 * 512**2
    saved = 1 - 1 / shards
    assert memory["IM", 0] - memory["IM", 1] == pytest.approx(12 * psi * saved)
    assert memory["IM", 1] - memory["IM", 2] == pytest.approx(2 * psi * saved)
    assert memory["IM", 2] - memory["IM", 3] == pytest.approx(2 * psi * saved - 2 * unit)
    assert memory["AR", 0] == memory["AR", 1]
    assert memory["AR", 1] - memory["AR", 2] == pytest.approx(2 * psi * saved)
    storage = [found.storage_bytes[column(found, dp=8, schedule="AR", sharding=z)] for z in range(4)]
    assert storage == pytest.approx([14 * psi, (2 + 12 / 8) * psi, (2 + 12 / 8) * psi, 14 / 8 * psi])
    read = [
        found.components_s["storage_read"][column(found, dp=8, schedule="AR", sharding=z)] for z in range(4)
    ]
    assert read == pytest.approx([4 * psi * m / 2e9] * 3 + [4 * psi * m / 8 / 2e9])
    gather = [found.components_s["gather"][column(found, dp=8, schedule="AR", sharding=z)] for z in range(4)]
    assert gather[:3] == [0, 0, 0]
    assert gather[3] > 2 * m * 7 / 8 * 2 * psi / 20e9


def test_memory_schedule_touches_no_storage():
    found = evaluate(PAIR, SMALL, replace(OPEN, schedules=("IM",)))
    assert not found.components_s["storage_read"].any()
    assert not found.storage_bytes.any()
    psi = 12 * 8 * 512**2
    index = column(
        found, dp=1, wp=8, sharding=0, micro_batch=1, recompute=True, interleave=1, gradients="device"
    )
    assert found.components_s["optimizer"][index] == pytest.approx(28 * psi / 8 / 900e9)


def test_inference_goes_forward_only():
    training = replace(OPEN, phase="inference", schedules=("PR", "AR", "IM"), interleave=(1,))
    found = evaluate(PAIR, SMALL, training)
    assert not found.components_s["optimizer"].any()
    assert not found.components_s["dp"].any()
    index = column(found, dp=8, schedule="AR", micro_batch=1)
    assert found.components_s["storage_read"][index] == pytest.approx(2 * 12 * 8 * 512**2 * 8 / 2e9)
    assert not found.components_s["storage_write"][found.configurations.schedule == 1].any()
    d, s = 512, 256
    forward = 24 * d * d * s * (1 + s / (6 * d)) * 8 + 2 * 4000 * d * s
    assert found.components_s["compute"] == pytest.approx(
        np.full(len(found.total_s), forward * 64 / 8 / 50e12)
    )


@pytest.mark.parametrize("per", ["node", "device"])
def test_a_port_for_every_device_is_a_node_port_of_all_of_them(per):
    """For groups that fill the node, ports of their own carry what one port of the summed rate does."""
    inter = PAIR.inter if per == "node" else replace(PAIR.inter, bytes_per_s=5e9, per="device")
    training = Training("t", batch=64)
    base, other = evaluate(PAIR, SMALL, training), evaluate(replace(PAIR, inter=inter), SMALL, training)
    full = base.configurations.dp * base.configurations.tp >= 4
    for name in ("dp", "wp", "pp"):
        assert other.components_s[name][full] == pytest.approx(base.components_s[name][full])


rates = st.floats(1.05, 4.0)


@settings(max_examples=8, deadline=None)
@given(factor=rates, where=st.sampled_from(["intra", "inter", "read", "write", "peak", "memory"]))
def test_faster_hardware_is_never_slower(factor, where):
    training = replace(OPEN, schedules=("PR", "AR", "IM"), sharding=(0, 2, 3))
    if where in ("intra", "inter"):
        link = getattr(PAIR, where)
        faster = replace(PAIR, **{where: replace(link, bytes_per_s=link.bytes_per_s * factor)})
    elif where in ("read", "write"):
        field = f"{where}_bytes_per_s"
        rate = getattr(PAIR.storage, field) * factor
        faster = replace(PAIR, storage=replace(PAIR.storage, **{field: rate}))
    elif where == "peak":
        faster = replace(PAIR, device=replace(PAIR.device, peak_flops_per_s={"fp16": 100e12 * factor}))
    else:
        faster = replace(PAIR, device=replace(PAIR.device, memory_bytes_per_s=900e9 * factor))
    before, after = evaluate(PAIR, SMALL, training), evaluate(faster, SMALL, training)
    assert (after.total_s <= before.total_s * (1 + 1e-12)).all()
    assert (after.total_s < before.total_s * (1 - 1e-6)).any()


@settings(max_examples=6, deadline=None)
@given(factor=rates)
def test_latency_never_helps_and_room_never_hurts(factor):
    slow = replace(PAIR, inter=replace(PAIR.inter, latency_s=4e-6 * factor, call_s=20e-6 * factor))
    before, after = evaluate(PAIR, SMALL, OPEN), evaluate(slow, SMALL, OPEN)
    assert (after.total_s >= before.total_s).all()
    tight = replace(PAIR, device=replace(PAIR.device, memory_bytes=2e8))
    roomy = replace(PAIR, device=replace(PAIR.device, memory_bytes=2e8 * factor))
    few, more = (evaluate(c, SMALL, OPEN).feasible for c in (tight, roomy))
    assert (few <= more).all()


def test_halves_of_the_batch_take_at_least_half():
    """Everything but gradients and optimizer scales with the batch."""
    big, small = (evaluate(PAIR, SMALL, replace(OPEN, batch=batch)) for batch in (128, 64))
    assert (big.total_s <= 2 * small.total_s * (1 + 1e-12)).all()
    assert (big.total_s > small.total_s).all()


def test_values_without_latency_and_head_limit():
    """T-NLG on B as first derived: rings without latency, and 28 heads divided by 16."""
    cluster = load_cluster("B")
    links = {name: replace(getattr(cluster, name), latency_s=0.0, call_s=0.0) for name in ("intra", "inter")}
    found = evaluate(replace(cluster, **links), load_model("T-NLG"), load_training("T-NLG"))
    for schedule, micro_batch, seconds in [("PR", 1, 50.8), ("AR", 16, 52.3)]:
        index = column(found, dp=1, wp=16, p=2, schedule=schedule, micro_batch=micro_batch)
        assert found.total_s[index] == pytest.approx(seconds, abs=0.05)
        assert found.reasons(index) == ["layer not divisible by wp"]


@pytest.mark.parametrize(("model", "sequences"), [("GPT-3", 28.8), ("T-NLG", 20.0)])
def test_where_activation_residence_moves_less(model, sequences):
    """AR moves fewer bytes than PR from micro-batches of 4.8 d / s sequences on (many of them, m >> 1)."""
    below, above = int(sequences) - 1, int(sequences) + 1
    training = Training("t", batch=below * above * 200, micro_batches=(below, above))
    found = evaluate(load_cluster("A"), load_model(model), training)
    seconds = found.components_s["storage_read"] + found.components_s["storage_write"]
    moved = {
        (schedule, b): seconds[column(found, schedule=schedule, micro_batch=b, dp=1, wp=1)]
        for schedule in ("PR", "AR")
        for b in (below, above)
    }
    assert moved["AR", below] > moved["PR", below]
    assert moved["AR", above] < moved["PR", above]


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_every_number_is_finite_even_where_nothing_divides(phase):
    training = replace(
        OPEN, batch=1, micro_batches=(1, 7), schedules=("PR", "AR", "IM"), sharding=(0, 1, 2, 3), phase=phase
    )
    found = evaluate(PAIR, replace(SMALL, layers=3), training)
    columns = [*found.components_s.values(), found.memory_bytes, found.storage_bytes]
    assert all(np.isfinite(column).all() and (column >= 0).all() for column in columns)
    assert np.isfinite(found.total_s).all()
    assert (found.total_s > 0).all()
