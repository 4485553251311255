"""Files of the cluster model: shipped records, quantities, and one clear error for every kind of fault."""

import math

import pytest

from tilewright.costmodel.cluster import load_cluster, load_model, load_training, record_names
from tilewright.costmodel.cluster.inputs.loading import quantity
from tilewright.ir.errors import InputError

LOADERS = {"cluster": load_cluster, "model": load_model, "training": load_training}

CLUSTER = """
kind = "cluster"
name = "pair"
nodes = 2
devices_per_node = 4
[device]
name = "D"
memory = "16 GiB"
memory_bandwidth = "900 GB/s"
efficiency = 0.5
peak = { fp16 = "100 TFLOP/s" }
[intra]
bandwidth = "50 GB/s"
latency = "2 us"
per = "device"
[inter]
bandwidth = "12.5 GB/s"
latency = "5 us"
call = "20 us"
per = "node"
[storage]
read = "6 GB/s"
write = "3 GB/s"
capacity = "2 TB"
duplex = "full"
devices = 2
"""
MODEL = """
kind = "model"
name = "small"
layers = 4
hidden = 256
heads = 8
sequence = 128
vocabulary = 1000
"""
TRAINING = """
kind = "training"
name = "short"
batch = 64
"""
TEXTS = {"cluster": CLUSTER, "model": MODEL, "training": TRAINING}


def fault(tmp_path, kind, text):
    file = tmp_path / f"{kind}.toml"
    file.write_text(text)
    with pytest.raises(InputError) as raised:
        LOADERS[kind](file)
    assert str(raised.value).startswith(f"{file}: ")
    return str(raised.value).removeprefix(f"{file}: ")


@pytest.mark.parametrize("kind", LOADERS)
def test_every_shipped_record_loads_by_its_name(kind):
    names = record_names(kind)
    assert len(names) >= 4
    for name in names:
        assert LOADERS[kind](name.upper()).name.lower() == name


def test_clusters_of_the_thesis():
    a, b = load_cluster("A"), load_cluster("B")
    assert (a.devices, a.devices_per_node, b.devices, b.devices_per_node) == (32, 4, 32, 16)
    assert (a.storage.device_read_bytes_per_s, b.storage.device_read_bytes_per_s) == (4e9, 1.6e9)
    assert (a.printed_bytes_per_s, b.printed_bytes_per_s) == (16e9, 100e9)
    assert (a.inter.bytes_per_s, b.intra.bytes_per_s) == (25e9, 50e9)
    assert a.device.flops_per_s("fp16") == pytest.approx(0.45 * 142.3e12)


def test_dimensions_of_the_printed_model():
    gpt, tnlg = load_model("GPT-3"), load_model("T-NLG")
    assert (gpt.op_parameters, gpt.op_activations, gpt.op_count) == (905969664, 37748736, 192)
    assert (tnlg.op_parameters, tnlg.op_activations, tnlg.op_count) == (108681216, 6537216, 156)


def test_a_file_is_read_with_units(tmp_path):
    file = tmp_path / "pair.toml"
    file.write_text(CLUSTER)
    cluster = load_cluster(str(file))
    assert cluster.device.memory_bytes == 16 * 2**30
    assert cluster.intra.call_s == 0
    assert cluster.inter.call_s == pytest.approx(20e-6)
    assert cluster.storage.device_capacity_bytes == 1e12
    assert cluster.storage.device_write_bytes_per_s == 1.5e9
    assert cluster.printed_link == "inter"


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [("1.5 TB/s", "bytes_per_s", 1.5e12), ("3 MiB", "bytes", 3 * 2**20), ("2e3 ns", "seconds", 2e-6),
     ("67 TFLOP/s", "flops_per_s", 67e12), ("8B", "bytes", 8.0)],
)  # fmt: skip
def test_quantities(text, dimension, value):
    assert math.isclose(quantity(text, dimension, "here"), value)


@pytest.mark.parametrize(
    "text", ["", "GB/s", "1", "1 GB", "-1 GB/s", "1 gb/s", "nan GB/s", 5, None, "1e99 GB/s"]
)
def test_a_wrong_quantity_names_its_place(text):
    with pytest.raises(InputError, match=r"^here: expected"):
        quantity(text, "bytes_per_s", "here")


