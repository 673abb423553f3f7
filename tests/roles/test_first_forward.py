"""A forward that is kept for the update's first step: fewer forwards, the same numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from telescope.batch import TokenBatch
from telescope.build import LocalRoles, build_local_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.roles.first_forward import FirstForward


def reward(response_ids: list[list[int]]) -> list[float]:
    return [len(ids) / 7 for ids in response_ids]


def prepared(config: Config, *, keep: bool = True) -> tuple[LocalRoles, TokenBatch]:
    """Roles, and a batch that is ready for the update."""
    roles = build_local_roles(config, {"length": reward})
    if not keep:
        roles.actor.forward._may_keep = False
        roles.critic.forward._may_keep = False
    train, _ = build_data(config, roles.actor.tokenizer)
    batch = roles.actor.generate_sequences(train.take(range(8), seed=5))
    batch = roles.reference.compute_log_prob(roles.critic.compute_values(batch))
    batch = roles.reward.compute_reward(batch)
    return roles, compute_advantages(batch, config.credit, kl_coef=0.1)


def updated(roles: LocalRoles, batch: TokenBatch) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Metrics and weights after the update."""
    metrics = roles.critic.update_critic(batch) | roles.actor.update_actor(batch)
    models = (roles.actor.model, roles.critic.model)
    return metrics, [p.detach() for model in models for p in model.parameters()]


def forwards_of_an_update(roles: LocalRoles, batch: TokenBatch) -> list[int]:
    """Forwards of actor and critic in an update of `batch`."""
    counts = [0, 0]
    for number, backbone in enumerate((roles.actor.model.base_model, roles.critic.model.backbone)):

        def count(*_: object, number: int = number) -> None:
            counts[number] += 1

        backbone.register_forward_hook(count)
    updated(roles, batch)
    return counts


@pytest.mark.parametrize("entropy_coef", ["0", "0.01"])
def test_a_kept_forward_changes_no_bit(make_config, entropy_coef: str) -> None:
    epochs = [("actor.epochs", "2"), ("critic.epochs", "2")]
    config = make_config(*epochs, ("actor.entropy_coef", entropy_coef))
    roles, batch = prepared(config)
    own_roles, own_batch = prepared(config, keep=False)
    assert torch.equal(batch["old_log_probs"], own_batch["old_log_probs"])
    assert torch.equal(batch["values"], own_batch["values"])
    assert torch.equal(batch["bootstrap"], own_batch["bootstrap"])
    metrics, weights = updated(roles, batch)
    own_metrics, own_weights = updated(own_roles, own_batch)
    assert metrics == own_metrics
    assert all(torch.equal(*pair) for pair in zip(weights, own_weights, strict=True))


def test_the_first_step_of_an_update_needs_no_forward_of_its_own(make_config) -> None:
    config = make_config(("actor.epochs", "3"), ("critic.epochs", "2"))
    assert forwards_of_an_update(*prepared(config)) == [2, 1]
    assert forwards_of_an_update(*prepared(config, keep=False)) == [3, 2]


@pytest.mark.parametrize("setting", ["minibatches", "micro_batch_tokens"])
def test_a_first_step_with_some_of_the_rows_makes_its_own_forward(make_config, setting) -> None:
    value = "2" if setting == "minibatches" else "64"
    config = make_config((f"actor.{setting}", value), (f"critic.{setting}", value))
    roles, batch = prepared(config)
    kept = forwards_of_an_update(roles, batch)
    assert kept == forwards_of_an_update(*prepared(config, keep=False))


def test_old_log_probs_by_a_forward_of_their_own_keep_none(make_config) -> None:
    config = make_config(("actor.epochs", "2"), ("actor.old_log_probs", "forward"))
    assert forwards_of_an_update(*prepared(config))[0] == 2


def test_other_rows_get_a_forward_of_their_own(make_config) -> None:
    roles, batch = prepared(make_config(("actor.epochs", "2")))
    first = roles.actor.forward.ahead(batch)
    assert first is not None
    reversed_rows = batch.rows(torch.arange(len(batch)).flip(0))
    other = roles.actor.forward(reversed_rows)
    assert other is not first
    assert torch.allclose(other.log_probs.flip(0), first.log_probs, atol=1e-5)


def test_a_kept_forward_is_used_once(make_config) -> None:
    roles, batch = prepared(make_config(("actor.epochs", "2")))
    first = roles.actor.forward.ahead(batch)
    assert roles.actor.forward(batch) is first
    assert roles.actor.forward(batch) is not first


def test_a_large_forward_is_not_kept(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telescope.roles.first_forward._SMALL", 1000)
    roles, batch = prepared(make_config(("actor.epochs", "2")))
    assert roles.actor.forward.ahead(batch) is None


def test_one_of_several_ranks_keeps_none(make_config) -> None:
    """A rank with fewer rows would make another number of forwards than the others."""
    roles, batch = prepared(make_config(("actor.epochs", "2")))
    actor = roles.actor
    actor.learner.ranks = SimpleNamespace(size=2)
    assert (
        FirstForward(actor._forward, actor.learner, actor.cost, actor.config).ahead(batch) is None
    )
