"""Encoder-decoder models in shards over workers: the same steps, and the same written text."""

from pathlib import Path

import pytest

from tests.jobs.training import workers
from tests.tasks import swaps


@pytest.mark.workers
@pytest.mark.filterwarnings("ignore")
def test_shards_learn_and_write_as_one_worker_does(tmp_path: Path) -> None:
    """Generation runs the encoder by itself, whose weights then have to be gathered first."""
    swaps.write(tmp_path)
    base = swaps.base_of(tmp_path, "bart")
    data = swaps.data_of(tmp_path, generate={"max_new_tokens": 6})
    found = []
    for strategy, count in (("ddp", 1), ("zero3", 2)):
        folder = tmp_path / strategy
        folder.mkdir()
        config = swaps.config_of(
            tmp_path,
            base,
            data=data,
            epochs=0.5,
            strategy=strategy,
            micro_batch_size=8,
            metrics=("perplexity", "chrf"),
        )
        events = workers.run(config, count, folder)
        judged = [event["metrics"] for event in events if event["event"] == "Evaluated"]
        found.append((workers.losses(events), judged[-1]))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-4)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-4)
    assert found[0][1]["chrf"] > 0
