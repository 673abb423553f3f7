"""What a user can get wrong: every message names the thing and the remedy, and what was saved before stays usable."""

from __future__ import annotations

import json
import math
import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from telescope.commands import main
from telescope.config import Config, to_toml
from telescope.errors import TelescopeError
from telescope.roles.critic import Critic
from telescope.run import checkpoint
from telescope.run.export import evaluate_run
from telescope.trainer import Trainer
from tests.fakes import tiny_config, write_tiny_model

PROMPTS = ["请问1+1=2？", "请问1+2=4？", "请问2+2=4？", "你知道1+1吗？"]
Job = Callable[..., Config]


def length(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    return [float(len(text)) for text in completions]


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def job(tmp_path: Path, tiny_model: Path) -> Job:
    """job(("steps", "3"), …): two steps on a file of four prompts without evaluation, so a reward call is a step."""
    data = write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": text} for text in PROMPTS])
    base = [
        ("data.files", str(data)),
        ("data.max_prompt_tokens", "16"),
        ("rollout.batch_size", "4"),
    ]
    return lambda *overrides: tiny_config(tmp_path, tiny_model, *base, *overrides)


def refusal(config: Config, reward: Any = length, *, resume: bool = False) -> str:
    """The one line that training with this gets."""
    with pytest.raises(TelescopeError) as error:
        Trainer(config, reward=reward, resume=resume).fit()
    assert "\n" not in str(error.value)
    return str(error.value)


def names_of_checkpoints(config: Config) -> list[str]:
    """Everything in the checkpoints folder, hidden files included."""
    return sorted(path.name for path in (config.run_dir / "checkpoints").iterdir())


# ---- models


@pytest.fixture
def model_copy(tmp_path: Path, tiny_model: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def edit_json(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text("utf-8"))
    data |= changes
    path.write_text(
        json.dumps({key: value for key, value in data.items() if value is not None}), "utf-8"
    )


def test_a_missing_model_folder_is_named(job: Job, tmp_path: Path):
    message = refusal(job(("model.path", str(tmp_path / "nosuch"))))
    assert f"{tmp_path / 'nosuch'} does not exist" in message
    assert "give a Hugging Face model folder or a hub name" in message


def test_a_folder_that_is_no_model_is_named(job: Job, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    message = refusal(job(("model.path", str(tmp_path / "empty"))))
    assert f"{tmp_path / 'empty'} has no config.json" in message


@pytest.mark.parametrize("key", ["model.critic_path", "reward.model"])
def test_a_missing_critic_or_reward_model_is_named(key: str, job: Job, tmp_path: Path):
    assert f"{tmp_path / 'nosuch'} does not exist" in refusal(job((key, str(tmp_path / "nosuch"))))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "nosuch"}'),
        ("tokenizer.json", b"{"),
        ("model.safetensors", b""),
        ("model.safetensors", b"half a file"),
        ("model.safetensors", None),
    ],
    ids=[
        "config-broken",
        "config-of-unknown-type",
        "tokenizer-broken",
        "weights-empty",
        "weights-cut",
        "weights-missing",
    ],
)
def test_a_damaged_model_folder_is_named(
    file: str, content: bytes | None, job: Job, model_copy: Path
):
    if content is None:
        (model_copy / file).unlink()
    else:
        (model_copy / file).write_bytes(content)
    assert str(model_copy) in refusal(job(("model.path", str(model_copy))))


def test_a_tokenizer_without_eos_is_refused(job: Job, model_copy: Path):
    edit_json(model_copy / "tokenizer_config.json", eos_token=None)
    message = refusal(job(("model.path", str(model_copy))))
    assert f"the tokenizer of {model_copy} has no EOS token" in message
    assert "set `eos_token` in its tokenizer_config.json" in message


