"""Every check of tokens: a ledger in which it fires, and one in which it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from telescope.doctor.check import CHECKS
from telescope.doctor.curves import Curves
from telescope.doctor.examine import curve_findings, ledger_findings, reviewed, with_places
from telescope.doctor.finding import Finding
from telescope.doctor.recorded import Recorded
from telescope.ledger.completions import Completion, save_completions
from telescope.ledger.reader import path_of
from tests.doctor.made import curves, write_step

EOS = 1
Row = dict[str, Any]


def rows(count: int = 8, **columns: Callable[[int], Any]) -> list[Row]:
    """Answers of three tokens and EOS; a column is a function of the row's number."""
    made = []
    for i in range(count):
        row: Row = {"responses": [5 + i, 6, 7, EOS]}
        made.append(row | {name: make(i) for name, make in columns.items()})
    return made


def run_of(folder: Path, *steps: list[Row], **settings: Any) -> Recorded:
    for step, each in enumerate(steps, start=1):
        write_step(folder / "run", step, each, **settings)
    return Recorded(folder / "run")


def credit(i: int) -> Row:
    """Right numbers of one answer with γ = λ = 1, V = 0.5 everywhere, score 1 at the end."""
    return {
        "values": [0.5, 0.5, 0.5, 0.5],
        "token_level_scores": [0.0, 0.0, 0.0, 1.0],
        "token_level_rewards": [0.0, 0.0, 0.0, 1.0],
        "deltas": [0.0, 0.0, 0.0, 0.5],
        "advantages": [0.5, 0.5, 0.5, 0.5],
        "returns": [1.0, 1.0, 1.0, 1.0],
        "score": 1.0,
    }


def right_rows(**changes: Any) -> list[Row]:
    return [{"responses": [5 + i, 6, 7, EOS]} | credit(i) | changes for i in range(8)]


def update(log_probs: list[float], old: list[float]) -> list[dict[str, Any]]:
    one = {"epoch": 0, "minibatch": 0, "old_log_probs": old, "log_probs": log_probs}
    return [one | {"ratio": [1.0] * 4, "clipped": [False] * 4, "loss": [0.0] * 4}]


LAM = {"gamma": 1.0, "lam": 1.0, "whiten": False}
CHAT = Curves({"model.path": "HuggingFaceTB/SmolLM2-135M-Instruct"})
GRPO = Curves({"credit.estimator": "grpo"})
NONE = Curves()
CRITIC = Curves()
CRITIC.add(1, {"critic/vf_loss": 0.1})

Made = tuple[Curves, Callable[[Path], Recorded]]
"""Curves, and a function of the folder that writes a ledger."""


def ledger(*steps: list[Row], run: Curves = NONE, **settings: Any) -> Made:
    """A ledger of these steps, beside the curves of a run."""
    return run, lambda path: run_of(path, *steps, **settings)


def _equal_answers(value: Callable[[int], float]) -> list[Row]:
    """One answer to each of four prompts, again and again; V is a function of the row."""
    return rows(
        32, responses=lambda i: [3, 4], prompt=lambda i: f"{i % 4}", values=lambda i: [value(i)] * 2
    )


def _referred(log_prob: float) -> list[Row]:
    """The same answers to the same prompts at every step, with this log-prob of the reference."""
    return rows(ref_log_prob=_logs(log_prob))


def _updated(step: float, count: int = 8, **columns: Callable[[int], Any]) -> list[Row]:
    """Every second answer is good; log-probs move by this much times Â, more or less."""

    def moved(i: int) -> list[float]:
        return [-1.0 + step * (1 + 0.1 * (i % 8)) * (1.0 if i % 2 else -1.0)] * 4

    return rows(
        count,
        whitened=lambda i: [1.0 if i % 2 else -1.0] * 4,
        actor_updates=lambda i: update([-1.0] * 4, [-1.0] * 4) + update(moved(i), [-1.0] * 4),
        **columns,
    )


