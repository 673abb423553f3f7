"""Bugs for benchmarks/doctor.py.

A patch breaks one line of the trainer, the way that the bug would in somebody's own.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any
from unittest import mock

STALE_UPDATES = 8
SAMPLER_TEMPERATURE = 1.5
DROPOUT = 0.2
OTHER_GAMMA = 0.9

Patch = Callable[[Any], AbstractContextManager[Any] | None]
"""Breaks a trainer, in some cases only for as long as a context is entered."""

GENERATE = "roles.actor.sampler.generate"
CREDIT = "telescope.trainer.compute_advantages"


def around(place: str) -> Callable[[Callable[..., Any]], Patch]:
    """Makes a patch of a function that is called in the place of another one.

    `place`: attributes of the trainer, or a module and its function. Called as
    `change(trainer, right, ...)`, where `right` is what it replaces.
    """
    path, _, name = place.rpartition(".")

    def as_patch(change: Callable[..., Any]) -> Patch:
        def patch(trainer: Any) -> AbstractContextManager[Any]:
            in_package = path.startswith("telescope.")
            owner = importlib.import_module(path) if in_package else attrgetter(path)(trainer)
            return mock.patch.object(owner, name, partial(change, trainer, getattr(owner, name)))

        return patch

    return as_patch


def drop(_: Any, given: Any) -> Any:
    """A hook of a module: dropout of its input."""
    import torch

    return (torch.nn.functional.dropout(given[0], DROPOUT), *given[1:])


def sampler_temperature(trainer: Any) -> None:
    """The sampler draws at another temperature than the one that the trainer assumes."""
    sampler = trainer.roles.actor.sampler
    sampler.config = sampler.config.model_copy(update={"temperature": SAMPLER_TEMPERATURE})


@around("telescope.roles.critic.value_forward")
def value_after_token(trainer: Any, right: Any, model: Any, batch: Any) -> Any:
    """The critic's shift by one is missing: V[i] has seen token i."""
    found = right(model, batch)
    lengths = batch["response_mask"].sum(1).long()
    values = found.values.roll(-1, dims=1)
    rows = lengths > 0
    last = (lengths - 1).clamp(min=0)
    index = rows.nonzero().squeeze(1)
    values = values.index_put((index, last[index]), found.final[index])
    return found._replace(values=values)


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


@around(CREDIT)
def sign_flipped(trainer: Any, right: Any, *given: Any, **named: Any) -> Any:
    """The advantage reaches the loss with the wrong sign."""
    credited = right(*given, **named)
    return credited.with_columns(whitened=-credited["whitened"])


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


@around("roles.actor.tools.environment.step")
def broken_tool(trainer: Any, answer: Any, state: Any, text: str) -> None:
    """Every call of the tool raises."""
    if answer(state, text) is not None:
        raise ConnectionError("the service is not reachable")


def random_reference(trainer: Any) -> None:
    """The reference has random weights: a path that was not found."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in trainer.roles.reference.model.parameters():
            weight.normal_(0, 0.02, generator=generator)


@around(GENERATE)
def copied_answers(
    trainer: Any, generate: Any, ids: Any, mask: Any, *, rows: Any = None, **named: Any
) -> Any:
    """The sampler's seed depends on the prompt alone: a group's answers are one answer."""
    size = trainer.config.rollout.n
    numbers = range(len(ids)) if rows is None else rows
    return generate(ids, mask, rows=[number - number % size for number in numbers], **named)


@around("roles.actor._loss")
def old_after_update(trainer: Any, loss: Any, rows: Any, over: Any, *, report: Any) -> Any:
    """Old log-probs are those of the current weights in every minibatch: ρ is always 1."""
    return loss(rows, over, report=replace(report, on_policy=True))


def eos_ignored(trainer: Any) -> None:
    """The sampler waits for another token than EOS: responses go on behind their end."""
    sampler = trainer.roles.actor.sampler
    sampler.stop = sampler.stop.new_tensor([-1])


@around(GENERATE)
def eos_masked(trainer: Any, generate: Any, *given: Any, **named: Any) -> Any:
    """The mask ends one token early, before EOS."""
    import torch

    found = generate(*given, **named)
    places = torch.arange(found.responses.shape[1])
    is_end = torch.isin(found.responses, trainer.roles.actor.sampler.stop)
    return replace(found, chosen=(places < found.lengths[:, None]) & ~is_end)


@around(CREDIT)
def other_gamma(trainer: Any, right: Any, batch: Any, config: Any, **named: Any) -> Any:
    """The critic's targets are computed with another γ than the advantages."""
    other = right(batch, config.model_copy(update={"gamma": OTHER_GAMMA}), **named)
    return right(batch, config, **named).with_columns(returns=other["returns"])


@around(GENERATE)
def sampler_dropout(trainer: Any, generate: Any, *given: Any, **named: Any) -> Any:
    """Dropout is on while sampling, and off in training."""
    hook = trainer.roles.actor.sampler.model.lm_head.register_forward_pre_hook(drop)
    try:
        return generate(*given, **named)
    finally:
        hook.remove()


def labels_of_next_row(trainer: Any) -> None:
    """Prompts and answers of the data are joined with an offset of one."""
    data = trainer.dataloader.data
    data.data = data.data[1:] + data.data[:1]
