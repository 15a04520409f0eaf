"""How varied a language model's answers are, from their tokens."""

from collections.abc import Sequence

REPEATED = 4
"""Tokens of a phrase whose repetition within one answer counts."""

Answers = Sequence[Sequence[int]]


def diversity(answers: Answers) -> dict[str, float]:
    """All metrics of sampled answers."""
    return {
        "distinct_1": distinct(answers, 1),
        "distinct_2": distinct(answers, 2),
        "repetition": repetition(answers),
    }


def distinct(answers: Answers, n: int) -> float:
    """Different n-grams over all n-grams of all answers (Li et al., 2016)."""
    grams = [gram for answer in answers for gram in _grams(answer, n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def repetition(answers: Answers) -> float:
    """Mean share of an answer's 4-grams that are repeats (rep-n, Welleck et al., 2020)."""
    shares = []
    for answer in answers:
        grams = _grams(answer, REPEATED)
        if grams:
            shares.append(1 - len(set(grams)) / len(grams))
    return sum(shares) / len(shares) if shares else 0.0


def _grams(answer: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(answer[i : i + n]) for i in range(len(answer) - n + 1)]
