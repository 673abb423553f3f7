"""The small Llama of the built-in tasks: its tokenizer, its shape, and its warm start.

Each task gives it words and training examples. Making one takes seconds and no download.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def word_tokenizer(words: Sequence[str], *, spaces: bool = False, join: bool = True) -> Any:
    """A tokenizer with one token per word, and <pad>, <eos> and <unk>.

    spaces  text is split at white space first, and an unknown word is one <unk>, not one per letter
    join    decoded words are written without spaces between them
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    longest_first = sorted(words, key=len, reverse=True)
    known = "|".join(re.escape(word) for word in longest_first)
    if spaces:
        split = pre_tokenizers.Split(Regex(rf"{known}|\w+|."), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{known}|."), behavior="isolated")
    if join:
        tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def make_tiny_model(
    folder: Path,
    tokenizer: Any,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    steps: int,
    seed: int,
    lr: float,
    final_lr: float,
    weight_decay: float = 0.01,
    **shape: Any,
) -> None:
    """Makes a two-layer Llama, trains it on (ids, labels) by cross-entropy, and saves it.

    The learning rate falls linearly from `lr` to `lr · final_lr`. `shape` are further settings of
    LlamaConfig.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from telescope.models.load import quiet

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        **shape,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, weight_decay=weight_decay, fused=True
        )
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, final_lr, steps)
        for ids, labels in batches:
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    with quiet():
        model.eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
