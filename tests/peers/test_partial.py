"""Runs with whatever a trainer has: every view works, and says nothing that is not known."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.algorithms.advantages import gae
from telescope.algorithms.masked import masked_whiten
from telescope.commands import main
from telescope.viewer.api import Api
from telescope.viewer.runs import Runs
from tests.peers.batches import SETTINGS, batch, credit, recorded, verdicts

LONG = {"rows": 6, "width": 14}


def only(*names: str) -> dict[str, Any]:
    given = batch(**LONG)
    given["advantages"] = torch.ones(6, 1).expand(6, 14)
    return {name: given[name] for name in ("responses", "mask", *names)}


def changed(name: str, row: int, token: int, number: float) -> dict[str, Any]:
    given = batch(**LONG)
    given[name][row, token] = number
    return given


def first_is_empty() -> dict[str, Any]:
    given = batch(**LONG)
    given["mask"][0] = 0
    return given


CASES: dict[str, dict[str, Any]] = {
    "everything": batch(**LONG),
    "ids": only(),
    "log-probs": only("old_log_probs"),
    "rewards": only("token_level_rewards"),
    "advantages used": only("whitened"),
    "the first answer is empty": first_is_empty(),
    "every answer is empty": {**batch(**LONG), "mask": torch.zeros(6, 14)},
    "no token": {"responses": torch.zeros(3, 0, dtype=torch.long), "mask": torch.zeros(3, 0)},
    "no answer": {"responses": []},
    "a value is NaN": changed("values", 0, 0, float("nan")),
    "a return is infinite": changed("returns", 0, 0, float("inf")),
    "a new log-prob is NaN": changed("log_probs", 0, 0, float("nan")),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_every_view_opens_it(
    given: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = str(recorded(tmp_path / "run", given, given, **SETTINGS))
    for command in (["report", run], ["doctor", run]):
        main(command)
    count = len(given["responses"])
    shown = ["explain", run, "--lang", "en"]
    question = ["ask", "what is V here?", run, "--lang", "en"]
    for command in (shown, question):
        with contextlib.suppress(SystemExit):  # there may be no token to explain
            main(command)
    api = Api(Runs(tmp_path / "run"))
    for sample in range(count):
        path = f"/api/runs/run/steps/1/samples/{sample}"
        shown = api.answer(path, "")
        json.dumps(shown, allow_nan=False)
        if any(shown["mask"]):
            json.dumps(api.answer(f"{path}/tour", ""), allow_nan=False)
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
    assert "DLASCL" not in said.out + said.err  # LAPACK prints this itself


@pytest.mark.parametrize(
    ("given", "has", "has_not"),
    [
        (only(), ["nothing recorded to check"], ["largest", "│"]),
        (only("old_log_probs"), ["logπold", "both ends: 2 of"], ["largest"]),
        (only("token_level_rewards"), ["five largest |r|"], ["|A|", "|Â|"]),
        (only("whitened"), ["five largest |Â|"], ["|A|"]),
    ],
)
def test_the_first_screen_speaks_of_what_is_there(
    given: dict[str, Any],
    has: list[str],
    has_not: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = recorded(tmp_path / "run", given)
    main(["explain", str(run), "--step", "1", "--sample", "1", "--lang", "en"])
    out = capsys.readouterr().out
    assert [text for text in has if text not in out] == []
    assert [text for text in has_not if text in out] == []


def test_an_answer_without_tokens_has_no_lost_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = batch(**LONG)
    given["token_level_scores"] = given["token_level_rewards"].clone()
    given["mask"][1] = 0
    given["token_level_scores"][1] = 0
    given["scores"] = [None, *given["scores"][1:].tolist()]
    run = recorded(tmp_path / "run", given)
    main(["doctor", str(run), "--lang", "en"])
    assert "score_lost" not in capsys.readouterr().out


# ---- what nobody said of the settings ----


def said_of(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    main(["explain", str(run), "--step", "1", "--sample", "1", "--lang", "en"])
    return capsys.readouterr().out


def test_gamma_lam_and_beta_that_were_not_given_are_found_in_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = batch(**LONG)
    given["ref_log_prob"] = given["old_log_probs"] - 0.1 * torch.rand(6, 14)
    given["token_level_scores"] = given["token_level_rewards"].clone()
    kl = given["old_log_probs"] - given["ref_log_prob"]
    mask = given["mask"]
    given["token_level_rewards"] = (given["token_level_scores"] - 0.05 * kl) * mask
    credit(given, gamma=0.9, lam=0.8)
    out = said_of(recorded(tmp_path / "run", given, clip_low=0.2), capsys)
    assert "β 0.05   γ 0.9   λ 0.8" in out
    assert "assumed" not in out
    assert "✗" not in out


def test_what_the_numbers_do_not_show_is_marked_as_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said_of(recorded(tmp_path / "run", only("values", "token_level_rewards")), capsys)
    assert "(β 0, γ 1, λ 0.95, no whitening assumed)" in " ".join(out.split())


def test_a_clip_range_that_was_not_given_is_marked_as_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = only("old_log_probs", "whitened")
    given["log_probs"] = given["old_log_probs"] - 0.5
    out = said_of(recorded(tmp_path / "run", given), capsys)
    assert "✂" in out
    assert "ε 0.2 assumed" in " ".join(out.split())


def test_a_number_that_assumed_settings_do_not_give_is_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = only("values", "token_level_rewards")
    given["advantages"] = torch.randn(6, 14)
    run = recorded(tmp_path / "run", given)
    assert "so assumed: kl_coef 0, gamma 1, lam 0.95" in " ".join(said_of(run, capsys).split())
    main(["doctor", str(run), "--lang", "en"])
    assert "law_broken" not in capsys.readouterr().out


def test_without_values_and_settings_no_estimator_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said_of(recorded(tmp_path / "run", only("advantages")), capsys)
    assert "estimator ?" in out
    assert "λ" not in out
    assert "Â₀ = A₀" in out


def test_mean_and_spread_are_of_the_batch_where_raw_advantages_are_not_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = only("values", "token_level_rewards", "whitened")
    run = recorded(tmp_path / "run", given, **SETTINGS)
    assert "✗" not in said_of(run, capsys)
    assert "✓ recorded" in said_of(run, capsys)


def test_whitening_that_cannot_be_recomputed_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run", only("whitened", "returns"), **SETTINGS)
    out = said_of(run, capsys)
    assert "✗" not in out
    assert "μ" not in out


# ---- what a number is compared with ----


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("values", "returns"), SETTINGS),
        (("values", "returns", "whitened"), SETTINGS | {"whiten": False}),
        (("whitened",), SETTINGS | {"whiten": False}),
    ],
    ids=["R and V", "R, V and A", "A"],
)
def test_a_number_is_not_compared_with_itself(
    names: tuple[str, ...], settings: dict[str, Any], tmp_path: Path
) -> None:
    given = only(*names)
    given[names[-1]] = torch.randn(6, 14)
    marked = verdicts(recorded(tmp_path / "run", given, **settings))
    assert [place for place, ok in marked.items() if ok] == []


def test_returns_of_monte_carlo_are_compared_with_the_rewards(tmp_path: Path) -> None:
    settings = SETTINGS | {"estimator": "monte_carlo"}
    given = only("values", "token_level_rewards")
    mask = given["mask"]
    _, given["returns"] = gae(
        given["token_level_rewards"] * mask, given["values"] * mask, mask, gamma=0.9, lam=1.0
    )
    assert all(verdicts(recorded(tmp_path / "right", given, **settings)).values())
    given["returns"][2, 1] += 0.5
    marked = verdicts(recorded(tmp_path / "wrong", given, **settings))
    assert [place for place, ok in marked.items() if not ok] == [("return", 2, 1)]


def test_whitening_of_cut_off_answers_counts_the_value_after_them(tmp_path: Path) -> None:
    given = only("values", "token_level_rewards")
    given["bootstrap"] = torch.tensor([0.0, 3.0, 0.0, -2.0, 0.0, 5.0])
    credit(given, gamma=0.9, lam=0.8, bootstrap=given["bootstrap"])
    del given["returns"]
    marked = verdicts(recorded(tmp_path / "run", given, **SETTINGS))
    assert marked
    assert all(marked.values())


@pytest.mark.parametrize("name", ["returns", "advantages"])
def test_one_wrong_number_does_not_make_the_whitened_ones_wrong(name: str, tmp_path: Path) -> None:
    given = batch(**LONG)
    given["advantages"] = given["returns"] - given["values"]
    if name == "returns":
        del given["advantages"]
    given[name][2, 1] += 5.0
    marked = verdicts(recorded(tmp_path / "run", given, **SETTINGS))
    assert [place for place, ok in marked.items() if not ok] == [(name.removesuffix("s"), 2, 1)]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_in_half_precision_agree_up_to_their_rounding(
    kind: torch.dtype, tmp_path: Path
) -> None:
    given = batch(**LONG)
    given["advantages"] = given["returns"] - given["values"]
    for name in ("values", "returns", "advantages", "whitened"):
        given[name] = given[name].to(kind)
    assert all(verdicts(recorded(tmp_path / "right", given, **SETTINGS)).values())
    given["returns"][2, 1] += 0.1
    marked = verdicts(recorded(tmp_path / "wrong", given, **SETTINGS))
    assert [place for place, ok in marked.items() if not ok] == [("return", 2, 1)]


@pytest.mark.parametrize("value", [0.1, 0.7, 3.3])
def test_whitening_of_a_single_token_is_no_fault(value: float, tmp_path: Path) -> None:
    """σ is 1e-4 there, and what float32 rounds off A becomes visible."""
    mask = torch.ones(1, 1)
    values = torch.full((1, 1), value)
    raw, returns = gae(mask / 3, values, mask, gamma=0.9, lam=0.8)
    given = {"values": values, "token_level_rewards": mask / 3, "returns": returns, "mask": mask}
    given |= {"responses": mask.long(), "whitened": masked_whiten(raw, mask)}
    marked = verdicts(recorded(tmp_path / "run", given, **SETTINGS))
    assert marked == {("return", 0, 0): True, ("whitened", 0, 0): True}


def test_values_in_half_precision_do_not_excuse_the_numbers_made_from_them(tmp_path: Path) -> None:
    given = batch(**LONG)
    given["values"] = given["values"].bfloat16()
    given["advantages"] = given["returns"] - given["values"]
    given["returns"][2, 1] += 0.002
    marked = verdicts(recorded(tmp_path / "run", given, **SETTINGS))
    assert not marked["return", 2, 1]
