"""Pooling of token vectors into one vector for each text.

Folders say how their models pool in the format of sentence-transformers: `modules.json` lists the
transformer, `1_Pooling`, and `2_Normalize` if vectors have length 1.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.errors import ModelError, listed
from jobs.training.model import location

if TYPE_CHECKING:
    import torch

PoolingMode = Literal["mean", "cls"]

MODULES, POOLING, NORMALIZE = "modules.json", "1_Pooling", "2_Normalize"
SETTINGS = "sentence_bert_config.json"
"""File with the longest text in tokens."""
LIBRARY = "config_sentence_transformers.json"
"""File with the library's settings of the whole model, such as its similarity function."""
MODES: dict[PoolingMode, str] = {"mean": "mean", "cls": "cls"}
KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Keys of the pooling's settings by mode; newer releases write `pooling_mode` instead and read
both."""
WRITTEN = ("cls", "mean", "max", "mean_sqrt_len_tokens")
"""Modes whose keys every release knows."""
SIZE = "word_embedding_dimension"
KNOWN_STEPS = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class Pooling:
    """How the last hidden states of a text become its vector."""

    mode: PoolingMode = "mean"
    """The mean of the tokens, or the first token."""
    is_normalized: bool = True
    """Whether vectors have length 1."""

    def pool(self, hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Returns the vectors of texts in fp32, (rows, n).

        Args:
            hidden: Last hidden states, (rows, tokens, n).
            mask: 1 for tokens and 0 for padding, on either side, (rows, tokens).
        """
        import torch  # a frontend worker reads how vectors are pooled, and needs no torch

        # sums of 16-bit numbers would lose digits
        with torch.autocast(hidden.device.type, enabled=False):
            wanted = _first(mask) if self.mode == "cls" else mask
            vectors = weighted_mean(hidden.float(), wanted.float())
            return torch.nn.functional.normalize(vectors, dim=-1) if self.is_normalized else vectors


def weighted_mean(hidden: "torch.Tensor", weights: "torch.Tensor") -> "torch.Tensor":
    """Returns the mean of (rows, tokens, n) over tokens, with weights (rows, tokens)."""
    import torch

    total = weights.sum(dim=1, keepdim=True).clamp(min=1e-9)
    return torch.bmm(weights[:, None] / total[:, None], hidden)[:, 0]


def read(folder: Path) -> Pooling | None:
    """Returns the pooling of a folder that this project published; None for other models."""
    if not (folder / MODULES).exists():
        return None
    modes = _modes(json.loads((folder / POOLING / "config.json").read_text(encoding="utf-8")))
    steps = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    return Pooling("cls" if modes == ["cls"] else "mean", "Normalize" in _names(steps))


def vector_size(folder: Path) -> int:
    """Returns the numbers of a vector of a folder that this project published."""
    settings = json.loads((folder / POOLING / "config.json").read_text(encoding="utf-8"))
    return int(settings[SIZE])


def of_base(base: str) -> PoolingMode | None:
    """Returns how a base model pools; None if its folder does not say so.

    Raises:
        ModelError: if it has a pooling, or a further step, that cannot be trained here.
    """
    steps, settings = _file(base, MODULES), _file(base, f"{POOLING}/config.json")
    if not isinstance(steps, list) or not isinstance(settings, dict):
        return None
    others = [name for name in _names(steps) if name not in KNOWN_STEPS]
    modes = _modes(settings)
    if others or len(modes) != 1 or modes[0] not in MODES:
        what = f"has the step {others[0]}" if others else f"pools by {listed(modes)}"
        raise ModelError(
            f"{base} {what}, which is not supported; set data.pooling to mean or cls to train its"
            " transformer with another pooling"
        )
    return next(mode for mode in MODES if mode == modes[0])


def write(pooling: Pooling, folder: Path, *, size: int, max_length: int) -> None:
    """Writes the files by which sentence-transformers loads a folder.

    Args:
        pooling: How vectors are made.
        folder: Folder of a model of transformers.
        size: Numbers of a token's vector.
        max_length: Longest text in tokens.
    """
    steps = [("", "Transformer"), (POOLING, "Pooling")]
    steps += [(NORMALIZE, "Normalize")] if pooling.is_normalized else []
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{name}",
        }
        for number, (path, name) in enumerate(steps)
    ]
    modes = {KEYS[mode]: mode == pooling.mode for mode in WRITTEN}
    _write(folder / MODULES, modules)
    _write(folder / SETTINGS, {"max_seq_length": max_length, "do_lower_case": False})
    _write(folder / LIBRARY, {"prompts": {}, "similarity_fn_name": "cosine"})
    _write(folder / POOLING / "config.json", {SIZE: size, **modes})
    if pooling.is_normalized:  # it has no settings, and object stores hold no empty folders
        _write(folder / NORMALIZE / "config.json", {})


def _first(mask: "torch.Tensor") -> "torch.Tensor":
    """Returns 1 for the first token of each row and 0 for all others."""
    return ((mask.cumsum(dim=1) == 1) & (mask == 1)).to(mask.dtype)


def _modes(settings: dict[str, Any]) -> list[str]:
    mode = settings.get("pooling_mode")
    if mode is not None:
        return [mode] if isinstance(mode, str) else [str(each) for each in mode]
    return [name for name, key in KEYS.items() if settings.get(key)] or ["mean"]


def _names(steps: Any) -> list[str]:
    return [str(step.get("type", "")).rpartition(".")[2] for step in steps]


def _file(base: str, name: str) -> Any:
    """Returns the content of a JSON file of a base model; None if there is none."""
    place = location.locate(base, has_weights=False)
    try:
        path = place / name if isinstance(place, Path) else _from_hub(place, name)
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _from_hub(base: str, name: str) -> Path:
    """Returns a file of a model on the hub; raises OSError if it is not there."""
    import huggingface_hub  # takes half a second, and local models do not need it

    try:
        return Path(huggingface_hub.hf_hub_download(base, name))
    except Exception as error:
        raise OSError(str(error)) from error


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