def test_a_tokenizer_without_pad_trains_exactly_as_one_with_pad(
    job: Job, model_copy: Path, tmp_path: Path
):
    """Masks come from lengths: which id fills the gaps, even EOS itself, changes nothing."""
    edit_json(model_copy / "tokenizer_config.json", pad_token=None)
    rows, lengths = [], []

    def exact(
        prompts: Sequence[str], completions: Sequence[str], response_ids: Sequence[list[int]]
    ) -> list[float]:
        lengths.append([len(ids) for ids in response_ids])
        return [float(len(ids)) for ids in response_ids]

    for name, path in (("without", model_copy), ("with", None)):
        settings = [
            ("name", name),
            *([("model.path", str(path))] if path else []),
            ("rollout.n", "8"),
        ]
        trainer = Trainer(job(*settings), reward=exact)
        assert trainer.roles.actor.tokenizer.pad_token_id == (1 if name == "without" else 0)
        trainer.fit()
        rows.append(
            [
                {k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))}
                for row in trainer.history()
            ]
        )
    assert min(lengths[0]) < max(lengths[0])  # so there is padding
    assert rows[0] == rows[1]
    assert rows[0][1]["response/length_mean"] == sum(lengths[0]) / len(lengths[0])


# ---- data


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

    trainer = Trainer(
        job(("data.max_prompt_tokens", "6")), reward=remember
    )  # 请问 1 + 1 = 2 ？ are seven tokens
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
    ("prompt", "template"),
    [
        ([], "{{ messages[0].content }}"),
        (["1+1"], "{{ messages[0].content }}"),
        (MESSAGES, "{{ raise_exception('roles must alternate') }}"),
        (MESSAGES, "{{ messages[0].content"),
    ],
    ids=["no-messages", "not-messages", "template-refuses", "template-broken"],
)
def test_messages_that_a_chat_template_cannot_take_are_named_by_their_row(
    job: Job, tmp_path: Path, model_copy: Path, prompt: list[Any], template: str
):
    (model_copy / "chat_template.jinja").write_text(template, "utf-8")
    path = write_jsonl(tmp_path / "chat.jsonl", [{"prompt": prompt}])
    message = refusal_of_data(job, path, ("model.path", str(model_copy)))
    assert "prompt 1" in message
    assert "chat template" in message


# ---- reward functions


def test_two_servers_of_one_name_are_refused_with_how_to_tell_them_apart(job: Job):
    message = refusal(job(("reward.functions", "http://one/score,http://two/score")), reward=None)
    assert (
        "two reward functions are called 'score': rename one (of an address: name=https://…)"
        in message
    )


