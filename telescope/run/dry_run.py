"""telescope train --dry-run: what a run would be, without training and without its folder."""

from __future__ import annotations

from typing import Any

from telescope.build import build_without_models
from telescope.config import Config
from telescope.config.unused import unused
from telescope.data.build import build_data
from telescope.data.loader import DataLoader, PromptSet
from telescope.errors import TelescopeError
from telescope.explain.text import printable
from telescope.models.load import saved_context_length
from telescope.roles.factory import start_model
from telescope.run.summary import describe_roles
from telescope.scale.plan.command import plan_of

_SHOWN = 3
"""Prompts that are shown."""


def dry_run(config: Config) -> str:
    """Roles, plan, memory and the first prompts. Loads the tokenizer and the data, no weights."""
    source = start_model(config)
    tokenizer, reward = build_without_models(config)
    train, held_out = build_data(config, tokenizer)
    for prompts in (train, held_out):
        if prompts is not None:
            prompts.check_context(saved_context_length(source), config.rollout.max_response_tokens)
    parts = [
        "\n".join([*unused(config), *describe_roles(config, reward)]),
        _describe_data(config, train, held_out),
        _memory(config.model_copy(update={"model": source}), train.longest),
        _first_prompts(config, train, tokenizer),
        f"dry run: nothing was trained or written; the run would be in {config.run_dir}",
    ]
    return "\n\n".join(parts)


def _describe_data(config: Config, train: PromptSet, held_out: PromptSet | None) -> str:
    rollout = config.rollout
    lines = [
        f"data       {len(train)} prompts of up to {train.longest} tokens, "
        f"{train.dropped} longer ones dropped",
        f"held out   {len(held_out) if held_out else 'no'} prompts",
        f"steps      {config.steps}, each of {rollout.batch_size} prompts × {rollout.n} responses "
        f"of up to {rollout.max_response_tokens} tokens",
    ]
    return "\n".join(lines)


def _memory(config: Config, prompt_tokens: int) -> str:
    """The plan for the GPUs that the config asks for."""
    try:
        return plan_of(config, prompt_tokens)
    except TelescopeError as error:
        return f"memory     not known: {error}"


def _first_prompts(config: Config, train: PromptSet, tokenizer: Any) -> str:
    """The first prompts of step 1 as the model reads them: decoded from its token ids."""
    loader = DataLoader(
        train,
        batch_size=min(config.rollout.batch_size, _SHOWN),
        repeat=1,
        steps=1,
        seed=config.seed,
        shuffle=config.data.shuffle,
    )
    lines = ["first prompts, as the model reads them:"]
    for number, ids in enumerate(loader.at(0).ids, 1):
        lines.append(f"--- prompt {number}, {len(ids)} tokens")
        lines.append(printable(tokenizer.decode(ids)))
    return "\n".join(lines)
