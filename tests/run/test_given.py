"""What a script passes to Trainer: models, tokenizers, data and rewards, by name or as objects."""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import telescope
from telescope import Config, Event, TelescopeError, Trainer, evaluate_run, export_run
from telescope.config import to_toml
from telescope.config.unused import unused
from telescope.data.files import read_rows
from telescope.data.sources import GIVEN
from telescope.run.given import take_arguments
from telescope.run.lifecycle import Interrupted
from tests.fakes import read_shards
from tests.refusals import PROMPTS, Job, length, write_jsonl
from tests.run.compared import (
    MakeConfig,
    StopAt,
    assert_same_run,
    last_checkpoint,
    rows,
    same,
)

MakeTiny = Callable[..., Config]


# ---- names


def test_every_name_in_all_can_be_imported_and_completed():
    assert set(telescope.__all__) <= set(dir(telescope))
    assert [name for name in telescope.__all__ if not hasattr(telescope, name)] == []


def test_a_setting_that_is_not_read_is_still_named_beside_a_given_model(tiny_model: Path):
    config = Config(credit={"estimator": "grpo"}, rollout={"n": 2}, critic={"lr": 1e-5})
    taken, _ = take_arguments(
        config,
        model=tiny_model,
        tokenizer=None,
        train_dataset=None,
        eval_dataset=None,
        reward=None,
    )
    assert [line.partition(":")[0] for line in unused(taken)] == ["critic.lr"]


def test_paths_become_settings(job: Job, tmp_path: Path, tiny_model: Path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(job(("steps", "1"))), "utf-8")
    data = write_jsonl(tmp_path / "other.jsonl", [{"prompt": "1+1"}])
    (tmp_path / "mine.py").write_text("def one(prompts): return [1.0] * len(prompts)")
    trainer = Trainer(
        recipe,
        model=tiny_model,
        tokenizer=str(tiny_model),
        train_dataset=[data, data],
        eval_dataset=data,
        reward=f"{tmp_path}/mine.py:one",
    )
    config = trainer.config
    assert config.model.path == config.model.tokenizer_path == str(tiny_model)
    assert (config.data.files, config.data.eval_files) == ([str(data)] * 2, [str(data)])
    assert trainer.fit()["reward/one"] == 1


# ---- models


def test_a_model_object_is_trained_in_place_and_every_command_finds_it(
    job: Job, tiny_model: Path, tmp_path: Path
):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    before = model.lm_head.weight.detach().clone()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = job(("steps", "1"), ("model.path", "builtin"))
    trainer = Trainer(config, model=model, tokenizer=tokenizer, reward=length)
    trainer.fit()
    assert trainer.policy is model
    assert not torch.equal(model.lm_head.weight, before)
    stored = AutoModelForCausalLM.from_pretrained(config.run_dir / "model")
    assert torch.equal(stored.lm_head.weight, before)  # what the run started from
    longer = [("rollout.max_response_tokens", "64")]
    with pytest.raises(TelescopeError, match="more than the model's 64 positions"):
        evaluate_run(config.run_dir, length, longer, rows=[{"prompt": PROMPTS[0]}])
    found = evaluate_run(config.run_dir, length, rows=[{"prompt": PROMPTS[0]}])
    assert found == trainer.evaluate([{"prompt": PROMPTS[0]}])
    export_run(config.run_dir, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert torch.equal(exported.lm_head.weight, model.lm_head.weight)
    AutoTokenizer.from_pretrained(tmp_path / "exported")


def test_a_run_with_a_model_object_resumes_bit_for_bit(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, tiny_model: Path, stop_at: StopAt
):
    """Even with the object that was trained meanwhile: the run reads its own first weights."""
    config = config_in(tmp_path, ("model.path", "builtin"))
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    stop_at("SIGTERM train 3")
    with pytest.raises(Interrupted):
        Trainer(config, model=model).fit()
    stop_at("SIGTERM train 9")
    Trainer(config, model=model, resume=True).fit()
    assert_same_run(unbroken, config)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (torch.nn.Linear(1, 1), "model=Linear is not a Hugging Face causal language model"),
        (None, "the model was not loaded from a folder: pass tokenizer= too"),
    ],
    ids=["not-hf", "no-tokenizer"],
)
def test_a_model_object_that_cannot_be_used_is_refused(
    job: Job, tiny_model: Path, model: Any, why: str
):
    if model is None:
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        model.name_or_path = model.config._name_or_path = ""
    config = job()
    with pytest.raises(TelescopeError, match=why):
        Trainer(config, model=model, reward=length)
    assert not config.run_dir.exists()