def _paid(score: Callable[[int], float]) -> list[Row]:
    """Four answers to each of 32 prompts."""
    return rows(128, prompt=lambda i: f"{i % 32}", score=score)


def _compared(baseline: Callable[[int], float]) -> list[Row]:
    """Groups of four: two answers score 0 and two 1; the baseline is a function of the row."""
    return rows(
        64,
        group=lambda i: i // 4,
        prompt=lambda i: f"prompt {i // 4}",
        score=lambda i: float(i % 2),
        baselines=lambda i: [baseline(i)] * 4,
    )


def _sampled(log_prob: float) -> list[Row]:
    """Tokens with this log π, where the policy's entropy is 1 nat."""
    return rows(old_log_probs=_logs(log_prob), entropy=_logs(1.0))


def _with_held_out(path: Path, word: str) -> Recorded:
    """Training prompts are called prompt 0, prompt 1, …; held-out ones by this word."""
    answers = [
        Completion("", "greedy", i, f"{word} {i}", "answer", 1.0, True, {}) for i in range(8)
    ]
    recorded = run_of(path, rows(8))
    save_completions(answers, path_of(path / "run", 0, "completions"))
    return recorded


def _moved(by: float) -> list[Row]:
    """One token of each answer moved in the last update by this log-ratio."""
    return rows(actor_updates=lambda i: update([-1.0 + by, -1.0, -1.0, -1.0], [-1.0] * 4))


def _at_slope(slope: float) -> list[Row]:
    """Old log-probs are the sampler's times a slope."""
    return rows(
        rollout_log_probs=lambda i: [-0.1 * i - 0.2 * k for k in range(4)],
        old_log_probs=lambda i: [slope * (-0.1 * i - 0.2 * k) for k in range(4)],
    )


def _logs(value: float) -> Callable[[int], list[float]]:
    return lambda i: [value] * 4


def _parts(times: float) -> Callable[[int], list[tuple[str, float]]]:
    """Two parts of the reward; the first varies so many times as much as the second."""
    return lambda i: [("form", times * (i % 2)), ("sum", float(i % 2))]


def _goes_on(second: int) -> Row:
    """A response whose second token may be EOS, and that has two more."""
    names = {EOS: b"<eos>", 7: b"x"}
    ids = [5, second, 7, EOS]
    return {"responses": ids, "token_bytes": [names.get(token, b"y") for token in ids]}


