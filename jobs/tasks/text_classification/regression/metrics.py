"""Metrics of predicted numbers, from moments that are summed over rows.

The moments are of standardised numbers, whose mean is near 0, so that differences of large sums
do not lose their digits. With several outputs, each metric is the mean over them, as in
scikit-learn.
"""

import numpy as np
import torch
from numpy.typing import NDArray

MOMENTS = 7
"""Summed for each output: error, its square, true and predicted number, their squares and product,
after the number of rows."""
Sums = NDArray[np.float64]


def sums(predicted: torch.Tensor, true: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns the moments of a batch, (1 + MOMENTS * outputs,), of (rows, outputs) in float64.

    `counts`, (rows,), are 0 for filler rows.
    """
    weights = counts.double()
    error = predicted - true
    values = (error.abs(), error**2, true, true**2, predicted, predicted**2, true * predicted)
    moments = torch.stack(values) * weights[None, :, None]
    return torch.cat([weights.sum()[None], moments.sum(dim=1).flatten()])


def compute(totals: Sums, std: NDArray[np.float64]) -> dict[str, float]:
    """Returns every metric, in the unit of the numbers; `std`, (outputs,), is their unit's size.

    R² and the correlation of numbers that are all the same are 0.
    """
    rows = max(1.0, totals[0])
    moments = totals[1:].reshape(MOMENTS, -1) / rows
    error, squared, true, true_squared, given, given_squared, product = moments
    variance = true_squared - true**2
    spread = np.sqrt(np.maximum(variance, 0) * np.maximum(given_squared - given**2, 0))
    explained = np.divide(squared, variance, out=np.ones_like(squared), where=variance > 0)
    correlation = np.divide(
        product - true * given, spread, out=np.zeros_like(spread), where=spread > 0
    )
    mse = squared * std**2
    return {
        "rmse": float(np.sqrt(mse).mean()),
        "r2": float((1 - explained).mean()),
        "mse": float(mse.mean()),
        "mae": float((error * std).mean()),
        "pearson": float(np.clip(correlation, -1, 1).mean()),
    }
