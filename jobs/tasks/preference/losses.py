"""Losses of the margin between the rewards of two answers."""

import torch

from jobs.tasks.preference.task import Loss


def of_margins(
    margins: torch.Tensor, *, loss: Loss, beta: float, label_smoothing: float
) -> torch.Tensor:
    """Returns the loss of each row, (rows,).

    `margins`, (rows,), is the log-probability ratio of model and base for the chosen answer less
    that for the rejected one; for `ipo` these are means over the tokens of an answer.

    Source: DPO (Rafailov et al., 2023) with label smoothing as in cDPO (Mitchell, 2023), SLiC's
    hinge loss (Zhao et al., 2023), and IPO (Azar et al., 2023).
    """
    if loss == "ipo":
        return (margins - 1 / (2 * beta)) ** 2
    if loss == "hinge":
        return torch.relu(1 - beta * margins)
    logsigmoid = torch.nn.functional.logsigmoid
    right, wrong = logsigmoid(beta * margins), logsigmoid(-beta * margins)
    return -(1 - label_smoothing) * right - label_smoothing * wrong
