"""Models of any architecture with two small layers, random weights and a tokenizer of 300 words."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

VOCABULARY = 300
SENTENCES = (
    "a superb moving delightful fresh brilliant film indeed",
    "a dull awful tedious clumsy lifeless film indeed",
    "What is the colour of a film? Yes, it is. No, it is not.",
)
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "d_inner"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "d_head"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 16),
    "num_key_value_heads": 2,
    "moe_intermediate_size": 32,
    "word_embed_proj_dim": 32,
    "pooler_hidden_size": 32,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "rotary_dim": 4,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Small values of the fields by which configurations of transformers tell a model's size."""
NOT_FIELDS = ("transformers_version", "model_type", "architectures", "_name_or_path", "dtype")


def tokenizer(**tokens: str | None) -> Any:
    """A byte-level tokenizer that puts `<s>` before and `</s>` behind each text."""
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    words.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(SENTENCES, trainer)
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", **tokens}
    given = {name: token for name, token in named.items() if token is not None}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **given)


def config_of(model_type: str, **fields: Any) -> Any:
    """The configuration of an architecture with all its sizes made small."""
    kind = transformers.CONFIG_MAPPING[model_type]
    values = {k: v for k, v in kind().to_dict().items() if k not in NOT_FIELDS}
    for name, small in SMALL.items():
        if isinstance(values.get(name), int) and not isinstance(values[name], bool):
            values[name] = small
    if values.get("is_encoder_decoder"):
        values["decoder_start_token_id"] = 0
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if values.get(name):
            values[name] = [values[name][0], values[name][-1]]
    if "kv_lora_rank" in values:  # keys and values of all heads come from one latent vector
        values["num_key_value_heads"] = values["num_attention_heads"]
        sizes = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16}
        values |= {name: size for name, size in sizes.items() if name in values}
    if "num_experts_per_tok" in values:
        values["num_experts_per_tok"] = 2
    values |= {name: 0.0 for name in values if "jitter" in name}  # no loop could repeat the noise
    return kind(**{**values, **fields})


def save(folder: Path, model_type: str, auto: Any, **fields: Any) -> str:
    """Write a model, drawn from a fixed seed, with its tokenizer; returns the folder."""
    torch.manual_seed(0)
    model = auto.from_config(config_of(model_type, **fields)).float()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
