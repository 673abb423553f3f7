"""The critic's model: a backbone with a value head."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from telescope.algorithms import hl_gauss_values
from telescope.config import Bins
from telescope.models.lora import adapted_layers, save_adapters, trained_weights


class ValueModel(nn.Module):
    """A backbone with a head: V(s) at every position.

    The head is float32 and starts at zero, so V starts at 0. With `bins` the head predicts a
    histogram, and V is its mean: it starts at the middle of the range, because all bins are as
    likely. With `head_seed` the weights are drawn from N(0, initializer_range²) instead, as
    transformers does for a new head; the bias is 0.
    """

    def __init__(
        self, backbone: Any, bins: Bins | None = None, head_seed: int | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.bins = bins
        config = backbone.config.get_text_config()
        self.head = nn.Linear(config.hidden_size, bins.count if bins else 1, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if head_seed is not None:
            # Drawn on the CPU wherever the model is built: the same on every device.
            generator = torch.Generator("cpu").manual_seed(head_seed)
            drawn = torch.randn(
                self.head.weight.shape, generator=generator, dtype=torch.float32, device="cpu"
            )
            self.head.weight.data.copy_(drawn * getattr(config, "initializer_range", 0.02))

    def forward(self, **inputs: Tensor) -> Tensor:
        """V at every position, [B, L]."""
        hidden = self.backbone(**inputs, use_cache=False).last_hidden_state  # [B, L, H]
        return self.values(self.outputs(hidden))

    def outputs(self, hidden: Tensor) -> Tensor:
        """[..., H] to [..., K]: V itself (K = 1), or the logits of the bins."""
        out: Tensor = self.head(hidden.float())
        return out

    def values(self, outputs: Tensor) -> Tensor:
        """[..., K] to [...]: V."""
        if self.bins:
            return hl_gauss_values(outputs, low=self.bins.low, high=self.bins.high)
        return outputs.squeeze(-1)

    def save_pretrained(self, folder: Path) -> None:
        """Writes a folder that AutoModelForTokenClassification loads, if there is such a class.

        It has one label, the value; or one for each bin, named after the bin's middle.
        """
        config = copy.deepcopy(self.backbone.config)
        config.num_labels = self.head.out_features
        if self.bins:
            middles = [self.bins.low + self.bins.width * (k + 0.5) for k in range(self.bins.count)]
            config.id2label = {k: repr(middle) for k, middle in enumerate(middles)}
            config.label2id = {label: k for k, label in config.id2label.items()}
        token_classifier = _token_classifier(config)
        if token_classifier is not None:
            config.architectures = [token_classifier.__name__]
        folder.mkdir(exist_ok=True)
        config.save_pretrained(folder)
        if adapted_layers(self):
            trained = {self._hf_name(name): value for name, value in trained_weights(self).items()}
            save_adapters(self.backbone, folder, trained)
            return
        state = self.state_dict()
        weights = {self._hf_name(name): value.contiguous() for name, value in state.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    def _hf_name(self, name: str) -> str:
        """head.weight → score.weight or classifier.weight, backbone.layers.0… → model.layers.0…"""
        config = self.backbone.config
        if not name.startswith("head."):
            causal: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
            prefix: str = causal[type(config)].base_model_prefix
            return name.replace("backbone", prefix, 1)
        token_classifier = _token_classifier(config)
        source = inspect.getsource(token_classifier) if token_classifier is not None else ""
        head = "classifier" if "self.classifier" in source else "score"
        return name.replace("head", head, 1)


def _token_classifier(config: Any) -> Any:
    """transformers' class with a head on every token of this model; None if it has none."""
    classes: Any = transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    return classes.get(type(config), None)
