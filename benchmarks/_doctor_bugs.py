"""Faults of the kind that users of RL trainers report, for benchmarks/doctor.py.

A patch breaks the trainer, the way that the bug would in somebody's own; its cases are in
_doctor_more_cases.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import _doctor_patches as patches

# ---- what is sampled


def answers_rolled(trainer: Any) -> None:
    """The sampler returns the answers in another order than the prompts: one row later."""
    sampler = trainer.roles.actor.sampler
    generate = sampler.generate

    def rolled(*given: Any, **named: Any) -> Any:
        found = generate(*given, **named)
        names = ("responses", "lengths", "log_probs", "truncated")
        return replace(found, **{name: getattr(found, name).roll(1, 0) for name in names})

    sampler.generate = rolled


def eos_stripped(trainer: Any) -> None:
    """EOS is cut off from every answer before it is scored and trained."""
    sampler = trainer.roles.actor.sampler
    generate = sampler.generate

    def stripped(*given: Any, **named: Any) -> Any:
        found = generate(*given, **named)
        shorter = (found.lengths - (~found.truncated).long()).clamp(min=1)
        return replace(found, lengths=shorter)

    sampler.generate = stripped


def eos_forced(trainer: Any) -> None:
    """The last token of an answer that reached the limit is replaced by EOS."""
    sampler = trainer.roles.actor.sampler
    generate = sampler.generate

    def forced(*given: Any, **named: Any) -> Any:
        found = generate(*given, **named)
        last = found.lengths - 1
        rows = found.truncated.nonzero().squeeze(1)
        responses = found.responses.clone()
        responses[rows, last[rows]] = int(sampler.stop[0])
        return replace(found, responses=responses, truncated=found.truncated & False)

    sampler.generate = forced


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


def padding_seen(trainer: Any) -> None:
    """The sampler's attention sees the padding on the left of shorter prompts."""
    sampler = trainer.roles.actor.sampler
    generate = sampler.generate

    def unmasked(input_ids: Any, attention_mask: Any, **named: Any) -> Any:
        return generate(input_ids, attention_mask * 0 + 1, **named)

    sampler.generate = unmasked


def pair_copied(trainer: Any) -> None:
    """In each group the second answer is a copy of the first."""
    sampler = trainer.roles.actor.sampler
    size = trainer.config.rollout.n
    generate = sampler.generate

    def copies(input_ids: Any, attention_mask: Any, *, rows: Any = None, **named: Any) -> Any:
        numbers = range(len(input_ids)) if rows is None else rows
        drawn = [number - (number % size == 1) for number in numbers]
        return generate(input_ids, attention_mask, rows=drawn, **named)

    sampler.generate = copies


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


def same_batch(trainer: Any) -> None:
    """The loader starts again at every step: each gets the first batch."""
    loader = trainer.dataloader
    at = loader.at
    loader.at = lambda step, *given, **named: replace(at(0, *given, **named), seed=at(step).seed)


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


def _around_credit(trainer: Any, change: Any) -> Iterator[None]:
    import telescope.trainer as module

    right = module.compute_advantages

    def changed(batch: Any, config: Any, **named: Any) -> Any:
        return change(right, batch, config, **named)

    module.compute_advantages = changed
    yield
    module.compute_advantages = right


def groups_mixed(trainer: Any) -> Iterator[None]:
    """Answers are interleaved, so that a group has answers to several prompts."""

    def change(right: Any, batch: Any, config: Any, **named: Any) -> Any:
        groups = batch["group"]
        size = trainer.config.rollout.n
        mixed = groups.view(-1, size).T.reshape(-1)
        return right(batch.with_columns(group=mixed), config, **named)

    return _around_credit(trainer, change)


def kl_paid(trainer: Any) -> Iterator[None]:
    """The KL penalty has the wrong sign: the policy is paid for leaving the reference."""

    def change(right: Any, batch: Any, config: Any, *, kl_coef: float) -> Any:
        return right(batch, config, kl_coef=-kl_coef)

    return _around_credit(trainer, change)


def whitened_with_padding(trainer: Any) -> Iterator[None]:
    """Mean and deviation of whitening count the zeros of the padding."""

    def change(right: Any, batch: Any, config: Any, **named: Any) -> Any:
        found = right(batch, config, **named)
        raw = found["advantages"]
        whitened = (raw - raw.mean()) / (raw.std() + 1e-8) * found.mask
        return found.with_columns(whitened=whitened)

    return _around_credit(trainer, change)


def score_on_first(trainer: Any) -> None:
    """The score is paid on the first token of an answer instead of the last."""
    reward = trainer.roles.reward
    compute = reward.compute_reward

    def early(batch: Any) -> Any:
        scored = compute(batch)
        scores = scored["token_level_scores"]
        moved = scores.new_zeros(scores.shape)
        moved[:, 0] = scores.sum(1)
        return scored.with_columns(token_level_scores=moved)

    reward.compute_reward = early


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


def head_frozen(trainer: Any) -> None:
    """The value head is not among the trained weights."""
    import torch

    learner = trainer.roles.critic.learner
    step = learner.step
    head = trainer.roles.critic.model.head
    kept = [weight.detach().clone() for weight in head.parameters()]

    def without_head() -> Any:
        norm = step()
        with torch.no_grad():
            for weight, old in zip(head.parameters(), kept, strict=True):
                weight.copy_(old)
        return norm

    learner.step = without_head


def actor_frozen(trainer: Any) -> None:
    """The optimizer holds the weights of another copy of the policy."""
    learner = trainer.roles.actor.learner
    step = learner.step

    def nowhere() -> Any:
        import torch

        before = [weight.detach().clone() for weight in learner.weights]
        norm = step()
        with torch.no_grad():
            for weight, old in zip(learner.weights, before, strict=True):
                weight.copy_(old)
        return norm

    learner.step = nowhere


def dropout_in_update(trainer: Any) -> None:
    """Dropout is on while the loss is computed."""
    import torch

    actor = trainer.roles.actor
    loss = actor._loss

    def drop(_: Any, given: Any) -> Any:
        return (torch.nn.functional.dropout(given[0], patches.DROPOUT), *given[1:])

    def noisy(*given: Any, **named: Any) -> Any:
        hook = actor.model.model.norm.register_forward_hook(
            lambda module, args, out: torch.nn.functional.dropout(out, patches.DROPOUT)
        )
        try:
            return loss(*given, **named)
        finally:
            hook.remove()

    actor._loss = noisy
