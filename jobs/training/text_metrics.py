"""Metrics of written text against references, as rouge-score and sacrebleu compute them."""

from collections.abc import Sequence

Texts = Sequence[str]
References = Sequence[Sequence[str]]
"""Of each text, one or more."""

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")


def compute(names: Sequence[str], written: Texts, references: References) -> dict[str, float]:
    """Returns the metrics with these names."""
    found = dict[str, float]()
    types = [name for name in ROUGE_TYPES if name in names]
    if types:
        found |= rouge(types, written, references)
    if "bleu" in names:
        found["bleu"] = bleu(written, references)
    if "chrf" in names:
        found["chrf"] = chrf(written, references)
    if "exact_match" in names:
        found["exact_match"] = exact_match(written, references)
    return found


def rouge(types: Sequence[str], written: Texts, references: References) -> dict[str, float]:
    """Returns the mean F-measures over all texts, each with its best reference, from 0 to 1.

    rouge-score reads letters a to z and digits alone, so that text in other scripts has 0.
    """
    from rouge_score.rouge_scorer import RougeScorer  # of the extra `metrics`

    scorer = RougeScorer(list(types))
    sums = dict.fromkeys(types, 0.0)
    for text, right in zip(written, references, strict=True):
        for name, score in scorer.score_multi(list(right), text).items():
            sums[name] += score.fmeasure
    return {name: total / max(1, len(written)) for name, total in sums.items()}


def bleu(written: Texts, references: References) -> float:
    """Returns BLEU of all texts together, from 0 to 100, with sacrebleu's own tokenisation."""
    import sacrebleu  # of the extra `metrics`

    return float(sacrebleu.corpus_bleu(list(written), _streams(references)).score)


def chrf(written: Texts, references: References) -> float:
    """Returns chrF2 of all texts together, from 0 to 100."""
    import sacrebleu

    return float(sacrebleu.corpus_chrf(list(written), _streams(references)).score)


def exact_match(written: Texts, references: References) -> float:
    """Returns the share of texts that equal one of their references but for outer spaces."""
    right = sum(
        text.strip() in {reference.strip() for reference in several}
        for text, several in zip(written, references, strict=True)
    )
    return right / max(1, len(written))


def _streams(references: References) -> list[list[str | None]]:
    """Returns sacrebleu's form: the first references of all texts, then the second ones, ….

    A text with fewer references has None there.
    """
    most = max(map(len, references), default=1)
    return [[r[place] if place < len(r) else None for r in references] for place in range(most)]
