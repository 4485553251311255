"""PyTorch: programs of torch.export, through the importer of apache-tvm."""

from tilewright.frontends.torch.exported import from_exported, load

__all__ = ["from_exported", "load"]
