"""The worked examples of tests/golden/worked_examples.json, small enough to follow with pencil and
paper, in float64.
"""

import json
from collections import Counter

import pytest
import torch

from telescope.algorithms import (
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    gae,
    kl_penalty,
    masked_mean,
    masked_var,
    masked_whiten,
    monte_carlo_returns,
    n_step_advantages,
    surrogate_loss,
    td_errors,
)
from telescope.batch import TokenBatch
from telescope.config import CreditConfig
from telescope.credit import compute_advantages
from tests.algorithms.golden_cases import GOLDEN

EXAMPLES = {
    example["id"]: example
    for example in json.loads((GOLDEN / "worked_examples.json").read_text("utf-8"))
}


def of_kind(kind: str):
    return pytest.mark.parametrize(
        "example", [pytest.param(e, id=name) for name, e in EXAMPLES.items() if e["kind"] == kind]
    )


def row(numbers) -> torch.Tensor:
    """A list as one row [1, T], a list of lists as [B, T]."""
    return torch.atleast_2d(torch.tensor(numbers, dtype=torch.float64))


def same(ours: torch.Tensor, expected, atol: float = 1e-12) -> None:
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        ours, expected if ours.ndim == 0 else torch.atleast_2d(expected), rtol=1e-12, atol=atol
    )


def example_gae(example) -> tuple[torch.Tensor, torch.Tensor]:
    mask = row(example["mask"])
    return gae(
        row(example["token_level_rewards"]),
        row(example["values"]),
        mask,
        gamma=example["gamma"],
        lam=example["lam"],
    )


@of_kind("gae")
def test_each_function_gives_the_worked_numbers(example):
    r, v, mask, want = (
        row(example["token_level_rewards"]),
        row(example["values"]),
        row(example["mask"]),
        example["expected"],
    )
    deltas = td_errors(r, v, mask, gamma=example["gamma"])
    observed = monte_carlo_returns(r, mask, gamma=example["gamma"])
    advantages, returns = example_gae(example)
    same(deltas, want["deltas"])
    same(deltas, want["td0_advantages"])
    same(observed, want["mc_returns"])
    same(observed - v, want["mc_advantages"])
    same(advantages, want["advantages"])
    same(returns, want["returns"])
    same(masked_mean(advantages, mask), want["whiten_mean"])
    same(masked_var(advantages, mask), want["whiten_var_bessel"])
    same(masked_var(advantages, mask).sqrt(), want["whiten_std_bessel"])
    same(masked_whiten(advantages, mask), want["whitened"])


@of_kind("gae")
def test_the_trainers_credit_stage_gives_the_worked_numbers(example):
    scores = row(example.get("token_level_scores", example["token_level_rewards"]))
    kl = row(example.get("kl", [0.0] * scores.shape[1]))
    columns = {
        "response_mask": row(example["mask"]),
        "token_level_scores": scores,
        "values": row(example["values"]),
    }
    columns |= {
        "old_log_probs": kl,
        "ref_log_prob": torch.zeros_like(kl),
        "bootstrap": torch.zeros(1, dtype=torch.float64),
    }

    def credit(estimator):
        lam = {"lam": example["lam"]} if estimator == "gae" else {}
        config = CreditConfig.of(estimator, gamma=example["gamma"], **lam)
        return compute_advantages(TokenBatch(columns), config, kl_coef=example.get("beta", 0.0))

    batch, want = credit("gae"), example["expected"]
    same(batch["token_level_rewards"], example["token_level_rewards"])
    for column in ("deltas", "advantages", "returns", "whitened"):
        same(batch[column], want[column])
    same(credit("monte_carlo")["advantages"], want["mc_advantages"])
    same(credit("monte_carlo")["returns"], want["mc_returns"])
    same(credit("td0")["advantages"], want["td0_advantages"])


