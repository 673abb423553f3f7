"""Faults of the kind that users of RL trainers report, for benchmarks/doctor.py.

A patch breaks the trainer, the way that the bug would in somebody's own; its cases are in
_doctor_more_cases.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import _doctor_patches as patches
from _doctor_patches import CREDIT, GENERATE, around

# ---- what is sampled


@around(GENERATE)
def answers_rolled(trainer: Any, generate: Any, *given: Any, **named: Any) -> Any:
    """The sampler returns the answers in another order than the prompts: one row later."""
    found = generate(*given, **named)
    names = ("responses", "lengths", "log_probs", "truncated")
    return replace(found, **{name: getattr(found, name).roll(1, 0) for name in names})


@around(GENERATE)
def eos_stripped(trainer: Any, generate: Any, *given: Any, **named: Any) -> Any:
    """EOS is cut off from every answer before it is scored and trained."""
    found = generate(*given, **named)
    shorter = (found.lengths - (~found.truncated).long()).clamp(min=1)
    return replace(found, lengths=shorter)


@around(GENERATE)
def eos_forced(trainer: Any, generate: Any, *given: Any, **named: Any) -> Any:
    """The last token of an answer that reached the limit is replaced by EOS."""
    found = generate(*given, **named)
    last = found.lengths - 1
    rows = found.truncated.nonzero().squeeze(1)
    responses = found.responses.clone()
    responses[rows, last[rows]] = int(trainer.roles.actor.sampler.stop[0])
    return replace(found, responses=responses, truncated=found.truncated & False)


def comma_stops(trainer: Any) -> None:
    """The comma is among the stop tokens: answers end behind 是的，."""
    sampler = trainer.roles.actor.sampler
    comma = trainer.roles.actor.tokenizer.convert_tokens_to_ids("，")
    sampler.stop = sampler.stop.new_tensor([*sampler.stop.tolist(), comma])


def never_synced(trainer: Any) -> None:
    """The sampler keeps the weights of the start, and believes that they are current."""
    import copy

    sampler = trainer.roles.actor.sampler
    sampler.model = copy.deepcopy(sampler.model)


@around(GENERATE)
def padding_seen(trainer: Any, generate: Any, ids: Any, mask: Any, **named: Any) -> Any:
    """The sampler's attention sees the padding on the left of shorter prompts."""
    return generate(ids, mask * 0 + 1, **named)


@around(GENERATE)
def pair_copied(
    trainer: Any, generate: Any, ids: Any, mask: Any, *, rows: Any = None, **named: Any
) -> Any:
    """In each group the second answer is a copy of the first."""
    size = trainer.config.rollout.n
    numbers = range(len(ids)) if rows is None else rows
    drawn = [number - (number % size == 1) for number in numbers]
    return generate(ids, mask, rows=drawn, **named)


# ---- prompts


def prompts_cut(trainer: Any) -> None:
    """Prompts are cut to their first three tokens."""
    for data in (trainer.dataloader.data, trainer.held_out):
        data.ids = [ids[:3] for ids in data.ids]


def other_vocabulary(trainer: Any) -> None:
    """Prompts are encoded with a tokenizer whose ids are two higher."""
    size = len(trainer.roles.actor.tokenizer)
    for data in (trainer.dataloader.data, trainer.held_out):
        data.ids = [[(token + 2) % size for token in ids] for ids in data.ids]


def prompts_doubled(trainer: Any) -> None:
    """The question stands twice in every prompt: the template was applied to its own result."""
    for data in (trainer.dataloader.data, trainer.held_out):
        data.texts = [text + text for text in data.texts]
        data.ids = [ids + ids for ids in data.ids]


def bare_prompts(trainer: Any) -> None:
    """Prompts are the bare sums, 1+1=2, without the question that the model was tuned on."""
    tokenizer = trainer.roles.actor.tokenizer
    for data in (trainer.dataloader.data, trainer.held_out):
        data.texts = [
            "".join(letter for letter in text if letter in "0123456789+=") for text in data.texts
        ]
        data.ids = [tokenizer(text, add_special_tokens=False).input_ids for text in data.texts]


@around("dataloader.at")
def same_batch(trainer: Any, at: Any, step: int, *given: Any, **named: Any) -> Any:
    """The loader starts again at every step: each gets the first batch."""
    return replace(at(0, *given, **named), seed=at(step).seed)


