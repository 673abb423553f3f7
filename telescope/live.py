"""Runs the four roles on a prompt and a response that were given, and shows what each of them put into the batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from telescope import checkpoint
from telescope.backends.local import Roles, build_roles
from telescope.batch import COLUMNS, TokenBatch
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.export import open_run
from telescope.ledger.reader import sample_of
from telescope.ledger.writer import Ledger
from telescope.metrics import Meter
from telescope.roles.learner import Denominators
from telescope.rollout.sampler import GivenSampler, sample_batch
from telescope.tasks import PromptSet, toys


@dataclass(frozen=True)
class Output:
    """One column that a stage added."""

    maker: str
    name: str
    shape: list[int]
    values: list[Any]


def explain_pair(prompt: str, response: str, model: str | None = None) -> tuple[Sample, list[Output]]:
    """The sample of this pair, and every column in the order in which the stages made it.

    `model` is a run folder (its last checkpoint), a Hugging Face folder, or None for the built-in model as it starts.
    """
    config, roles = _roles(model)
    batch = _given(prompt, response, roles, config)
    batch = batch.with_columns(old_log_probs=roles.actor.compute_log_prob(batch))
    batch = batch.with_columns(rollout_log_probs=batch["old_log_probs"])
    batch = roles.reward.compute_reward(roles.reference.compute_log_prob(roles.critic.compute_values(batch)))
    batch = compute_advantages(batch, config.credit, kl_coef=config.credit.kl_coef)
    ledger, over = Ledger(config, roles.actor.tokenizer), Denominators.of(batch)
    with torch.no_grad():  # the losses of the first update, without taking it
        roles.actor._loss(roles.actor._prepared(batch, True, Meter()), over, True, Meter(), Meter(), ledger.note("actor", 0, 0))
        roles.critic._loss(batch, over, Meter(), ledger.note("critic", 0, 0))
    sample = sample_of(ledger.table(0, batch, kl_coef=config.credit.kl_coef), 0)
    outputs = [Output(COLUMNS[name].maker, name, list(batch[name].shape), batch[name][0].tolist()) for name in COLUMNS if name in batch]
    return sample, [o if isinstance(o.values, list) else Output(o.maker, o.name, o.shape, [o.values]) for o in outputs]


def _roles(model: str | None) -> tuple[Config, Roles]:
    if model is not None and (Path(model) / "config.toml").is_file():
        config, path, _ = open_run(Path(model))
        config = config.model_copy(update={"device": "cpu"})
        roles = build_roles(config)
        checkpoint.check(path, origin={role: roles.origin[role] for role in ("actor", "critic")})
        roles.reward.load(checkpoint.load(path, actor=roles.actor, critic=roles.critic).get("reward", {}))
        return config, roles
    config = Config.builtin(device="cpu", **({"model": {"path": model}} if model else {}))
    return config, build_roles(config)


def _given(prompt: str, response: str, roles: Roles, config: Config) -> TokenBatch:
    tokenizer = roles.actor.tokenizer
    known = toys.row_of(config.toy, prompt) if config.toy else _columns(prompt)
    prompts = PromptSet([{"prompt": prompt, **known}], tokenizer, config.data).take([0])
    tools = roles.actor.tools
    ends = "|".join(re.escape(mark) for mark in tools.environment.call_ends) if tools else ""
    said = re.sub(ends, "\\g<0>\0", response).split("\0") if ends else [response]  # the tools' own words come between
    turns = [tokenizer(text, add_special_tokens=False).input_ids for text in said]
    if not any(turns):
        raise TelescopeError("the response is empty: give at least one token, e.g. --response 是的，等于2！")
    turns[-1].append(tokenizer.eos_token_id)
    sampler = GivenSampler(turns, roles.actor.learner.updates)
    return sample_batch(sampler, prompts, tokenizer, roles.actor.device, greedy=True, tools=tools)


def _columns(prompt: str) -> dict[str, Any]:
    """What the built-in reward needs to know, read off the prompt: 1+1=2 in any wording."""
    found = re.search(r"(\d+)\s*\+\s*(\d+)\s*=\s*(\d+)", prompt)
    if not found:
        return {}
    a, b, c = (int(number) for number in found.groups())
    return {"truth": a + b == c, "answer": a + b}
