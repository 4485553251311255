"""Costs of pieces of a network by the model: their kernels, made by passes of the official pipelines."""

from tilewright.passes.estimation.service import ESTIMATOR

__all__ = ["ESTIMATOR"]
