"""reasoning-gym: which problems are trained on and held out, and what of a response is scored."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope import Trainer, ledger
from telescope.build import build_reward
from telescope.commands import main
from telescope.config import Config, load_config, smoke
from telescope.data.build import build_data
from telescope.data.gym import answer_of, rows, scorer
from telescope.errors import TelescopeError
from telescope.models.load import load_tokenizer
from telescope.run.timing import expected_hours
from tests import ROOT
from tests.test_recipes import write_model

pytest.importorskip("reasoning_gym", reason="the extra `gym` is not installed")

RECIPE = ROOT / "recipes" / "smollm2-arithmetic.toml"
TWO_DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def made(
    task: str = "chain_sum",
    options: Any = TWO_DIGITS,
    size: int = 300,
    instruction: str | None = None,
) -> Any:
    return rows(task, options, size, instruction)


def question(row: dict[str, Any]) -> str:
    return row["prompt"][-1]["content"]


def test_no_problem_is_there_twice_and_none_is_both_trained_on_and_held_out() -> None:
    train, held_out = made(size=2000)
    everything = [question(row) for row in train + held_out]
    assert (len(train), len(held_out)) == (2000, 500)
    assert len(set(everything)) == 2500


def test_a_small_task_is_used_up_and_nothing_held_out_leaks_into_training() -> None:
    train, held_out = made(options=ONE_DIGIT, size=1000)  # 10 × 10 × 2 problems
    assert len(held_out) == 100
    assert len(train) == 100
    assert not {question(row) for row in train} & {question(row) for row in held_out}


def test_problems_are_the_same_every_time_and_carry_what_the_scorer_needs() -> None:
    (train, _), (again, _) = made(), made()
    assert train == again
    assert train[0]["prompt"] == [{"role": "user", "content": train[0]["entry"]["question"]}]


def test_an_instruction_is_the_system_message() -> None:
    train, held_out = made(size=3, instruction="Be brief.")
    for row in train + held_out:
        assert row["prompt"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("pattern", "response", "answer"),
    [
        (r"-?\d+", "42 - 25 = 17.", "17"),
        (r"-?\d+", "It is -30", "-30"),
        (r"-?\d+", "I do not know", None),
        (r"#### (-?\d+)", "3 #### 4", "4"),
        (None, " 17\n", "17"),
        (None, "42 - 25 <answer>17</answer> it is", "17"),
    ],
)
def test_what_of_a_response_is_its_answer(
    pattern: str | None, response: str, answer: str | None
) -> None:
    assert answer_of(response, pattern) == answer


def test_the_score_is_reasoning_gyms_own() -> None:
    entry = {"question": "", "answer": "17", "metadata": {}}
    scores = scorer("chain_sum", {}, r"-?\d+")(
        ["42 - 25 = 17", "17.", "+017", "-17", "18", "none"], [entry] * 6
    )
    part = pytest.approx(2 / 3)  # «-17» holds «17»: two of its three characters
    assert scores == [1.0, 1.0, 1.0, part, 0.0, 0.0]
    assert scorer("chain_sum", {}, None)(["it is 17"], [entry]) == [0.25]


def test_without_partial_credit_only_a_right_answer_is_paid() -> None:
    entry = {"question": "", "answer": "17", "metadata": {}}
    strict = scorer("chain_sum", {}, r"-?\d+", partial_credit=False)
    assert strict(["17.", "-17", "18", "none"], [entry] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_the_setting_reaches_the_reward() -> None:
    entry = {"question": "", "answer": "17", "metadata": {}}
    data = {"task": "chain_sum", "answer": r"-?\d+"}
    for partial_credit, paid in ((True, pytest.approx(2 / 3)), (False, 0.0)):
        config = Config.builtin(data={**data, "partial_credit": partial_credit})
        reward = build_reward(config, None, torch.device("cpu"))
        assert reward.functions["gym_score"](["-17"], [entry]) == [paid]


def test_the_scorer_knows_the_options_of_its_problems() -> None:
    """time_intervals pays by an answer's error, relative to the longest interval it may ask for."""
    options = {"max_time_difference_seconds": 60, "task_types": ["time_seconds"]}
    entry = {"question": "", "answer": "00:00:49", "metadata": {"task_type": "time_seconds"}}
    own, default = (
        scorer("time_intervals", chosen, None)(["00:00:10"], [entry])[0] for chosen in (options, {})
    )
    assert own == pytest.approx(0.35, abs=0.01)
    assert default > 0.9


def test_an_answer_that_a_scorer_trips_over_is_worth_nothing() -> None:
    entry = made("prime_factorization", {}, size=1)[0][0]["entry"]
    assert scorer("prime_factorization", {}, None)(["9o7e1", entry["answer"]], [entry] * 2) == [
        0.0,
        1.0,
    ]


def test_what_a_tool_said_is_not_the_policys_answer() -> None:
    assert "completions" not in inspect.signature(scorer("chain_sum", {}, None)).parameters


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("chain_sums", {}, "did you mean 'chain_sum'?"),
        ("chain_sum", {"terms": 2}, "it knows min_terms"),
        ("chain_sum", {"min_terms": 3, "max_terms": 2}, "data.options of 'chain_sum'"),
        ("chain_sum", {"min_digits": 1, "max_digits": 2.5}, "data.options of 'chain_sum'"),
    ],
)
def test_mistakes_are_explained(task: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TelescopeError, match=message.replace("?", r"\?")):
        made(task, options)


