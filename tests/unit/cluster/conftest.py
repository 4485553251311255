"""A record of a cluster of two devices, and the command of two ranks in threads."""

import json
import threading
from contextlib import nullcontext

import pytest
from thread_ranks import ThreadWorld

from tilewright.cluster.measuring import link as measured_link
from tilewright.cluster.measuring import machine as measured_machine
from tilewright.tools.cli import main
from tilewright.tools.commands import cluster as command

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


@pytest.fixture
def facts_of_ranks(capsys, monkeypatch):
    """A function of the command's arguments that runs it in two ranks and returns the facts it prints."""

    def run(arguments):
        world, here = ThreadWorld(2, timeout_s=60), {}
        monkeypatch.setattr(command, "together", lambda communicator: nullcontext())
        monkeypatch.setattr(command, "world", lambda timeout_s: here[threading.get_ident()])
        monkeypatch.setattr(measured_link, "MESSAGE_ELEMENTS", (1 << 10, 1 << 16))
        monkeypatch.setattr(measured_machine, "STORAGE_S", 0.03)
        monkeypatch.setattr(measured_machine, "STORAGE_BYTES", 1 << 22)

        def rank(communicator):
            here[threading.get_ident()] = communicator
            return main([*arguments, "--as-rank", "--json"])

        assert world.run(rank) == [0, 0]
        return json.loads(capsys.readouterr().out)

    return run
