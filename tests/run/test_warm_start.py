"""The warm start: what it trains on, that it learns, and that it resumes."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from telescope.config import Config, load_config, merge, validate
from telescope.data.arithmetic import make_tokenizer
from telescope.data.completions import read_completions
from telescope.errors import TelescopeError
from telescope.ledger.lines import damage_of
from telescope.models.load import load_policy, load_tokenizer
from telescope.roles.learner import Learner
from telescope.run import warm_start as stage
from telescope.run.audit import audit_run
from telescope.run.evaluate import evaluate_run
from telescope.run.lifecycle import Interrupted
from telescope.run.metrics import read_metrics
from telescope.run.warm_start import _optimizer, token_batch, update, warm_start
from telescope.trainer import Trainer
from tests import ROOT
from tests.refusals import write_jsonl
from tests.tiny import tiny_config

ROWS = [
    {"prompt": f"请问{a}+1={a + 1}？", "completion": f"是的，等于{a + 1}！"} for a in range(1, 8)
]
EOS = 1


@pytest.fixture
def config(make_config: Callable[..., Config], tmp_path: Path) -> Config:
    """Four optimizer steps of four rows, then one of PPO."""
    files = write_jsonl(tmp_path / "answers.jsonl", ROWS)
    return make_config(
        ("warm_start.files", str(files)),
        ("warm_start.batch_size", "4"),
        ("warm_start.epochs", "2"),
        ("warm_start.lr", "1e-2"),
        ("rollout.max_response_tokens", "8"),
        ("steps", "1"),
    )


def weights_in(folder: Path) -> bytes:
    return (folder / "warm_start" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("reward.functions", ["length"], "reward.options.length: missing"),
        ("reward.functions", ["nowhere.py:f"], "there is no file nowhere.py"),
        ("rollout.environment", "nowhere.py:Dice", "there is no file nowhere.py"),
    ],
)
def test_a_reward_that_cannot_be_made_is_refused_before_the_warm_start(
    config: Config, key: str, value: Any, reason: str
):
    section, name = key.split(".")
    config = validate(merge(config.model_dump(), {section: {name: value}}))
    with pytest.raises(TelescopeError, match=reason):
        Trainer(config)
    assert not config.run_dir.exists()


# ---- the rows


def test_a_completion_ends_with_eos_and_only_its_tokens_count(config: Config):
    tokenizer = make_tokenizer()
    rows = read_completions(config.warm_start.files, tokenizer, config)
    assert tokenizer.decode(rows.completions[0][:-1]) == "是的，等于2！"
    assert rows.completions[0][-1] == EOS
    batch = token_batch(rows, [0, 1], torch.device("cpu"))
    assert batch.num_tokens == len(rows.completions[0]) + len(rows.completions[1])


def test_the_rows_in_the_docs_are_read_alike_as_text_and_as_messages(
    tmp_path: Path, config: Config
):
    page = (ROOT / "docs" / "many-runs.md").read_text("utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    answers = write_jsonl(tmp_path / "a.jsonl", [json.loads(line) for line in block.splitlines()])
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<eos>+{% endif %}"
        "{% endfor %}"
    )
    rows = read_completions([str(answers)], tokenizer, config)
    assert rows.prompts[0] == rows.prompts[1]
    assert rows.completions[0] == rows.completions[1]  # what follows EOS in a template is cut off


def test_too_long_rows_are_dropped_and_counted(tmp_path: Path, config: Config):
    long = [{"prompt": "请问", "completion": "是" * 8}, *ROWS[:1]]  # with EOS 9 tokens
    answers = write_jsonl(tmp_path / "long.jsonl", long)
    rows = read_completions([str(answers)], make_tokenizer(), config)
    assert (len(rows), rows.dropped) == (1, 1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "请问"}, "row 1: no usable `completion`"),
        ({"prompt": "请问", "completion": [{"role": "assistant", "content": "是"}]}, "give both"),
        ({"prompt": "请问", "completion": "是" * 50}, "no row is left"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(
    row: dict[str, Any], said: str, tmp_path: Path, config: Config
):
    answers = write_jsonl(tmp_path / "bad.jsonl", [row])
    with pytest.raises(TelescopeError, match=said):
        read_completions([str(answers)], make_tokenizer(), config)


# ---- the loss


def test_the_loss_is_the_cross_entropy_of_the_completion_alone(config: Config):
    model = load_policy(config.model, torch.device("cpu"))
    rows = read_completions(config.warm_start.files, load_tokenizer(config.model.path), config)
    chosen = [0, 1, 2]
    with torch.no_grad():
        total = torch.zeros(())
        for i in chosen:
            ids = torch.tensor([rows.prompts[i] + rows.completions[i]])
            labels = ids.clone()
            labels[:, : len(rows.prompts[i])] = -100
            total += model(input_ids=ids, labels=labels).loss * len(rows.completions[i])
    expected = total / sum(len(rows.completions[i]) for i in chosen)
    learner = Learner(model, _optimizer(config), total_updates=1, seed=0)
    batch = token_batch(rows, chosen, torch.device("cpu"))
    assert update(learner, batch)["warm_start/loss"] == pytest.approx(float(expected), rel=1e-5)


# ---- the stage


def test_ppo_starts_from_the_warm_started_model_and_so_does_the_reference(config: Config):
    trainer = Trainer(config)
    log = read_metrics(config.run_dir / "warm_start.jsonl")
    assert [row["step"] for row in log] == [1, 2, 3, 4]
    assert log[-1]["warm_start/loss"] < log[0]["warm_start/loss"] - 0.3
    assert log[-1]["warm_start/lr"] == pytest.approx(0.0025)  # linear, from 0.01 over 4 steps
    before = load_policy(config.model, torch.device("cpu")).state_dict()
    policy = trainer.roles.actor.model.state_dict()
    reference = trainer.roles.reference.model.state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(policy[name], before[name])
    assert torch.equal(policy[name], reference[name])
    trainer.fit()
    assert trainer.history()[0]["warm_start/loss"] == log[-1]["warm_start/loss"]
    moved = config.run_dir.rename(config.run_dir.with_name("moved"))
    assert evaluate_run(moved)["eval/greedy_accuracy"] >= 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A run that was warm-started, in a folder to which it was moved."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {
        "warm_start.files": str(write_jsonl(folder / "answers.jsonl", ROWS)),
        "warm_start.lr": "1e-2",
        "rollout.max_response_tokens": "8",
        "steps": "1",
    }
    config = tiny_config(folder, tiny_model, *settings.items())
    Trainer(config).fit()
    return config.run_dir.rename(folder / "moved")


@pytest.mark.parametrize("reader", [evaluate_run, partial(audit_run, states=2, continuations=2)])
def test_damage_of_the_warm_started_model_is_told(
    reader: Callable[[Path], Any], trained: Path, tmp_path: Path
):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    reader(run)
    path = run / "warm_start" / "generation_config.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(TelescopeError, match=r"warm_start is damaged: generation_config\.json"):
        reader(run)


def test_a_damaged_row_of_the_warm_start_is_told(trained: Path, tmp_path: Path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    log = run / "warm_start.jsonl"
    log.write_text(log.read_text().replace("loss", "lost", 1))
    told = f"{log}: 1 damaged lines are left out"
    assert damage_of(run) == [told]
    config = load_config(run / "config.toml", [("dir", str(tmp_path)), ("name", "run")])
    assert f"  {told}" in Trainer(config, resume=True).notes


def test_a_stopped_warm_start_goes_on_bit_for_bit(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = config.model_copy(update={"name": "whole"})
    whole.run_dir.mkdir(parents=True)
    assert warm_start(whole, resume=False) is None

    taken = stage.update

    def stops(learner: Learner, batch: Any) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        return taken(learner, batch)

    monkeypatch.setattr(stage, "update", stops)
    with pytest.raises(Interrupted, match="SIGINT in the warm start, which is saved"):
        Trainer(config)
    monkeypatch.undo()
    assert len(read_metrics(config.run_dir / "warm_start.jsonl")) == 1
    assert warm_start(config, resume=True) is None
    assert weights_in(config.run_dir) == weights_in(whole.run_dir)
    assert len(read_metrics(config.run_dir / "warm_start.jsonl")) == 4
    assert not (config.run_dir / ".warm_start").exists()

    other = config.warm_start.model_copy(update={"lr": 1.0})
    with pytest.raises(TelescopeError, match=r"trained with warm_start.lr = 0.01"):
        warm_start(config.model_copy(update={"warm_start": other}), resume=True)


def test_earlier_rows_are_in_the_log_while_a_stopped_warm_start_goes_on(
    config: Config, monkeypatch: pytest.MonkeyPatch
):
    """A kill at that moment must not lose them."""
    found: list[list[int]] = []
    taken = stage.update

    def looks(learner: Learner, batch: Any) -> dict[str, float]:
        rows = read_metrics(config.run_dir / "warm_start.jsonl")
        found.append([int(row["step"]) for row in rows])
        if len(found) == 2:
            signal.raise_signal(signal.SIGINT)
        return taken(learner, batch)

    monkeypatch.setattr(stage, "update", looks)
    config.run_dir.mkdir(parents=True)
    assert warm_start(config, resume=False) == "SIGINT"
    assert warm_start(config, resume=True) is None
    assert found == [[], [1], [1, 2], [1, 2, 3]]


def test_a_changed_digit_in_the_log_is_no_row(config: Config):
    config.run_dir.mkdir(parents=True)
    warm_start(config, resume=False)
    log = config.run_dir / "warm_start.jsonl"
    log.write_text(log.read_text().replace('"step": 3', '"step": 1'))
    assert [row["step"] for row in read_metrics(log)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("update", OSError(errno.EFBIG, "File too large")),
        ("write_model", SafetensorError("I/O error: No space left on device")),
    ],
)
def test_a_warm_start_on_a_full_disk_says_so_and_goes_on(
    place: str, fault: Exception, config: Config, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: Any, **__: Any) -> None:
        raise fault

    config.run_dir.mkdir(parents=True)
    monkeypatch.setattr(stage, place, fails)
    with pytest.raises(TelescopeError, match=r"cannot save the warm start of .*--resume"):
        warm_start(config, resume=False)
    monkeypatch.undo()
    assert warm_start(config, resume=True) is None


def test_what_a_kill_after_the_warm_start_left_is_removed(config: Config):
    config.run_dir.mkdir(parents=True)
    warm_start(config, resume=False)
    (config.run_dir / ".warm_start" / "step_000004").mkdir(parents=True)
    warm_start(config, resume=True)
    assert not (config.run_dir / ".warm_start").exists()


def test_adapters_are_merged_into_the_warm_started_model(config: Config):
    adapted = config.model.model_copy(update={"lora_rank": 2})
    config = config.model_copy(update={"model": adapted})
    config.run_dir.mkdir(parents=True)
    warm_start(config, resume=False)
    merged = load_file(config.run_dir / "warm_start" / "model.safetensors")
    before = load_file(Path(config.model.path) / "model.safetensors")
    assert merged.keys() == before.keys()
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(merged[name], before[name])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([("warm_start.lr", "1e-4")], "warm_start.lr does nothing without warm_start.files"),
        ([("warm_start.files", "a.jsonl"), ("backend", "ray")], "runs in one process"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: list[tuple[str, str]], said: str):
    with pytest.raises(TelescopeError, match=said):
        load_config(None, settings)
