"""The benchmark of GSM8K: every variant is a config, and a small one runs to its tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gsm8k, gsm8k_trl
from telescope.config import load_config
from tests.test_recipes import QUESTIONS, write_model


def cut_off(*_: Any) -> None:
    raise KeyboardInterrupt


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
        patched.setattr(gsm8k, "test", cut_off)
        with pytest.raises(KeyboardInterrupt):
            gsm8k.main(command)
    gsm8k.main(command)
    first = capfd.readouterr().out
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib", None)  # as on a machine without it
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


def test_a_run_of_trl_that_is_cut_off_keeps_its_steps(tmp_path: Path) -> None:
    curve = tmp_path / "curve.jsonl"
    clock = gsm8k_trl.Clock(3600.0, 6, save=cut_off, curve=curve)
    clock.begin()
    clock.tick({"reward": 0.25})
    clock.tick({"reward": 0.5})
    rows = gsm8k.read_rows(curve)
    assert [(row["step"], row["reward"]) for row in rows] == [(1, 0.25), (2, 0.5)]