def test_a_mistake_in_the_task_is_found_before_any_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="did you mean"):
        Trainer(
            Config.builtin(
                dir=str(tmp_path),
                model={"path": str(tmp_path / "nothing")},
                data={"task": "chain_sums"},
            )
        )


def test_held_out_problems_do_not_depend_on_how_many_are_used(tmp_path: Path) -> None:
    given = [("model.path", str(write_model(tmp_path / "model", "llama"))), ("data.size", "50")]
    tokenizer = load_tokenizer(str(tmp_path / "model"))
    few, all_of_them = (
        build_data(load_config(RECIPE, [*given, *more]), tokenizer)
        for more in ([("eval.prompts", "7")], [])
    )
    assert (len(few[1]), len(all_of_them[1])) == (7, 500)
    assert few[0].texts == all_of_them[0].texts
    assert few[1].texts == all_of_them[1].texts[:7]
    with pytest.raises(TelescopeError, match="holds 500 problems out"):
        build_data(load_config(RECIPE, [*given, ("eval.prompts", "501")]), tokenizer)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(TelescopeError, match=r"pip install -e '.\[gym\]'"):
        made()


@pytest.mark.parametrize(
    "changes",
    [
        {"options": TWO_DIGITS},
        {"size": 5},
        {"instruction": "x"},
        {"answer": r"\d"},
        {"partial_credit": False},
    ],
)
def test_settings_of_a_task_are_refused_without_one(changes: dict[str, Any]) -> None:
    with pytest.raises(TelescopeError, match=r"does nothing without data\.task"):
        Config.builtin(data=changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"seed": 1}}, r"data\.options\.seed"),
        ({"options": {"size": 1}}, "use `data.size`"),
        ({"prompt_key": "question"}, "has none"),
    ],
)
def test_settings_that_a_task_would_not_read_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TelescopeError, match=message):
        Config.builtin(data={"task": "chain_sum", **changes})


def test_files_and_a_task_exclude_each_other() -> None:
    with pytest.raises(TelescopeError, match="leave one of them out"):
        Config.builtin(data={"task": "chain_sum", "files": ["a.jsonl"]})


@pytest.mark.parametrize("task", ["chain_sum", "basic_arithmetic", "gsm_symbolic"])
def test_each_task_that_the_recipe_names_makes_problems_that_its_own_answers_solve(
    task: str,
) -> None:
    train, held_out = made(task, {}, size=20)
    for row in train + held_out[:5]:
        assert scorer(task, {}, r"-?\d[\d,.]*")(
            [f"so it is {row['entry']['answer']}"], [row["entry"]]
        ) == [1.0]


# ---- the recipe with a tiny model in place of SmolLM2


def small_recipe(folder: Path) -> Config:
    """Replaced: the model by a tiny random one, whose tokens are letters and digits, and sizes."""
    given = [
        ("model.path", str(write_model(folder / "model", "llama"))),
        ("dir", str(folder)),
        ("device", "cpu"),
    ]
    return smoke(load_config(RECIPE, given))


@pytest.mark.slow
def test_the_recipe_learns_from_reasoning_gyms_scores(tmp_path: Path) -> None:
    config = small_recipe(tmp_path)
    trainer = Trainer(config)
    trainer.fit()
    steps = [row for row in trainer.history() if "reward/gym_score" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert "eval/greedy_accuracy" in trainer.history()[0]
    sample = ledger.samples(config.run_dir, 2)[0]
    assert "State the final answer to the following arithmetic problem" in sample.prompt


@pytest.mark.slow
def test_smoke_runs_from_the_command_line_in_a_folder_of_its_own_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", "llama")
    for number in (1, 2):
        here = ["--model.path", str(model), "--dir", str(tmp_path / "runs"), "--device", "cpu"]
        main(["train", str(RECIPE), "--smoke", *here])
        said = capsys.readouterr().out
        assert "trained 2 steps" in said
        assert "export" not in said
        run = tmp_path / "runs" / f"smollm2-arithmetic-smoke-{number}"
        assert (run / "report.html").is_file()
        # The weights may be large, and a smoke run is never resumed.
        assert not (run / "checkpoints").exists()
    with pytest.raises(SystemExit):
        main(["train", str(RECIPE), "--smoke", "--resume"])
    assert "nothing to --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    "recipe", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem
)
def test_every_recipe_can_be_cut_down(recipe: Path) -> None:
    config = smoke(load_config(recipe))
    assert config.steps == 2
    assert config.rollout.batch_size * config.rollout.n <= 16


def test_what_a_run_without_a_gpu_would_take_grows_with_the_work(tmp_path: Path) -> None:
    config = small_recipe(tmp_path)
    actor = Trainer(config).roles.actor
    once = expected_hours(config, actor.cost, [[1] * 40], steps=2)
    assert 0 < once < 1e-3
    assert expected_hours(config, actor.cost, [[1] * 40], steps=2000) == pytest.approx(1000 * once)
