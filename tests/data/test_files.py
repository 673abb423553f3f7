"""Prompts from files: what reaches the model and the reward function, and in which order."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from telescope.config import Config, DataConfig, RolloutConfig
from telescope.data.arithmetic import make_tokenizer
from telescope.data.build import build_data
from telescope.data.chat import with_answer
from telescope.data.files import read_rows
from telescope.data.loader import DataLoader, PromptSet
from telescope.errors import TelescopeError
from telescope.trainer import Trainer

CHAT = (
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}，{% endif %}"
)

VERL_ROWS = [
    {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"请问{a}+1=2？"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + 1)},
        "extra_info": {"index": a},
    }
    for a in range(3)
]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8"
        )
    return path


@pytest.fixture
def tokenizer() -> Any:
    return make_tokenizer()


def prompt_set(rows: Sequence[dict[str, Any]], tokenizer: Any, **config: Any) -> PromptSet:
    return PromptSet(rows, tokenizer, DataConfig(**config))


# ---- what a file holds


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_come_back_in_order_with_all_their_columns(tmp_path: Path, kind: str):
    rows = [
        {"prompt": "1+1", "answer": 2, "tags": ["a", "b"]},
        {"prompt": "你知道", "answer": None, "tags": []},
    ]
    assert read_rows([str(write(tmp_path / f"data.{kind}", rows))]) == rows


def test_several_files_follow_one_another(tmp_path: Path):
    one, two = (
        write(tmp_path / "one.jsonl", [{"prompt": "1"}, {"prompt": "2"}]),
        write(tmp_path / "two.parquet", [{"prompt": "3"}]),
    )
    assert [row["prompt"] for row in read_rows([str(two), str(one)])] == ["3", "1", "2"]


def test_line_separators_inside_a_text_do_not_end_a_line(tmp_path: Path):
    rows = [{"prompt": "one\u2028two\x0bthree\rfour"}]
    assert read_rows([str(write(tmp_path / "data.jsonl", rows))]) == rows


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_verl_s_ground_truth_is_also_a_column_of_its_own(tmp_path: Path, kind: str):
    rows = read_rows([str(write(tmp_path / f"verl.{kind}", VERL_ROWS))])
    assert [row["ground_truth"] for row in rows] == ["1", "2", "3"]
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["1", "2", "3"]
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in VERL_ROWS]


def test_a_ground_truth_that_the_data_already_has_is_kept(tmp_path: Path):
    row = {"prompt": "1", "ground_truth": "mine", "reward_model": {"ground_truth": "theirs"}}
    assert read_rows([str(write(tmp_path / "data.jsonl", [row]))])[0]["ground_truth"] == "mine"


# ---- what reaches the model


def test_a_text_prompt_goes_in_as_it_is(tokenizer: Any):
    prompts = prompt_set([{"prompt": "1+1=2"}], tokenizer).take([0])
    assert tokenizer.convert_ids_to_tokens(prompts.ids[0]) == ["1", "+", "1", "=", "2"]
    assert prompts.info["prompt"] == ["1+1=2"]


def test_chat_messages_go_through_the_chat_template(tokenizer: Any):
    tokenizer.chat_template = CHAT
    prompts = prompt_set(
        [{"prompt": [{"role": "system", "content": "请问"}, {"role": "user", "content": "1+1"}]}],
        tokenizer,
    ).take([0])
    tokens = tokenizer.convert_ids_to_tokens(prompts.ids[0])
    assert tokens == ["请问", "1", "+", "1", "，"]  # the comma opens the answer
    assert prompts.info["prompt"] == ["请问1+1，"]


def test_a_final_assistant_message_is_continued(tokenizer: Any):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}，{% endif %}"
    )
    begun = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "等于"}]
    prompts = prompt_set([{"prompt": begun[:1]}, {"prompt": begun}], tokenizer)
    assert prompts.texts == ["1+1<eos>，", "1+1<eos>等于"]


def test_an_answer_that_was_begun_reaches_a_reward_model_as_one_message():
    user = {"role": "user", "content": "1+1"}
    begun = {"role": "assistant", "content": "等于"}
    assert with_answer([user], "2") == [user, {"role": "assistant", "content": "2"}]
    assert with_answer([user, begun], "2") == [user, {"role": "assistant", "content": "等于2"}]


def test_text_parts_of_a_message_become_one_text(tokenizer: Any):
    tokenizer.chat_template = CHAT
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1", "image": None}]
    prompts = prompt_set([{"prompt": [{"role": "user", "content": parts}]}], tokenizer)
    assert prompts.texts == ["1+1，"]
    assert prompts.data[0]["messages"] == [{"role": "user", "content": "1+1"}]


def test_special_tokens_that_a_template_writes_are_not_added_a_second_time(tokenizer: Any):
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", 1)]
    )
    tokenizer.chat_template = "<eos>" + CHAT
    rows = [{"prompt": "1"}, {"prompt": [{"role": "user", "content": "1"}]}]
    ids = prompt_set(rows, tokenizer).ids
    assert tokenizer.convert_ids_to_tokens(ids[0]) == ["<eos>", "1"]
    assert tokenizer.convert_ids_to_tokens(ids[1]) == ["<eos>", "1", "，"]


def test_text_needs_no_chat_template_and_messages_do(tokenizer: Any):
    assert len(prompt_set([{"prompt": "1"}], tokenizer)) == 1
    with pytest.raises(TelescopeError, match="no chat template"):
        prompt_set([{"prompt": [{"role": "user", "content": "1"}]}], tokenizer)


def test_another_column_can_hold_the_prompt(tokenizer: Any):
    prompts = prompt_set(
        [{"question": "1+1", "prompt": "not this"}], tokenizer, prompt_key="question"
    ).take([0])
    assert prompts.info["prompt"] == ["1+1"]
    assert "question" not in prompts.info


def test_a_prompt_of_exactly_the_longest_length_stays(tokenizer: Any):
    prompts = prompt_set([{"prompt": "1+1"}, {"prompt": "1+1="}], tokenizer, max_prompt_tokens=3)
    assert (len(prompts), prompts.dropped) == (1, 1)


def test_a_column_that_only_some_rows_have_is_none_in_the_others(tokenizer: Any):
    prompts = prompt_set(
        [{"prompt": "1", "answer": 1}, {"prompt": "2", "hint": "two"}], tokenizer
    ).take([1, 0])
    assert [row.get("answer") for row in prompts.info["data"]] == [None, 1]
    assert [row.get("hint") for row in prompts.info["data"]] == ["two", None]


def test_columns_stay_with_their_prompt_when_others_are_dropped(tokenizer: Any):
    rows = [
        {"prompt": "1+1+1", "answer": 3},
        {"prompt": "2", "answer": 2},
        {"prompt": "3+3+3", "answer": 9},
        {"prompt": "4", "answer": 4},
    ]
    prompts = prompt_set(rows, tokenizer, max_prompt_tokens=1).take([0, 1])
    assert [
        (text, row["answer"])
        for text, row in zip(prompts.info["prompt"], prompts.info["data"], strict=True)
    ] == [("2", 2), ("4", 4)]


# ---- what reaches the reward function


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_verl_s_layout_reaches_the_reward_function(
    tmp_path: Path, tiny_model: Path, make_config: Callable[..., Config], kind: str
):
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (model / "chat_template.jinja").write_text(CHAT, "utf-8")
    path = write(tmp_path / f"verl.{kind}", VERL_ROWS)
    seen: list[dict[str, Any]] = []

    def compute_score(
        prompts: list[str],
        completions: list[str],
        data_source: list[str],
        ground_truth: list[str],
        extra_info: list[dict[str, int]],
    ) -> list[float]:
        seen.append(
            {
                "prompts": prompts,
                "source": data_source,
                "truth": ground_truth,
                "index": [info["index"] for info in extra_info],
            }
        )
        return [float(text == truth) for text, truth in zip(completions, ground_truth, strict=True)]

    settings = [
        ("data.files", str(path)),
        ("model.path", str(model)),
        ("steps", "1"),
        ("rollout.batch_size", "3"),
        ("rollout.n", "2"),
    ]
    Trainer(make_config(*settings, ("data.shuffle", "false")), reward=compute_score).fit()
    assert seen == [
        {
            "prompts": [f"请问{a}+1=2？，" for a in (0, 0, 1, 1, 2, 2)],
            "source": ["sums"] * 6,
            "truth": ["1", "1", "2", "2", "3", "3"],
            "index": [0, 0, 1, 1, 2, 2],
        }
    ]


def test_what_the_reward_function_gets_is_what_the_model_saw_and_wrote(
    tmp_path: Path, make_config: Callable[..., Config], tokenizer: Any
):
    path = write(tmp_path / "data.jsonl", [{"prompt": "1+1"}, {"prompt": "请问2+2=4？"}])
    calls = []

    def check(
        prompts: list[str],
        completions: list[str],
        prompt_ids: list[list[int]],
        response_ids: list[list[int]],
    ) -> list[float]:
        calls.append(len(prompts))
        assert [tokenizer.decode(ids) for ids in prompt_ids] == prompts  # no padding
        assert [
            tokenizer.decode(ids, skip_special_tokens=True) for ids in response_ids
        ] == completions
        return [0.0] * len(prompts)

    Trainer(
        make_config(("data.files", str(path)), ("rollout.batch_size", "2"), ("rollout.n", "4")),
        reward=check,
    ).fit()
    assert calls == [8, 8]


def test_a_function_gets_only_the_columns_it_names_or_all_with_two_stars(
    tmp_path: Path, make_config: Callable[..., Config]
):
    path = write(tmp_path / "data.jsonl", [{"prompt": "1", "answer": 1, "level": "easy"}])
    seen: dict[str, Any] = {}

    def everything(**columns: list[Any]) -> list[float]:
        seen.update(columns)
        return [0.0] * len(columns["prompts"])

    def one(level: list[str]) -> list[float]:
        return [float(text == "easy") for text in level]

    metrics = Trainer(
        make_config(("data.files", str(path)), ("steps", "1")),
        reward={"everything": everything, "one": one},
    ).fit()
    assert {
        "prompts",
        "completions",
        "prompt_ids",
        "response_ids",
        "answer",
        "level",
    } <= seen.keys()
    assert seen["answer"] == [1] * 8
    assert metrics["reward/one"] == 1.0


# ---- the order


def loader(tokenizer: Any, **changes: Any) -> DataLoader:
    """Five prompts in batches of two."""
    data = prompt_set([{"prompt": str(i), "number": i} for i in range(5)], tokenizer)
    settings = {"batch_size": 2, "repeat": 1, "steps": 10, "seed": 0, "shuffle": True}
    return DataLoader(data, **(settings | changes))


def numbers(batches: DataLoader, start: int = 0) -> list[list[int]]:
    return [
        [row["number"] for row in prompts.info["data"]] for _, prompts in batches.from_step(start)
    ]


def test_every_prompt_comes_once_per_epoch(tokenizer: Any):
    flat = [number for batch in numbers(loader(tokenizer)) for number in batch]
    epochs = [flat[first : first + 5] for first in range(0, 20, 5)]
    assert all(Counter(epoch) == Counter(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1  # a new order


def test_a_batch_holds_the_end_of_one_epoch_and_the_beginning_of_the_next(tokenizer: Any):
    assert numbers(loader(tokenizer, shuffle=False, steps=5)) == [
        [0, 1],
        [2, 3],
        [4, 0],
        [1, 2],
        [3, 4],
    ]


def test_a_batch_may_hold_several_epochs(tokenizer: Any):
    (batch,) = numbers(loader(tokenizer, batch_size=12, steps=1))
    assert sorted(batch[:5]) == sorted(batch[5:10]) == [0, 1, 2, 3, 4]


def test_the_order_depends_on_the_seed_and_on_nothing_else(tokenizer: Any):
    assert numbers(loader(tokenizer, seed=1)) == numbers(loader(tokenizer, seed=1))
    assert numbers(loader(tokenizer, seed=1)) != numbers(loader(tokenizer, seed=2))
    pairs, single = (
        numbers(loader(tokenizer, seed=1)),
        numbers(loader(tokenizer, seed=1, batch_size=1, steps=20)),
    )
    assert [number for batch in pairs for number in batch] == [
        number for batch in single for number in batch
    ]


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7, 10])
def test_starting_at_a_step_is_skipping_the_ones_before(tokenizer: Any, start: int):
    everything = list(loader(tokenizer).from_step(0))
    assert list(loader(tokenizer).from_step(start)) == everything[start:]


def test_a_loader_can_be_asked_again_from_any_step(tokenizer: Any):
    batches = loader(tokenizer)
    once = list(batches.from_step(0))
    assert list(batches.from_step(4)) == once[4:]
    assert list(batches.from_step(1)) == once[1:]


def test_every_prompt_is_repeated_for_each_sample(tokenizer: Any):
    single, double = loader(tokenizer, steps=3), loader(tokenizer, steps=3, repeat=2)
    assert numbers(double) == [
        [number for number in batch for _ in range(2)] for batch in numbers(single)
    ]


def test_every_step_samples_with_a_seed_of_its_own(tokenizer: Any):
    seeds = [prompts.seed for _, prompts in loader(tokenizer).from_step(0)]
    assert len(set(seeds)) == 10
    assert seeds != [prompts.seed for _, prompts in loader(tokenizer, seed=1).from_step(0)]


def test_a_run_has_as_many_steps_as_it_was_given(tokenizer: Any):
    assert [step for step, _ in loader(tokenizer, steps=3).from_step(0)] == [0, 1, 2]
    assert list(loader(tokenizer, steps=3).from_step(3)) == []
    assert list(loader(tokenizer, steps=0).from_step(0)) == []


def test_a_prompt_that_the_tokenizer_cannot_take_is_named() -> None:
    rows = [{"prompt": "请问1+1=2？"}, {"prompt": "请问\ud8001"}]
    with pytest.raises(TelescopeError, match="prompt 2: the tokenizer cannot take it"):
        PromptSet(rows, make_tokenizer(), DataConfig())


def test_a_jsonl_file_from_windows_is_read(tmp_path: Path) -> None:
    lines = '{"prompt": "1+1="}\r\n{"prompt": "1+2="}\r\n'
    (tmp_path / "sums.jsonl").write_bytes(lines.encode("utf-8-sig"))
    rows = read_rows([str(tmp_path / "sums.jsonl")], "prompt")
    assert [row["prompt"] for row in rows] == ["1+1=", "1+2="]


def test_a_taskset_too_small_to_hold_any_out_trains_on_all(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [{"prompt": f"{number}+1="} for number in range(4)]
    monkeypatch.setattr("telescope.data.episodes.rows", lambda config: (tasks, []))
    config = Config(rollout=RolloutConfig(environment="verifiers:sums"))
    train, held_out = build_data(config, tokenizer)
    assert (len(train), held_out) == (4, None)
