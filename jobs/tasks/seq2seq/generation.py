"""Settles how a model writes targets: from the job, and from how training writes them."""

from typing import Any

import numpy as np
import torch

from jobs.errors import ModelError, shown
from jobs.tasks.seq2seq.rows import special_tokens
from jobs.tasks.seq2seq.task import Seq2SeqData
from jobs.training.data.tokens import TARGET_IDS, TokenSet
from jobs.training.model.library import as_model_error

SAMPLING = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
"""The likeliest text is written, so that metrics and answers repeat."""


def settle(model: Any, data: Seq2SeqData, tokens: TokenSet, tokenizer: Any) -> None:
    """Sets the generation settings that are published with a model, and its prefix.

    A target begins as the training rows' targets do: behind the token that the model's own shift
    puts first, and with their first token if it is the same special one in all rows.
    """
    model.config.prefix = data.prefix or None
    model.config.task_specific_params = None  # pipelines would prefer it to all other settings
    settings = model.generation_config
    chosen = {k: v for k, v in data.generate.model_dump().items() if v is not None}
    if "min_new_tokens" in chosen:
        settings.min_length = 0
    values = {**SAMPLING, **chosen, "max_new_tokens": data.most_new_tokens, "max_length": None}
    for name, value in values.items():
        setattr(settings, name, value)
    if (settings.num_beams or 1) == 1:
        settings.length_penalty, settings.early_stopping = None, None
    targets = tokens.ragged[TARGET_IDS]
    firsts = np.unique(targets.values[targets.offsets[:-1]])
    is_same = len(firsts) == 1 and int(firsts[0]) in special_tokens(tokenizer)
    settings.forced_bos_token_id = int(firsts[0]) if is_same else None
    start = first_input(model, torch.tensor(targets.values[: targets.offsets[1]]).long())
    if start is not None:
        settings.decoder_start_token_id = start


def first_input(model: Any, target: torch.Tensor) -> int | None:
    """Returns the token that the decoder reads first in training, for a target of (tokens,).

    None for models that shift targets inside their forward pass, behind the start token of their
    configuration.

    Raises:
        ModelError: if the configuration lacks what the shift needs.
    """
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is None:
        return None
    with as_model_error("the model cannot shift targets, because its config.json is incomplete"):
        return int(shift(target[None])[0, 0])


def languages(tokenizer: Any, data: Seq2SeqData) -> dict[str, str]:
    """Returns the tokenizer's settings for the languages of sources and targets.

    Raises:
        ModelError: if the tokenizer has none, or does not know a language.
    """
    if data.source_language is None or data.target_language is None:
        return {}
    given = {"src_lang": data.source_language, "tgt_lang": data.target_language}
    if not all(hasattr(tokenizer, name) for name in given):
        raise ModelError(
            "the base's tokenizer writes no languages; remove data.source_language and"
            " data.target_language"
        )
    for code in given.values():
        if tokenizer.convert_tokens_to_ids(code) in (None, tokenizer.unk_token_id):
            raise ModelError(
                f"the base's tokenizer knows no language {shown(code)}; write a code of its"
                " tokenizer.json, such as en_XX of mBART or eng_Latn of NLLB"
            )
    return given
