"""A setting changed in the config changes the loss of a real update, to the number that the loss's formula gives."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from telescope import algorithms
from telescope.batch import TokenBatch
from tests.roles.test_update import prepared

WORKED = {
    "clip": algorithms.clipped_policy_loss,
    "cpi": algorithms.surrogate_loss,
    "kl_penalty": algorithms.kl_penalty_loss,
    "gspo": algorithms.gspo_loss,
    "cispo": algorithms.cispo_loss,
    "sapo": algorithms.sapo_loss,
    "geo_mean": algorithms.geo_mean_loss,
    "dppo_tv": partial(algorithms.dppo_loss, divergence="tv"),
    "dppo_kl": partial(algorithms.dppo_loss, divergence="kl"),
    "dro": algorithms.dro_loss,
}
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
CASES = [
    ("clip", CLIP, "clip_low", 0.05),
    ("clip", CLIP, "clip_high", 0.6),
    ("clip", CLIP, "dual_clip", 1.1),
    ("kl_penalty", {"beta": 1.0}, "beta", 0.3),
    ("gspo", CLIP, "clip_low", 0.05),
    ("gspo", CLIP, "clip_high", 0.05),
    ("gspo", CLIP, "dual_clip", 1.001),
    ("cispo", CLIP, "clip_low", 0.5),
    ("cispo", CLIP, "clip_high", 0.6),
    ("sapo", {"tau_positive": 1.0, "tau_negative": 1.05}, "tau_positive", 3.0),
    ("sapo", {"tau_positive": 1.0, "tau_negative": 1.05}, "tau_negative", 3.0),
    ("sapo", {"tau_positive": 1.0, "tau_negative": 1.05}, "ratio_level", "sequence"),
    ("geo_mean", CLIP, "clip_low", 0.05),
    ("geo_mean", CLIP, "clip_high", 0.6),
    ("dppo_tv", {**CLIP, "ratio_cap": 20.0}, "clip_low", 0.01),
    ("dppo_tv", {**CLIP, "ratio_cap": 20.0}, "clip_high", 0.01),
    ("dppo_tv", {**CLIP, "ratio_cap": 20.0}, "ratio_cap", 1.5),
    ("dppo_kl", {**CLIP, "ratio_cap": 20.0}, "clip_low", 0.01),
    ("dppo_kl", {**CLIP, "ratio_cap": 20.0}, "clip_high", 0.01),
    ("dppo_kl", {**CLIP, "ratio_cap": 20.0}, "ratio_cap", 1.5),
    ("dro", {"beta": 1.0}, "beta", 0.3),
]
MEAN_OF_ROWS = ("gspo", "geo_mean", "sapo")


def moved(batch: TokenBatch) -> TokenBatch:
    """As if the policy had moved since the rollout: ratios from e^(−1) to e, in every row and whatever the advantage."""
    steps = torch.linspace(-1, 1, batch.mask.numel()).view(batch.mask.shape)
    far = steps.flatten()[torch.randperm(steps.numel(), generator=torch.Generator().manual_seed(3))]
    return batch.with_columns(old_log_probs=batch["old_log_probs"] + far.view(batch.mask.shape))


def update(make_config, *overrides: tuple[str, str]) -> tuple[float, Tensor, TokenBatch]:
    """`actor/pg_loss` of two epochs that hardly move the weights, the log-probs of the policy, and the batch.

    The first epoch has ratio 1 by definition. The second sees the batch's old log-probs.
    """
    config = make_config(("actor.epochs", "2"), ("actor.lr", "1e-12"), *overrides)
    roles, batch = prepared(config)
    batch = moved(batch)
    log_probs = roles.actor.compute_log_prob(batch)
    return roles.actor.update_actor(batch)["actor/pg_loss"], log_probs, batch


@pytest.mark.parametrize(("loss", "defaults", "setting", "value"), CASES)
def test_a_changed_setting_gives_the_loss_of_its_formula(
    make_config, loss: str, defaults: dict[str, float], setting: str, value: float
) -> None:
    ours, log_probs, batch = update(
        make_config, ("actor.loss", loss), (f"actor.{setting}", str(value))
    )

    def expected(**settings: float) -> float:
        mode = "seq-mean-token-mean" if loss in MEAN_OF_ROWS else "token-mean"
        epochs = [
            algorithms.aggregate(
                WORKED[loss](log_probs, old, batch["whitened"], batch.mask, **settings).loss,
                batch.mask,
                mode,
            )
            for old in (log_probs, batch["old_log_probs"])
        ]
        return float(sum(epochs)) / 2

    assert ours == pytest.approx(expected(**defaults | {setting: value}), abs=1e-5)
    assert abs(ours - expected(**defaults)) > 1e-4  # so that the setting matters here


ANCHORED = {
    "cispo": CLIP,
    "dppo_tv": {**CLIP, "ratio_cap": 20.0},
    "dppo_kl": {**CLIP, "ratio_cap": 20.0},
}


@pytest.mark.parametrize("loss", list(ANCHORED))
def test_a_loss_anchored_on_the_sampler_takes_its_log_probs_in_every_epoch(
    make_config, loss: str
) -> None:
    sampler = [("actor.loss", loss), ("actor.anchor", "sampler"), ("actor.epochs", "2")]
    roles, batch = prepared(make_config(*sampler, ("actor.lr", "1e-12")))
    batch = batch.with_columns(rollout_log_probs=moved(batch)["old_log_probs"])
    log_probs = roles.actor.compute_log_prob(batch)
    terms = WORKED[loss](
        log_probs, batch["rollout_log_probs"], batch["whitened"], batch.mask, **ANCHORED[loss]
    )
    expected = float(algorithms.aggregate(terms.loss, batch.mask))
    assert roles.actor.update_actor(batch)["actor/pg_loss"] == pytest.approx(expected, abs=1e-5)


COVARIANCES = [("actor.cov_share", "0.3"), ("actor.cov_low", "-1.0"), ("actor.cov_high", "5.0")]


SELECTING = [
    ("clip_cov", "cov_share", "0.05"),
    ("clip_cov", "cov_low", "1.0"),
    ("clip_cov", "cov_high", "-0.5"),
    ("clip_cov", "clip_low", "0.05"),
    ("clip_cov", "clip_high", "0.6"),
    ("kl_cov", "cov_share", "0.05"),
    ("kl_cov", "beta", "3.0"),
]


def test_every_setting_of_every_loss_is_changed_in_this_file() -> None:
    changed = {(loss, setting) for loss, _, setting, _ in CASES}
    changed |= {(loss, setting) for loss, setting, _ in SELECTING}
    changed |= {(loss, "anchor") for loss in ANCHORED}
    changed |= {("kl_penalty", "beta_target")}  # moves beta after the update, not in it
    there_are = {
        (name, setting)
        for name, loss in algorithms.POLICY_LOSSES.items()
        for setting in loss.settings.model_fields
    }
    assert changed == there_are


@pytest.mark.parametrize(("loss", "setting", "value"), SELECTING)
def test_settings_of_the_losses_that_select_tokens_reach_them(
    make_config, loss: str, setting: str, value: str
) -> None:
    base = [("actor.loss", loss), *(COVARIANCES if loss == "clip_cov" else COVARIANCES[:1])]
    before, _, _ = update(make_config, *base)
    after, _, _ = update(make_config, *base, (f"actor.{setting}", value))
    assert abs(after - before) > 1e-3


@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo", "geo_mean"])
def test_the_clipped_tokens_of_an_update_are_counted(make_config, loss: str) -> None:
    narrow = [("actor.clip_low", "0.05"), ("actor.clip_high", "0.05")]
    config = make_config(
        ("actor.epochs", "2"), ("actor.lr", "1e-12"), ("actor.loss", loss), *narrow
    )
    roles, batch = prepared(config)
    batch = moved(batch)
    ratio = (roles.actor.compute_log_prob(batch) - batch["old_log_probs"]).exp()
    outside = ((ratio < 0.95) | (ratio > 1.05)) & batch.mask
    share = float(outside.sum() / batch.num_tokens) / 2  # in the first of two epochs ratios are 1
    counted = roles.actor.update_actor(batch)["actor/pg_clipfrac"]
    if loss == "cispo":
        assert counted == pytest.approx(share)
    else:  # only steps in the wanted direction are stopped
        assert 0 < counted < share
