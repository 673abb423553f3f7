"""The config: what it accepts, what it refuses and how it says so, and that it survives being written down."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from telescope.config import BUILTIN_RECIPE, Config, changes, fields, load_config, to_toml
from telescope.errors import TelescopeError


def given(*overrides: tuple[str, str]) -> Config:
    """Defaults with these command-line values."""
    return load_config(None, overrides)


def refusal(*overrides: tuple[str, str], recipe: Path | None = None) -> str:
    """The one line that a wrong config gets."""
    with pytest.raises(TelescopeError) as error:
        load_config(recipe, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def recipe(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def round_trip(config: Config, folder: Path) -> Config:
    path = folder / "written.toml"
    path.write_bytes(to_toml(config).encode("utf-8"))
    return load_config(path)


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


def test_fields_lists_every_leaf_of_the_config():
    leaves = []
    for name, value in Config().model_dump().items():
        leaves += [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
    assert [key for key, *_ in fields()] == leaves


# ---- unknown keys


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stpes", "steps"),
        ("rollout.batchsize", "rollout.batch_size"),
        ("lam", "credit.lam"),
    ],
)
def test_an_unknown_key_on_the_command_line_is_named_with_a_suggestion(typed: str, meant: str):
    assert refusal((typed, "1")) == f"command line: no setting `{typed}`; did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("text", "wrong", "meant"),
    [
        ("stpes = 3", "stpes", "steps"),
        ("[credit]\nlamda = 0.9", "credit.lamda", "credit.lam"),
        ("[actr]\nlr = 1e-3", "actr", "actor"),
    ],
)
def test_an_unknown_key_in_a_recipe_is_named_with_the_file_and_a_suggestion(
    recipe, text: str, wrong: str, meant: str
):
    path = recipe(text)
    message = refusal(recipe=path)
    assert message == f"{path}: no setting `{wrong}`; did you mean `{meant}`?"


def test_a_key_like_no_other_is_refused_with_a_pointer_to_the_help():
    assert "telescope train --help" in refusal(("zzzz", "1"))


def test_two_mistakes_are_both_told_on_one_line():
    message = refusal(("stpes", "1"), ("actor.lr", "-1"))
    assert "stpes" in message
    assert "actor.lr" in message


def test_a_recipe_s_mistake_is_not_blamed_on_the_command_line(recipe):
    message = refusal(("steps", "3"), recipe=recipe("[actor]\nlr = -1"))
    assert message.startswith(str(recipe("")))
    assert "command line" not in message


# ---- values out of range


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("actor.lr", "-1", "greater than 0"),
        ("credit.gamma", "1.5", "less than or equal to 1"),
        ("actor.clip_low", "1", "less than 1"),
        ("steps", "-1", "greater than or equal to 0"),
        ("steps", "many", "integer"),
        ("steps", "2.5", "integer"),
        ("rollout.top_p", "0", "greater than 0"),
        ("checkpoint.keep", "0", "greater than or equal to 1"),
        ("actor.dual_clip", "1", "greater than 1"),
        ("actor.loss", "grpo", "'clip', 'cpi', "),
        ("log.trackers", "excel", "'tensorboard'"),
        ("credit.whiten", "perhaps", "boolean"),
        ("name", "", "at least 1 character"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_range(key: str, value: str, why: str):
    message = refusal((key, value))
    assert key in message
    assert why in message


def test_a_section_given_as_a_number_is_refused(recipe):
    assert "actor" in refusal(recipe=recipe("actor = 3"))
    assert "`actor` is not a section" in refusal(("actor.lr", "1"), recipe=recipe("actor = 3"))


# ---- keys that contradict each other


def test_slices_that_do_not_fill_the_workers_are_refused():
    assert "ray.workers = 6 is no multiple of ray.fsdp_size = 4" in refusal(
        ("ray.workers", "6"), ("ray.fsdp_size", "4")
    )
    assert "ray.critic_workers = 3 is" in refusal(
        ("ray.workers", "4"), ("ray.fsdp_size", "2"), ("ray.critic_workers", "3")
    )
    assert given(("ray.workers", "6"), ("ray.fsdp_size", "3")).ray.fsdp_size == 3


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_more_minibatches_than_responses_are_refused(role: str):
    message = refusal(("rollout.batch_size", "2"), ("rollout.n", "2"), (f"{role}.minibatches", "5"))
    assert f"{role}.minibatches = 5" in message
    assert "use at most 4" in message
    assert (
        getattr(
            given(("rollout.batch_size", "2"), ("rollout.n", "2"), (f"{role}.minibatches", "4")),
            role,
        ).minibatches
        == 4
    )


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_a_micro_batch_too_small_for_one_row_is_refused(role: str):
    row = [
        ("data.files", "x.jsonl"),
        ("data.max_prompt_tokens", "10"),
        ("rollout.max_response_tokens", "5"),
    ]
    message = refusal(*row, (f"{role}.micro_batch_tokens", "14"))
    assert f"{role}.micro_batch_tokens = 14" in message
    assert "= 15: raise it" in message
    assert getattr(given(*row, (f"{role}.micro_batch_tokens", "15")), role).micro_batch_tokens == 15


def test_eval_files_without_training_files_are_refused():
    assert "data.eval_files without data.files" in refusal(("data.eval_files", "x.jsonl"))
    assert given(("data.eval_files", "x.jsonl"), ("data.files", "y.jsonl")).data.eval_files == [
        "x.jsonl"
    ]


def test_a_kl_target_without_a_coefficient_to_adapt_is_refused():
    assert "credit.kl_coef > 0" in refusal(("credit.kl_target", "0.1"), ("credit.kl_coef", "0"))
    assert given(("credit.kl_target", "0.1"), ("credit.kl_coef", "0.2")).credit.kl_target == 0.1


def test_a_contradiction_inside_a_recipe_names_the_recipe(recipe):
    path = recipe("[credit]\nkl_target = 0.1\nkl_coef = 0.0")
    assert refusal(recipe=path).startswith(f"{path}: credit.kl_target")


# ---- recipes that are none


def test_a_missing_recipe_is_named(tmp_path: Path):
    assert "nosuch.toml" in refusal(recipe=tmp_path / "nosuch.toml")


def test_a_folder_given_as_recipe_is_named(tmp_path: Path):
    assert str(tmp_path) in refusal(recipe=tmp_path)


@pytest.mark.parametrize(
    "text", ["steps = ", "steps = 1\nsteps = 2", "\udcff"], ids=["no-value", "twice", "not-utf8"]
)
def test_a_recipe_that_is_no_toml_is_named(tmp_path: Path, text: str):
    path = tmp_path / "broken.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert f"{path} is not valid TOML" in refusal(recipe=path)


# ---- command-line values


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


def test_the_command_line_overrides_the_recipe_and_the_last_value_wins(recipe):
    config = load_config(recipe("steps = 1\nseed = 5"), [("steps", "2"), ("steps", "3")])
    assert (config.steps, config.seed) == (3, 5)


# ---- round trip


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


# ---- changes


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

    from telescope.algorithms.losses import Aggregation
    from telescope.config import ActorConfig, CreditConfig, CriticConfig
    from telescope.credit import ESTIMATORS
    from telescope.roles.actor import POLICY_LOSSES
    from telescope.roles.critic import VALUE_LOSSES

    assert set(get_args(CreditConfig.model_fields["estimator"].annotation)) == set(ESTIMATORS)
    assert set(get_args(ActorConfig.model_fields["loss"].annotation)) == set(POLICY_LOSSES)
    assert set(get_args(CriticConfig.model_fields["loss"].annotation)) == set(VALUE_LOSSES)
    assert get_args(ActorConfig.model_fields["aggregation"].annotation) == (
        "auto",
        *get_args(Aggregation),
    )


# ---- settings that the chosen algorithm would not read


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            [("credit.estimator", "grpo")],
            "compares the responses of one prompt, and rollout.n = 1: use at least 2",
        ),
        ([("credit.estimator", "attention")], "needs reward.attention"),
        (
            [("reward.attention", "a:b")],
            "reward.attention = a:b does nothing with credit.estimator = 'gae': it belongs to attention",
        ),
        (
            [("credit.estimator", "gdpo"), ("rollout.n", "2")],
            "set it to 0, and use actor.kl_loss_coef",
        ),
        (
            [("credit.estimator", "remax"), ("credit.bootstrap_truncated", "true")],
            "does nothing with credit.estimator = 'remax'",
        ),
        (
            [("credit.estimator", "uniform"), ("critic_warmup", "3")],
            "critic_warmup = 3 does nothing",
        ),
        (
            [("credit.estimator", "rloo"), ("rollout.n", "2"), ("critic.head_init", "normal")],
            "critic.head_init = normal does nothing",
        ),
        (
            [("critic.head_init", "ones")],
            "critic.head_init = 'ones': input should be 'zero' or 'normal'",
        ),
        (
            [("credit.estimator", "uniform"), ("model.critic_path", "x")],
            "model.critic_path = x does nothing",
        ),
        ([("credit.estimator", "td0"), ("credit.lam_critic", "1")], "it belongs to gae"),
        (
            [("credit.last_k", "4")],
            "credit.last_k = 4 does nothing with credit.estimator = 'gae': it belongs to last_token",
        ),
        (
            [("credit.estimator", "last_token"), ("credit.last_k", "0")],
            "credit.last_k = 0: input should be greater than or equal to 1",
        ),
        (
            [("actor.loss", "gspo"), ("actor.dual_clip", "3")],
            "actor.dual_clip = 3.0 does nothing with actor.loss = 'gspo': it belongs to clip",
        ),
        ([("actor.beta", "0.3")], "it belongs to kl_penalty, kl_cov, dro"),
        ([("actor.reject_low", "0.9")], "it belongs to token, sequence, geometric"),
        (
            [("actor.reject", "token"), ("actor.reject_low", "3")],
            "actor.reject_low = 3 keeps nothing",
        ),
        ([("critic.huber_delta", "2")], "it belongs to huber"),
        (
            [("critic.loss", "huber"), ("credit.estimator", "reinforce++")],
            "critic.loss = huber does nothing",
        ),
        (
            [("critic.bins", "21")],
            "critic.bins = 21 does nothing with critic.loss = 'mse': it belongs to hl_gauss",
        ),
        ([("critic.value_low", "-1")], "it belongs to hl_gauss"),
        ([("critic.value_high", "1")], "it belongs to hl_gauss"),
        (
            [("critic.loss", "huber"), ("critic.sigma", "1")],
            "critic.sigma = 1.0 does nothing with critic.loss = 'huber'",
        ),
        (
            [("critic.loss", "hl_gauss"), ("critic.clip_value", "0.5")],
            "critic.clip_value = 0.5 does nothing with critic.loss = 'hl_gauss'",
        ),
        (
            [("critic.loss", "hl_gauss"), ("critic.value_low", "2")],
            "critic.value_low = 2 is not below critic.value_high = 2",
        ),
        (
            [("critic.loss", "hl_gauss"), ("critic.bins", "1")],
            "critic.bins = 1: input should be greater than or equal to 2",
        ),
        (
            [("critic.loss", "hl_gauss"), ("critic.value_high", "inf")],
            "critic.value_high = inf: input should be a finite number",
        ),
        (
            [("critic.loss", "hl_gauss"), ("critic.bins", "1_000_000")],
            "critic.bins = 1000000: input should be less than or equal to 10000",
        ),
        ([("actor.clip_high", "inf")], "actor.clip_high = inf: input should be a finite number"),
        (
            [("critic.clip_value", "inf")],
            "critic.clip_value = inf: input should be a finite number",
        ),
        (
            [("eval.correct_score", "nan")],
            "eval.correct_score = nan: input should be a finite number",
        ),
        ([("reward.weights", "{a = inf}")], "input should be a finite number"),
        (
            [("actor.loss", "clip_cov"), ("actor.cov_low", "5")],
            "actor.cov_low = 5 leaves no covariance below actor.cov_high = 5",
        ),
        ([("actor.lr", "true")], "actor.lr = 'true': input should be a valid number"),
        (
            [("rollout.batch_size", "true")],
            "rollout.batch_size = 'true': input should be a valid integer",
        ),
        ([("model.path", "")], "model.path = '': string should have at least 1 character"),
        (
            [("rollout.dynamic_sampling", "2")],
            "rollout.dynamic_sampling compares the responses of one prompt, and rollout.n = 1: use at least 2",
        ),
        (
            [
                ("rollout.dynamic_sampling", "2"),
                ("rollout.n", "2"),
                ("rollout.one_step_off_policy", "true"),
                ("backend", "ray"),
                ("ray.samplers", "1"),
            ],
            "rollout.one_step_off_policy samples before that: turn one off",
        ),
        (
            [("reward.overlong_tokens", "9"), ("rollout.max_response_tokens", "8")],
            "reward.overlong_tokens = 9 are more than",
        ),
        ([("reward.overlong_penalty", "2")], "does nothing without reward.overlong_tokens"),
        (
            [
                ("credit.estimator", "gdpo"),
                ("rollout.n", "2"),
                ("credit.kl_coef", "0"),
                ("reward.clip", "1"),
            ],
            "change only the sum",
        ),
        (
            [("backend", "ray"), ("ray.reward_workers", "1")],
            "would hold reward.model, and there is none",
        ),
        ([("eval.n", "4")], "do nothing without eval.k"),
        (
            [("eval.k", "4"), ("eval.n", "3")],
            "eval.n = 3 samples cannot tell eval.k = 4: use at least 4",
        ),
        ([("eval.k", "4"), ("eval.answer", "(")], "eval.answer = '(' is no regular expression"),
    ],
)
def test_what_an_algorithm_would_ignore_or_lacks_is_refused_in_one_line(overrides, why: str):
    message = refusal(*overrides)
    assert why in message
    assert "\n" not in message


def test_a_resolved_config_of_a_critic_free_run_loads_again(tmp_path):
    config = given(("credit.estimator", "grpo"), ("rollout.n", "4"), ("actor.loss", "gspo"))
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), "utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            {"environment": "abacus"},
            "it is calculator, search, module:Class, file.py:Class or none",
        ),
        (
            {"max_turns": "3"},
            "rollout.max_turns = 3 does nothing with rollout.environment = 'none'",
        ),
        ({"tool_seconds": "3"}, "rollout.tool_seconds = 3.0 does nothing"),
        (
            {"environment": "calculator", "corpus": "x"},
            "rollout.corpus = x does nothing with rollout.environment = 'calculator'",
        ),
        ({"environment": "calculator", "max_turns": "1"}, "greater than or equal to 2"),
    ],
)
def test_settings_of_tools_that_nobody_would_read_are_refused(overrides: dict[str, str], why: str):
    assert why in refusal(*((f"rollout.{key}", value) for key, value in overrides.items()))


def test_search_needs_a_corpus_but_for_the_builtin_task(tmp_path: Path):
    search = ("rollout.environment", "search")
    assert given(search).toy == "search"
    assert "needs rollout.corpus" in refusal(search, ("model.path", "some/model"))
    config = given(
        search,
        ("model.path", "some/model"),
        ("rollout.corpus", "x.jsonl"),
        ("rollout.passages", "5"),
    )
    assert config.toy is None
    assert round_trip(config, tmp_path) == config
    assert given(("rollout.environment", "none")).rollout.environment is None


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../b"])
def test_a_runs_name_stays_under_its_dir(name: str):
    with pytest.raises(TelescopeError, match="is not under `dir`"):
        load_config(None, [("name", name)])
    assert load_config(None, [("name", "group/one..two")]).run_dir == Path("runs/group/one..two")