def test_a_refused_start_leaves_no_model_behind(job: Job, tiny_model: Path):
    config = job()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(TelescopeError, match="holds no rows"):
        Trainer(config, model=model, train_dataset=[], reward=length)
    assert not config.run_dir.exists()


# ---- generate and evaluate


def test_generate_answers_texts_and_does_not_disturb_training(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    found: list[list[str]] = []

    def ask(event: Event) -> None:
        if event.name == "step" and event.step == 2:
            found.append(event.trainer.generate([PROMPTS[0]] * 20))
            found.append(event.trainer.generate([PROMPTS[0]] * 20))
            found.append(event.trainer.generate([PROMPTS[0]] * 2, greedy=True))

    config = config_in(tmp_path)
    Trainer(config, callbacks=[ask]).fit()
    assert_same_run(unbroken, config)
    sampled, again, greedy = found[:3]
    assert (len(sampled), len(set(greedy))) == (20, 1)
    assert len(set(sampled)) > 1
    assert sampled == again


# ---- data in files


@pytest.fixture
def answers() -> tuple[Callable[..., list[float]], list[Any]]:
    """A reward that remembers the data's `answer`, and what it remembers."""
    seen: list[Any] = []

    def reward(prompts: list[str], answer: list[Any]) -> list[float]:
        seen.extend(answer)
        return [1.0] * len(prompts)

    return reward, seen


def test_files_of_every_kind_and_patterns_are_read(tmp_path: Path):
    (tmp_path / "b.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write('{"prompt": "1+2", "answer": 3}\n')
    (tmp_path / "a.csv").write_text('prompt,answer\n"2+2, or\nmore",4\n1+4,5\n')
    found = read_rows([str(tmp_path / "*.jsonl*"), str(tmp_path / "a.csv")])
    assert [row["answer"] for row in found] == [2, 3, 4, 5]
    assert found[2]["prompt"] == "2+2, or\nmore"
    with pytest.raises(TelescopeError, match="no data file matches"):
        read_rows([str(tmp_path / "*.nosuch")])
    (tmp_path / "cut.jsonl.gz").write_bytes((tmp_path / "c.jsonl.gz").read_bytes()[:-9])
    with pytest.raises(TelescopeError, match=r"cut.jsonl.gz cannot be read"):
        read_rows([str(tmp_path / "cut.jsonl.gz")])


def test_a_name_of_the_hub_is_read_with_its_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        if name == "owner/nosuch":
            raise FileNotFoundError("not found on the hub\nlong explanation")
        return [{"prompt": split}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)
    assert read_rows(["owner/sums", "owner/sums:test", "owner/sums:main:dev"]) == [
        {"prompt": "train"},
        {"prompt": "test"},
        {"prompt": "dev"},
    ]
    assert asked[0] == ("owner/sums", None, "train")
    assert asked[2] == ("owner/sums", "main", "dev")
    with pytest.raises(TelescopeError, match="no data file or data set owner/nosuch: not found"):
        read_rows(["owner/nosuch"])


# ---- data as objects


def in_memory(kind: str, found: list[dict[str, Any]]) -> Any:
    """The rows as a list, or as a data set of the `datasets` library."""
    if kind == "list":
        return found
    datasets = pytest.importorskip("datasets")
    if kind == "map-style":
        return datasets.Dataset.from_list(found)
    return datasets.Dataset.from_list(found).to_iterable_dataset()


@pytest.mark.parametrize("kind", ["list", "map-style"])
def test_rows_in_memory_make_the_run_that_files_make_also_when_resumed(
    kind: str,
    unbroken: Config,
    config_in: MakeConfig,
    tmp_path: Path,
    files: Path,
    stop_at: StopAt,
):
    config = config_in(tmp_path, ("data.files", "[]"), ("data.eval_files", "[]"))
    data = {
        "train_dataset": in_memory(kind, read_rows([str(files / "train.jsonl")])),
        "eval_dataset": in_memory(kind, read_rows([str(files / "eval.jsonl")])),
    }
    stop_at("SIGTERM train 2")
    with pytest.raises(Interrupted):
        Trainer(config, **data).fit()
    stop_at("SIGTERM train 9")
    trainer = Trainer(config, **data, resume=True)
    assert trainer.config.data.files == [GIVEN]
    trainer.fit()
    assert_same_run(unbroken, config)
    with pytest.raises(TelescopeError, match="train_dataset was given in Python"):
        Trainer(trainer.config, resume=True)
    with pytest.raises(TelescopeError, match=r"evaluate_run\(run, rows=...\)"):
        evaluate_run(config.run_dir)


def numbers(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"prompt": f"{number}+1", "answer": number}


def streamed(job: Job, *overrides: tuple[str, str]) -> Config:
    base = [("data.files", "[]"), ("steps", "3"), ("checkpoint.every", "1")]
    return job(*base, *overrides)


@pytest.mark.parametrize("kind", ["function", "iterable-dataset"])
def test_a_stream_comes_in_its_order_begins_again_and_resumes_bit_for_bit(
    kind: str, job: Job, answers: Any, tmp_path: Path
):
    reward, seen = answers
    source = (
        (lambda: numbers(3)) if kind == "function" else in_memory("streaming", list(numbers(3)))
    )
    whole = streamed(job, ("name", "whole"))
    Trainer(whole, train_dataset=source, reward=reward).fit()
    assert seen == [*range(3)] * 4  # 3 steps of 4
    broken = streamed(job, ("name", "broken"))
    Trainer(broken, train_dataset=source, reward=reward).fit(until=2)
    Trainer(broken, train_dataset=source, reward=reward, resume=True).fit()
    assert rows(whole) == rows(broken)
    one, other = (read_shards(last_checkpoint(config), "actor") for config in (whole, broken))
    assert same(one, other)


def test_prompts_of_a_stream_that_are_too_long_are_dropped_and_counted(job: Job, answers: Any):
    reward, seen = answers
    config = streamed(job, ("steps", "1"), ("data.max_prompt_tokens", "3"))
    rows_with_long_ones = [
        {"prompt": "1+1" if number % 2 else "1+1+1", "answer": number} for number in range(12)
    ]
    last = Trainer(config, train_dataset=lambda: iter(rows_with_long_ones), reward=reward).fit()
    assert seen == [1, 3, 5, 7]
    assert last["data/dropped_prompts"] == 4


def test_a_stream_s_limits_must_fit_the_model_s_positions(job: Job):
    config = streamed(job, ("data.max_prompt_tokens", "60"))  # of 64
    with pytest.raises(TelescopeError, match=r"a prompt of a stream .* has 60 tokens"):
        Trainer(config, train_dataset=numbers(12), reward=length)


def test_a_generator_is_read_once_and_says_so(job: Job, answers: Any):
    reward, seen = answers
    trainer = Trainer(streamed(job), train_dataset=numbers(12), reward=reward)
    trainer.fit(until=2)
    assert seen == list(range(8))
    # A new generator begins at its start, as the first one did.
    Trainer(streamed(job), train_dataset=numbers(12), reward=reward, resume=True).fit()
    assert seen == list(range(12))
    short = streamed(job, ("name", "short"))
    with pytest.raises(TelescopeError, match="a generator that ended after 6 prompts"):
        Trainer(short, train_dataset=numbers(6), reward=reward).fit()


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ([], "eval_dataset holds no rows"),
        ([{"prompt": "1"}, {"question": "2"}], "eval_dataset, row 2: no usable `prompt`"),
    ],
)
def test_a_mistake_in_a_stream_of_held_out_prompts_names_it(
    job: Job, held_out: list[Any], said: str
):
    config = job(("eval.prompts", "2"))
    with pytest.raises(TelescopeError, match=said):
        Trainer(config, eval_dataset=iter(held_out), reward=length)


