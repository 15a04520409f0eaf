"""Brings a job's base and rows into the caches of this machine, before its workers ask for them."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import EntryNotFoundError
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from jobs.training.config import TrainingConfig
from jobs.training.corpus import SplitProgress, load_corpus
from jobs.training.model import base, location
from jobs.training.model.counting import HUB_TIMEOUT_S


def load_modules(config: TrainingConfig) -> None:
    """Imports what `fill` uses, which transformers imports with the first tokenizer of a kind.

    Raises an error where `fill` could do nothing, such as without an answer of the hub in time.
    """
    place = location.locate(config.model.base, has_weights=False)
    if isinstance(place, str):
        huggingface_hub.HfApi().model_info(place, timeout=HUB_TIMEOUT_S)
    base.load_tokenizer(config.model.base, place if isinstance(place, Path) else None)


def fill(config: TrainingConfig, progress: SplitProgress) -> None:
    """Fetches the base's weights and tokenises the rows, both at once.

    Workers that ask meanwhile wait for them. `progress` is told how many rows of how many of a
    split are tokenised. Raises what `load_corpus` and the client of the hub raise.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        fetching = pool.submit(fetch, config.model.base)
        load_corpus(config, progress)
        fetching.result()


def fetch(name: str) -> None:
    """Fetches the weights of a base in S3 or on the hub: one file, or those that an index lists."""
    place = location.locate(name)
    if isinstance(place, Path):
        return
    try:
        huggingface_hub.hf_hub_download(place, SAFE_WEIGHTS_NAME)
    except EntryNotFoundError:
        index = huggingface_hub.hf_hub_download(place, SAFE_WEIGHTS_INDEX_NAME)
        listed = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        for part in sorted(set(listed.values())):
            huggingface_hub.hf_hub_download(place, part)
