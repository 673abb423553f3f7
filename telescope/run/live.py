"""Runs the four roles on a prompt, and a response if one was given, and shows what each of them put into the batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from telescope.batch import _GENERATE, COLUMNS, TokenBatch
from telescope.build import Roles, build_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data import toys
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.stages import Output
from telescope.explain.text import pieces
from telescope.ledger.reader import sample_of
from telescope.ledger.writer import Ledger, TokenBytes
from telescope.roles.learner import Denominators
from telescope.roles.meter import Meter
from telescope.rollout.sampler import GivenSampler, sample_batch
from telescope.run import checkpoint
from telescope.run.export import open_run

LARGEST_SCORE = 1e18
"""Its square still fits into float32, in which the roles compute."""


def explain_pair(
    prompt: str, response: str | None = None, model: str | None = None, score: float | None = None
) -> tuple[Sample, list[Output]]:
    """The sample of this pair, and every column in the order in which the stages made it.

    Without a response the actor answers, greedily. `model` is a run folder (its last checkpoint), a Hugging Face folder, or
    None for the built-in model as it starts. `score` stands in for what the reward would say.
    """
    if score is not None and not abs(score) <= LARGEST_SCORE:
        raise TelescopeError(
            f"--score {score:g}: give a number between −{LARGEST_SCORE:g} and {LARGEST_SCORE:g}"
        )
    config, roles, step = _roles(model, scored=score is not None)
    batch = _batch(prompt, response, roles, config)
    batch = batch.with_columns(old_log_probs=roles.actor.compute_log_prob(batch))
    if response is not None:
        batch = batch.with_columns(rollout_log_probs=batch["old_log_probs"])
    batch = _scored(
        roles.reference.compute_log_prob(roles.critic.compute_values(batch)), roles, score
    )
    batch = compute_advantages(batch, config.credit, kl_coef=config.credit.kl_coef)
    ledger, over = Ledger(config, roles.actor.tokenizer), Denominators.of(batch)
    with torch.no_grad():  # the losses of the first update, without taking it
        roles.actor._loss(
            roles.actor._prepared(batch, True, Meter()),
            over,
            True,
            Meter(),
            Meter(),
            ledger.note("actor", 0, 0),
        )
        roles.critic._loss(batch, over, Meter(), ledger.note("critic", 0, 0))
    sample = sample_of(ledger.table(step, batch, kl_coef=config.credit.kl_coef), 0)
    return sample, _outputs(batch, TokenBytes(roles.actor.tokenizer), given=response is not None)


def _outputs(batch: TokenBatch, token_bytes: TokenBytes, *, given: bool) -> list[Output]:
    made = []
    for name in (name for name in COLUMNS if name in batch):
        column, values = COLUMNS[name], batch[name][0].tolist()
        ids = {
            "action": "responses",
            "state": "responses",
            "sequence": "prompts" if name == "prompts" else "input_ids",
        }.get(column.anchor)
        tokens = pieces([token_bytes[i] for i in batch[ids][0].tolist()]) if ids else []
        maker = "actor.compute_log_prob(batch)" if name == "old_log_probs" else column.maker
        if given and maker == _GENERATE:
            maker = "given"
        if not given or name != "rollout_log_probs":  # there was no sampler
            made.append(
                Output(maker, name, list(batch[name].shape), values if ids else [values], tokens)
            )
    return made


def _scored(batch: TokenBatch, roles: Roles, score: float | None) -> TokenBatch:
    if score is not None:
        scores = torch.zeros_like(batch["old_log_probs"])
        scores[0, batch.mask[0].nonzero()[-1]] = score
        batch = batch.with_columns(token_level_scores=scores).with_info(score=[score])
    try:
        return roles.reward.compute_reward(batch)
    except TelescopeError as error:
        why = (
            "the built-in task scores statements like 请问1+1=2？"
            if "verdict" in roles.reward.functions
            else str(error)
        )
        raise TelescopeError(
            f"this prompt cannot be scored ({why}): for any other, say the score yourself: --score 1"
        ) from error


def _roles(model: str | None, *, scored: bool) -> tuple[Config, Roles, int]:
    """With the step of the checkpoint; 0: as it starts."""
    if (
        model is not None
        and not Path(model).exists()
        and Path(model).parent.is_dir()
        and Path(model).parent != Path()
    ):
        raise TelescopeError(f"there is no {model}: name a run or a model folder")
    if model is not None and (Path(model) / "config.toml").is_file():
        config, path, manifest = open_run(Path(model))
        if manifest["reward_in_python"] and not scored:
            rewards = ", ".join(manifest["reward"])
            raise TelescopeError(
                f"{model} was trained with the reward {rewards}, given in Python: say the score yourself with --score"
            )
        config = config.model_copy(update={"device": "cpu"})
        roles = build_roles(config)
        checkpoint.check(path, origin={role: roles.origin[role] for role in ("actor", "critic")})
        roles.reward.load(
            checkpoint.load(path, actor=roles.actor, critic=roles.critic).get("reward", {})
        )
        return config, roles, int(path.name.removeprefix("step_"))
    config = Config.builtin(device="cpu", **({"model": {"path": model}} if model else {}))
    return config, build_roles(config), 0


def _batch(prompt: str, response: str | None, roles: Roles, config: Config) -> TokenBatch:
    tokenizer = roles.actor.tokenizer
    known = toys.row_of(config.toy, prompt) if config.toy else _columns(prompt)
    prompts = PromptSet([{"prompt": prompt, **known}], tokenizer, config.data).take([0])
    if response is None:
        return roles.actor.sample(prompts, greedy=True)
    tools = roles.actor.tools
    ends = "|".join(re.escape(mark) for mark in tools.environment.call_ends) if tools else ""
    said = (
        re.sub(ends, "\\g<0>\0", response).split("\0") if ends else [response]
    )  # the tools' own words come between
    turns = [tokenizer(text, add_special_tokens=False).input_ids for text in said]
    if not any(turns):
        raise TelescopeError(
            "the response is empty: give at least one token, e.g. --response 是的，等于2！"
        )
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
