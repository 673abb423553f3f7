from __future__ import annotations

import pytest

from telescope import Trainer
from telescope.commands import main
from telescope.config import EvalConfig
from telescope.run.evaluate import answer_of, evaluate, pass_and_majority


def test_pass_and_majority_of_two_prompts_by_hand() -> None:
    """Prompt 1: right right wrong wrong, lots (2 2) and (3 4); prompt 2: never right."""
    texts = ["2", "2", "3", "4", "7", "7", "7", "7"]
    right = [True, True, False, False] + [False] * 4
    found = pass_and_majority(right, texts, 4, EvalConfig(k=2))
    assert found == {"eval/pass@2": pytest.approx((1 - 1 / 6) / 2), "eval/maj@2": 1 / 4}


def test_votes_are_for_what_the_pattern_finds() -> None:
    texts = ["so 5, no: 4", "4", "none", "it is 5"]
    assert [answer_of(text, r"\d") for text in texts] == ["4", "4", None, "5"]
    assert answer_of(r"\boxed{1} \boxed{ 2 }", r"\\boxed\{(.*?)\}") == "2"
    assert answer_of("a", r"a(b)?") is None
    found = pass_and_majority([True, True, False, False], texts, 4, EvalConfig(k=4, answer=r"\d"))
    assert found == {"eval/pass@4": 1.0, "eval/maj@4": 1.0}
    assert (
        pass_and_majority([False, True, False, False], texts, 4, EvalConfig(k=4))["eval/maj@4"]
        == 0.0
    )  # all texts differ: the first wins


def test_with_k_of_one_both_are_the_accuracy_of_the_samples(make_config) -> None:
    trainer = Trainer(
        make_config(("eval.k", "1"), ("eval.n", "4")),
        reward=lambda response_ids: [float(len(r) > 3) for r in response_ids],
    )
    found = evaluate(trainer.roles.actor, trainer.roles.reward, trainer.held_out, trainer.config)
    assert found["eval/pass@1"] == pytest.approx(found["eval/maj@1"])
    assert 0 < found["eval/pass@1"] < 1


def test_more_samples_pass_more_often_and_the_same_weights_give_the_same_numbers(
    make_config,
) -> None:
    trainer = Trainer(
        make_config(("eval.k", "3")),
        reward=lambda response_ids: [float(len(r) > 3) for r in response_ids],
    )
    roles = trainer.roles
    found = [
        evaluate(roles.actor, roles.reward, trainer.held_out, trainer.config) for _ in range(2)
    ]
    assert found[0] == found[1]
    assert found[0]["eval/pass@3"] > found[0]["eval/sampled_accuracy"]


def test_eval_takes_settings_and_leaves_the_run_as_it_is(
    make_config, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(("steps", "1"))
    Trainer(config).fit()
    before = (config.run_dir / "config.toml").read_text("utf-8")
    main(["eval", str(config.run_dir), "--eval.k", "2", "--eval.n=4"])
    assert "eval/pass@2 " in capsys.readouterr().out
    assert (config.run_dir / "config.toml").read_text("utf-8") == before
    for wrong in (["--nosuch", "2"], ["--resume"], ["other"]):
        with pytest.raises(SystemExit) as end:
            main(["eval", str(config.run_dir), *wrong])
        assert end.value.code == 2
