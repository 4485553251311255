"""A record of a cluster of two devices."""

import pytest

RECORD = """
kind = "cluster"
name = "two"
nodes = 1
devices_per_node = 2
intra = { bandwidth = "1 GB/s", per = "device", latency = "5 us", call = "2 us" }
inter = { bandwidth = "1 GB/s", per = "device", latency = "5 us" }
storage = { read = "1 GB/s", write = "1 GB/s", capacity = "1 GB", duplex = "half", devices = 2 }
[device]
name = "CPU"
memory = "1 GB"
memory_bandwidth = "20 GB/s"
efficiency = 0.5
peak = { fp32 = "100 GFLOP/s" }
"""


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(RECORD)
    return str(path)
