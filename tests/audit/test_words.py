"""Every sentence against the numbers."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from telescope.audit.findings import Audit
from telescope.audit.words import number, report, token_line
from tests.audit.made import made_audit, made_post, made_token

BASELINES = made_audit(estimate="baselines")
NOTHING = made_audit(
    estimate=None, posts=[made_post(0, 0, None, 0.3)], settings={"gamma": 0.9, "kl_coef": 0.0}
)
FLAT = made_audit(posts=[made_post(0, 0, 0.0, 0.2), made_post(1, 0, 0.0, 0.6)])
NEAREST = made_audit(needed=49, checkpoint=60)
ALL = [made_audit(), BASELINES, NOTHING, FLAT, NEAREST]


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"[−+]?\d+(?:\.\d+)?", text.replace("95%", "95 %")))


@pytest.mark.parametrize("audit", ALL)
def test_both_languages_say_the_same_numbers(audit: Audit) -> None:
    assert numbers(report(audit, "zh")) == numbers(report(audit, "en"))


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("audit", ALL)
def test_lines_fit_into_80_columns(audit: Audit, lang: str) -> None:
    assert max(cell_len(line) for line in report(audit, lang).splitlines()) <= 80  # type: ignore[arg-type]


def test_the_english_report_states_the_numbers_of_the_summary() -> None:
    said = " ".join(report(made_audit(), "en").split())
    assert "The policy is checkpoint 49: it wrote the responses of step 50." in said
    assert "64 continuations from each of 4 states" in said
    assert "Σ (score − 0.05·KL)" in said
    assert "On average V is 0.50 and the outcome 0.45: V is too high by 0.05." in said
    assert "typically off by 0.12. It lies outside the 95 % interval at 1 of 4 states." in said
    assert "Of 3 tokens, continuations decide for 2" in said
    assert "the wrong sign have: A 1 (50 %), Â 2 (100 %), δ 1 (50 %)." in said
    assert "2.0 s, 2.0 states per second (cpu)." in said


def test_credit_of_zero_is_said() -> None:
    audit = made_audit(tokens=[made_token(0, 0, 0.0, 0.4)])
    assert "A is 0 at 1 of them: it takes no side." in report(audit, "en")
    assert "A 在其中 1 个上是 0：不说是好是坏。" in report(audit, "zh")
    assert "takes no side" not in report(made_audit(), "en")


def test_too_low_and_unbiased_are_said_as_such() -> None:
    low = made_audit(posts=[made_post(0, 0, 0.2, 0.5)])
    assert "V is too low by 0.30" in report(low, "en")
    assert "V 偏低 0.30" in report(low, "zh")
    even = made_audit(posts=[made_post(0, 0, 0.501, 0.5)])
    assert "no bias" in report(even, "en")
    assert "没有偏差" in report(even, "zh")


def test_a_policy_of_another_step_is_said_plainly() -> None:
    said = " ".join(report(NEAREST, "en").split())
    assert "checkpoint 49 wrote the responses of step 50, and it is not on disk" in said
    assert "by the nearest, checkpoint 60" in said
    assert "by the policy of another step" in token_line(NEAREST, 0, 0, "en")


def test_a_return_is_written_by_its_definition() -> None:
    assert "Σ 0.9ᵏ·(score)" in report(made_audit(settings={"gamma": 0.9, "kl_coef": 0.0}), "en")
    assert "Σ score" in report(made_audit(settings={"gamma": 1.0, "kl_coef": 0.0}), "en")
    assert "Σ 0.9ᵏ·(score − 0.1·KL)" in report(
        made_audit(settings={"gamma": 0.9, "kl_coef": 0.1}), "en"
    )


def test_the_line_of_a_token() -> None:
    audit = made_audit()
    assert token_line(audit, 0, 2, "en") == (
        "Audit: 64 continuations from here earned 0.50 on average (95 % interval 0.40 to 0.60); "
        "the critic said 0.60."
    )
    assert token_line(audit, 0, 2, "zh") == (
        "核查：从这里续写 64 条，平均得到 0.50（95% 区间 0.40 到 0.60）；critic 说 0.60。"
    )
    assert token_line(audit, 0, 2, "en", kid=True) == (
        "We let the writer go on from here 64 times: 50 points on average; "
        "the forecaster guessed 60."
    )
    assert token_line(audit, 0, 2, "zh", kid=True) == (
        "我们让写手从这里重写 64 次，平均得 50 分；预报员猜的是 60 分。"
    )
    assert token_line(audit, 0, 1, "en") == ""
    assert token_line(BASELINES, 0, 0, "en").endswith("the baseline is 0.50.")
    assert token_line(NOTHING, 0, 0, "en").endswith("(95 % interval 0.20 to 0.40).")


def test_a_rounded_zero_has_no_sign() -> None:
    assert [number(x, sign=True) for x in (-0.001, 0.004, -0.3, 0.3)] == [
        "0.00",
        "0.00",
        "−0.30",
        "+0.30",
    ]