@of_kind("gae")
def test_the_identities_hold_on_the_example(example):
    r, v, mask, gamma, lam = (
        row(example["token_level_rewards"]),
        row(example["values"]),
        row(example["mask"]),
        example["gamma"],
        example["lam"],
    )
    deltas, length = td_errors(r, v, mask, gamma=gamma)[0], r.shape[1]
    telescoped = [sum(gamma**k * deltas[t + k] for k in range(length - t)) for t in range(length)]
    same(torch.stack(telescoped)[None], example["expected"]["mc_advantages"])
    n_step = [n_step_advantages(r, v, mask, n=n, gamma=gamma)[0] for n in range(1, length + 1)]
    for t in range(length):
        left = length - t  # N
        mixture = (1 - lam) * sum(
            lam ** (n - 1) * n_step[n - 1][t] for n in range(1, left)
        ) + lam ** (left - 1) * n_step[left - 1][t]
        same(mixture, example["expected"]["advantages"][t])


def test_advantages_do_not_add_up_but_td_errors_do():
    example = EXAMPLES["3tok-lam0.95"]
    advantages, _ = example_gae(example)
    deltas = td_errors(
        row(example["token_level_rewards"]), row(example["values"]), row(example["mask"]), gamma=1.0
    )
    same(advantages[0, 0], 0.651)
    same(advantages.sum(), 1.631)
    same(deltas.sum(), 0.7)  # G − V₀ = 1 − 0.3


def test_a_token_feels_the_last_reward_by_gamma_lambda_to_the_distance():
    example, want = EXAMPLES["q3-numeric"], EXAMPLES["q4-credit-schemes"]["expected"]
    advantages, _ = example_gae(example)
    same(advantages, want["gae_advantages"])
    nudged = [*example["token_level_rewards"][:-1], example["token_level_rewards"][-1] + 0.5]
    moved, _ = example_gae(example | {"token_level_rewards": nudged})
    same((moved - advantages) / 0.5, want["sensitivity_to_last_reward"])


@of_kind("whiten")
def test_whitening_uses_one_mean_and_one_bessel_variance(example):
    raw, mask, want = row(example["advantages_raw"]), row(example["mask"]), example["expected"]
    same(masked_mean(raw, mask), want["mean"])
    same(masked_var(raw, mask), want["var_bessel"])
    same(
        masked_whiten(raw, mask, eps=example["eps"]),
        want.get("whitened", want.get("whitened_global")),
    )
    if "var_population" in want:
        same(masked_var(raw, mask, unbiased=False), want["var_population"])
    if "returns" in want:  # the critic's target keeps the raw advantage
        same(raw + row(example["values"]), want["returns"])


@of_kind("kl")
def test_kl_is_taken_off_the_scores_token_by_token(example):
    old, ref, want = (
        row(example["old_log_probs"]),
        row(example["ref_log_prob"]),
        example["expected"],
    )
    for kind, key in {"k1": "kl", "k2": "kl_k2", "k3": "kl_k3_low_var", "abs": "kl_abs"}.items():
        same(kl_penalty(old, ref, kind), want[key])
    columns = {
        "response_mask": torch.ones_like(old),
        "token_level_scores": row(example["token_level_scores"]),
        "values": torch.zeros_like(old),
    }
    columns |= {
        "old_log_probs": old,
        "ref_log_prob": ref,
        "bootstrap": torch.zeros(1, dtype=torch.float64),
    }
    batch = compute_advantages(TokenBatch(columns), CreditConfig.of(), kl_coef=example["beta"])
    same(batch["token_level_rewards"], want["token_level_rewards"])
    same(masked_mean(batch["kl"], batch.mask), want["critic_kl_metric"])