@pytest.mark.parametrize(
    ("kind", "old", "new", "message"),
    [
        ("cluster", "nodes = 2", "nodes = 0", "nodes: expected a whole number from 1"),
        ("cluster", "nodes = 2", "nodes = true", "nodes: expected a whole number"),
        ("cluster", "nodes = 2", "nodes = 900000000", "nodes: expected at most 1048576 devices"),
        ("cluster", "nodes = 2\n", "", "nodes: this field is missing"),
        ("cluster", "devices = 2", "devices = 3", "storage.devices: expected a divisor of devices_per_node"),
        (
            "cluster",
            'memory = "16 GiB"',
            "memory = 16",
            'device.memory: expected a quantity such as "24 GiB"',
        ),
        ("cluster", '"900 GB/s"', '"900 GB"', "device.memory_bandwidth: expected a quantity"),
        ("cluster", '"50 GB/s"', '"0 GB/s"', "intra.bandwidth: expected more than 0"),
        ("cluster", 'per = "node"', 'per = "rack"', "inter.per: expected one of device, node"),
        ("cluster", '"full"', '"half"\nspeed = 1', "storage.speed: this key is unknown"),
        ("cluster", "efficiency = 0.5", "efficiency = 1.5", "device.efficiency: expected a number above 0"),
        ("cluster", "efficiency = 0.5", "efficiency = nan", "device.efficiency: expected a number above 0"),
        ("cluster", 'fp16 = "100 TFLOP/s"', 'fp12 = "1 TFLOP/s"', "device.peak.fp12: this key is unknown"),
        ("cluster", 'fp16 = "100 TFLOP/s"', "", "device.peak: expected at least one of"),
        ("cluster", "[intra]", "[within]", "intra: this field is missing"),
        ("cluster", 'kind = "cluster"', 'kind = "model"', "kind: expected one of cluster"),
        ("model", "heads = 8", "heads = 7", "heads: expected a divisor of hidden = 256"),
        ("model", "layers = 4", 'layers = "4"', "layers: expected a whole number"),
        ("model", 'name = "small"', "name = 3", "name: expected a non-empty string"),
        ("model", "layers = 4", "layers = 4\nlayres = 4", "layres: this key is unknown"),
        ("training", "batch = 64", "batch = 64\nmicro_batches = []", "micro_batches: expected a list"),
        ("training", "batch = 64", "batch = 64\nmicro_batches = [1, 1]", "micro_batches: expected a list"),
        (
            "training",
            "batch = 64",
            "batch = 64\nmicro_batches = [0]",
            "micro_batches: expected a whole number",
        ),
        (
            "training",
            "batch = 64",
            'batch = 64\nschedules = ["XR"]',
            "schedules: expected a list of some of PR, AR, IM",
        ),
        (
            "training",
            "batch = 64",
            "batch = 64\nsharding = [4]",
            "sharding: expected a list of some of 0, 1, 2, 3",
        ),
        ("training", "batch = 64", "batch = 64\nsharding = [true]", "sharding: expected a list of some of"),
        (
            "training",
            "batch = 64",
            "batch = 64\nrecompute = [1]",
            "recompute: expected a list of some of true, false",
        ),
        ("training", "batch = 64", "batch = 64\nuneven_stages = 1", "uneven_stages: expected true or false"),
        ("training", "batch = 64", 'batch = 64\nprecision = "fp8"', "precision: expected one of"),
        ("training", "batch = 64", "batch = ", "expected TOML in UTF-8"),
    ],
)
def test_a_fault_names_file_and_field(tmp_path, kind, old, new, message):
    assert old in TEXTS[kind]
    assert fault(tmp_path, kind, TEXTS[kind].replace(old, new)).startswith(message)


def test_unknown_names_and_files(tmp_path):
    with pytest.raises(
        InputError, match=r"expected a cluster file ending in .toml or one of a, b, .*got 'C'"
    ):
        load_cluster("C")
    with pytest.raises(InputError, match="cannot read the model file: No such file"):
        load_model(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot read the model file"):
        load_model(tmp_path)
    (tmp_path / "big").write_bytes(b"#" * (1 << 21))
    with pytest.raises(InputError, match="big: expected at most"):
        load_training(tmp_path / "big")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="bytes: expected TOML in UTF-8"):
        load_training(tmp_path / "bytes")
