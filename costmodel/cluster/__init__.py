"""The cluster model: how long a training step takes on many devices, and the fastest way to divide it."""

from tilewright.costmodel.cluster.inputs.loading import load_cluster, load_model, load_training, record_names
from tilewright.costmodel.cluster.inputs.machine import Cluster, ClusterDevice, Storage
from tilewright.costmodel.cluster.inputs.model import ClusterModel, StageLoad, Transformer
from tilewright.costmodel.cluster.inputs.network import NetworkModel, Unit, network_model, network_units
from tilewright.costmodel.cluster.inputs.training import Training
from tilewright.costmodel.cluster.modes.configurations import Configurations, Evaluation
from tilewright.costmodel.cluster.modes.search import MODES, SearchResult, evaluate, search, table_rows
from tilewright.costmodel.links import Link

__all__ = [
    "MODES",
    "Cluster",
    "ClusterDevice",
    "ClusterModel",
    "Configurations",
    "Evaluation",
    "Link",
    "NetworkModel",
    "SearchResult",
    "StageLoad",
    "Storage",
    "Training",
    "Transformer",
    "Unit",
    "evaluate",
    "load_cluster",
    "load_model",
    "load_training",
    "network_model",
    "network_units",
    "record_names",
    "search",
    "table_rows",
]