def _groups(count: int, log_prob: float) -> list[Row]:
    """Groups of four equal answers of two tokens with this log-prob each."""
    return [
        {"responses": [5, EOS], "group": i // 4, "rollout_log_probs": [log_prob] * 2}
        for i in range(4 * count)
    ]


def _whitened(used: float) -> list[Row]:
    return rows(advantages=lambda i: [0.2] * 4, whitened=lambda i: [used] * 4)


def _tool_row(columns: Row) -> Row:
    return {"responses": [5, 6, 7, EOS], "response_mask": [1, 0, 1, 1]} | columns


def _late_mask() -> Row:
    """EOS, and one more token that the mask counts."""
    return {"responses": [5, EOS, 0], "response_mask": [1, 1, 1]}


def _with_fault(path: Path, id: str) -> Recorded:
    """A step that was recorded with a fault in its padding, which the ledger does not keep."""
    from telescope.peers import Recorder

    recorder = Recorder(path / "run", strict=True)
    recorder.record(
        1,
        responses=[[5, 6, EOS, 0]],
        mask=[[1, 1, 1, 0]],
        values=[[0.5, 0.5, 0.5, float("nan")]],
    )
    recorder.close()
    return Recorded(path / "run")


FIRES: dict[str, Made] = {
    "sampler_mismatch": ledger(rows(rollout_log_probs=_logs(-1.0), old_log_probs=_logs(-2.0))),
    "stale_samples": ledger(*[rows(policy_version=lambda i: 0) for _ in range(8)]),
    "lr_too_high": ledger(*[_moved(1.0)] * 2),
    "flat_groups": ledger(*[rows(16, group=lambda i: i // 4)] * 2),
    "noisy_reward": ledger(rows(score=lambda i: 0.0), rows(score=lambda i: float(i % 2))),
    "part_dominates": ledger(rows(parts=_parts(100.0))),
    "eos_ignored": ledger([_goes_on(EOS)] * 8),
    "eos_missing": ledger([{"responses": [5, 6, 7]}] * 8, tokens={"eos": EOS}),
    "prompt_ids": ledger(rows(prompt_ids=lambda i: [5 + i, 6])),
    "eval_leak": (NONE, lambda path: _with_held_out(path, "prompt")),
    "no_exploration": ledger(*[_sampled(-0.1)] * 3),
    "score_early": ledger(rows(token_level_scores=lambda i: [1.0, 0.0, 0.0, 0.0])),
    "groups_mixed": ledger(_compared(lambda i: 0.25 * (i % 4)), run=GRPO),
    "values_differ": ledger(_equal_answers(lambda i: i % 3), run=CRITIC),
    "reference_moves": ledger(_referred(-1.0), _referred(-1.2)),
    "update_backwards": ledger(*[_updated(-0.01)] * 3),
    "reward_scale": ledger(_paid(lambda i: 50.0 if i % 32 == 7 else i % 2)),
    "copied_answers": ledger(_groups(16, -1.0)),
    "same_response": ledger(rows(16, response=lambda i: "yes")),
    "looping": ledger([{"responses": [3, 4] * 40}] * 4),
    "whitening_flips": ledger(*[_whitened(-0.3)] * 3),
    "prompt_format": ledger(rows(prompt=lambda i: "Solve {{ problem }}")),
    "repeated_data": ledger(*[rows(prompt=lambda i: "one")] * 2),
    "nan_in_padding": (NONE, lambda path: _with_fault(path, "nan_in_padding")),
    "score_on_padding": ledger([_tool_row({"token_level_scores": [0.0, 1.0, 0.0, 0.0]})]),
    "mask_shifted": ledger([*rows(7), _late_mask()]),
    "values_after_token": ledger(rows(prompt=lambda i: "one", values=lambda i: [0.1 * i] * 4)),
    "returns_from_whitened": ledger(
        right_rows(whitened=[1.2] * 4, returns=[1.7] * 4, advantages=[0.5] * 4)
    ),
    "other_temperature": ledger(_at_slope(1.5)),
    "law_broken": ledger(right_rows(advantages=[0.9] * 4), **LAM),
    "score_lost": ledger(rows(score=lambda i: 1.0, token_level_scores=lambda i: [0.0] * 4)),
    "first_ratio": ledger(rows(actor_updates=lambda i: update([-1.0] * 4, [-1.5] * 4))),
}
HEALTHY: dict[str, Made] = {
    "sampler_mismatch": ledger(rows(rollout_log_probs=_logs(-1.0), old_log_probs=_logs(-1.01))),
    "stale_samples": ledger(*[rows(policy_version=lambda i, v=v: v) for v in range(8)]),
    "lr_too_high": ledger(*[_moved(0.1)] * 2),
    "flat_groups": ledger(*[rows(16, group=lambda i: i // 4, score=lambda i: float(i % 2))] * 2),
    "noisy_reward": ledger(*[rows(score=lambda i: float(i % 2))] * 2),
    "part_dominates": ledger(rows(parts=_parts(10.0))),
    "eos_ignored": ledger([_goes_on(7)] * 8),
    "eos_missing": ledger(rows(8), tokens={"eos": EOS}),
    "prompt_ids": ledger(  # the bytes of ids 5, 6, … are f, g, …
        rows(prompt=lambda i: f"{chr(102 + i)}-g", prompt_ids=lambda i: [5 + i, 90, 6])
    ),
    "eval_leak": (NONE, lambda path: _with_held_out(path, "other")),
    "no_exploration": ledger(*[_sampled(-0.9)] * 3),
    "score_early": ledger(rows(token_level_scores=lambda i: [1.0, 0.0, 0.0, 0.5])),
    "groups_mixed": ledger(_compared(lambda i: 0.25 * (i // 4 % 4)), run=GRPO),
    "values_differ": ledger(_equal_answers(lambda i: i % 4), run=CRITIC),
    "reference_moves": ledger(_referred(-1.0), _referred(-1.0)),
    "update_backwards": ledger(*[_updated(0.01)] * 3),
    "reward_scale": ledger(_paid(lambda i: i % 32 == 7)),
    "copied_answers": ledger(_groups(16, -0.1)),
    "same_response": ledger(
        rows(16, response=lambda i: "yes", score=lambda i: 1.0),
        run=curves({"reward/score_mean": [1.0]}),
    ),
    "looping": ledger([{"responses": list(range(80))}] * 4),
    "whitening_flips": ledger(*[_whitened(0.3)] * 3),
    "prompt_format": ledger(rows(prompt=lambda i: "1 + 1 = 2？")),
    "repeated_data": ledger(*[rows(prompt=lambda i, s=s: f"{s} {i}") for s in range(2)]),
    "nan_in_padding": ledger(rows(values=lambda i: [0.5] * 4)),
    "score_on_padding": ledger([_tool_row({"token_level_scores": [0.0, 0.0, 0.0, 1.0]})]),
    "mask_shifted": ledger(rows(8)),
    "values_after_token": ledger(rows(prompt=lambda i: "one", values=lambda i: [0.5, i, i, i])),
    "returns_from_whitened": ledger(right_rows(whitened=[1.2] * 4)),
    "other_temperature": ledger(_at_slope(1.0)),
    "law_broken": ledger(right_rows(), **LAM),
    "score_lost": ledger(right_rows()),
    "first_ratio": ledger(rows(actor_updates=lambda i: update([-1.0] * 4, [-1.01] * 4))),
}


def found(made: Made, path: Path, id: str) -> Finding | None:
    run, write = made
    findings = ledger_findings(run, write(path))
    return next((finding for finding in findings if finding.id == id), None)


def seen(made: Made, path: Path, id: str) -> Finding:
    finding = found(made, path, id)
    assert finding is not None
    return finding


@pytest.mark.parametrize("id", FIRES)
def test_it_is_found_where_it_is(id: str, tmp_path: Path) -> None:
    finding = seen(FIRES[id], tmp_path, id)
    assert finding.since >= 1
    for lang in ("en", "zh"):
        assert "{" not in finding.said("what", lang).replace("{{ problem }}", "")  # type: ignore[arg-type]


@pytest.mark.parametrize("id", HEALTHY)
def test_it_is_not_found_where_it_is_not(id: str, tmp_path: Path) -> None:
    assert found(HEALTHY[id], tmp_path, id) is None


def test_every_check_of_tokens_has_both_cases() -> None:
    checks = {id for id, check in CHECKS.items() if check.of_ledger is not None}
    assert set(FIRES) == checks
    assert set(HEALTHY) == checks


def test_a_chat_model_with_plain_prompts_is_noticed(tmp_path: Path) -> None:
    plain = rows(prompt=lambda i: f"What is {i} + 1?")
    finding = seen(ledger(plain, run=CHAT), tmp_path, "prompt_format")
    assert finding.variant == "plain"
    assert finding.severity == "warning"


def test_the_tokens_that_sampler_and_trainer_disagree_on_are_named(tmp_path: Path) -> None:
    logs = rows(
        2,
        rollout_log_probs=lambda i: [-1.0] * 4,
        old_log_probs=lambda i: [-1.0, -1.0, -3.0 - i, -1.0],
    )
    recorded = run_of(tmp_path, logs)
    finding = seen((NONE, lambda path: recorded), tmp_path, "sampler_mismatch")
    places = with_places(finding, recorded).places
    assert [(place.step, place.sample, place.token) for place in places] == [(1, 1, 2), (1, 0, 2)]
    assert places[0].numbers == {"rollout_log_prob": -1.0, "log_prob": -4.0}
    assert places[0].href == "#view=samples&step=1&sample=1&token=2"


@pytest.mark.parametrize(("slopes", "is_found"), [((1.5, 1.0), False), ((1.5, 1.0, 1.4), True)])
def test_another_temperature_shows_in_two_recorded_steps(
    slopes: tuple[float, ...], is_found: bool, tmp_path: Path
) -> None:
    made = ledger(*[_at_slope(slope) for slope in slopes])
    assert (found(made, tmp_path, "other_temperature") is not None) == is_found


@pytest.mark.parametrize(("different", "is_found"), [(2, False), (8, True)])
def test_copies_of_an_answer_are_no_evidence_of_their_own(
    different: int, is_found: bool, tmp_path: Path
) -> None:
    """64 answers to one prompt."""
    same = {"prompt": lambda i: "one", "responses": lambda i: [5 + i % different, 6, 7, EOS]}
    made = ledger(*[_updated(-0.01, 64, **same)] * 3)
    assert (found(made, tmp_path, "update_backwards") is not None) == is_found


@pytest.mark.parametrize(
    ("cut", "finished", "severity"),
    [
        (0.5, 0.5, "note"),
        (0.4, 0.6, "warning"),
        (0.0, 0.6, "serious"),  # the answer is lost
        (0.2, 0.6, "serious"),
        (0.02, 0.02, "serious"),  # next to none is right: nothing shows what truncation costs
        (0.5, None, "serious"),  # every response is cut off
    ],
)
def test_truncation_that_costs_no_answer_is_no_fault(
    cut: float, finished: float | None, severity: str, tmp_path: Path
) -> None:
    """16 steps of 100 responses; 80 are cut off. These shares of them are right."""
    is_cut = [i < 80 or finished is None for i in range(100)]
    right = [i < 80 * cut for i in range(80)] + [i < 20 * (finished or cut) for i in range(20)]
    step = rows(100, truncated=lambda i: is_cut[i], score=lambda i: float(right[i]))
    recorded = run_of(tmp_path, *[step] * 16)
    run = curves({"response/truncated": [0.8] * 10, "reward/score_mean": [0.4] * 10})
    found = {each.id: each for each in curve_findings(run)}
    finding = reviewed(found["mostly_truncated"], run, recorded)
    assert finding.severity == severity
    assert ("right" in finding.said("what", "en")) == (severity != "serious")


def test_partial_credit_for_cut_off_answers_is_no_right_answer(tmp_path: Path) -> None:
    step = rows(100, truncated=lambda i: i < 80, score=lambda i: 0.5)
    recorded = run_of(tmp_path, *[step] * 16)
    run = curves({"response/truncated": [0.8] * 10, "reward/score_mean": [0.5] * 10})
    found = {each.id: each for each in curve_findings(run)}
    assert reviewed(found["mostly_truncated"], run, recorded).severity == "serious"


def test_a_token_that_tells_the_prompt_is_no_sign_that_v_has_seen_it(tmp_path: Path) -> None:
    """Easy prompts are answered with token 5 and hard ones with token 6: V may know the prompt."""
    easy = {"responses": [5, EOS], "old_log_probs": [-0.7, 0.0], "values": [0.9, 0.9]}
    hard = {"responses": [6, EOS], "old_log_probs": [-0.7, 0.0], "values": [0.1, 0.1]}
    answers: list[Row] = [easy, hard] * 16
    run = ledger(answers, answers)
    assert found(run, tmp_path, "values_after_token") is None


LIKELY = 0.8
"""Probability of token 0; otherwise token 1 is sampled."""


def _coins(has_seen: bool, moved: float = 0.0, entropy: float = 0.5004) -> list[Row]:
    """64 answers of coin throws to different prompts. V knows the coin before, or its own too.

    `moved`: how far the first update sees the likely token's log-prob moved.
    """
    random = Random(0)
    made: list[Row] = []
    for i in range(64):
        coins = [int(random.random() > LIKELY) for _ in range(24)]
        known = coins if has_seen else [0, *coins[:-1]]
        old, new = ([_log(coin, by) for coin in coins] for by in (0.0, moved))
        made.append(
            {
                "responses": coins,
                "prompt": f"prompt {i}",
                "values": [0.5 - 0.3 * coin for coin in known],
                "old_log_probs": old,
                "entropy": [entropy] * len(coins),
                "actor_updates": _first_update(new, old),
            }
        )
    return made


def _log(coin: int, moved: float) -> float:
    likely = LIKELY * math.exp(moved)
    return math.log(1 - likely if coin else likely)


def _first_update(new: list[float], old: list[float]) -> list[dict[str, Any]]:
    one = {"epoch": 0, "minibatch": 0, "old_log_probs": old, "log_probs": new}
    count = len(new)
    return [one | {"ratio": [1.0] * count, "clipped": [False] * count, "loss": [0.0] * count}]


def test_v_that_goes_with_surprises_has_seen_its_token(tmp_path: Path) -> None:
    finding = seen(ledger(_coins(has_seen=True)), tmp_path, "values_after_token")
    assert finding.variant == "surprise"
    assert finding.numbers["tokens"] == 64 * 23
    assert finding.places[0].token
    assert "standard errors" in finding.said("what", "en")


@pytest.mark.parametrize(
    "answers",
    [
        _coins(has_seen=False),
        _coins(has_seen=False, moved=0.05, entropy=0.4380),  # H after the update
        _coins(has_seen=True)[:32],  # too few tokens
        _coins(has_seen=True, entropy=1.0),  # not the entropy of this sampler
    ],
)
def test_v_that_knows_only_the_tokens_before_is_right(answers: list[Row], tmp_path: Path) -> None:
    assert found(ledger(answers), tmp_path, "values_after_token") is None


def test_a_mask_that_leaves_out_eos_is_found_where_no_padding_is_kept(tmp_path: Path) -> None:
    cut = rows(responses=lambda i: [5, 6, 7, EOS], response_mask=lambda i: [1, 1, 1, 0])
    own = ledger(cut, run=Curves({"model.dtype": "float32"}))
    assert found(own, tmp_path, "mask_shifted") is not None


@pytest.mark.parametrize(("dtype", "is_found"), [("float32", True), ("bfloat16", False)])
def test_values_need_not_be_far_apart_where_there_is_no_rounding(
    dtype: str, is_found: bool, tmp_path: Path
) -> None:
    late = rows(prompt=lambda i: "one", values=lambda i: [0.7 + 0.001 * i] * 4)
    run = ledger(late, run=Curves({"model.dtype": dtype}))
    assert (found(run, tmp_path, "values_after_token") is not None) == is_found


def test_old_log_probs_of_an_earlier_policy_are_seen_at_the_first_update(tmp_path: Path) -> None:
    late = rows(old_log_probs=_logs(-1.03), actor_updates=lambda i: update([-1.0] * 4, [-1.0] * 4))
    exact = Curves({"model.dtype": "float32", "rollout.engine": "torch", "backend": "local"})
    assert found(ledger(late, run=exact), tmp_path, "first_ratio") is not None
    assert found(ledger(late), tmp_path, "first_ratio") is None


def test_a_rare_large_score_is_no_wrong_scale(tmp_path: Path) -> None:
    """One answer of a prompt is paid 50, and its other answers are not."""
    scores = rows(128, prompt=lambda i: f"{i % 32}", score=lambda i: 50.0 if i == 7 else i % 2)
    assert found(ledger(scores), tmp_path, "reward_scale") is None


def test_tiny_scores_matter_beside_a_kl_penalty(tmp_path: Path) -> None:
    tiny = _paid(lambda i: 0.001 * (i % 2))
    beside = Curves({"credit.kl_coef": 0.05})
    assert seen(ledger(tiny, run=beside), tmp_path, "reward_scale").variant == "tiny"
    assert found(ledger(tiny), tmp_path, "reward_scale") is None


@pytest.mark.parametrize(("place", "is_early"), [(2, True), (3, False)])
def test_scores_one_token_before_the_end_are_early(
    place: int, is_early: bool, tmp_path: Path
) -> None:
    paid = rows(token_level_scores=lambda i: [float(k == place) for k in range(4)])
    finding = found(ledger(paid), tmp_path, "score_early")
    assert (finding is not None) == is_early
    if finding is not None:
        assert finding.numbers == {"count": 8, "before": 1}
        assert [each.token for each in finding.places] == [2]


def test_a_score_before_a_tools_last_reply_is_not_early(tmp_path: Path) -> None:
    """The policy's last token is the third; the tool wrote the fourth."""
    paid = rows(
        token_level_scores=lambda i: [0.0, 0.0, 1.0, 0.0], response_mask=lambda i: [1, 1, 1, 0]
    )
    assert found(ledger(paid), tmp_path, "score_early") is None


def test_different_prompts_with_equal_ids_have_lost_text(tmp_path: Path) -> None:
    cut = rows(prompt_ids=lambda i: [90])
    finding = seen(ledger(cut), tmp_path, "prompt_ids")
    assert finding.variant == "equal"
    assert finding.numbers == {"texts": 8, "ids": 1}
    assert [place.sample for place in finding.places] == [0, 1]


@pytest.mark.parametrize(("text", "is_found"), [("{} is fg?", True), ("{} is fg", False)])
def test_prompts_whose_last_token_is_lost_are_found(
    text: str, is_found: bool, tmp_path: Path
) -> None:
    """Tokens 5 and 6 are f and g; what stands for the number is not known."""
    cut = rows(
        prompt=lambda i: text.format(i),
        prompt_ids=lambda i: [90 + i, 5, 6],
        responses=lambda i: [5, 6],
    )
    finding = found(ledger(cut), tmp_path, "prompt_ids")
    assert (finding is not None) == is_found


def test_prompts_full_of_unknown_tokens_are_in_a_foreign_format(tmp_path: Path) -> None:
    prompts = rows(prompt_ids=lambda i: [3, 90 + i])
    write = ledger(prompts, tokens={"eos": EOS, "unk": 3})
    finding = seen(write, tmp_path, "prompt_format")
    assert finding.variant == "unknown"


def test_a_prompt_that_says_everything_twice_is_noticed(tmp_path: Path) -> None:
    twice = rows(prompt=lambda i: f"1+{i}=2？1+{i}=2？")
    finding = seen(ledger(twice), tmp_path, "prompt_format")
    assert finding.variant == "doubled"


def test_two_answers_of_each_group_that_are_always_one_are_copies(tmp_path: Path) -> None:
    """Groups of three: the second answer is the first one, whose probability is exp(−2)."""

    def group(i: int) -> list[Row]:
        answers = [[5 + i % 7, EOS], [5 + i % 7, EOS], [20 + i % 5, EOS]]
        return [{"responses": a, "group": i, "rollout_log_probs": [-1.0, -1.0]} for a in answers]

    answers = [row for i in range(24) for row in group(i)]
    finding = seen(ledger(answers), tmp_path, "copied_answers")
    assert [place.sample for place in finding.places][:2] == [0, 1]


def test_answers_that_differ_only_behind_padding_show_the_padding(tmp_path: Path) -> None:
    padded = rows(
        prompt_ids=lambda i: [90] * (3 if i % 2 else 4),
        rollout_log_probs=lambda i: [-1.0] * 4,
        old_log_probs=lambda i: [-1.04 if i % 2 else -1.0] * 4,
    )
    run = curves({"rollout/logprob_diff": [0.02] * 10})
    finding = seen(ledger(padded, padded, run=run), tmp_path, "sampler_mismatch")
    assert finding.variant == "padding"
    assert finding.numbers["apart"] == pytest.approx(0.02)


def test_a_group_with_answers_to_several_prompts_is_mixed(tmp_path: Path) -> None:
    mixed = rows(8, group=lambda i: i % 2, prompt=lambda i: f"prompt {i // 4}")
    finding = seen(ledger(mixed), tmp_path, "groups_mixed")
    assert finding.variant == "prompts"
    assert finding.numbers["share"] == 1
