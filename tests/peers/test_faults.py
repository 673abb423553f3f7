"""Six faults of real trainers, each found and located, and none found in a right batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from telescope.commands import main
from telescope.ledger.reader import samples
from telescope.peers import Recorder
from telescope.peers.faults import CHECKS, find_faults
from telescope.peers.given import given_batch
from telescope.peers.rows import watched_step
from tests.peers.test_record import SETTINGS, batch

EOS = 1


def right() -> dict[str, Any]:
    """Eight answers to four prompts; each ends with EOS, values start equal for equal prompts."""
    given = batch(rows=8, width=12)
    mask = given["mask"]
    mask[0] = mask[1]  # no tool: every mask is one piece
    lengths = mask.sum(1).long()
    given["responses"] = torch.randint(5, 90, mask.shape)
    given["responses"][torch.arange(8), lengths - 1] = EOS
    given["responses"][mask == 0] = 0
    given["prompts"] = [f"prompt {row // 2}" for row in range(8)]
    values = given["values"]
    values[1::2, 0] = values[0::2, 0]
    rewards = torch.zeros_like(values)
    rewards[torch.arange(8), lengths - 1] = given["scores"]
    from telescope.algorithms.advantages import gae
    from telescope.algorithms.masked import masked_whiten

    advantages, returns = gae(rewards, values * mask, mask, gamma=0.9, lam=0.8)
    given |= {
        "token_level_rewards": rewards,
        "token_level_scores": rewards.clone(),
        "returns": returns,
        "whitened": masked_whiten(advantages, mask),
        "rollout_log_probs": given["old_log_probs"] + 0.002 * torch.randn(mask.shape),
    }
    return given


def found(given: dict[str, Any]) -> list[tuple[str, int, int]]:
    faults = find_faults(given_batch(watched_step(**given), given, EOS))
    return [(fault.id, fault.row, fault.token) for fault in faults]


def test_a_right_batch_has_none() -> None:
    assert found(right()) == []


def last_of(given: dict[str, Any], row: int) -> int:
    return int(given["mask"][row].nonzero()[-1])


def shift_mask(given: dict[str, Any]) -> tuple[str, int, int]:
    given["mask"] = torch.cat([given["mask"][:, 1:], torch.zeros(8, 1)], 1)
    return "mask_shifted", 0, last_of(given, 0)


def put_nan_into_padding(given: dict[str, Any]) -> tuple[str, int, int]:
    row = next(row for row in range(8) if last_of(given, row) < 11)
    given["values"][row, last_of(given, row) + 1 :] = float("nan")
    return "nan_in_padding", row, last_of(given, row) + 1


def put_score_on_padding(given: dict[str, Any]) -> tuple[str, int, int]:
    row = next(row for row in range(8) if last_of(given, row) < 11 and given["scores"][row])
    scores = given["token_level_scores"]
    scores[row] = 0
    scores[row, last_of(given, row) + 1] = 1.0
    return "score_on_padding", row, last_of(given, row) + 1


def take_returns_from_whitened(given: dict[str, Any]) -> tuple[str, int, int]:
    given["returns"] = given["values"] + given["whitened"]
    return "returns_from_whitened", 0, last_of(given, 0)


def take_values_after_the_token(given: dict[str, Any]) -> tuple[str, int, int]:
    given["values"] = torch.cat([given["values"][:, 1:], torch.zeros(8, 1)], 1)
    return "values_after_token", 1, 0


def use_another_temperature(given: dict[str, Any]) -> tuple[str, int, int]:
    given["old_log_probs"] = given["rollout_log_probs"] * 1.4
    apart = (given["old_log_probs"] - given["rollout_log_probs"]).abs() * given["mask"]
    row, token = divmod(int(apart.argmax()), 12)
    return "other_temperature", row, token


@pytest.mark.parametrize(
    "break_it",
    [
        shift_mask,
        put_nan_into_padding,
        put_score_on_padding,
        take_returns_from_whitened,
        take_values_after_the_token,
        use_another_temperature,
    ],
)
def test_each_fault_is_located(break_it: Callable[[dict[str, Any]], tuple[str, int, int]]) -> None:
    given = right()
    expected = break_it(given)
    assert expected in found(given)
    assert len(CHECKS) == 6


def test_a_fault_is_kept_with_the_step_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    given = right()
    put_nan_into_padding(given)
    recorder = Recorder(tmp_path / "run", settings=SETTINGS)
    recorder.tokenizer = None
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
        given = right()
        given["returns"] = given["returns"] + change
        recorder = Recorder(tmp_path / name, settings=SETTINGS, rules=[rule], strict=True)
        recorder.record(1, **given)
        recorder.close()
        main(["explain", str(tmp_path / name), "--lang", "en"])
        assert ("another rule of theirs" in capsys.readouterr().out) == (name == "wrong")


def test_eos_is_taken_from_the_tokenizer() -> None:
    recorder = Recorder("unused", tokenizer=SimpleNamespace(eos_token_id=7, pad_token_id=0))
    assert recorder._ends() == (7, 0)
