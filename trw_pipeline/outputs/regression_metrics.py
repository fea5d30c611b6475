"""Metrics of numbers: errors, and the share of the variance that is explained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.outputs.output import Summand
from trw_pipeline.outputs.precision import precise_dtype


class MetricMeanAbsoluteError(Metric):
    """`mean absolute error`: the mean of `|output - truth|` over all numbers of the split, in their unit."""

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Add up the errors, in float64, and count them."""
        return {"sum": _errors(output, truth).abs().sum(), "nb_numbers": truth.numel()}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `mean absolute error`, if there was a number."""
        nb_numbers = totals.get("nb_numbers", 0)
        return {"mean absolute error": float(totals["sum"]) / nb_numbers} if nb_numbers else {}


class MetricRootMeanSquaredError(Metric):
    """`root mean squared error`: the root of the mean of `(output - truth)²` over all numbers, in their unit."""

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Add up the squares, in float64, and count them."""
        return {"sum": _errors(output, truth).square().sum(), "nb_numbers": truth.numel()}

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `root mean squared error`, if there was a number."""
        nb_numbers = totals.get("nb_numbers", 0)
        return {"root mean squared error": math.sqrt(float(totals["sum"]) / nb_numbers)} if nb_numbers else {}


class MetricR2(Metric):
    """`r2`: share of the variance of the truth that is explained, at most 1; 0 is what its mean would reach.

    `1 - sum((truth - output)²) / sum((truth - mean(truth))²)`. Of targets `(N, D, ...)` it is the mean over the D
    columns, each over all its numbers; a column whose truth is constant has none and takes no part.

    It comes from sums in float64, so a truth whose mean is 10,000 times its spread still has seven exact digits.
    """

    def measure(self, raw: torch.Tensor, output: torch.Tensor, truth: torch.Tensor) -> dict[str, Summand]:
        """Add up, for each column, truths, their squares and the squares of the errors: `(D,)` float64."""
        errors = _by_column(_errors(output, truth))
        truths = _by_column(truth.to(errors.dtype))
        return {
            "sum": truths.sum(0),
            "sum_of_squares": truths.square().sum(0),
            "squared_errors": errors.square().sum(0),
            "nb_rows": len(truths),
        }

    def figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Give `r2`, if the truth of a column was not constant."""
        if not totals:
            return {}
        spread = totals["sum_of_squares"] - totals["sum"] ** 2 / totals["nb_rows"]
        # Below that it is what rounding leaves of a truth that is constant.
        varies = spread > 512 * np.finfo(spread.dtype).eps * totals["sum_of_squares"]
        varies |= np.isnan(spread)  # outputs or truths that are NaN are to be seen
        explained = 1 - totals["squared_errors"][varies] / spread[varies]
        return {"r2": float(explained.mean())} if varies.any() else {}


def default_regression_metrics() -> list[Metric]:
    """Make the metrics of a regression: the mean absolute error and R²."""
    return [MetricMeanAbsoluteError(), MetricR2()]


def _errors(output: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    dtype = precise_dtype(output)
    return output.to(dtype) - truth.to(dtype)


def _by_column(values: torch.Tensor) -> torch.Tensor:
    """`(N, D, ...)` as one row for each number of a column, `(N * ..., D)`; `(N,)` as one column."""
    if values.dim() < 2:
        return values.reshape(-1, 1)
    return values.movedim(1, -1).reshape(-1, values.shape[1])
