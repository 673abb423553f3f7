"""A rule of another trainer is named: in explain, on the page and in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.algorithms.masked import masked_whiten
from telescope.commands import main
from telescope.peers.rules import _bfloat16
from telescope.viewer.api import Api
from telescope.viewer.report_data import report_data
from telescope.viewer.runs import Runs
from tests.peers.batches import make, recorded

SETTINGS = {"estimator": "gae", "gamma": 1.0, "lam": 0.9, "kl_coef": 0.1, "kl_kind": "k1"}


def loop_gae(rewards: Any, values: Any, gamma: float, lam: float) -> tuple[Any, Any]:
    """GAE over every slot, as OpenRLHF and older verl do."""
    following = torch.zeros(len(values))
    after = torch.zeros(len(values))
    made = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        following = rewards[:, t] + gamma * after - values[:, t] + gamma * lam * following
        after = values[:, t]
        made[:, t] = following
    return made, made + values


def right(**kind: Any) -> dict[str, Any]:
    given = make(**kind)
    given["ref_log_prob"] = given["old_log_probs"] - 0.3 * torch.randn(given["mask"].shape)
    return given


def paid(given: dict[str, Any], rewards: torch.Tensor) -> dict[str, Any]:
    """The batch with these rewards, and the credit of them."""
    mask = given["mask"]
    raw, returns = loop_gae(rewards, given["values"] * mask, 1.0, 0.9)
    whitened = masked_whiten(raw, mask)
    return given | {"token_level_rewards": rewards, "returns": returns, "whitened": whitened}


def pay_kl(given: dict[str, Any], kind: str) -> dict[str, Any]:
    """The rewards with a KL of this kind in them, and the credit of these rewards."""
    d = given["old_log_probs"] - given["ref_log_prob"]
    kl = {"k1": d, "k2": d * d / 2, "k3": (-d).exp() + d - 1, "abs": d.abs()}[kind]
    return paid(given, (given["token_level_scores"] - 0.1 * kl) * given["mask"])


def pay_in_bfloat16(given: dict[str, Any]) -> dict[str, Any]:
    """As verl's V1 trainer: its log-probs are bfloat16, and so is β times their difference."""
    old, ref = given["old_log_probs"].bfloat16(), given["ref_log_prob"].bfloat16()
    rewards = (given["token_level_scores"] - 0.1 * (old - ref)) * given["mask"]
    return paid(given, rewards) | {"old_log_probs": old, "ref_log_prob": ref}


def gaps(zero: bool) -> dict[str, Any]:
    given = right(tools=True, zeros=False)
    mask = given["mask"]
    values = given["values"] * (mask if zero else 1)
    exists = given["responses"] != 0
    raw, returns = loop_gae(given["token_level_rewards"] * mask, values * exists, 1.0, 0.9)
    return given | {"returns": returns, "whitened": masked_whiten(raw, mask)}


def per_rank(ranks: int) -> dict[str, Any]:
    given = right()
    raw = given["returns"] - given["values"]
    pairs = zip(raw.chunk(ranks), given["mask"].chunk(ranks), strict=True)
    return given | {"whitened": torch.cat([masked_whiten(a, mask) for a, mask in pairs])}


def over_n() -> dict[str, Any]:
    given = right()
    on = given["mask"] > 0
    raw = given["returns"] - given["values"]
    white = (raw - raw[on].mean()) / (raw[on].var(correction=0) + 1e-8).sqrt()
    return given | {"whitened": white * on}


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "k2": (pay_kl(right(), "k2"), "KL per token is k2, not k1"),
    "k3": (pay_kl(right(), "k3"), "KL per token is k3, not k1"),
    "abs": (pay_kl(right(), "abs"), "KL per token is abs, not k1"),
    "bfloat16": (pay_in_bfloat16(right()), "computes β·KL in bfloat16"),
    "gaps, V = 0": (gaps(True), "counts a tool's tokens as time steps with V = 0"),
    "gaps, V of their own": (gaps(False), "as time steps with a V of their own"),
    "two ranks": (per_rank(2), "whitens in 2 parts of 4 answers each"),
    "four ranks": (per_rank(4), "whitens in 4 parts of 2 answers each"),
    "sigma over n": (over_n(), "σ is over n tokens"),
}


@pytest.mark.parametrize(("given", "said"), CASES.values(), ids=CASES)
def test_each_rule_is_named_in_explain_on_the_page_and_in_the_report(
    given: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    has_kl = "KL" in said
    run = recorded(tmp_path / "run", given, **SETTINGS | {"kl_coef": 0.1 if has_kl else 0.0})
    main(["explain", str(run), "--step", "1", "--sample", "0", "--lang", "en"])
    assert said in " ".join(capsys.readouterr().out.split())
    sample = Api(Runs(run)).answer("/api/runs/run/steps/1/samples/0", "")
    assert [said in remark["en"] for remark in sample["remarks"]] == [True]
    assert all(remark["zh"] for remark in sample["remarks"])
    assert said in json.dumps(report_data(Runs(run), room=4_000_000), ensure_ascii=False)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_no_rule_is_named_where_everything_agrees(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run", pay_kl(right(), kind), **SETTINGS | {"kl_kind": kind})
    main(["explain", str(run), "--lang", "en"])
    assert "⚠" not in capsys.readouterr().out
    sample = Api(Runs(run)).answer("/api/runs/run/steps/1/samples/0", "")
    assert sample["remarks"] == []


def test_numbers_are_rounded_to_bfloat16_as_torch_does() -> None:
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    halves = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 0.0])  # to even
    for given in (numbers, halves):
        assert _bfloat16(given.double().numpy()).tolist() == given.bfloat16().double().tolist()