def always_true(trainer: Any) -> None:
    """A column of the data was lost: every statement counts as true."""
    data = trainer.dataloader.data
    data.data = [{**row, "truth": True} for row in data.data]


def held_out_trained(trainer: Any) -> None:
    """The evaluation's prompts are the first ones of the training data."""
    data = trainer.dataloader.data
    for name in ("ids", "texts", "data"):
        setattr(trainer.held_out, name, list(getattr(data, name)))


# ---- credit


@around(CREDIT)
def groups_mixed(trainer: Any, right: Any, batch: Any, config: Any, **named: Any) -> Any:
    """Answers are interleaved, so that a group has answers to several prompts."""
    mixed = batch["group"].view(-1, trainer.config.rollout.n).T.reshape(-1)
    return right(batch.with_columns(group=mixed), config, **named)


@around(CREDIT)
def kl_paid(trainer: Any, right: Any, batch: Any, config: Any, *, kl_coef: float) -> Any:
    """The KL penalty has the wrong sign: the policy is paid for leaving the reference."""
    return right(batch, config, kl_coef=-kl_coef)


@around(CREDIT)
def whitened_with_padding(trainer: Any, right: Any, *given: Any, **named: Any) -> Any:
    """Mean and deviation of whitening count the zeros of the padding."""
    found = right(*given, **named)
    raw = found["advantages"]
    whitened = (raw - raw.mean()) / (raw.std() + 1e-8) * found.mask
    return found.with_columns(whitened=whitened)


@around("roles.reward.compute_reward")
def score_on_first(trainer: Any, compute: Any, batch: Any) -> Any:
    """The score is paid on the first token of an answer instead of the last."""
    scored = compute(batch)
    scores = scored["token_level_scores"]
    moved = scores.new_zeros(scores.shape)
    moved[:, 0] = scores.sum(1)
    return scored.with_columns(token_level_scores=moved)


def scores_of_last_step(trainer: Any) -> None:
    """Answers get the scores of the step before: a buffer that is one step late."""
    reward = trainer.roles.reward
    compute = reward.compute_reward
    kept: list[Any] = []

    def late(batch: Any) -> Any:
        scored = compute(batch)
        kept.append((scored["token_level_scores"].sum(1), scored.scores))
        totals, scores = kept[-2] if len(kept) > 1 else kept[-1]
        del kept[:-2]
        tokens = scored["token_level_scores"] * 0
        last = (scored.mask.sum(1).long() - 1).clamp(min=0)
        tokens[range(len(tokens)), last] = totals
        return scored.with_columns(token_level_scores=tokens).with_info(scores=scores)

    reward.compute_reward = late


# ---- updates


def rate_ends(trainer: Any) -> None:
    """The schedule counts to 8 updates instead of 40: the learning rate is 0 from then on."""
    trainer.roles.actor.learner.total_updates = 8


def reference_follows(trainer: Any) -> None:
    """Policy and reference are one object: the reference moves with the policy."""
    trainer.roles.reference.model = trainer.roles.actor.model


@around("roles.critic.learner.step")
def head_frozen(trainer: Any, step: Any) -> Any:
    """The value head is not among the trained weights."""
    return _without_moving(list(trainer.roles.critic.model.head.parameters()), step)


@around("roles.actor.learner.step")
def actor_frozen(trainer: Any, step: Any) -> Any:
    """The optimizer holds the weights of another copy of the policy."""
    return _without_moving(trainer.roles.actor.learner.weights, step)


def _without_moving(weights: Any, step: Any) -> Any:
    """Takes a step of the optimizer, and undoes it for some weights."""
    import torch

    before = [weight.detach().clone() for weight in weights]
    norm = step()
    with torch.no_grad():
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)
    return norm


@around("roles.actor._loss")
def dropout_in_update(trainer: Any, loss: Any, *given: Any, **named: Any) -> Any:
    """Dropout is on while the loss is computed."""
    import torch

    hook = trainer.roles.actor.model.model.norm.register_forward_hook(
        lambda module, args, out: torch.nn.functional.dropout(out, patches.DROPOUT)
    )
    try:
        return loss(*given, **named)
    finally:
        hook.remove()
