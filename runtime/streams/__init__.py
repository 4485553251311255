"""Stream planning: how the nodes of an abstract graph are spread over streams, and where those must wait."""

from tilewright.runtime.dag import Dag
from tilewright.runtime.streams.device_model import replay_time
from tilewright.runtime.streams.graph_file import graph_from_json
from tilewright.runtime.streams.plan_faults import check_plan, find_plan_faults
from tilewright.runtime.streams.policies import NAMES, POLICIES, StreamChoice, choose_plan, plan_streams
from tilewright.runtime.streams.stream_plan import StreamPlan, plan_from_streams
from tilewright.runtime.streams.work import Work

__all__ = [
    "NAMES",
    "POLICIES",
    "Dag",
    "StreamChoice",
    "StreamPlan",
    "Work",
    "check_plan",
    "choose_plan",
    "find_plan_faults",
    "graph_from_json",
    "plan_from_streams",
    "plan_streams",
    "replay_time",
]
