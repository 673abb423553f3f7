"""The config: what it accepts, what it refuses and how it says so, and that it survives being written down."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from telescope.config import BUILTIN_RECIPE, Config, changes, fields, load_config, to_toml
from tests.config.configs import given, round_trip


def test_defaults_are_valid():
    assert load_config() == Config()


def test_the_builtin_recipe_is_valid():
    assert load_config(BUILTIN_RECIPE).name == "arithmetic"


def test_builtin_takes_top_level_settings():
    config = Config.builtin(steps=3, seed=1)
    assert (config.steps, config.seed, config.rollout.batch_size) == (3, 1, 256)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"stpes": 3}], ids=["out-of-range", "unknown"])
def test_builtin_refuses_what_a_recipe_may_not_say(wrong: dict[str, int]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Config.builtin(**wrong)


@pytest.mark.parametrize("section", ["steps", "actor.lr", "reward.functions"])
def test_a_config_cannot_be_changed(section: str):
    *path, last = section.split(".")
    owner = Config()
    for name in path:
        owner = getattr(owner, name)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(owner, last, getattr(owner, last))


def test_every_setting_has_a_type_and_a_description():
    bare = [key for key, kind, _, description in fields() if not kind or not description]
    assert bare == []


def test_fields_lists_every_leaf_of_the_config_and_the_settings_of_all_algorithms():
    leaves = set()
    for name, value in Config().model_dump().items():
        leaves |= {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    listed = [key for key, *_ in fields()]
    assert len(listed) == len(set(listed))
    assert leaves <= set(listed)
    assert {"credit.last_k", "actor.tau_negative", "critic.huber_delta"} <= set(listed) - leaves


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("actor.lr", "1e-6", 1e-6),
        ("actor.lr", "3", 3.0),
        ("steps", "10_000", 10_000),
        ("credit.whiten", "false", False),
        ("credit.bootstrap_truncated", "true", True),
        ("credit.kl_target", "none", None),
        ("credit.kl_target", "None", None),
        ("critic.clip_value", "none", None),
        ("model.critic_path", "none", None),
        ("data.files", "a.jsonl", ["a.jsonl"]),
        ("data.files", "a.jsonl,b.parquet", ["a.jsonl", "b.parquet"]),
        ("data.files", '["a,b.jsonl"]', ["a,b.jsonl"]),
        ("data.files", "2024.jsonl", ["2024.jsonl"]),
        ("log.trackers", "tensorboard,wandb", ["tensorboard", "wandb"]),
        ("log.trackers", "[]", []),
        ("reward.weights", "{verdict = 2.0, model = -1}", {"verdict": 2.0, "model": -1.0}),
        ("reward.weights", '{"verdict": 2, "model": -1}', {"verdict": 2.0, "model": -1.0}),
        ("eval.correct_score", "-1", -1.0),
        ("name", "7", "7"),
        ("name", "007", "007"),
        ("name", "1e-6", "1e-6"),
        ("name", "true", "true"),
        ("name", "2024-01-01", "2024-01-01"),
        ("name", "a b", "a b"),
        ("model.path", "0", "0"),
    ],
)
def test_a_command_line_value_is_read_as_its_setting_s_type(key: str, text: str, value: object):
    files = [("data.files", "t.jsonl")] if key.startswith("reward") else []
    found: object = given(*files, (key, text))
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_one_weight_can_be_set_by_its_dotted_name():
    assert given(("reward.weights.verdict", "2"), ("reward.weights.sum", "0.5")).reward.weights == {
        "verdict": 2.0,
        "sum": 0.5,
    }


def test_a_key_inside_of_a_table_leaves_the_others_as_the_recipe_has_them(recipe):
    path = recipe(
        """
        [reward]
        functions = ["short=regex", "length"]
        weights = {short = 1.0, length = 0.5}
        [reward.options]
        short = {pattern = "x"}
        length = {most = 8}
        [eval.sets.a]
        files = ["a.jsonl"]
        """
    )
    one = ("reward.options.length.most", "4")
    config = load_config(path, [("reward.weights.short", "2"), one, ("eval.sets.a.prompts", "3")])
    assert config.reward.weights == {"short": 2.0, "length": 0.5}
    assert config.reward.options == {"short": {"pattern": "x"}, "length": {"most": 4}}
    assert (config.eval.sets["a"].files, config.eval.sets["a"].prompts) == (["a.jsonl"], 3)
    whole = load_config(path, [("reward.weights", '{"short": 3}')])
    assert whole.reward.weights == {"short": 3.0}


def test_lists_of_a_named_set_are_typed_as_other_lists():
    typed = (("eval.sets.a.files", "a.jsonl,b.jsonl"), ("eval.sets.a.functions", "regex"))
    chosen = given(*typed).eval.sets["a"]
    assert (chosen.files, chosen.functions) == (["a.jsonl", "b.jsonl"], ["regex"])


def test_a_shipped_recipe_is_loaded_by_its_name():
    config = load_config("grpo", [("steps", 3)])
    assert (config.credit.estimator, config.steps) == ("grpo", 3)


def test_the_command_line_overrides_the_recipe_and_the_last_value_wins(recipe):
    config = load_config(recipe("steps = 1\nseed = 5"), [("steps", "2"), ("steps", "3")])
    assert (config.steps, config.seed) == (3, 5)


def test_options_of_a_task_may_be_json():
    task = ("data.task", "chain_sum")
    config = given(task, ("data.options", '{"min_terms": 2, "names": ["a", null]}'))
    assert config.data.options == {"min_terms": 2, "names": ["a", None]}


def test_paths_in_a_recipe_are_found_beside_it(recipe, monkeypatch: pytest.MonkeyPatch):
    path = recipe(
        """
        [model]
        path = "model"
        [data]
        files = ["train.jsonl", "parts/*.jsonl", "elsewhere.jsonl"]
        [reward]
        functions = ["rewards.py:exact", "module:exact", "https://host/rewards.py:exact"]
        [eval.sets.hard]
        files = ["train.jsonl"]
        functions = ["rewards.py:exact"]
        """
    )
    folder = path.parent
    (folder / "parts").mkdir()
    (folder / "model").mkdir()
    for name in ("train.jsonl", "parts/1.jsonl", "rewards.py"):
        (folder / name).touch()
    monkeypatch.chdir(folder.parent)
    config = load_config(path.relative_to(folder.parent))
    assert config.model.path == f"{folder}/model"
    assert config.data.files == [
        f"{folder}/train.jsonl",
        f"{folder}/parts/*.jsonl",
        "elsewhere.jsonl",  # not beside it: in the working folder
    ]
    assert config.reward.functions[0] == f"{folder}/rewards.py:exact"
    assert config.eval.sets["hard"].files == [f"{folder}/train.jsonl"]
    assert config.eval.sets["hard"].functions == [f"{folder}/rewards.py:exact"]
    assert config.reward.functions[1:] == ["module:exact", "https://host/rewards.py:exact"]


def test_a_path_on_the_command_line_is_relative_to_the_working_folder(recipe):
    path = recipe("steps = 1")
    (path.parent / "train.jsonl").touch()
    assert load_config(path, [("data.files", "train.jsonl")]).data.files == ["train.jsonl"]


def test_the_defaults_survive_being_written(tmp_path: Path):
    assert round_trip(Config(), tmp_path) == Config()


@pytest.mark.parametrize(
    "text",
    [
        'say "hi"',
        "back\\slash\\n",
        "C:\\new\\table",
        "trailing\\",
        "两个\n行 λ 🙂",
        "tab\there",
        "carriage\rreturn",
        "bell\x07, delete\x7f",
        "'single'",
        "# no comment",
        '"""',
    ],
)
def test_any_text_survives_being_written(tmp_path: Path, text: str):
    config = given(("name", text), ("data.files", "t.jsonl"), ("model.path", text))
    assert round_trip(config, tmp_path) == config


