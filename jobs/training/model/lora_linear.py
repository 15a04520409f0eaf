"""Linear layers with an adapter that add its product to theirs in one pass. Imports peft.

peft's own layer copies what it reads in the adapter's type, and writes the adapter's product, its
scaled form and the sum one after the other.
"""

from typing import Any

import peft
import torch

ADAPTER = "default"
"""What peft calls an adapter that was given no name."""


class LoraLinear(peft.tuners.lora.Linear):  # type: ignore[misc]
    """A linear layer of peft with one plain low-rank adapter."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns x W + scale (dropout(x) A) B; each factor is transposed as torch stores it."""
        if self.disable_adapters or self.merged or args or kwargs:
            found: torch.Tensor = super().forward(x, *args, **kwargs)
            return found
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        result: torch.Tensor = self.base_layer(x)
        narrow = self.lora_A[ADAPTER](self.lora_dropout[ADAPTER](x)).flatten(0, -2)
        weight = self.lora_B[ADAPTER].weight.to(result.dtype)
        flat = result.flatten(0, -2)  # a view: the product is added in place
        flat.addmm_(narrow.to(result.dtype), weight.t(), alpha=self.scaling[ADAPTER])
        return flat.view_as(result)


def use(model: Any) -> None:
    """Makes layers of a model of peft that have one plain adapter add its product in one pass."""
    for module in model.modules():
        if type(module) is peft.tuners.lora.Linear and _is_plain(module):
            module.__class__ = LoraLinear


def _is_plain(module: Any) -> bool:
    """Returns whether peft's layer is a linear layer of torch with one adapter and no variant."""
    return (
        type(module.base_layer) is torch.nn.Linear
        and list(module.lora_A) == [ADAPTER] == module.active_adapters
        and not module.lora_variant
        and not module.fan_in_fan_out
        and module.lora_B[ADAPTER].bias is None
    )