@of_kind("surrogate")
def test_at_the_first_update_the_surrogate_is_the_mean_advantage(example):
    old, advantages, want = (
        row(example["old_log_probs"]),
        row(example["advantages"]),
        example["expected"],
    )
    mask = torch.ones_like(old)
    for terms in (
        surrogate_loss(old, old, advantages, mask),
        clipped_policy_loss(old, old, advantages, mask),
    ):
        same(terms.ratio, want["ratios"])
        same(-terms.loss, want["terms"])
        same(-terms.loss.sum(), want["sum"])
        same(aggregate(terms.loss, mask), want["loss_is_minus_objective"])
        same(masked_mean(terms.clipped.double(), mask), want["pg_clipfrac"])
        same(-masked_mean(terms.log_ratio, mask), want["ppo_kl"])
    whitened = masked_whiten(advantages, mask)
    same(whitened, want["advantages_whitened"])
    same(-aggregate(clipped_policy_loss(old, old, whitened, mask).loss, mask), 0.0)
    trap, swapped = (
        want["trap_ref_used_as_new_policy"],
        surrogate_loss(row(example["ref_log_prob"]), old, advantages, mask),
    )
    same(swapped.ratio, trap["ratios"])
    same(-swapped.loss, trap["terms"])
    same(-aggregate(swapped.loss, mask), trap["mean"])


@of_kind("value_loss")
def test_value_loss_is_half_the_squared_error_of_the_worse_prediction(example):
    vpreds, want = row(example["vpreds"]).requires_grad_(), example["expected"]
    mask = torch.ones_like(vpreds)
    terms = clipped_value_loss(
        vpreds,
        row(example["values"]),
        row(example["returns"]),
        mask,
        clip_value=example["cliprange_value"],
    )
    loss = aggregate(terms.loss, mask)
    same(loss.detach(), want["vf_loss"])
    same(masked_mean(terms.clipped.double(), mask), want["vf_clipfrac"])
    if "grad_wrt_vpred" in want:
        same(torch.autograd.grad(loss, vpreds)[0], [want["grad_wrt_vpred"]])
    if "vf_losses2" in want:
        worse = [
            0.5 * max(pair) for pair in zip(want["vf_losses1"], want["vf_losses2"], strict=True)
        ]
        same(terms.loss.detach(), worse)


@pytest.mark.parametrize(
    ("lam", "key"),
    [("gae-lam1", "correct_returns_g1_lam1"), ("gae-lam0.95", "correct_returns_g1_lam0_95")],
)
def test_value_loss_of_the_returns_that_gae_computes(lam, key):
    values, (_, returns) = row(EXAMPLES[lam]["values"]), example_gae(EXAMPLES[lam])
    terms = clipped_value_loss(values, values, returns, torch.ones_like(values), clip_value=0.5)
    same(terms.loss.mean(), EXAMPLES["value-loss-first-step"]["expected"][key])


@of_kind("mask")
def test_the_value_after_the_last_token_is_not_read(example):
    given = example["input"]

    def results(mask):
        r, v, scalars = (
            row(given["token_level_rewards"]),
            row(given["slice"]),
            {"gamma": given["gamma"]},
        )
        return td_errors(r, v, mask, **scalars), *gae(r, v, mask, **scalars, lam=given["lam"])

    for name, want in example["expected"].items():
        for ours, key in zip(
            results(row(want["mask"])), ("deltas", "advantages", "returns"), strict=True
        ):
            same(ours, want[key])
        assert (want["mask"] == given["response_mask"]) == (name == "response_mask_as_fixed")


@of_kind("monotone")
def test_the_candies_still_to_come_fall_from_three_to_one(example):
    counter = example["expected"]["counterexample"]  # positive rewards, and yet the return rises
    for given, want in ((example, example["expected"]), (counter, counter)):
        rewards = row(given["token_level_rewards"])
        same(
            monte_carlo_returns(rewards, torch.ones_like(rewards), gamma=given["gamma"]),
            want["mc_returns"],
        )


def test_no_worked_example_is_silently_skipped():
    kinds = Counter(example["kind"] for example in EXAMPLES.values())
    assert kinds == {
        "gae": 16,
        "whiten": 6,
        "kl": 1,
        "surrogate": 1,
        "value_loss": 3,
        "mask": 1,
        "monotone": 1,
        "credit": 1,
        "identity": 1,
    }
