"""pass@k, maj@k and accuracy on held-out prompts."""

from __future__ import annotations

import pytest

from telescope import Trainer
from telescope.commands import main
from telescope.config import EvalConfig
from telescope.ledger.completions import Completion
from telescope.run.evaluate import answer_of, evaluate, evaluate_run, pass_and_majority


def completion(text: str, correct: bool) -> Completion:
    return Completion("", "pass@k", 0, "p", text, float(correct), correct, {})


def counted(correct: list[bool], texts: list[str], n: int, config: EvalConfig) -> dict[str, float]:
    pairs = zip(texts, correct, strict=True)
    return pass_and_majority([completion(*pair) for pair in pairs], n, config)


def test_pass_and_majority_of_two_prompts_by_hand() -> None:
    """Prompt 1: two correct, two wrong; groups (2 2) and (3 4). Prompt 2: never correct."""
    texts = ["2", "2", "3", "4", "7", "7", "7", "7"]
    correct = [True, True, False, False] + [False] * 4
    found = counted(correct, texts, 4, EvalConfig(k=2))
    assert found == {"pass@2": pytest.approx((1 - 1 / 6) / 2), "maj@2": 1 / 4}


def test_votes_are_for_what_the_pattern_finds() -> None:
    texts = ["so 5, no: 4", "4", "none", "it is 5"]
    assert [answer_of(text, r"\d") for text in texts] == ["4", "4", None, "5"]
    assert answer_of(r"\boxed{1} \boxed{ 2 }", r"\\boxed\{(.*?)\}") == "2"
    assert answer_of("a", r"a(b)?") is None
    found = counted([True, True, False, False], texts, 4, EvalConfig(k=4, answer=r"\d"))
    assert found == {"pass@4": 1.0, "maj@4": 1.0}


def test_if_all_answers_differ_the_first_one_wins() -> None:
    found = counted([False, True, False], ["a", "b", "c"], 3, EvalConfig(k=3))
    assert found == {"pass@3": 1.0, "maj@3": 0.0}


def of_even_length(completions: list[str]) -> list[float]:
    return [float(len(text) % 2 == 0) for text in completions]


def evaluated(trainer: Trainer) -> dict[str, float]:
    roles = trainer.roles
    return evaluate(roles.actor, roles.reward, trainer.held_out, trainer.config)


def test_with_k_of_one_both_are_the_accuracy_of_the_samples(make_config) -> None:
    config = make_config(("eval.k", "1"), ("eval.n", "4"), ("eval.prompts", "24"))
    found = evaluated(Trainer(config, reward=of_even_length))
    assert found["eval/pass@1"] == pytest.approx(found["eval/maj@1"])
    assert 0 < found["eval/pass@1"] < 1


def test_more_samples_pass_more_often_and_the_same_weights_give_the_same_numbers(
    make_config,
) -> None:
    trainer = Trainer(make_config(("eval.k", "3"), ("eval.prompts", "24")), reward=of_even_length)
    found = evaluated(trainer)
    assert found == evaluated(trainer)
    assert found["eval/pass@3"] > found["eval/sampled_accuracy"]


def test_eval_takes_settings_and_leaves_the_run_as_it_is(
    make_config, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(("steps", "1"), ("eval.prompts", "8"))
    Trainer(config).fit()
    before = (config.run_dir / "config.toml").read_text("utf-8")
    assert 0 <= evaluate_run(str(config.run_dir))["eval/greedy_accuracy"] <= 1
    main(["eval", str(config.run_dir), "--eval.k", "2", "--eval.n=4"])
    assert "eval/pass@2 " in capsys.readouterr().out
    assert (config.run_dir / "config.toml").read_text("utf-8") == before
    for wrong in (["--nosuch", "2"], ["--resume"], ["other"]):
        with pytest.raises(SystemExit) as end:
            main(["eval", str(config.run_dir), *wrong])
        assert end.value.code == 2