def test_lists_weights_numbers_and_flags_survive_being_written(tmp_path: Path):
    config = load_config(
        None,
        [
            ("data.files", '["a\\"b.jsonl", "c\\\\d.jsonl", "中.parquet"]'),
            ("reward.weights", '{"a b" = 0.1, "c\\"d" = -2, e = 1e-30}'),
            ("actor.lr", "1.2345678901234567e-7"),
            ("critic.lr", "1e22"),
            ("eval.correct_score", "1e300"),
            ("credit.whiten", "false"),
            ("log.trackers", "tensorboard,trackio"),
            ("credit.kl_target", "0.1"),
        ],
    )
    again = round_trip(config, tmp_path)
    assert again == config
    assert again.data.files == ['a"b.jsonl', "c\\d.jsonl", "中.parquet"]
    assert again.reward.weights == {"a b": 0.1, 'c"d': -2.0, "e": 1e-30}


def test_a_none_that_is_not_the_default_survives_being_written(tmp_path: Path):
    config = given(("critic.clip_value", "none"))
    assert round_trip(config, tmp_path).critic.clip_value is None


def test_what_is_written_is_plain_toml():
    written = tomllib.loads(to_toml(given(("credit.kl_target", "0.25"))))
    assert written["credit"]["kl_target"] == 0.25
    assert written["steps"] == 200


def test_changes_says_what_changed_and_nothing_else():
    old = given(("actor.lr", "1e-6"))
    new = given(
        ("actor.lr", "1e-5"),
        ("steps", "7"),
        ("credit.kl_target", "0.5"),
        ("reward.weights.sum", "2"),
    )
    assert changes(old, new) == [
        "steps: 200 → 7",
        "reward.weights: {} → {'sum': 2.0}",
        "credit.kl_target: None → 0.5",
        "actor.lr: 1e-06 → 1e-05",
    ]
    assert changes(new, new) == []


def test_changes_also_sees_a_value_that_went_away():
    assert changes(given(("credit.kl_target", "0.5")), given()) == ["credit.kl_target: 0.5 → None"]


def test_reading_a_config_does_not_import_torch():
    code = "import sys, telescope.config as c; c.load_config(c.BUILTIN_RECIPE); assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_choices_of_the_config_are_the_tables_of_the_code():
    from typing import get_args

    from telescope.algorithms import KL_ESTIMATES
    from telescope.algorithms.definitions.mismatch import REJECTIONS
    from telescope.config import ActorConfig, CreditConfig

    assert set(get_args(CreditConfig.model_fields["kl_kind"].annotation)) == set(KL_ESTIMATES)
    assert get_args(ActorConfig.model_fields["reject"].annotation) == ("off", *REJECTIONS)


def test_in_python_a_recipe_may_be_a_string_and_a_value_a_number(recipe):
    path = recipe("seed = 4")
    config = load_config(str(path), [("steps", 3), ("model.compile", True)])
    assert (config.seed, config.steps, config.model.compile) == (4, 3, True)