def test_a_stream_that_does_not_repeat_is_refused_on_resume(job: Job, answers: Any):
    reward, _ = answers
    source = numbers(40)
    Trainer(streamed(job), train_dataset=source, reward=reward).fit(until=2)
    with pytest.raises(TelescopeError, match="train_dataset does not repeat: its first 8 prompts"):
        Trainer(streamed(job), train_dataset=source, reward=reward, resume=True)


def test_other_rows_on_resume_are_reported(job: Job, capsys: pytest.CaptureFixture[str]):
    first = [{"prompt": text} for text in PROMPTS]
    Trainer(streamed(job), train_dataset=first, reward=length).fit(until=1)
    Trainer(streamed(job), train_dataset=first[:2], reward=length, resume=True).fit(until=2)
    assert "data changed: the training prompts are not those" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (3, "train_dataset=3 is not data"),
        ([{"prompt": "1"}, "2+2"], "train_dataset, row 2 is '2+2', not a row with a prompt"),
        ({"train": [{"prompt": "1"}]}, "train_dataset has several splits: pass one"),
        ([], "train_dataset holds no rows"),
        ([{"question": "1"}], "train_dataset, row 1: no usable `prompt`"),
        (lambda: iter([]), "train_dataset holds no rows"),
        (lambda: itertools.repeat({"prompt": "1+1+1+1+1+1+1+1+1"}, 3), "no prompt is left: all 3"),
    ],
    ids=["number", "text", "splits", "empty", "no-prompt", "empty-stream", "too-long"],
)
def test_data_that_cannot_be_used_is_named(job: Job, source: Any, why: str):
    with pytest.raises(TelescopeError, match=re.escape(why)):
        Trainer(streamed(job, ("eval.prompts", "2")), train_dataset=source, reward=length)


