"""What a user can get wrong about data: the message names the file, the row and the remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from telescope.config import DataConfig
from telescope.data.arithmetic import make_tokenizer
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError
from telescope.models.load import quiet
from telescope.trainer import Trainer
from tests.refusals import Job, edit_json, length, refusal, write_jsonl


def refusal_of_data(job: Job, path: Path, *overrides: tuple[str, str]) -> str:
    return refusal(job(("data.files", str(path)), *overrides))


def test_a_missing_data_file_is_named(job: Job, tmp_path: Path):
    assert f"no data file {tmp_path / 'nosuch.jsonl'}: check data.files" in refusal_of_data(
        job, tmp_path / "nosuch.jsonl"
    )


def test_a_missing_eval_file_is_named(job: Job, tmp_path: Path):
    assert f"no data file {tmp_path / 'nosuch.jsonl'}" in refusal(
        job(("data.eval_files", str(tmp_path / "nosuch.jsonl")))
    )


@pytest.mark.parametrize("content", ["", "\n  \n"], ids=["empty", "blank-lines"])
def test_an_empty_jsonl_file_is_refused(job: Job, tmp_path: Path, content: str):
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    assert f"{path} holds no rows: it needs at least one prompt" in refusal_of_data(job, path)


def test_an_empty_parquet_file_is_refused(job: Job, tmp_path: Path):
    path = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), path
    )
    assert f"{path} holds no rows" in refusal_of_data(job, path)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1 not really", b'{"prompt": "1+1"}\n'], ids=["empty", "cut", "jsonl"]
)
def test_a_parquet_file_that_is_none_is_refused(job: Job, tmp_path: Path, content: bytes):
    path = tmp_path / "data.parquet"
    path.write_bytes(content)
    assert f"{path} is not a readable parquet file" in refusal_of_data(job, path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"prompt": "1', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'["1+1"]', "is not an object"),
    ],
    ids=["cut", "not-utf8", "not-an-object"],
)
def test_a_malformed_line_is_named_by_its_number(job: Job, tmp_path: Path, line: bytes, why: str):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "1+1"}\n\n' + line + b"\n")
    assert f"{path}, line 3 {why}" in refusal_of_data(job, path)


@pytest.mark.parametrize(
    "row", [{"question": "1+1"}, {"prompt": None}, {"prompt": 3}], ids=["absent", "null", "number"]
)
def test_a_row_without_a_prompt_is_named_by_its_number_and_columns(
    job: Job, tmp_path: Path, row: dict[str, Any]
):
    path = write_jsonl(tmp_path / "data.jsonl", [{"prompt": "1+1"}, row])
    message = refusal_of_data(job, path)
    assert f"{path}, row 2: no usable `prompt`" in message
    assert f"its columns are {next(iter(row))}; set data.prompt_key" in message


def test_an_empty_prompt_is_refused(job: Job, tmp_path: Path):
    path = write_jsonl(tmp_path / "data.jsonl", [{"prompt": "1+1"}, {"prompt": ""}])
    assert "prompt 2 is empty" in refusal_of_data(job, path)


def test_data_files_without_any_reward_are_refused(job: Job):
    assert "data.files without a reward: set reward.functions" in refusal(job(), reward=None)


def test_prompts_that_are_all_too_long_are_refused(job: Job):
    message = refusal(job(("data.max_prompt_tokens", "2")))
    assert "all 4 are longer than data.max_prompt_tokens = 2; raise it" in message


def test_a_prompt_that_is_too_long_is_refused_where_asked(job: Job):
    message = refusal(job(("data.max_prompt_tokens", "6"), ("data.overlong", "error")))
    assert "prompt 1 has 7 tokens, more than data.max_prompt_tokens = 6" in message
    assert "data.overlong = 'drop'" in message


def test_prompts_that_are_too_long_are_dropped_and_counted(job: Job):
    seen: set[str] = set()

    def remember(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        seen.update(prompts)
        return [0.0] * len(prompts)

    # 请问 1 + 1 = 2 ？ are seven tokens.
    trainer = Trainer(job(("data.max_prompt_tokens", "6")), reward=remember)
    trainer.fit()
    assert seen == {"你知道1+1吗？"}
    assert trainer.history()[0] == {
        "step": 0,
        "data/dropped_prompts": 3,
        "data/dropped_eval_prompts": 0,
    }


MESSAGES = [{"role": "user", "content": "1+1"}]


def test_chat_messages_for_a_tokenizer_without_template_are_refused(job: Job, tmp_path: Path):
    path = write_jsonl(tmp_path / "chat.jsonl", [{"prompt": MESSAGES}])
    assert "the model's tokenizer has no chat template: give prompts as text" in refusal_of_data(
        job, path
    )


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ messages[0].content"],
    ids=["template-refuses", "template-broken"],
)
def test_messages_that_a_chat_template_cannot_take_are_named_by_their_row(
    job: Job, tmp_path: Path, model_copy: Path, template: str
):
    (model_copy / "chat_template.jinja").write_text(template, "utf-8")
    path = write_jsonl(tmp_path / "chat.jsonl", [{"prompt": MESSAGES}])
    message = refusal_of_data(job, path, ("model.path", str(model_copy)))
    assert "prompt 1: the chat template cannot take it" in message


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ([], "prompt 2 is an empty list"),
        (["1+1"], "prompt 2, message 1 is '1+1': a chat message is an object"),
        ([*MESSAGES, {"content": "2"}], "prompt 2, message 2 has no `role`"),
        ([{"role": "user"}], "prompt 2, message 1 has no `content`"),
        ([{"role": "user", "content": None}], "prompt 2, message 1 has no `content`"),
        ([{"role": "user", "content": [{"image": "1.png"}]}], "message 1 has a part that is not"),
        ([{"role": "user", "content": 2}], "message 1: `content` is 2, not a text"),
    ],
    ids=["none", "text", "no-role", "no-content", "null-content", "image", "number"],
)
def test_a_message_without_role_or_text_is_refused(prompt: list[Any], why: str):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(TelescopeError, match=re.escape(why)):
        PromptSet([{"prompt": MESSAGES}, {"prompt": prompt}], tokenizer, DataConfig())


@pytest.mark.parametrize(
    ("family", "positions"), [("gpt2", {"n_positions": 10}), ("llama", {})], ids=["gpt2", "llama"]
)
def test_a_row_longer_than_the_model_s_positions_is_refused(
    job: Job, tmp_path: Path, model_copy: Path, family: str, positions: dict[str, int]
):
    # The longest prompt has 7 tokens, a response up to 6.
    if family == "gpt2":
        with quiet():
            small = GPT2Config(vocab_size=26, n_embd=8, n_layer=1, n_head=2, **positions)
            GPT2LMHeadModel(small).save_pretrained(model_copy)
    else:
        edit_json(model_copy / "config.json", max_position_embeddings=10)
    message = refusal(job(("model.path", str(model_copy))))
    assert "the longest prompt has 7 tokens and rollout.max_response_tokens = 6" in message
    assert "more than the model's 10 positions" in message
    assert "set data.max_prompt_tokens = 4" in message


def test_a_row_of_exactly_the_model_s_positions_is_trained_on(job: Job, model_copy: Path):
    edit_json(model_copy / "config.json", max_position_embeddings=13)
    Trainer(job(("model.path", str(model_copy)), ("steps", "1")), reward=length).fit()


def test_a_folder_of_data_is_answered_with_a_pattern(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "rows").mkdir()
    monkeypatch.chdir(tmp_path)
    message = refusal(job(("data.files", "rows")))
    assert "rows is a folder: name its files, e.g. rows/*.jsonl" in message
