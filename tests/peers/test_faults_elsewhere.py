"""The six faults in other batches: λ = 1, γ < 1, groups, left padding, tools, other lengths.

Every fault is looked for in every batch that can have it, and none may be found in a right one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from telescope.algorithms.advantages import gae
from telescope.algorithms.masked import masked_whiten
from telescope.peers.faults import find_faults
from telescope.peers.given import given_batch
from telescope.peers.rows import watched_step

EOS, PAD = 2, 0
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


def make(**kind: Any) -> dict[str, Any]:
    """A right batch: `n` answers each to `rows`/n prompts."""
    generator = torch.Generator().manual_seed(kind.get("seed", 1))
    rows, width = kind.get("rows", 8), kind.get("width", 14)
    lengths = torch.randint(7, width, (rows,), generator=generator)
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    exists = mask.clone()
    ids = torch.randint(5, 99, (rows, width), generator=generator)
    if "first" in kind:
        ids[:, 0] = kind["first"]
    last = lengths - 1
    if kind.get("eos", True):
        ids[torch.arange(rows), last] = EOS
    if kind.get("turns"):
        ids[:, 3] = EOS  # a turn ends; a tool answers
        mask[:, 4] = 0
    if kind.get("tools"):
        mask[:, 2:4] = 0
    ids[exists == 0] = kind.get("pad", PAD)
    values = torch.randn(rows, width, generator=generator) * kind.get("times", 0.3)
    for row in range(1, rows, 2):  # one state, one V: as long as the tokens are the same
        same = 1 + int((ids[row] == ids[row - 1]).long().cumprod(0).sum())
        values[row, :same] = values[row - 1, :same]
    logits = torch.randn(rows, width, 30, generator=generator) * 2
    chosen = torch.distributions.Categorical(logits=logits).sample()
    rollout = logits.log_softmax(-1).gather(-1, chosen[..., None]).squeeze(-1)
    old = rollout + 0.004 * torch.randn(rows, width, generator=generator)
    scores = torch.zeros(rows, width)
    scores[torch.arange(rows), last] = (torch.arange(rows) % 3 == 0).float()
    given: dict[str, Any] = {
        "responses": ids,
        "mask": mask,
        "prompts": [f"question {row // 2}" for row in range(rows)],
        "token_level_scores": scores,
        "token_level_rewards": scores.clone(),
        "old_log_probs": old,
        "rollout_log_probs": rollout,
    }
    if kind.get("critic", True):
        gamma, lam = kind.get("gamma", 1.0), kind.get("lam", 0.9)
        raw, returns = gae(scores * mask, values * mask, mask, gamma=gamma, lam=lam)
        given |= {"values": values, "returns": returns, "whitened": masked_whiten(raw, mask)}
    else:
        given["advantages"] = scores.sum(1, keepdim=True).expand(rows, width) - 0.5
    numbers = [name for name in given if name not in ("responses", "mask", "prompts")]
    if kind.get("zeros"):
        given |= {name: given[name] * mask for name in numbers}
    if "dtype" in kind:
        given |= {name: given[name].to(kind["dtype"]) for name in numbers}
    given["_logits"], given["_chosen"] = logits, chosen
    if kind.get("left"):
        for name in ("responses", "mask", *numbers):
            rolled = [row.roll(int(width - n)) for row, n in zip(given[name], lengths, strict=True)]
            given[name] = torch.stack(rolled)
    return given


def found(given: dict[str, Any]) -> dict[str, tuple[int, int]]:
    arrays = {name: value for name, value in given.items() if not name.startswith("_")}
    faults = find_faults(given_batch(watched_step(**arrays), arrays, EOS, PAD))
    return {fault.id: (fault.row, fault.token) for fault in faults}


def answer(given: dict[str, Any], row: int) -> tuple[int, int]:
    """Slots of the first and the last written token."""
    on = given["mask"][row].nonzero().flatten()
    return int(on[0]), int(on[-1])


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
    given["mask"] = given["mask"].roll(by, 1)
    given["mask"][:, 0 if by == 1 else -1] = 0
    row, _ = found(given)["mask_shifted"]
    assert row == 0


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
    given = make(**{**kind, "rows": 16})
    logits, chosen = given["_logits"] / temperature, given["_chosen"]
    old = logits.log_softmax(-1).gather(-1, chosen[..., None]).squeeze(-1)
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
    mask, after = given["mask"], torch.tensor([0.4, -0.7])
    raw, returns = gae(
        given["token_level_rewards"] * mask,
        given["values"] * mask,
        mask,
        gamma=1.0,
        lam=0.9,
        bootstrap=after,
    )
    given |= {"returns": returns, "whitened": raw, "bootstrap": after}
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
    given["mask"] = given["mask"].roll(1, 1)
    given["mask"][:, 0] = 0
    assert set(found(given)) == {"mask_shifted"}


def test_one_row_at_another_temperature_is_named() -> None:
    given = longer()
    row = int(given["mask"].sum(1).argmax())
    logits, chosen = given["_logits"][row] / 0.6, given["_chosen"][row]
    given["old_log_probs"][row] = logits.log_softmax(-1).gather(-1, chosen[:, None]).squeeze(-1)
    assert found(given)["other_temperature"][0] == row


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
    mask, values = given["mask"], given["values"]
    raw, returns = gae(given["token_level_rewards"] * mask, values * mask, mask, gamma=1.0, lam=0.9)
    given |= {"returns": returns, "whitened": masked_whiten(raw, mask)}
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
    arrays = {name: value for name, value in given.items() if not name.startswith("_")}
    arrays["mask"] = arrays["mask"].roll(by, 1)
    arrays["mask"][:, 0 if by == 1 else -1] = 0
    faults = find_faults(given_batch(watched_step(**arrays), arrays, EOS, EOS))
    assert "mask_shifted" in {fault.id for fault in faults}


def test_a_stop_word_before_padding_with_eos_is_no_fault() -> None:
    given = longer(pad=EOS, eos=False)
    for row in range(32):
        given["responses"][row, answer(given, row)[1]] = 77
    arrays = {name: value for name, value in given.items() if not name.startswith("_")}
    assert find_faults(given_batch(watched_step(**arrays), arrays, EOS, EOS)) == []