def test_evaluations_without_held_out_prompts_are_pointed_out(job: Job):
    def notes(*settings: tuple[str, str]) -> list[str]:
        trainer = Trainer(job(*settings), reward=length)
        return [note for note in trainer.notes if "held-out" in note]

    (said,) = notes(("eval.every", "2"))
    assert "eval.every = 2: there are no held-out prompts" in said
    assert notes() == []


# ---- what Trainer does not take


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("reward_funcs", "did you mean `reward`?"),
        ("processing_class", "did you mean `tokenizer`?"),
        ("args", "did you mean `config`?"),
        ("train_datset", "did you mean `train_dataset`?"),
        ("num_generations", "settings belong in the config: did you mean `rollout.n`"),
        ("peft_config", "settings belong in the config: did you mean `model.lora_rank`"),
        ("zzz", "settings belong in the config: `telescope train --help` lists them all"),
    ],
)
def test_another_trainers_argument_is_answered_with_ours(name: str, advice: str) -> None:
    with pytest.raises(TelescopeError) as error:
        Trainer(Config(name="x"), **{name: 1})
    assert str(error.value).startswith(f"Trainer has no argument `{name}`")
    assert advice in str(error.value)


@pytest.mark.parametrize(
    ("config", "said"), [(None, "Trainer without a config"), ({"steps": 2}, "config={'steps': 2}")]
)
def test_a_config_that_is_none_is_refused(config: Any, said: str) -> None:
    with pytest.raises(TelescopeError, match=re.escape(said)):
        Trainer(config, reward=length)


@pytest.mark.parametrize("given", [print, "mine.py:watch"])
def test_a_single_callback_is_refused_with_the_list_to_give(given: Any) -> None:
    with pytest.raises(TelescopeError, match=r"is no list: give \[f\], or several"):
        Trainer(Config(name="x"), callbacks=given)


def test_a_list_of_rewards_is_several_by_their_names(job: Job) -> None:
    def one(completions):
        return [1.0] * len(completions)

    with pytest.raises(TelescopeError, match="two reward functions are called 'one'"):
        Trainer(job(("steps", "1")), reward=[one, one])
    assert list(Trainer(job(("steps", "1")), reward=[one, length]).roles.reward.functions) == [
        "one",
        "length",
    ]


def test_generate_takes_a_list_of_prompts(job: Job) -> None:
    trainer = Trainer(job(("steps", "1")), reward=length)
    assert trainer.generate([]) == []
    with pytest.raises(TelescopeError, match=r"prompts, row 2: no usable `prompt`"):
        trainer.generate([PROMPTS[0], 3])  # type: ignore[list-item]
    for single in ("1+1", [{"role": "user", "content": "1+1"}]):
        with pytest.raises(TelescopeError, match="prompts is a single prompt: give a list"):
            trainer.generate(single)
