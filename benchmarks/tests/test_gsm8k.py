"""The benchmark of GSM8K: every variant is a config, and a small one runs to its tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gsm8k
from telescope.config import load_config
from tests.test_recipes import QUESTIONS, write_model


def interrupted_after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    left = [function] * calls

    def cut_off(*arguments: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        return left.pop()(*arguments)

    return cut_off


@pytest.mark.parametrize("variant", gsm8k.VARIANTS)
def test_every_variant_has_512_responses_per_step(variant: str) -> None:
    config = load_config(gsm8k.RECIPE, list(gsm8k.VARIANTS[variant].items()))
    assert config.rollout.batch_size * config.rollout.n == 512


def test_one_command_goes_from_questions_to_tables_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recipes.gsm8k.HELD_OUT", 4)
    lines = [json.dumps({"question": q, "answer": a}) for q, a in QUESTIONS]
    (tmp_path / "train.jsonl").write_text("\n".join(lines * 4), "utf-8")
    (tmp_path / "test.jsonl").write_text("\n".join(lines), "utf-8")
    model = write_model(tmp_path / "model", "qwen")
    small = {
        "steps": "2",
        "rollout.batch_size": "8",
        "rollout.max_response_tokens": "8",
        "model.dtype": "float32",
        "device": "cpu",
        "eval.samples": "3",
        "eval.prompts": "3",
        "ledger.every": "1",
    }
    command = ["--model", str(model), "--questions", str(tmp_path), "--seeds", "0"]
    command += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    for key, value in small.items():
        command += ["--set", f"{key}={value}"]
    with monkeypatch.context() as patched:
        patched.setattr(gsm8k, "test", interrupted_after(1, gsm8k.test))
        with pytest.raises(KeyboardInterrupt):
            gsm8k.main(command)
    gsm8k.main(command)
    first = capfd.readouterr().out
    gsm8k.main(command)
    assert capfd.readouterr().out == first  # nothing was run again

    head, *curve = gsm8k.read_rows(tmp_path / "out" / "recipe-seed0.jsonl")
    assert (head["variant"], head["seed"], head["updates"]) == ("recipe", 0, 2)
    assert list(head["test"]) == list(gsm8k.SCORES)
    assert [row["step"] for row in curve] == [0, 1, 2]
    assert "| recipe-seed0 | 2 | " in first
    assert "| before training | " in first
    assert not (tmp_path / "work" / "recipe-seed0" / "checkpoints").exists()
    assert (tmp_path / "out" / "curves.svg").exists()
