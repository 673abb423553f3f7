"""Runs actor, critic, reference and reward on a typed prompt, and lists what each of them adds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from telescope.batch import COLUMNS, Scores, TokenBatch
from telescope.batch.columns import GENERATE
from telescope.build import LocalRoles, build_local_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data import toys
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.stages import Output
from telescope.explain.text import pieces
from telescope.ledger.reader import sample_of
from telescope.ledger.table import TokenBytes
from telescope.ledger.writer import Ledger
from telescope.rollout.sampler import GivenSampler, sample_batch
from telescope.run import checkpoint
from telescope.run.manifest import check_origin
from telescope.run.saved import open_run

LARGEST_SCORE = 1e18
"""The roles compute in float32, which can still hold the square of this."""


def explain_pair(
    prompt: str,
    response: str | None = None,
    model: str | None = None,
    score: float | None = None,
    *,
    trusted: bool = False,
) -> tuple[Sample, list[Output]]:
    """Runs actor, critic, reference and reward on a prompt and a response.

    Returns the sample, and every column in the order in which the stages made it. Without a
    response the actor answers greedily. `model` is a run folder (its last checkpoint is used), a
    Hugging Face folder, or None for the built-in model before training. `score` replaces the
    reward's score. `trusted`: a run may name code that this user has not trained with.
    """
    if score is not None and not abs(score) <= LARGEST_SCORE:
        raise TelescopeError(
            f"--score {score:g}: give a number between −{LARGEST_SCORE:g} and {LARGEST_SCORE:g}"
        )
    config, roles, step = _open(model, scored=score is not None, trusted=trusted)
    batch = _rollout(prompt, response, roles, config)
    batch = batch.with_columns(old_log_probs=roles.actor.compute_log_prob(batch))
    if response is not None:
        batch = batch.with_columns(rollout_log_probs=batch["old_log_probs"])
    batch = roles.critic.compute_values(batch)
    batch = roles.reference.compute_log_prob(batch)
    batch = _reward(batch, roles, score)
    batch = compute_advantages(batch, config.credit, kl_coef=config.credit.kl_coef)
    ledger = Ledger(config, roles.actor.tokenizer)
    roles.actor.first_update_terms(batch, ledger)
    roles.critic.first_update_terms(batch, ledger)
    sample = sample_of(ledger.table(step, batch, kl_coef=config.credit.kl_coef), 0)
    return sample, _outputs(batch, TokenBytes(roles.actor.tokenizer), given=response is not None)


def _outputs(batch: TokenBatch, token_bytes: TokenBytes, *, given: bool) -> list[Output]:
    """Lists every column of the batch. `given`: the response was typed, so nothing sampled it."""
    names = [name for name in COLUMNS if name in batch]
    if given:
        names.remove("rollout_log_probs")
    outputs: list[Output] = []
    for name in names:
        values = batch[name][0].tolist()
        ids = _ids_beside(name)
        tokens: list[str] = []
        if ids is None:
            values = [values]
        else:
            tokens = pieces([token_bytes[i] for i in batch[ids][0].tolist()])
        maker = _maker(name, given=given)
        outputs.append(Output(maker, name, list(batch[name].shape), values, tokens))
    return outputs


def _ids_beside(name: str) -> str | None:
    """Returns the column with the token ids that a column belongs to; none for a column of rows."""
    anchor = COLUMNS[name].anchor
    if anchor in ("action", "state"):
        return "responses"
    if anchor == "sequence":
        return "prompts" if name == "prompts" else "input_ids"
    return None


def _maker(name: str, *, given: bool) -> str:
    """Returns the call that made a column, or `given`."""
    if name == "old_log_probs":
        return "actor.compute_log_prob(batch)"
    maker = COLUMNS[name].maker
    return "given" if given and maker == GENERATE else maker


def _reward(batch: TokenBatch, roles: LocalRoles, score: float | None) -> TokenBatch:
    if score is not None:
        scores = torch.zeros_like(batch["old_log_probs"])
        last = batch.mask[0].nonzero()[-1]
        scores[0, last] = score
        batch = batch.with_columns(token_level_scores=scores).with_info(scores=[Scores(score)])
    try:
        return roles.reward.compute_reward(batch)
    except TelescopeError as error:
        why = str(error)
        if "verdict" in roles.reward.functions:
            why = "the built-in task scores statements like 请问1+1=2？"
        raise TelescopeError(
            f"this prompt cannot be scored ({why}): "
            "for any other prompt give the score yourself, e.g. --score 1"
        ) from error


def _open(model: str | None, *, scored: bool, trusted: bool) -> tuple[Config, LocalRoles, int]:
    """Returns config, roles and step of a run, a model folder or the built-in model, on the CPU."""
    if model is None:
        config = Config.builtin(device="cpu")
        return config, build_local_roles(config), 0
    folder = Path(model)
    if (folder / "config.toml").is_file():
        return _open_trained(folder, scored=scored, trusted=trusted)
    # A name without a folder, or below a folder that does not exist, may be one of a hub.
    is_local = folder.parent.is_dir() and folder.parent != Path()
    if is_local and not folder.exists():
        raise TelescopeError(f"there is no {model}: name a run or a model folder")
    config = Config.builtin(device="cpu", model={"path": model})
    return config, build_local_roles(config), 0


def _open_trained(run: Path, *, scored: bool, trusted: bool) -> tuple[Config, LocalRoles, int]:
    saved = open_run(run, trusted=trusted)
    if saved.manifest.reward_in_python and not scored:
        rewards = ", ".join(saved.manifest.reward)
        raise TelescopeError(
            f"{run} was trained with the reward {rewards}, given in Python: "
            "give the score yourself with --score"
        )
    config = saved.config.model_copy(update={"device": "cpu"})
    roles = build_local_roles(config)
    origin = {role: roles.origin[role] for role in ("actor", "critic")}
    check_origin(saved.path, saved.manifest, origin)
    state = checkpoint.load(saved.path, actor=roles.actor, critic=roles.critic)
    roles.reward.load(state.get("reward", {}))
    return config, roles, saved.step


def _rollout(prompt: str, response: str | None, roles: LocalRoles, config: Config) -> TokenBatch:
    """Returns the batch after the rollout: the actor's answer, or the typed one."""
    tokenizer = roles.actor.tokenizer
    known = toys.row_of(config.toy, prompt) if config.toy else _columns(prompt)
    prompts = PromptSet([{"prompt": prompt, **known}], tokenizer, config.data).take([0])
    if response is None:
        return roles.actor.sample(prompts, greedy=True)
    tools = roles.actor.tools
    call_ends = tools.environment.call_ends if tools else []
    texts = _split_after(response, call_ends)  # the tool answers after each part but the last
    turns = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    if not any(turns):
        raise TelescopeError(
            "the response is empty: give at least one token, e.g. --response 是的，等于2！"
        )
    turns[-1].append(tokenizer.eos_token_id)
    sampler = GivenSampler(turns, roles.actor.learner.updates)
    return sample_batch(sampler, prompts, tokenizer, roles.actor.device, greedy=True, tools=tools)


def _split_after(text: str, marks: Sequence[str]) -> list[str]:
    """`text` in parts, each but the last ending with one of `marks`."""
    if not marks:
        return [text]
    pattern = "|".join(re.escape(mark) for mark in marks)
    return re.sub(pattern, "\\g<0>\0", text).split("\0")


def _columns(prompt: str) -> dict[str, Any]:
    """Reads the columns that the built-in reward needs from a prompt with a sum like 1+1=2."""
    found = re.search(r"(\d+)\s*\+\s*(\d+)\s*=\s*(\d+)", prompt)
    if not found:
        return {}
    a, b, c = (int(number) for number in found.groups())
    return {"truth": a + b == c, "answer": a + b}
