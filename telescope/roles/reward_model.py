"""A sequence-classification model as a reward function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from telescope.data.chat import with_answer
from telescope.errors import TelescopeError


class RewardModel:
    """Scores prompt and response with one number.

    With the actor's own vocabulary it reads the sampled ids. Otherwise it gets the text in its own
    tokens, chat messages through its own template. Rows of equal length form a batch of up to
    `tokens` tokens: without padding, padding cannot change a score.
    """

    def __init__(
        self, model: Any, tokenizer: Any, actor_tokenizer: Any, *, tokens: int = 16_384
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.tokens = tokens
        self.same_tokens = tokenizer.get_vocab() == actor_tokenizer.get_vocab()
        # HF reads the score at the last token that is not pad, and pad may be EOS
        for config in (model.config, model.config.get_text_config()):
            config.pad_token_id = -1

    @torch.no_grad()
    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        prompt_ids: Sequence[list[int]],
        response_ids: Sequence[list[int]],
        messages: Sequence[Any] | None = None,
        **_: Any,
    ) -> list[float]:
        if self.same_tokens:
            pairs = zip(prompt_ids, response_ids, strict=True)
            ids = [list(prompt) + list(response) for prompt, response in pairs]
        else:
            chats = messages or [None] * len(prompts)
            texts = zip(prompts, completions, chats, strict=True)
            ids = [self._encode(prompt, completion, chat) for prompt, completion, chat in texts]
        scores = [0.0] * len(ids)
        for rows in self._batches(ids):
            input_ids = torch.tensor([ids[row] for row in rows], device=self.model.device)
            attention_mask = torch.ones_like(input_ids)
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            for row, score in zip(rows, logits.squeeze(-1).float().tolist(), strict=True):
                scores[row] = score
        return scores

    def _batches(self, ids: list[list[int]]) -> list[list[int]]:
        """Indices of rows of equal length, up to `tokens` tokens together."""
        batches = []
        for length in sorted({len(row) for row in ids}):
            same = [number for number, row in enumerate(ids) if len(row) == length]
            size = max(self.tokens // max(length, 1), 1)
            batches += [same[first : first + size] for first in range(0, len(same), size)]
        return batches

    def _encode(self, prompt: str, completion: str, messages: Any) -> list[int]:
        if messages is None:
            return list(self.tokenizer(prompt + completion).input_ids)
        if not self.tokenizer.chat_template:
            raise TelescopeError(
                "the prompts are chat messages, but the reward model's tokenizer has no chat "
                "template: use a reward model with one, or give prompts as text"
            )
        chat = with_answer(messages, completion)
        text = self.tokenizer.apply_chat_template(chat, tokenize=False)
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)
