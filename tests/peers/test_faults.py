"""Six faults of real trainers, each found and located: λ = 1, γ < 1, groups, left padding, tools, …

Every fault is looked for in every batch that can have it, and none may be found in a right one.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from telescope.algorithms.advantages import gae
from telescope.algorithms.masked import masked_whiten
from telescope.commands import main
from telescope.ledger.reader import samples
from telescope.peers import Recorder
from telescope.peers.faults import find_faults
from telescope.peers.given import given_batch
from telescope.peers.rows import watched_step
from tests.peers.batches import EOS, PAD, SETTINGS, credit, make, sampled

KINDS = {
    "lam 1": {"lam": 1.0},
    "gamma 0.9": {"gamma": 0.9, "lam": 0.95},
    "long": {"width": 60, "rows": 16},
    "left padding": {"left": True},
    "tools": {"tools": True},
    "no eos": {"eos": False},
    "turns": {"turns": True},
    "zeros off the mask": {"zeros": True},
    "bfloat16": {"dtype": torch.bfloat16},
    "large values": {"times": 40.0},
    "grpo": {"critic": False},
    "one first word": {"first": 9},
    "padding is eos": {"pad": EOS},
}


def found(given: dict[str, Any], pad: int = PAD) -> dict[str, tuple[int, int]]:
    faults = find_faults(given_batch(watched_step(**given), given, EOS, pad))
    return {fault.id: (fault.row, fault.token) for fault in faults}


def answer(given: dict[str, Any], row: int) -> tuple[int, int]:
    """Slots of the first and the last written token."""
    on = given["mask"][row].nonzero().flatten()
    return int(on[0]), int(on[-1])


def shift_mask(given: dict[str, Any], by: int) -> None:
    given["mask"] = given["mask"].roll(by, 1)
    given["mask"][:, 0 if by == 1 else -1] = 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_right_batch_has_no_fault(kind: dict[str, Any], seed: int) -> None:
    assert found(make(seed=seed, **kind)) == {}


def without(*names: str) -> list[Any]:
    return [pytest.param(kind, id=name) for name, kind in KINDS.items() if name not in names]


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("kind", without("no eos", "padding is eos", "left padding"))
def test_a_shifted_mask(kind: dict[str, Any], by: int) -> None:
    given = make(**kind)
    shift_mask(given, by)
    first, last = answer(given, 0)
    assert found(given)["mask_shifted"] == (0, last - first)


@pytest.mark.parametrize("by", [1, -1])
def test_a_shifted_mask_without_eos_is_seen_by_the_zeros_of_other_columns(by: int) -> None:
    given = make(zeros=True, eos=False, tools=True)
    given["mask"] = given["mask"].roll(by, 1)
    assert "mask_shifted" in found(given)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_nan_where_the_mask_is_0(kind: dict[str, Any]) -> None:
    given = make(**kind)
    row, slot = 5, int((given["mask"][5] == 0).nonzero().flatten()[0])
    given["old_log_probs"][row, slot] = float("inf")
    assert found(given) == {"nan_in_padding": (row, slot - answer(given, row)[0])}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_score_where_the_mask_is_0(kind: dict[str, Any]) -> None:
    given = make(**kind)
    row, slot = 3, int((given["mask"][3] == 0).nonzero().flatten()[-1])
    given["token_level_scores"][row, slot] = -0.25
    assert found(given)["score_on_padding"] == (row, slot - answer(given, row)[0])


@pytest.mark.parametrize("kind", without("grpo"))
def test_returns_from_whitened_advantages(kind: dict[str, Any]) -> None:
    given = make(**kind)
    given["returns"] = given["values"].float() + given["whitened"].float()
    row, token = found(given)["returns_from_whitened"]
    first, last = answer(given, row)
    assert token == last - first


@pytest.mark.parametrize("kind", without("grpo", "turns", "tools"))
def test_values_from_after_the_token(kind: dict[str, Any]) -> None:
    given = make(**kind)
    given["values"] = given["values"].roll(-1, 1)
    row, token = found(given)["values_after_token"]
    same = given["responses"][row - 1].eq(given["responses"][row])
    assert row % 2 == 1
    assert token == (1 if kind.get("first") else 0) or same.any()


@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.25, 1.6])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_old_log_probs_at_another_temperature(kind: dict[str, Any], temperature: float) -> None:
    given, logits, chosen = sampled(**{**kind, "rows": 16})
    old = (logits / temperature).log_softmax(-1).gather(-1, chosen[..., None]).squeeze(-1)
    if kind.get("left"):
        firsts = [answer(given, row)[0] for row in range(16)]
        old = torch.stack([row.roll(first) for row, first in zip(old, firsts, strict=True)])
    given["old_log_probs"] = old
    assert "other_temperature" in found(given)


def test_a_token_that_the_sampler_may_not_write_is_no_temperature() -> None:
    """Where the trainer would write the banned token, the others differ; elsewhere none does."""
    given = make(rows=16, width=40)
    sampled = given["rollout_log_probs"]
    given["old_log_probs"] = torch.where(sampled < sampled.median(), 1.8 * sampled, sampled)
    both = torch.stack([given["old_log_probs"].flatten(), sampled.flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.9
    assert "other_temperature" not in found(given)


def test_one_token_that_the_sampler_favours_is_no_temperature() -> None:
    """Token 9 stands where the sampler is less sure; the trainer finds it far less likely."""
    given = make(rows=16, width=40)
    sampled = given["rollout_log_probs"]
    favoured = sampled < sampled.median()
    given["responses"][favoured] = 9
    given["old_log_probs"] = torch.where(favoured, 1.8 * sampled, sampled + 0.002)
    assert "other_temperature" not in found(given)
    given["old_log_probs"] = torch.where(favoured, 1.8 * sampled, 1.5 * sampled)
    assert "other_temperature" in found(given)


def test_whitening_off_with_a_bootstrap_is_no_fault() -> None:
    """R − V is the used advantage, and A of the last token has γ·V after it: all is right."""
    given = make()
    rewards = given["token_level_rewards"] + 0.4 * (given["token_level_scores"] != 0)
    raw, returns = gae(rewards * given["mask"], given["values"] * given["mask"], given["mask"],
                       gamma=1.0, lam=0.9)  # fmt: skip
    given |= {"returns": returns, "whitened": raw}
    assert found(given) == {}


def test_two_cut_off_answers_without_whitening_are_no_fault() -> None:
    given = make(rows=2)
    after = torch.tensor([0.4, -0.7])
    raw = credit(given, gamma=1.0, lam=0.9, bootstrap=after)
    given |= {"whitened": raw, "bootstrap": after}
    assert found(given) == {}


# ---- one row of many, and batches that lack columns ----


def longer(**kind: Any) -> dict[str, Any]:
    """A right batch of 32 answers of up to 40 tokens."""
    return make(rows=32, width=40, **kind)


def test_one_row_with_values_from_after_the_token_is_named_among_four_of_a_prompt() -> None:
    given = longer()
    first = given["values"][0::4, 0].repeat_interleave(4)
    given["values"][:, 0] = first
    given["prompts"] = [f"question {row // 4}" for row in range(32)]
    given["responses"][:, 0] = torch.arange(32) + 5  # they part at their first token
    assert found(given) == {}
    given["values"][8] = given["values"][8].roll(-1)  # the first of its four
    assert found(given) == {"values_after_token": (8, 0)}


def test_a_shifted_mask_does_not_make_values_look_late() -> None:
    given = make(zeros=False)
    shift_mask(given, 1)
    assert set(found(given)) == {"mask_shifted"}


def test_one_row_at_another_temperature_is_named() -> None:
    given, logits, chosen = sampled(rows=32, width=40)
    row = int(given["mask"].sum(1).argmax())
    other = (logits[row] / 0.6).log_softmax(-1).gather(-1, chosen[row, :, None]).squeeze(-1)
    given["old_log_probs"][row] = other
    apart = (other - given["rollout_log_probs"][row]).abs() * given["mask"][row]
    assert found(given)["other_temperature"] == (row, int(apart.argmax()))


@pytest.mark.parametrize("undecided", [1, 4, 16])
def test_a_slope_that_hangs_on_one_token_is_no_temperature(undecided: int) -> None:
    """Most tokens are nearly certain; rounding halves the log-prob of one of the others."""
    given = make(rows=32, width=40)
    row = int(given["mask"].sum(1).argmax())
    given["rollout_log_probs"] = torch.full((32, 40), -0.01)
    given["rollout_log_probs"][row, 1 : 1 + undecided] = torch.linspace(-1.5, -0.3, undecided)
    given["rollout_log_probs"][row, 1] = -4.0
    given["old_log_probs"] = given["rollout_log_probs"].clone()
    given["old_log_probs"][row, 1] = -2.0
    assert "other_temperature" not in found(given)
    given["old_log_probs"] = 0.6 * given["rollout_log_probs"]
    assert ("other_temperature" in found(given)) == (undecided == 16)


@pytest.mark.parametrize("with_returns", [True, False])
def test_a_score_in_padding_is_seen_in_the_rewards_alone(with_returns: bool) -> None:
    given = make()
    scores = given.pop("token_level_scores")
    row = int((scores.sum(1) > 0).nonzero().flatten()[-1])
    _, last = answer(given, row)
    assert last < 13
    given["scores"] = scores.sum(1)
    given["token_level_rewards"] = given["token_level_rewards"] - 0.01  # a KL, in padding too
    assert found(given) == {}
    given["token_level_rewards"][row, [last, last + 1]] += torch.tensor([-1.0, 1.0])
    credit(given, gamma=1.0, lam=0.9)
    if not with_returns:
        del given["returns"]
    assert found(given) == {"score_on_padding": (row, last + 1)}


def test_a_score_one_slot_later_that_the_returns_count_is_another_rule() -> None:
    given = make(zeros=True)
    scores = given.pop("token_level_scores")
    given["scores"] = scores.sum(1)
    mask = given["mask"]
    paid = scores.roll(1, 1)  # as TRL's PPO
    slots = ((mask + mask.roll(1, 1)) > 0).float()
    raw, returns = gae(paid * slots, given["values"], slots, gamma=1.0, lam=0.9)
    given |= {
        "token_level_rewards": paid,
        "returns": returns,
        "whitened": masked_whiten(raw, mask) * mask,
    }
    assert found(given) == {}


@pytest.mark.parametrize("kind", ["bfloat16", "large values", "lam 1"])
def test_one_row_with_returns_from_whitened_advantages_is_named(kind: str) -> None:
    given = make(rows=16, width=30, **KINDS[kind])
    of_type = given["returns"].dtype
    given["returns"][11] = (given["values"][11].float() + given["whitened"][11].float()).to(of_type)
    row, last = 11, answer(given, 11)[1]
    assert found(given)["returns_from_whitened"] == (row, last)


def test_nan_in_padding_of_the_new_log_probs() -> None:
    given = make()
    row, slot = 5, int((given["mask"][5] == 0).nonzero().flatten()[0])
    given["log_probs"] = given["old_log_probs"].clone()
    given["log_probs"][row, slot] = float("nan")
    assert found(given) == {"nan_in_padding": (row, slot - answer(given, row)[0])}


def test_returns_from_whitened_advantages_without_rewards() -> None:
    given = longer()
    del given["token_level_scores"], given["token_level_rewards"]
    assert found(given) == {}
    given["returns"] = given["values"] + given["whitened"]
    assert found(given)["returns_from_whitened"] == (0, answer(given, 0)[1])


@pytest.mark.parametrize("by", [1, -1])
def test_a_shifted_mask_where_padding_is_eos(by: int) -> None:
    given = longer(pad=EOS)
    shift_mask(given, by)
    assert "mask_shifted" in found(given, EOS)


def test_a_stop_word_before_padding_with_eos_is_no_fault() -> None:
    given = longer(pad=EOS, eos=False)
    for row in range(32):
        given["responses"][row, answer(given, row)[1]] = 77
    assert found(given, EOS) == {}


# ---- where they are said ----


def test_a_fault_is_kept_with_the_step_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    given = make()
    given["values"][given["mask"] == 0] = float("nan")
    recorder = Recorder(tmp_path / "run", settings=SETTINGS)
    recorder.record(1, **given)
    recorder.record(2, **given)
    recorder.close()
    assert caplog.text.count("NaN × 0") == 1  # said once, kept in both steps
    assert [len(samples(tmp_path / "run", step)[0].faults) for step in (1, 2)] == [1, 1]
    main(["explain", str(tmp_path / "run"), "--lang", "en"])
    assert "⚠ values is not a number at token" in " ".join(capsys.readouterr().out.split())


def test_a_rule_of_the_trainer_is_named_only_where_a_number_disagrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {"zh": "另一种规则", "en": "another rule of theirs"}
    for name, change in (("right", 0.0), ("wrong", 0.5)):
        given = make(gamma=0.9, lam=0.8)
        given["returns"] = given["returns"] + change
        recorder = Recorder(tmp_path / name, settings=SETTINGS, rules=[rule], strict=True)
        recorder.record(1, **given)
        recorder.close()
        main(["explain", str(tmp_path / name), "--lang", "en"])
        assert ("another rule of theirs" in capsys.readouterr().out) == (name == "wrong")


def test_eos_is_taken_from_the_tokenizer() -> None:
    recorder = Recorder("unused", tokenizer=SimpleNamespace(eos_token_id=7, pad_token_id=0))
    assert recorder._ends() == (7, 0)
