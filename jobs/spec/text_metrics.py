"""Metrics of written text against the text of each evaluation row, which several tasks share."""

from jobs.spec.task import Metric, binomial_noise

ROUGE, SACREBLEU = "rouge-score", "sacrebleu"
"""Packages of the extra `metrics`."""


def percent_noise(value: float, rows: int) -> float:
    """Half-width of the 95 % interval of a mean of values from 0 to 100, which is at most this."""
    return 100 * binomial_noise(min(max(value / 100, 0.0), 1.0), rows)


TEXT_METRICS = (
    *(
        Metric(name, noise=binomial_noise, is_generated=True, compares_rows=True, package=ROUGE)
        for name in ("rouge1", "rouge2", "rougeL")
    ),
    *(
        Metric(
            name,
            highest=100.0,
            noise=percent_noise,
            is_generated=True,
            compares_rows=True,
            package=SACREBLEU,
        )
        for name in ("bleu", "chrf")
    ),
    Metric("exact_match", noise=binomial_noise, is_generated=True, compares_rows=True),
)
"""rouge1, rouge2, rougeL, bleu, chrf and exact_match."""
