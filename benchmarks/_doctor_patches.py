"""Bugs for benchmarks/doctor.py.

A patch breaks one line of the trainer, the way that the bug would in somebody's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

STALE_UPDATES = 8
SAMPLER_TEMPERATURE = 1.5
DROPOUT = 0.2
OTHER_GAMMA = 0.9

Patch = Callable[[Any], "Iterator[None] | None"]
"""Breaks a trainer; a generator function also mends what it broke outside of the trainer."""


def sampler_temperature(trainer: Any) -> None:
    """The sampler draws at another temperature than the one that the trainer assumes."""
    sampler = trainer.roles.actor.sampler
    sampler.config = sampler.config.model_copy(update={"temperature": SAMPLER_TEMPERATURE})


def value_after_token(trainer: Any) -> Iterator[None]:
    """The critic's shift by one is missing: V[i] has seen token i."""
    from telescope.models.forward import ValueOutput
    from telescope.roles import critic

    right = critic.value_forward

    def unshifted(model: Any, batch: Any) -> ValueOutput:
        found = right(model, batch)
        lengths = batch["response_mask"].sum(1).long()
        values = found.values.roll(-1, dims=1)
        rows = lengths > 0
        last = (lengths - 1).clamp(min=0)
        index = rows.nonzero().squeeze(1)
        values = values.index_put((index, last[index]), found.final[index])
        return found._replace(values=values)

    critic.value_forward = unshifted
    yield
    critic.value_forward = right


def stale_samples(trainer: Any) -> None:
    """The sampler has the weights of some updates ago, and says so."""
    sampler = trainer.roles.actor.sampler
    sampler.model = copy.deepcopy(sampler.model)
    history: dict[int, dict[str, Any]] = {}

    def load_weights(named: Any, version: int) -> None:
        if version not in history:
            history[version] = {name: weight.clone() for name, weight in named}
        old = max(version - STALE_UPDATES, min(history))
        sampler.model.load_state_dict(history[old], strict=False)
        sampler.version = old
        for forgotten in [past for past in history if past < old]:
            del history[forgotten]

    sampler.load_weights = load_weights


def sign_flipped(trainer: Any) -> Iterator[None]:
    """The advantage reaches the loss with the wrong sign."""
    import telescope.trainer as module

    right = module.compute_advantages

    def flipped(batch: Any, *given: Any, **named: Any) -> Any:
        credited = right(batch, *given, **named)
        return credited.with_columns(whitened=-credited["whitened"])

    module.compute_advantages = flipped
    yield
    module.compute_advantages = right


def one_prompt(trainer: Any) -> None:
    """The data has one prompt, again and again."""
    data = trainer.dataloader.data
    for name in ("ids", "texts", "data"):
        setattr(data, name, getattr(data, name)[:1])


def foreign_form(trainer: Any) -> None:
    """Prompts come in a form that the model has never seen, without its chat template."""
    tokenizer = trainer.roles.actor.tokenizer
    for data in (trainer.dataloader.data, trainer.held_out):
        data.texts = [f"Q: {text} A:" for text in data.texts]
        data.ids = [tokenizer(text).input_ids for text in data.texts]


def broken_tool(trainer: Any) -> None:
    """Every call of the tool raises."""
    environment = trainer.roles.actor.tools.environment
    answer = environment.step

    def fail(state: Any, text: str) -> str | None:
        if answer(state, text) is not None:
            raise ConnectionError("the service is not reachable")
        return None

    environment.step = fail


def random_reference(trainer: Any) -> None:
    """The reference has random weights: a path that was not found."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in trainer.roles.reference.model.parameters():
            weight.normal_(0, 0.02, generator=generator)


def copied_answers(trainer: Any) -> None:
    """The sampler's seed depends on the prompt alone: a group's answers are one answer."""
    sampler = trainer.roles.actor.sampler
    size = trainer.config.rollout.n
    generate = sampler.generate

    def copies(input_ids: Any, attention_mask: Any, *, rows: Any = None, **named: Any) -> Any:
        numbers = range(len(input_ids)) if rows is None else rows
        first = [number - number % size for number in numbers]
        return generate(input_ids, attention_mask, rows=first, **named)

    sampler.generate = copies


def old_after_update(trainer: Any) -> None:
    """Old log-probs are those of the current weights in every minibatch: ρ is always 1."""
    actor = trainer.roles.actor
    loss = actor._loss

    def recomputed(rows: Any, over: Any, *, report: Any) -> Any:
        return loss(rows, over, report=replace(report, on_policy=True))

    actor._loss = recomputed


def eos_ignored(trainer: Any) -> None:
    """The sampler waits for another token than EOS: responses go on behind their end."""
    sampler = trainer.roles.actor.sampler
    sampler.stop = sampler.stop.new_tensor([-1])


def eos_masked(trainer: Any) -> None:
    """The mask ends one token early, before EOS."""
    import torch

    sampler = trainer.roles.actor.sampler
    generate = sampler.generate

    def masked(*given: Any, **named: Any) -> Any:
        found = generate(*given, **named)
        places = torch.arange(found.responses.shape[1])
        is_end = torch.isin(found.responses, sampler.stop)
        return replace(found, chosen=(places < found.lengths[:, None]) & ~is_end)

    sampler.generate = masked


def other_gamma(trainer: Any) -> Iterator[None]:
    """The critic's targets are computed with another γ than the advantages."""
    import telescope.trainer as module

    right = module.compute_advantages

    def mixed(batch: Any, config: Any, **named: Any) -> Any:
        other = right(batch, config.model_copy(update={"gamma": OTHER_GAMMA}), **named)
        return right(batch, config, **named).with_columns(returns=other["returns"])

    module.compute_advantages = mixed
    yield
    module.compute_advantages = right


def sampler_dropout(trainer: Any) -> None:
    """Dropout is on while sampling, and off in training."""
    import torch

    sampler = trainer.roles.actor.sampler
    generate = sampler.generate

    def drop(_: Any, given: Any) -> Any:
        return (torch.nn.functional.dropout(given[0], DROPOUT), *given[1:])

    def noisy(*given: Any, **named: Any) -> Any:
        hook = sampler.model.lm_head.register_forward_pre_hook(drop)
        try:
            return generate(*given, **named)
        finally:
            hook.remove()

    sampler.generate = noisy


def labels_of_next_row(trainer: Any) -> None:
    """Prompts and answers of the data are joined with an offset of one."""
    data = trainer.dataloader.data
    data.data = data.data[1:] + data.data[:1]
