"""The cluster model: how long a training step takes on many devices, and the fastest way to divide it."""

from tilewright.costmodel.cluster.configurations import Configurations
from tilewright.costmodel.cluster.evaluate import MODES, evaluate
from tilewright.costmodel.cluster.evaluation import Evaluation
from tilewright.costmodel.cluster.loaders import load_cluster, load_model, load_training
from tilewright.costmodel.cluster.machine import Cluster, Device, Storage
from tilewright.costmodel.cluster.model import Model, StageLoad, Transformer
from tilewright.costmodel.cluster.network_model import NetworkModel, network_model
from tilewright.costmodel.cluster.network_units import Unit, network_units
from tilewright.costmodel.cluster.reading import record_names
from tilewright.costmodel.cluster.search import SearchResult, search
from tilewright.costmodel.cluster.table_rows import table_rows
from tilewright.costmodel.cluster.training import Training
from tilewright.costmodel.links import Link

__all__ = [
    "MODES",
    "Cluster",
    "Configurations",
    "Device",
    "Evaluation",
    "Link",
    "Model",
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
