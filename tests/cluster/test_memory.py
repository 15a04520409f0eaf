"""The memory estimate against published figures and against itself."""

import pytest

from cluster import memory_estimate
from jobs.spec.train import OptimizerSpec, Precision, Strategy
from jobs.training.model.counting import shape_of
from jobs.training.model.shape import KNOWN_SHAPES, ModelShape
from tests.builders import BERT_BASE, MINILM


def test_shapes_have_the_published_number_of_parameters() -> None:
    assert BERT_BASE.parameters == 109_482_240
    assert KNOWN_SHAPES["bert-large-uncased"].parameters == 335_141_888
    found = shape_of(MINILM)
    assert found is not None
    assert found.parameters == 22_713_216


def test_bert_base_at_length_512_and_batch_16_lands_where_practice_reports_it() -> None:
    """A practice report gives 10-12 GB in all for eager steps, other libraries included."""
    found = memory_estimate.estimate(
        BERT_BASE,
        micro_batch_size=16,
        tokens=512,
        precision="fp32",
        device="cuda",
    )
    assert 6 < found.expected_gib < 12
    assert found.low_gib < found.expected_gib < found.high_gib


def test_memory_grows_with_the_micro_batch_and_shrinks_with_16_bits() -> None:
    def expected(micro: int, precision: str) -> float:
        return memory_estimate.estimate(
            BERT_BASE, micro_batch_size=micro, tokens=128, precision=precision, device="cuda"
        ).expected_gib

    assert expected(64, "fp32") > expected(32, "fp32")
    assert expected(64, "bf16") < expected(64, "fp32")


@pytest.mark.parametrize(("gib", "verdict"), [(1, "too big"), (9, "tight"), (24, "fits")])
def test_verdicts_follow_the_interval(gib: float, verdict: str) -> None:
    found = memory_estimate.MemoryEstimate(8.0, 9.0, 12.0)
    assert found.verdict(gib) == verdict


@pytest.mark.parametrize(
    ("micro", "workers", "tokens", "precision", "measured_gib"),
    [
        (256, 1, 66, "bf16", 10.44),
        (256, 2, 66, "bf16", 11.55),
        (256, 2, 66, "fp32", 15.30),
        (128, 1, 103, "bf16", 9.07),
    ],
)
def test_memory_before_a_run_is_within_a_tenth_of_what_fits_took(
    micro: int, workers: int, tokens: int, precision: Precision, measured_gib: float
) -> None:
    """benchmarks/results/predict-h200-20261121.json: SST-2 and MRPC in full, 512 rows a step."""
    found = memory_estimate.estimate(
        BERT_BASE,
        micro_batch_size=micro,
        tokens=tokens,
        precision=precision,
        device="cuda",
        sharding=memory_estimate.StateSharding(workers=workers),
    )
    assert found.expected_gib == pytest.approx(measured_gib, rel=0.1)


@pytest.mark.parametrize(
    ("precision", "strategy", "measured_gib"),
    [
        ("fp32", "zero2", 26.6),
        ("fp32", "zero3", 23.0),
        ("bf16", "zero2", 22.2),
        ("bf16", "zero3", 20.3),
    ],
)
def test_a_llama_on_two_h200_takes_what_was_measured(
    precision: Precision, strategy: Strategy, measured_gib: float
) -> None:
    """benchmarks/results/train-zero-h200x2-20261121.json: 2 rows of 512 tokens, 2 passes.

    A context with NCCL, 1.65 GiB, is added to what was measured there.
    """
    found = memory_estimate.estimate(
        ModelShape(
            16,
            2048,
            8192,
            32_000,
            0,
            is_gated=True,
            key_value_share=0.25,
            has_own_head=True,
            scores_vocabulary=True,
        ),
        micro_batch_size=2,
        tokens=512,
        precision=precision,
        device="cuda",
        eval_batch=16,
        sharding=memory_estimate.StateSharding(workers=2, strategy=strategy),
    )
    assert found.expected_gib == pytest.approx(measured_gib, rel=0.2)
    assert found.low_gib <= measured_gib


def test_a_llama_s_weights_are_counted_with_shared_heads_and_gates() -> None:
    assert KNOWN_SHAPES["SmolLM2-360M-Instruct"].parameters == pytest.approx(361_821_120, rel=1e-3)


def test_an_adapter_shards_and_checkpointing_each_take_less() -> None:
    def expected(**fields: object) -> float:
        found = memory_estimate.estimate(
            KNOWN_SHAPES["bert-large-uncased"],
            micro_batch_size=8,
            tokens=128,
            precision="bf16",
            device="cuda",
            sharding=memory_estimate.StateSharding(**fields),
        )
        return found.expected_gib

    whole = expected(workers=4)
    assert expected(adapter=True) < whole / 2
    assert expected(workers=4, strategy="zero3") < expected(workers=4, strategy="zero2") < whole
    assert expected(workers=2, strategy="zero3") > expected(workers=4, strategy="zero3")
    assert expected(gradient_checkpointing=True) < whole


def test_each_optimizer_takes_what_it_keeps_of_a_weight() -> None:
    """Of two moments of 4 bytes: one, the moments of the embeddings besides, or none."""

    def expected(name: str, **fields: float) -> float:
        found = memory_estimate.estimate(
            BERT_BASE,
            micro_batch_size=1,
            tokens=16,
            precision="fp32",
            device="cuda",
            sharding=memory_estimate.StateSharding(optimizer=OptimizerSpec(name=name, **fields)),
        )
        return found.expected_gib * 2**30

    adamw, weights = expected("adamw"), BERT_BASE.parameters
    assert adamw - expected("sgd") == pytest.approx(4 * weights)
    assert adamw - expected("sgd", momentum=0.0) == pytest.approx(8 * weights)
    assert adamw - expected("adafactor") == pytest.approx(8 * weights)
    layers = weights - BERT_BASE.embedding_parameters
    assert adamw - expected("muon") == pytest.approx(4 * layers)
