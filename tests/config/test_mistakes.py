"""A wrong config is refused in one line that names the setting, what was given and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telescope.config import Config, load_config, load_saved_config
from telescope.errors import TelescopeError
from tests.config.configs import given, refusal, typed


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


@pytest.mark.parametrize("section", ["credit", "actor", "critic", "rollout", "eval", "data"])
@pytest.mark.parametrize("value", ["3", '"lr"', "[1]"])
def test_a_section_of_a_saved_run_that_is_no_table_is_named(recipe, section: str, value: str):
    with pytest.raises(TelescopeError, match=f"{section} = "):
        load_saved_config(recipe(f"{section} = {value}"))


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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("actor.learning_rate", "`actor.lr` (learning rate after warm-up)"),
        ("learning_rate", "`actor.lr` or `critic.lr` (learning rate after warm-up)"),
        ("rollout.num_generations", "`rollout.n` (responses per prompt)"),
        ("actor_rollout_ref.actor.optim.lr", "`actor.lr` (learning rate after warm-up)"),
        ("critic.optim.lr", "`critic.lr` (learning rate after warm-up)"),
        ("actor_rollout_ref.rollout.n", "`rollout.n`"),
        (
            "algo.advantage.lambd",
            "`credit.lam` (gae: λ: 0 trusts the critic, 1 the observed reward)",
        ),
        ("resume_from_checkpoint", "`--resume`"),
        ("actor.clip", "`actor.clip_low` or `actor.clip_high` or `actor.dual_clip`"),
        ("rollout.max_tokens", "`rollout.max_response_tokens`"),
    ],
)
def test_another_trainers_name_of_a_setting_is_answered_with_ours(typed: str, meant: str):
    assert refusal((typed, "1")) == f"command line: no setting `{typed}`; did you mean {meant}?"


def test_in_a_recipe_and_in_python_another_trainers_name_is_answered_with_ours(recipe):
    message = refusal(recipe=recipe("[actor]\nlearning_rate = 1e-6\n[megatron]\n"))
    assert "no setting `actor.learning_rate`; did you mean `actor.lr`" in message
    assert "no setting `megatron`; `telescope train --help` lists them all" in message
    with pytest.raises(ValueError, match=r"no setting `learning_rate`; did you mean `actor\.lr`"):
        Config(learning_rate=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"actor": {"learning_rate": 1}},
            "no setting `actor.learning_rate`; did you mean `actor.lr` "
            "(learning rate after warm-up)?",
        ),
        ({"actr": {"lr": 1e-6}}, "no setting `actr`; did you mean `actor`?"),
        ({"stpes": 3}, "no setting `stpes`; did you mean `steps`?"),
        (
            {"critic": {"head_start": 3}},
            "no setting `critic.head_start`: it is called `critic_warmup` now",
        ),
        ({"actor": {"lr": -1}}, "actor.lr = -1: input should be greater than 0"),
        (
            {"actor": {"lr": -1}, "stpes": 3},
            "actor.lr = -1: input should be greater than 0; "
            "config: no setting `stpes`; did you mean `steps`?",
        ),
    ],
)
def test_a_mistake_in_python_is_refused_as_one_in_a_recipe(settings: dict[str, Any], said: str):
    with pytest.raises(TelescopeError) as error:
        Config(**settings)
    assert str(error.value) == f"config: {said}"


def test_a_name_that_is_only_a_little_alike_is_not_suggested():
    assert "did you mean" not in refusal(("actor.momentum", "1"))
    assert "did you mean" not in refusal(("model.name", "1"))


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
        ("actor.loss", "grpo", "use one of clip, cpi, "),
        ("log.trackers", "excel", "'tensorboard'"),
        ("credit.whiten", "perhaps", "boolean"),
        ("name", "", "at least 1 character"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_range(key: str, value: str, why: str):
    message = refusal((key, value))
    assert key in message
    assert why in message


def test_a_table_given_as_text_is_answered_with_how_it_is_written(recipe):
    assert refusal(("reward.weights", "short=1")).endswith(
        "reward.weights = 'short=1': input should be a table, --reward.weights.NAME VALUE "
        "or --reward.weights '{\"NAME\": VALUE}'"
    )
    written = refusal(recipe=recipe("[reward]\nweights = 1"))
    assert written.endswith("reward.weights = 1: input should be a table, {NAME = VALUE}")


def test_a_list_given_as_text_in_a_recipe_is_answered_with_brackets(recipe):
    written = refusal(recipe=recipe('[data]\nfiles = "train.jsonl"'))
    assert written.endswith("data.files = 'train.jsonl': input should be a list, in brackets")


def test_a_wrong_value_inside_of_a_table_is_named_with_its_key():
    message = refusal(("reward.weights.short", "much"))
    assert message.startswith("command line: reward.weights.short = 'much': ")


def test_a_section_given_as_a_number_is_refused(recipe):
    assert "actor" in refusal(recipe=recipe("actor = 3"))
    assert "`actor` is not a section" in refusal(("actor.lr", "1"), recipe=recipe("actor = 3"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("ray.workers=6 ray.fsdp_size=4", "ray.workers = 6 is not a multiple of ray.fsdp_size = 4"),
        ("ray.workers_per_gpu=2", "ray.workers_per_gpu = 2 needs backend = 'ray'"),
        ("ray.workers=4 ray.fsdp_size=2 ray.critic_workers=3", "ray.critic_workers = 3 is"),
        (
            "backend=ray ray.sequence_parallel_size=4",
            "ray.workers = 1 is not a multiple of ray.sequence_parallel_size = 4",
        ),
        (
            "backend=ray ray.workers=12 ray.sequence_parallel_size=4 ray.critic_workers=2",
            "ray.critic_workers = 2 is not a multiple of ray.sequence",
        ),
        (
            "backend=ray ray.workers=12 ray.sequence_parallel_size=4 ray.fsdp_size=6",
            "ray.sequence_parallel_size = 4 and ray.fsdp_size = 6: the larger",
        ),
        (
            "ray.workers=4 ray.sequence_parallel_size=4",
            "ray.sequence_parallel_size = 4 needs backend = 'ray'",
        ),
    ],
)
def test_shards_and_shared_rows_that_do_not_fill_the_workers_are_refused(settings: str, why: str):
    assert why in refusal(*typed(settings))


def test_shards_and_shared_rows_that_fill_the_workers_are_taken():
    assert given(*typed("ray.workers=6 ray.fsdp_size=3")).ray.fsdp_size == 3
    shared = "backend=ray ray.workers=12 ray.sequence_parallel_size=4 ray.fsdp_size="
    for size in ("2", "4", "12"):
        assert given(*typed(shared + size)).ray.sequence_parallel_size == 4


def test_workers_that_share_a_policy_must_be_vllms_samplers_and_fill_engines():
    shared = "rollout.tensor_parallel_size=4"
    assert "rollout.tensor_parallel_size = 4 is for vLLM" in refusal(*typed(shared))
    vllm = f"backend=ray rollout.engine=vllm {shared} ray.samplers="
    for samplers in ("0", "2", "6"):
        message = refusal(*typed(vllm + samplers))
        assert f"and ray.samplers = {samplers} is no multiple of it" in message
        assert "set ray.samplers = 4 or 2 × 4" in message
    assert "needs a GPU for each worker" in refusal(*typed(f"{vllm}8 ray.workers_per_gpu=2"))
    assert given(*typed(vllm + "8")).rollout.tensor_parallel_size == 4


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_more_minibatches_than_responses_are_refused(role: str):
    four = f"rollout.batch_size=2 rollout.n=2 {role}.minibatches="
    message = refusal(*typed(four + "5"))
    assert f"{role}.minibatches = 5" in message
    assert "use at most 4" in message
    assert getattr(given(*typed(four + "4")), role).minibatches == 4


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_a_micro_batch_too_small_for_one_row_is_refused(role: str):
    row = typed("data.files=x.jsonl data.max_prompt_tokens=10 rollout.max_response_tokens=5")
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


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../b"])
def test_a_runs_name_stays_under_its_dir(name: str):
    with pytest.raises(TelescopeError, match="is not under `dir`"):
        load_config(None, [("name", name)])
    assert load_config(None, [("name", "group/one..two")]).run_dir == Path("runs/group/one..two")
