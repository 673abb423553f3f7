"""Responses to a few prompts, outside of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telescope.config import Config
from telescope.data.files import checked_rows
from telescope.data.loader import PromptSet
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.roles.protocols import ActorRole


def generate(
    actor: ActorRole,
    prompts: Sequence[str | list[dict[str, Any]]],
    config: Config,
    *,
    positions: int | None,
    greedy: bool,
    seed: int,
) -> list[str]:
    """The actor's response to each text or list of chat messages.

    `positions` is the model's context length. Nothing is drawn from the global generators: training
    goes on as without this.
    """
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], dict)):
        raise TelescopeError("prompts is a single prompt: give a list of them, e.g. [prompt]")
    if not len(prompts):
        return []
    rows = checked_rows([{"prompt": prompt} for prompt in prompts], "prompt", "prompts")
    changes = {"prompt_key": "prompt", "overlong": "error"}
    settings = config.data.model_copy(update=changes)
    asked = PromptSet(rows, actor.tokenizer, settings)
    asked.check_context(positions, config.rollout.max_response_tokens)
    size = config.rollout.batch_size * config.rollout.n
    texts: list[str] = []
    for first in range(0, len(rows), size):
        index = range(first, min(first + size, len(rows)))
        batch = actor.sample(asked.take(index, seed=mix_seed(seed, first)), greedy=greedy)
        texts += [row.response.text for row in batch.info]
    return texts