def raises(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    raise KeyError("no such answer")


def test_a_reward_function_that_raises_is_named_with_its_line(job: Job):
    line = raises.__code__.co_firstlineno + 1
    assert (
        refusal(job(), raises)
        == f"reward function 'raises' raised KeyError: 'no such answer' (test_bad_input.py, line {line})"
    )


def test_a_reward_function_that_raises_several_lines_is_told_in_one(job: Job):
    def verbose(prompts: Sequence[str]) -> list[float]:
        raise ValueError("first\nsecond")

    assert "first" in refusal(job(), verbose)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused(job: Job, number: float):
    def off(prompts: Sequence[str]) -> list[float]:
        return [0.0, 0.0, number, 0.0]

    message = refusal(job(), off)
    assert f"reward function 'off' returned {number!r} for response 2" in message
    assert "return a finite number" in message


@pytest.mark.parametrize("number", [1e300, 10**400], ids=["float", "int"])
def test_a_score_too_large_for_float32_is_refused(job: Job, number: float):
    def huge(prompts: Sequence[str]) -> list[float]:
        return [number] * len(prompts)

    assert "reward function 'huge'" in refusal(job(), huge)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_number_of_scores_is_refused(job: Job, count: int):
    assert refusal(job(), {"few": lambda prompts: [0.0] * count}) == (
        f"reward function 'few' returned {count} scores for 4 responses: return one score for each"
    )


@pytest.mark.parametrize("returned", [None, 1.0, 3])
def test_a_reward_that_returns_no_list_is_told_what_it_returned(job: Job, returned: Any):
    assert refusal(job(), {"one": lambda prompts: returned}) == (
        f"reward function 'one' returned {returned!r} for 4 responses: return one score for each"
    )


@pytest.mark.parametrize("given", ["rw.py:ok", 3, {"a": "rw.py:ok"}])
def test_a_reward_that_is_no_function_is_refused_before_training(job: Job, given: Any):
    with pytest.raises(TelescopeError, match=r"is no function: give f\(prompts, completions"):
        Trainer(job(), reward=given)


def test_a_wrong_number_of_token_scores_is_refused(job: Job):
    def tokens(response_ids: Sequence[list[int]]) -> list[list[float]]:
        return [[0.0] * (len(ids) + (i == 1)) for i, ids in enumerate(response_ids)]

    message = refusal(job(), tokens)
    assert "reward function 'tokens' returned" in message
    assert "token scores for response 1, which has" in message


def test_token_scores_that_are_no_numbers_are_refused(job: Job):
    message = refusal(
        job(), {"tokens": lambda response_ids: [[math.nan] * len(ids) for ids in response_ids]}
    )
    assert "return a finite number" in message


@pytest.mark.parametrize(
    "returned",
    [
        None,
        1.0,
        torch.tensor(1.0),
        "good",
        "1111",
        ["good"] * 4,
        ["1"] * 4,
        [None] * 4,
        [{}] * 4,
        dict.fromkeys("abcd", 1.0),
    ],
    ids=[
        "none",
        "number",
        "0-d-tensor",
        "text",
        "digits",
        "texts",
        "digit-texts",
        "nones",
        "dicts",
        "dict",
    ],
)
def test_what_is_not_a_list_of_scores_is_refused_by_name(job: Job, returned: Any):
    message = refusal(
        job(("rollout.max_response_tokens", "1")), {"odd": lambda prompts: returned}
    )  # "1" is no score per token
    assert "reward function 'odd'" in message


@pytest.mark.parametrize(
    "wrap",
    [torch.tensor, lambda scores: [torch.tensor(score) for score in scores]],
    ids=["tensor", "tensors"],
)
def test_scores_may_be_tensors(job: Job, wrap: Callable[[list[float]], Any]):
    metrics = Trainer(job(), reward={"constant": lambda prompts: wrap([0.5] * len(prompts))}).fit()
    assert metrics["reward/score_mean"] == 0.5


def test_a_column_that_the_data_lacks_is_named(job: Job):
    def check(
        prompts: Sequence[str], completions: Sequence[str], answer: Sequence[int]
    ) -> list[float]:
        return [0.0] * len(prompts)

    message = refusal(job(), check)
    assert "reward function 'check' asks for `answer`" in message
    assert "the data has" in message


def test_the_columns_offered_instead_are_all_that_there_are(job: Job, tmp_path: Path):
    path = write_jsonl(tmp_path / "solved.jsonl", [{"prompt": "1+1", "solution": 2}])
    message = refusal(job(("data.files", str(path))), lambda answer: [0.0])
    assert "solution" in message


@pytest.mark.parametrize(
    "column", ["prompts", "completions", "prompt_ids", "response", "response_ids"]
)
def test_a_data_column_never_takes_the_place_of_what_the_model_wrote(
    job: Job, tmp_path: Path, column: str
):
    """Either the data is refused, or the function still sees the prompts and responses of this step."""
    path = write_jsonl(
        tmp_path / "columns.jsonl", [{"prompt": text, column: "from the data"} for text in PROMPTS]
    )

    def look(
        prompts: Sequence[str],
        completions: Sequence[str],
        prompt_ids: Sequence[list[int]],
        response_ids: Sequence[list[int]],
    ):
        seen.append((prompts, completions, prompt_ids, response_ids))
        return [0.0] * len(prompts)

    seen: list[tuple[Any, ...]] = []
    refused = ""
    try:
        Trainer(job(("data.files", str(path)), ("steps", "1")), reward=look).fit()
    except TelescopeError as error:
        refused = str(error)
    assert column in refused or all("from the data" not in given for given in seen[0])


def test_weights_that_name_no_part_are_refused(job: Job):
    message = refusal(job(("reward.weights.lenght", "2")))
    assert message == "reward.weights names 'lenght'; the parts are length"


def load_refusal(job: Job, spec: str) -> str:
    return refusal(job(("reward.functions", spec)), reward=None)


def test_a_missing_reward_file_is_named(job: Job, tmp_path: Path):
    assert f"there is no file {tmp_path / 'nosuch.py'}" in load_refusal(
        job, f"{tmp_path / 'nosuch.py'}:score"
    )


def test_a_missing_reward_module_is_named(job: Job):
    assert "'nosuch_module:score' cannot be loaded: ModuleNotFoundError" in load_refusal(
        job, "nosuch_module:score"
    )


def test_a_reward_without_a_function_name_is_refused(job: Job):
    assert "write it as module:function or path/to/file.py:function" in load_refusal(job, "score")


@pytest.mark.parametrize("source", ["", "score = 3"], ids=["absent", "not-a-function"])
def test_a_function_missing_in_a_reward_file_is_named(job: Job, tmp_path: Path, source: str):
    path = tmp_path / "rewards.py"
    path.write_text(source)
    assert f"{path} has no function 'score'" in load_refusal(job, f"{path}:score")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import nosuch_module", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("def score(:", "SyntaxError"),
    ],
)
def test_a_reward_file_that_cannot_be_imported_says_why(
    job: Job, tmp_path: Path, source: str, error: str
):
    path = tmp_path / "rewards.py"
    path.write_text(source)
    message = load_refusal(job, f"{path}:score")
    assert f"'{path}:score' cannot be loaded: {error}" in message


