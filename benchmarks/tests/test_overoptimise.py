"""benchmarks/overoptimise.py: pairs, the reward model and the page, with a tiny random model."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import _overoptimise_page as page
from benchmarks import _overoptimise_worker as worker
from telescope.config import load_config
from telescope.data import gym
from telescope.models.load import load_tokenizer
from tests import ROOT

RECIPE = ROOT / "recipes" / "smollm2-arithmetic.toml"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return worker.tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def made(
    tiny: Path,
) -> tuple[Any, list[dict[str, Any]], list[worker.Pair], list[list[worker.Candidate]]]:
    small = {
        "model.dtype": "float32",
        "device": "cpu",
        "data.size": "20",
        "rollout.batch_size": "8",
        "rollout.max_response_tokens": "6",
    }
    config = load_config(RECIPE, [*small.items(), ("model.path", str(tiny))])
    rows = worker.unseen_rows(config, 12)
    return config, rows, *worker.make_pairs(config, rows, 4, random.Random(0))


# ---- pairs


def test_the_higher_score_is_preferred_in_every_pair(made: Any) -> None:
    config, rows, pairs, pools = made
    score = gym.scorer("chain_sum", config.data.options, config.data.answer)
    assert len(pairs) == len(rows) == 12
    for row, pair, pool in zip(rows, pairs, pools, strict=True):
        high, low = score([pair.preferred.text, pair.rejected.text], [row["entry"]] * 2)
        assert high > low
        assert pair.preferred in pool
        assert pair.rejected in pool


def test_no_pair_is_drawn_where_all_score_alike() -> None:
    alike = [worker.Candidate(text, [1], 0.0, "sampled") for text in "abc"]
    assert worker.draw_pair([5], alike, random.Random(0)) is None


def test_a_written_answer_scores_1_if_it_is_the_right_one_and_less_if_it_is_a_near_miss(
    made: Any,
) -> None:
    config, rows, *_ = made
    score, chance = (
        gym.scorer("chain_sum", config.data.options, config.data.answer),
        random.Random(1),
    )
    seen = set()
    for row in rows * 10:
        for text, kind in worker.written(row["entry"], chance):
            got = score([text], [row["entry"]])[0]
            assert (got == 1.0) == (kind == "right"), (text, kind, row["entry"]["answer"])
            seen.add(kind)
    assert seen == {
        "right",
        "off by a few",
        "off by tens",
        "wrong sign",
        "digits swapped",
        "other operation",
    }


def test_pairs_are_about_problems_that_ppo_never_sees(made: Any) -> None:
    config, rows, *_ = made
    of_ppo, held_out = gym.rows(
        "chain_sum", config.data.options, config.data.size, config.data.instruction
    )
    assert not {row["entry"]["question"] for row in rows} & {
        row["entry"]["question"] for row in [*of_ppo, *held_out]
    }


# ---- the reward model


def test_bradley_terry_is_minus_log_sigmoid_of_the_difference() -> None:
    """Equal scores: log 2.

    A difference of log 3 in favour of the preferred: σ = 3/4; against it: 1/4.
    """
    three = math.log(3)
    assert worker.bradley_terry(torch.tensor([2.0]), torch.tensor([2.0])).item() == pytest.approx(
        math.log(2)
    )
    both = worker.bradley_terry(torch.tensor([three, 0.0]), torch.tensor([0.0, three])).item()
    assert both == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)


def test_reward_model_of_a_run_scores_as_the_training_forward_did(
    tiny: Path, made: Any, tmp_path: Path
) -> None:
    """The pad token is EOS, rows differ in length, some end with EOS and some are cut off: all are
    read at their own last token.
    """
    _, _, pairs, pools = made
    said: list[str] = []
    cpu = torch.device("cpu")
    model = worker.train_reward_model(
        str(tiny), pairs, epochs=2, lr=1e-2, batch=5, seed=0, device=cpu, say=said.append
    )
    tokenizer = load_tokenizer(str(tiny))
    worker.save_reward_model(model, tokenizer, tmp_path / "rm")
    rows = [
        (pair.prompt_ids, candidate.ids)
        for pair, pool in zip(pairs, pools, strict=True)
        for candidate in pool
    ]
    ends = {ids[-1] == tokenizer.eos_token_id for _, ids in rows}
    assert ends == {True, False}
    trained = worker.score_all(model, [prompt + response for prompt, response in rows], size=7)
    assert worker.saved_scores(tmp_path / "rm", rows, tokenizer, cpu) == pytest.approx(
        trained, abs=1e-5
    )
    alone = [worker.score_all(model, [prompt + response])[0] for prompt, response in rows[:8]]
    assert trained[:8] == pytest.approx(alone, abs=1e-5)
    assert (
        len(set(trained)) > len(trained) // 2
    )  # not one number for all, which would agree with anything
    accuracy, by_kind = worker.pair_accuracy(model, pairs)
    assert accuracy == pytest.approx(
        sum(share * count for share, count in by_kind.values()) / len(pairs)
    )
    assert said[-1].startswith("reward model: update 6/6")


# ---- PPO


def test_ppo_is_paid_by_the_reward_model_alone_and_the_truth_is_measured_beside_it(
    tiny: Path, tmp_path: Path
) -> None:
    cpu = torch.device("cpu")
    model = worker.train_reward_model(
        str(tiny), [], epochs=0, lr=1e-3, batch=1, seed=0, device=cpu, say=print
    )
    worker.save_reward_model(model, load_tokenizer(str(tiny)), tmp_path / "rm")
    settings = {
        "steps": "2",
        "model.dtype": "float32",
        "device": "cpu",
        "data.size": "20",
        "rollout.batch_size": "8",
        "rollout.max_response_tokens": "6",
        "actor.lr": "0.01",
        "actor.warmup_steps": "0",
    }
    job = {
        "recipe": str(RECIPE),
        "settings": list(settings.items()),
        "tiny": str(tiny),
        "answer": r"-?\d+",
        "reward_model": str(tmp_path / "rm"),
        "runs": str(tmp_path),
    }
    worker.policy_stage(job, 0.0)
    folder = tmp_path / "beta-0"
    rows = [
        row
        for row in map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
        if row["step"]
    ]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["reward/score_mean"] == pytest.approx(row["reward/model"]) for row in rows)
    assert all(0 <= row["reward/right"] <= row["reward/gym_score"] <= 1 for row in rows)
    assert rows[1]["reward/kl"] != 0  # measured without being paid either
    assert not list((folder / "checkpoints").iterdir())
    shown = json.loads((folder / "examples.json").read_text("utf-8"))
    assert len(shown) == 3
    assert [e["rm_score"] for e in shown] == sorted((e["rm_score"] for e in shown), reverse=True)


# ---- the page


def run(beta: float, rm: list[float], accuracy: list[float]) -> dict[str, Any]:
    steps = len(rm)
    example = {
        "step": steps,
        "problem": "1 + 2",
        "answer": "3",
        "response": "a|b\n`4`",
        "truncated": True,
        "rm_score": 5.0,
    }
    return {
        "beta": beta,
        "step": list(range(1, steps + 1)),
        "rm_score": rm,
        "true_accuracy": accuracy,
        "true_score": accuracy,
        "length": [10.0] * steps,
        "entropy": [None] + [1.0] * (steps - 1),
        "kl": [-0.1] + [float(k) for k in range(1, steps)],
        "examples": [example | {"rm_score_of_answer": 1.5}] if beta == 0 else [],
    }


STEADY = run(
    0.3, [0.0, 0.0, 0.1, 0.2, 0.3, 0.3, 0.4, 0.4], [0.04, 0.04, 0.05, 0.06, 0.06, 0.07, 0.07, 0.07]
)
DRIFT = run(
    0.0, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0], [0.04, 0.04, 0.2, 0.4, 0.4, 0.2, 0.1, 0.1]
)
SPENT = run(
    0.1, [0.0, 0.0, 1.0, 2.0, 3.0, 1.0, 0.5, 0.5], [0.04, 0.04, 0.2, 0.4, 0.4, 0.2, 0.1, 0.1]
)


def written(folder: Path, *runs: dict[str, Any]) -> str:
    model = {
        "pairs": 1500,
        "held_out_pairs": 400,
        "epochs": 2,
        "lr": 2e-5,
        "train_accuracy": 0.9,
        "held_out_accuracy": 0.8125,
        "held_out_by_rejected": {"sampled": [0.9, 300], "wrong sign": [0.55, 100]},
        "alignment": 2e-6,
        "start_accuracy": 0.04,
        "scores": {"start_policy": -1.0, "right": 2.5, "near_misses": 2.0},
    }
    data = {
        "date": "2026-01-02",
        "machine": "a GPU",
        "versions": {"torch": "2.11"},
        "command": "python benchmarks/overoptimise.py",
        "smoke": False,
        "model": "SmolLM2",
        "recipe": "recipes/x.toml",
        "seed": 0,
        "settings": [["steps", "8"]],
        "batch_size": 512,
        "head_start": 2,
        "steps": 8,
        "minutes": 4.2,
        "reward_model": model,
        "runs": list(runs),
    }
    (folder / "curves.json").write_text(json.dumps(data), "utf-8")
    page.render(folder)
    assert (folder / "picture.svg").read_text("utf-8").count("<svg") == 1
    return (folder / "README.md").read_text("utf-8")


def test_a_drift_is_told_in_its_own_numbers(tmp_path: Path) -> None:
    text = written(tmp_path, DRIFT, STEADY)
    assert "RM score and true accuracy drift apart at β = 0, and not at β = 0.3." in text
    fell = "true accuracy fell from its best, 40.0 % at step 5, to 10.0 % at the end"
    assert f"- β = 0: {fell}, while the RM score rose from 2.50 to 5.00." in text
    assert (
        "- β = 0.3: the RM score rose from 0.00 to 0.40; true accuracy went from 4.0 % to 7.0 % "
        "and did not fall" in text
    )
    assert "| 0 | 8 | 0.00 → 5.00 | 4.0 % | 40.0 % (step 5) | 10.0 % | 6.5 | 10.0 |" in text
    assert (
        "The RM prefers to them what the policies of β = 0 (of which 10.0 % are right) write."
        in text
    )
    assert "**81.2 % of 400 held-out pairs**" in text
    assert "| 1 + 2 | 3 | `a\\|b '4'` (cut off) | 5.00 | 1.50 |" in text


def test_without_a_drift_the_page_says_so(tmp_path: Path) -> None:
    text = written(tmp_path, STEADY, SPENT)
    assert "these runs show no over-optimisation" in text
    assert "to 10.0 % at the end, and the RM score fell from 2.50 to 0.50." in text
    assert "No policy's responses score more than that." in text
    assert "No run has recorded a wrong response." in text


def test_a_run_of_one_step_is_drawn_too(tmp_path: Path) -> None:
    one = {key: value[:1] if isinstance(value, list) else value for key, value in STEADY.items()}
    text = written(tmp_path, one)
    assert "| 0.3 | 1 | 0.00 → 0.00 | 4.0 % | 4.0 % (step 1) | 4.0 % | -0.1 | 10.0 |" in text
    assert "Runs of fewer than 8 steps were stopped by the time limit." in text
