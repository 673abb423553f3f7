"""A summary of four states and three tokens, by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from telescope.audit import file
from telescope.audit.findings import summarise
from telescope.errors import TelescopeError
from tests.audit.made import made_audit, made_post, made_token


def test_errors_are_prediction_less_outcome() -> None:
    summary = summarise(made_audit())
    overall = summary.overall
    assert overall is not None
    assert overall.count == 4
    assert (overall.predicted, overall.outcome) == pytest.approx((0.5, 0.45))
    assert overall.mean_error == pytest.approx(0.05)  # (0.2 + 0.1 − 0.1 + 0)/4
    assert overall.typical_error == pytest.approx(math.sqrt(0.06 / 4))
    assert summary.outside == 1  # 0.5 is not between 0.2 and 0.4; the others are on the edge
    assert summary.rank_correlation == pytest.approx(1)


def test_sampling_noise_is_taken_out_of_the_typical_error() -> None:
    """The error 0.1 is all noise if the mean itself is only known to 0.1."""
    posts = [made_post(0, 0, 0.5, 0.4, error=0.1), made_post(1, 0, 0.5, 0.6, error=0.1)]
    summary = summarise(made_audit(posts=posts))
    assert summary.overall is not None
    assert summary.overall.typical_error == pytest.approx(0, abs=1e-7)


def test_the_line_of_a_critic_that_says_half_of_the_truth_has_slope_two() -> None:
    posts = [made_post(i, 0, x / 2, x) for i, x in enumerate((0.0, 0.4, 1.0))]
    summary = summarise(made_audit(posts=posts))
    assert (summary.intercept, summary.slope) == pytest.approx((0, 2))
    assert [errors.count for errors in summary.bins] == [1, 1, 1]
    assert [errors.predicted for errors in summary.bins] == pytest.approx([0, 0.2, 0.5])


def test_a_critic_that_says_the_same_everywhere_has_no_slope_and_no_rank() -> None:
    posts = [made_post(0, 0, 0.0, 0.2), made_post(1, 0, 0.0, 0.6)]
    summary = summarise(made_audit(posts=posts))
    assert (summary.slope, summary.rank_correlation) == (None, None)
    assert summary.explained == 0
    assert len(summary.bins) == 1


def test_positions_are_thirds_of_the_response_and_the_worst_prompt_comes_first() -> None:
    summary = summarise(made_audit())
    found = {place: (e.count, round(e.mean_error, 6)) for place, e in summary.places.items()}
    assert found == {"start": (2, 0.1), "middle": (1, 0.1), "end": (1, -0.1)}
    assert [(prompt, errors.count) for prompt, errors in summary.prompts] == [(0, 3), (1, 1)]


def test_only_decided_tokens_can_have_the_wrong_sign() -> None:
    """Token 2 of response 0 has A = 0.4 and truly −0.4 ± 0.1; 0.05 ± 0.1 is undecided."""
    signs = summarise(made_audit()).signs
    assert (signs.tokens, signs.decided) == (3, 2)
    assert signs.wrong == {"advantages": 1, "whitened": 2, "deltas": 1}


def test_credit_of_zero_takes_no_side() -> None:
    tokens = [made_token(0, 0, 0.0, 0.4), made_token(0, 1, 0.3, 0.4)]
    signs = summarise(made_audit(tokens=tokens)).signs
    assert signs.zero == {"advantages": 1, "whitened": 1, "deltas": 1}
    assert signs.wrong == {"advantages": 0, "whitened": 1, "deltas": 1}


def test_a_baseline_is_compared_where_nothing_is_written_yet() -> None:
    summary = summarise(made_audit(estimate="baselines"))
    assert summary.overall is not None
    assert summary.overall.count == 2
    assert summary.places["end"].count == 1


def test_a_state_that_two_responses_share_counts_once() -> None:
    post = made_post(0, 0, 0.5, 0.3)
    summary = summarise(made_audit(posts=[post, replace(post, sample=1)]))
    assert summary.overall is not None
    assert summary.overall.count == 1
    other = replace(post, sample=1, predicted=0.4)  # leave-one-out: a baseline of its own
    summary = summarise(made_audit(posts=[post, other], estimate="baselines"))
    assert summary.overall is not None
    assert summary.overall.count == 2


def test_an_audit_on_disk_is_the_same_audit(tmp_path: Path) -> None:
    audit = made_audit()
    path = file.save(audit, tmp_path)
    assert path == tmp_path / "audit" / "step_000050.json"
    assert file.load(tmp_path, 50) == audit
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_a_changed_digit_is_no_audit(tmp_path: Path) -> None:
    path = file.save(made_audit(), tmp_path)
    text = path.read_text("utf-8")
    path.write_text(text.replace('"mean": 0.3', '"mean": 0.8', 1), "utf-8")
    assert file.load(tmp_path, 50) is None


def test_an_audit_of_an_earlier_version_has_no_checksum(tmp_path: Path) -> None:
    path = file.save(made_audit(), tmp_path)
    plain = json.loads(path.read_text("utf-8"))
    del plain["crc32"]
    path.write_text(json.dumps(plain), "utf-8")
    assert file.load(tmp_path, 50) == made_audit()


@pytest.mark.parametrize("link", ["audit", "audit/.step_000050.json.tmp"])
def test_an_audit_is_not_written_through_a_link(link: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    run = tmp_path / "run"
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(elsewhere)
    if link == "audit":
        elsewhere.mkdir()
        with pytest.raises(TelescopeError, match="is a link, and nothing is written through it"):
            file.save(made_audit(), run)
        assert list(elsewhere.iterdir()) == []
    else:
        elsewhere.write_text("precious")
        file.save(made_audit(), run)
        assert elsewhere.read_text() == "precious"


def test_a_word_in_place_of_a_number_is_no_audit(tmp_path: Path) -> None:
    path = file.save(made_audit(), tmp_path)
    path.write_text(path.read_text("utf-8").replace('"mean": 0.3', '"mean": "<b>"', 1), "utf-8")
    assert file.load(tmp_path, 50) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "posts": 3}'])
def test_a_damaged_file_is_no_audit(text: str, tmp_path: Path) -> None:
    path = file.path_of(tmp_path, 3)
    path.parent.mkdir()
    path.write_text(text)
    assert file.load(tmp_path, 3) is None
    assert file.load(tmp_path, 4) is None