def test_a_reward_file_is_an_ordinary_module(job: Job, tmp_path: Path):
    """Dataclasses and pickle look their module up in sys.modules."""
    path = tmp_path / "rewards_with_a_dataclass.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Verdict:\n    score: float\n\n\n"
        "def score(prompts):\n    return [Verdict(1.0).score for _ in prompts]\n"
    )
    assert Trainer(job(("reward.functions", f"{path}:score"))).fit()["reward/score_mean"] == 1.0


def test_two_reward_functions_of_one_name_are_refused(job: Job, tmp_path: Path):
    path = tmp_path / "rewards.py"
    path.write_text("def length(prompts): return [0.0] * len(prompts)")
    assert "two reward functions are called 'length': rename one" in refusal(
        job(("reward.functions", f"{path}:length"))
    )


def test_a_reward_that_fails_late_leaves_the_checkpoints_before_it(job: Job):
    calls = []

    def tired(prompts: Sequence[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the judge is asleep")
        return [float(len(calls))] * len(prompts)

    config = job(("steps", "4"))
    assert "the judge is asleep" in refusal(config, tired)
    assert names_of_checkpoints(config) == ["step_000001", "step_000002"]
    trainer = Trainer(config, reward=tired, resume=True)
    trainer.fit()
    assert [row["step"] for row in trainer.history()] == [0, 1, 2, 3, 4]


# ---- disks


@pytest.fixture
def small_disk():
    """small_disk(bytes): from now on this process can write no larger file. CPython ignores the signal and gets an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [22_000, 60_000], ids=["in-the-weights", "in-the-optimizer-state"])
def test_a_full_disk_costs_only_the_checkpoint_being_written(
    room: int, job: Job, small_disk: Callable[[int], None], capsys: pytest.CaptureFixture[str]
):
    config = job(("steps", "3"))
    calls = []

    def fills_up(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 2:
            small_disk(room)
        return length(prompts, completions)

    with pytest.raises(TelescopeError) as error:
        Trainer(config, reward={"length": fills_up}).fit()
    small_disk(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    message = str(error.value)
    assert "\n" not in message
    assert f"cannot save checkpoint {config.run_dir / 'checkpoints' / 'step_000002'}" in message
    assert "step_000001 is intact; free some space and go on with --resume" in message
    assert names_of_checkpoints(config) == ["step_000001"]  # no half-written folder either

    trainer = Trainer(config, reward=length, resume=True)
    assert trainer.step == 1
    trainer.fit()
    assert [row["step"] for row in trainer.history()] == [0, 1, 2, 3]


def test_a_full_disk_before_the_first_checkpoint_says_that_there_is_none(
    job: Job, small_disk: Callable[[int], None], capsys: pytest.CaptureFixture[str]
):
    config = job()
    trainer = Trainer(config, reward=length)
    small_disk(22_000)
    with pytest.raises(TelescopeError, match="no earlier checkpoint exists"):
        trainer.fit()
    assert names_of_checkpoints(config) == []


def test_a_full_disk_under_the_metrics_is_told_in_one_line(
    job: Job, small_disk: Callable[[int], None], capsys: pytest.CaptureFixture[str]
):
    config = job(("ledger.samples", "off"))
    trainer = Trainer(config, reward=length)
    small_disk(200)  # room for the line of step 0, not for that of step 1
    with pytest.raises(TelescopeError, match=r"metrics\.jsonl"):
        trainer.fit()


def test_a_run_folder_that_cannot_be_made_is_named(job: Job, tmp_path: Path):
    (tmp_path / "file").write_text("")
    message = refusal(job(("dir", str(tmp_path / "file"))))
    assert f"cannot write into {tmp_path / 'file' / 'run'}: Not a directory; set `dir`" in message


def test_a_run_folder_that_is_a_file_is_named(job: Job, tmp_path: Path):
    (tmp_path / "run").write_text("")
    assert f"cannot write into {tmp_path / 'run'}" in refusal(job())


# ---- checkpoints


@pytest.fixture
def two_checkpoints(job: Job) -> Config:
    config = job()
    Trainer(config, reward=length).fit()
    assert names_of_checkpoints(config) == ["step_000001", "step_000002"]
    return config


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def wipe(path: Path) -> None:
    """Zeros, as many as there were bytes."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [cut, Path.unlink, wipe], ids=["cut", "gone", "zeros"])
@pytest.mark.parametrize(
    "file",
    [
        "state.pt",
        "shards/actor/__0_0.distcp",
        "shards/critic/__0_0.distcp",
        "shards/actor/.metadata",
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_still_works(
    damage: Callable[[Path], None], file: str, two_checkpoints: Config, tmp_path: Path
):
    newest = two_checkpoints.run_dir / "checkpoints" / "step_000002"
    damage(newest / file)
    message = refusal(two_checkpoints, resume=True)
    assert str(newest) in message
    assert file in message
    assert "move step_000002 away to go on from step_000001" in message

    newest.rename(tmp_path / "damaged")
    trainer = Trainer(two_checkpoints, reward=length, resume=True)
    assert trainer.step == 1
    trainer.fit()
    assert names_of_checkpoints(two_checkpoints) == ["step_000001", "step_000002"]


@pytest.mark.parametrize("missing", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_written_where_the_controller_cannot_see_it_is_refused(
    missing: str, job: Job, monkeypatch: pytest.MonkeyPatch
):
    """As by a worker on a node that has a disk of its own under the same name."""
    save = Critic.save

    def elsewhere(self: Critic, folder: Path) -> None:
        save(self, folder)
        (folder / missing).unlink()

    monkeypatch.setattr(Critic, "save", elsewhere)
    message = refusal(job())
    assert (
        "the critic's workers wrote elsewhere: `dir` must be on a disk that every node shares"
        in message
    )
    assert names_of_checkpoints(job()) == []


def test_a_checkpoint_that_a_worker_cannot_see_is_no_damaged_one(
    two_checkpoints: Config, monkeypatch: pytest.MonkeyPatch
):
    load = Critic.load
    monkeypatch.setattr(Critic, "load", lambda self, folder: load(self, folder / "elsewhere"))
    message = refusal(two_checkpoints, resume=True)
    assert "`dir` must be on a disk that every node shares" in message
    assert "damaged" not in message


def test_a_damaged_checkpoint_list_is_named_with_the_remedy(two_checkpoints: Config):
    newest = two_checkpoints.run_dir / "checkpoints" / "step_000002"
    cut(newest / "checkpoint.json")
    message = refusal(two_checkpoints, resume=True)
    assert str(newest) in message
    assert "move step_000002 away to go on from step_000001" in message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trained": None}, "`trained`"),
        ({"trained": 5}, "`trained`"),
        ({"actor": None}, "`actor`"),
        ({"reward_in_python": None}, "`reward_in_python`"),
        ({"files": None}, "cannot be read"),
        ({"files": 5}, "`files`"),
        ({"files": {"state.pt": 5}}, "`state.pt`"),
        ({"files": {"state.pt": {"bytes": 5}}}, "`state.pt`"),
    ],
)
def test_a_checkpoint_list_that_lacks_something_is_named_with_the_remedy(
    changes: dict[str, Any], told: str, two_checkpoints: Config
):
    newest = two_checkpoints.run_dir / "checkpoints" / "step_000002"
    edit_json(newest / "checkpoint.json", **changes)
    message = refusal(two_checkpoints, resume=True)
    assert f"{newest} is damaged: checkpoint.json " in message
    assert told in message
    assert "move step_000002 away to go on from step_000001" in message


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another_state(path: Path) -> None:
    torch.save([1, 2], path)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (file, damage)
        for file in ("state.pt", "shards/actor/.metadata")
        for damage in (empty, wipe, cut)
    ]
    + [("state.pt", another_state)],
)
def test_a_damaged_file_that_was_listed_as_it_is_is_named_too(
    file: str, damage: Callable[[Path], None], two_checkpoints: Config
):
    newest = two_checkpoints.run_dir / "checkpoints" / "step_000002"
    damage(newest / file)
    listed = json.loads((newest / "checkpoint.json").read_text("utf-8"))["files"]
    edit_json(newest / "checkpoint.json", files=listed | {file: checkpoint._seal(newest / file)})
    message = refusal(two_checkpoints, resume=True)
    assert f"{newest} is damaged: " in message
    assert "move step_000002 away to go on from step_000001" in message


def test_a_damaged_only_checkpoint_says_that_there_is_no_older_one(two_checkpoints: Config):
    folder = two_checkpoints.run_dir / "checkpoints"
    shutil.rmtree(folder / "step_000001")
    cut(folder / "step_000002" / "state.pt")
    assert "there is no older checkpoint" in refusal(two_checkpoints, resume=True)


@pytest.mark.parametrize("command", ["eval", "export"])
def test_eval_and_export_refuse_a_damaged_checkpoint(
    command: str, two_checkpoints: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cut(
        two_checkpoints.run_dir
        / "checkpoints"
        / "step_000002"
        / "shards"
        / "actor"
        / "__0_0.distcp"
    )
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(
            [
                command,
                str(two_checkpoints.run_dir),
                *([str(tmp_path / "out")] if command == "export" else []),
            ]
        )
    assert end.value.code == 2
    assert "shards/actor/__0_0.distcp has" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "different", [{"seed": 1}, {"hidden": 8}, {"layers": 1}], ids=["weights", "width", "depth"]
)
def test_a_checkpoint_of_another_model_is_refused(
    different: dict[str, int], two_checkpoints: Config, job: Job, tmp_path: Path, tiny_model: Path
):
    other = write_tiny_model(tmp_path / "other", **different)
    message = refusal(job(("model.path", str(other))), resume=True)
    assert f"belongs to another model: it started from {tiny_model}" in message
    assert "use the model the run was started with, or another --name" in message
    Trainer(two_checkpoints, reward=length, resume=True).fit()  # nothing was lost by trying


@pytest.mark.parametrize(
    "different", [{"hidden": 8}, {"layers": 1}, {"layers": 3}], ids=["width", "shallower", "deeper"]
)
def test_a_checkpoint_of_another_critic_is_refused(
    different: dict[str, int], two_checkpoints: Config, job: Job, tmp_path: Path
):
    other = write_tiny_model(tmp_path / "other", **different)
    message = refusal(job(("model.critic_path", str(other))), resume=True)
    assert "critic" in message
    assert "another model" in message


def test_a_resume_that_fails_leaves_the_run_as_it_was(two_checkpoints: Config, job: Job):
    before = {
        path: path.read_bytes() for path in two_checkpoints.run_dir.rglob("*") if path.is_file()
    }
    refusal(job(("device", "gpu")), resume=True)
    assert {
        path: path.read_bytes() for path in two_checkpoints.run_dir.rglob("*") if path.is_file()
    } == before


def test_a_run_refused_for_its_data_leaves_an_existing_run_as_it_was(
    two_checkpoints: Config, job: Job, tmp_path: Path
):
    recipe = (two_checkpoints.run_dir / "config.toml").read_text("utf-8")
    refusal(job(("data.files", str(tmp_path / "nosuch.jsonl"))), resume=True)
    assert (two_checkpoints.run_dir / "config.toml").read_text("utf-8") == recipe


# ---- devices and trackers


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_cuda_on_a_machine_without_it_is_refused(job: Job, name: str):
    message = refusal(job(("device", name)))
    assert f"device = {name!r}" in message
    assert "use auto, cpu" in message


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "vulkan"])
def test_a_device_that_is_none_is_refused(job: Job, name: str):
    message = refusal(job(("device", name)))
    assert f"device = {name!r}" in message
    assert "cpu" in message


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_named_with_the_command_to_install_it(
    job: Job, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None
    )  # as if not installed
    assert (
        refusal(job(("log.trackers", name)))
        == f"log.trackers names {name}, which is not installed: pip install -e '.[{name}]'"
    )


# ---- the same through the command line


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["--model.path", "/nosuch/model"], "/nosuch/model does not exist"),
        (["--data.files", "nosuch.jsonl"], "no data file nosuch.jsonl"),
        (["--reward.functions", "nosuch.py:score"], "there is no file nosuch.py"),
        (
            ["--reward.functions", "http://[::bad/x?key=1"],
            "http://[::bad/x is not an address of a reward server: Invalid IPv6 URL",
        ),
        (
            ["--reward.functions", "http://host:99999/x"],
            "host:99999/x is not an address of a reward server: Port out of range",
        ),
        (["--name", "x" * 300], "File name too long; "),
        (["--device", "gpu"], "device = 'gpu'"),
        (["--data.max_prompt_tokens", "1"], "no prompt is left"),
    ],
)
def test_the_command_line_tells_it_in_one_line(
    job: Job, tmp_path: Path, overrides: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def score(prompts): return [0.0] * len(prompts)")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(job(("reward.functions", f"{rewards}:score"))), "utf-8")
    with pytest.raises(SystemExit) as end:
        main(["train", str(recipe), *overrides])
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert printed.err.startswith("telescope: ")
    assert told in printed.err
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.out + printed.err


def test_eval_of_a_run_without_held_out_prompts_says_what_to_set(job: Job, tmp_path: Path):
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def score(prompts): return [0.0] * len(prompts)")
    config = job(("reward.functions", f"{rewards}:score"), ("steps", "1"))
    Trainer(config).fit()
    with pytest.raises(TelescopeError, match=r"no held-out prompts: set data\.eval_files"):
        evaluate_run(config.run_dir)


def test_a_failed_check_of_a_folder_that_is_no_checkpoint_names_it(tmp_path: Path):
    with pytest.raises(
        TelescopeError, match=f"{tmp_path} is damaged: checkpoint.json cannot be read"
    ):
        checkpoint.check(tmp_path)
