"""The comparison on a real model: what its page says is what its files say, and both sides get the
same problems.
"""

from __future__ import annotations

import importlib.util
import json
import string
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from telescope.config import Config, load_config
from tests import ROOT

VERSIONS = {"torch": "2.11.0", "trl": "1.12.0"}
SETTINGS = {
    "local_rollout_forward_batch_size": 512,
    "response_length": 24,
    "num_mini_batches": 2,
    "num_ppo_epochs": 1,
    "learning_rate": 1e-5,
    "critic_lr": 2e-5,
    "warmup_updates": 10,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "clip_grad": 1.0,
    "kl_coef": 0.001,
    "gamma": 1.0,
    "lam": 0.95,
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


learn, trl_side = load("learn"), load("_trl_arithmetic")


def write(
    path: Path, side: str, seed: int, seconds: float, greedy: list[float], **more: Any
) -> None:
    header = {
        "run": path.stem,
        "side": side,
        "seed": seed,
        "seconds": seconds,
        "wall_seconds": seconds + 9,
        "startup_seconds": 12.3,
    }
    header |= {
        "updates": 40,
        "peak_gib": 6.54,
        "device": "NVIDIA H200",
        "versions": VERSIONS,
        "date": "2026-11-15",
        "settings": {},
    } | more
    rows = [
        {"step": 20 * i, "seconds": i * seconds / 2, "greedy": g, "sampled": g / 2}
        for i, g in enumerate(greedy)
    ]
    learn.write_run(path, header, rows)


def test_the_page_says_what_the_files_say(tmp_path: Path) -> None:
    write(tmp_path / "seed0.jsonl", "Telescope", 0, 100.0, [0.2, 0.5, 0.9])
    write(
        tmp_path / "seed1.jsonl",
        "Telescope",
        1,
        120.0,
        [0.2, 0.3, 0.8],
        fresh={"problems": 1000, "greedy": 0.75, "sampled": 0.5},
    )
    write(
        tmp_path / "trl.jsonl",
        "TRL",
        0,
        110.0,
        [0.25, 0.3, 0.5],
        updates=17,
        settings=SETTINGS,
        arguments="",
    )
    write(
        tmp_path / "trl-lr-3e-5.jsonl",
        "TRL",
        0,
        110.0,
        [0.0, 0.3, 0.85],
        settings=SETTINGS,
        arguments="--lr 3e-5",
        peak_gib=None,
    )
    mixed = {"settings": SETTINGS | {"precision": "mixed"}, "arguments": "--precision mixed"}
    write(tmp_path / "trl-a.jsonl", "TRL", 0, 110.0, [0.25, 0.3, 0.0], **mixed)
    learn.render(tmp_path)
    page = (tmp_path / "README.md").read_text("utf-8")
    assert (
        "| Telescope, seed 0 | 40 | 100 | 109 | 12 | 6.5 | 0.200 | **0.900** | 4.5 | 0.100 | "
        "**0.450** | 4.5 |" in page
    )
    assert (
        "| Telescope, seed 1 | 40 | 120 | 129 | 12 | 6.5 | 0.200 | **0.800** | 4.0 | 0.100 | "
        "**0.400** | 4.0 |" in page
    )
    assert (
        "| TRL 1.12.0, seed 0 | 17 | 110 | 119 | 12 | 6.5 | 0.250 | **0.500** | 2.0 | 0.125 | "
        "**0.250** | 2.0 |" in page
    )
    assert (
        "| TRL 1.12.0 --lr 3e-5, seed 0 | 40 | 110 | 119 | 12 | – | 0.000 | **0.850** | – | 0.000 "
        "| **0.425** | – |" in page
    )
    assert (
        "Mean over Telescope's 2 seeds: greedy 0.200 → 0.850 (0.800–0.900), sampled 0.100 → 0.425 "
        "(0.400–0.450)." in page
    )
    first_there = "Telescope's evaluations were first there: "
    assert (
        "TRL 1.12.0, seed 0 ended at 0.500 greedy after 17 updates; "
        + first_there
        + "seed 0 after 50 s and 20 updates, seed 1"
        in page
    )
    assert (
        "ended at 0.850 greedy after 40 updates; "
        + first_there
        + "seed 0 after 100 s and 40 updates, seed 1 never."
        in page
    )
    assert (
        "TRL 1.12.0 --precision mixed, seed 0 ended at 0.000 greedy after 40 updates, where it had "
        "begun at 0.250." in page
    )
    assert page.index("| TRL 1.12.0 --lr") < page.index("| TRL 1.12.0 --precision mixed")
    trl_args = ("''", "'--lr 3e-5'", "'--precision mixed'")
    command = " ".join(["python benchmarks/learn.py", *(f"--trl-args {x}" for x in trl_args)]) + "`"
    assert command in page  # with the run that needs no arguments
    assert (
        "no setting was chosen by them: Telescope, seed 1 0.750 greedy and 0.500 sampled of 1000."
        in page
    )
    assert "512 responses per update, 2 optimizer steps on each" in page
    assert (
        "a value head that starts at zero.\nNot equal: the seconds of training, 110 for TRL and "
        "100, 120 for Telescope.\n" in page
    )
    assert "report.html" not in page  # there is none


def test_the_picture_has_a_line_for_each_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path / "seed0.jsonl", "Telescope", 0, 100.0, [0.2, 0.5, 0.9])
    write(tmp_path / "trl.jsonl", "TRL", 0, 110.0, [0.25, 0.3, 0.5], arguments="")
    learn.render(tmp_path)
    picture = (tmp_path / "curves.svg").read_text("utf-8")
    assert "Telescope, seed 0" in picture
    assert "TRL 1.12.0, seed 0" in picture


def test_a_runs_curve_counts_the_seconds_of_steps_and_joins_the_last_evaluation() -> None:
    metrics = [
        {"step": 0, "eval/greedy_accuracy": 0.25, "eval/sampled_accuracy": 0.125},
        {
            "step": 1,
            "timing/step": 2.0,
            "reward/score_mean": 0.5,
            "reward/kl": 0.01,
            "actor/entropy": 1.5,
            "timing/rollout": 1.0,
        },
        {
            "step": 2,
            "timing/step": 1.0,
            "reward/score_mean": 0.75,
            "reward/kl": None,
            "actor/entropy": 1.0,
        },
        {"step": 2, "eval/greedy_accuracy": 0.5, "eval/sampled_accuracy": 0.25},
    ]
    assert learn.slim(metrics) == [
        {"step": 0, "seconds": 0.0, "greedy": 0.25, "sampled": 0.125},
        {"step": 1, "seconds": 2.0, "score": 0.5, "kl": 0.01, "entropy": 1.5},
        {"step": 2, "seconds": 3.0, "score": 0.75, "entropy": 1.0, "greedy": 0.5, "sampled": 0.25},
    ]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "sco')
    assert learn.read_rows(path) == [{"step": 1}]


def chat_tokenizer() -> Any:
    """Reads characters, and ends a turn with the token that it pads with, as SmolLM2's does."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<end>", "<unk>", "<spare>", *string.printable]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<end>", eos_token="<end>", unk_token="<unk>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<spare>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    return tokenizer


@pytest.fixture
def config() -> Config:
    pytest.importorskip("reasoning_gym")
    return load_config(
        ROOT / "recipes" / "smollm2-arithmetic.toml", [("data.size", "24"), ("eval.prompts", "8")]
    )


def test_trl_is_paid_what_the_recipe_pays(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "3 + 4?"}], "reward_model": {"ground_truth": "7"}}
    ] * 3
    config = load_config(
        ROOT / "recipes" / "gsm8k.toml",
        [("data.files", str(written(rows, tmp_path / "a.jsonl"))), ("data.eval_files", "[]")],
    )
    prompts, _ = trl_side.problems(config, chat_tokenizer())
    score = trl_side.scorer_of(config)
    paid = score(["so\n#### 7", "it is 7", "#### 8"], prompts.data)
    assert paid == pytest.approx([1.0, 0.0, 0.1])  # 0.9 for the number, 0.1 for the form


def written(rows: list[dict[str, Any]], path: Path) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return path


def test_trl_gets_a_pad_token_that_no_prompt_has(config: Config, tmp_path: Path) -> None:
    chat_tokenizer().save_pretrained(tmp_path)
    prompts, tokenizer = trl_side.tokenizers(tmp_path, config)
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.padding_side) == (
        "<spare>",
        "<end>",
        "left",
    )
    assert all(
        tokenizer.eos_token_id in row and tokenizer.pad_token_id not in row
        for half in prompts
        for row in half.ids
    )


def test_trls_reward_module_gives_the_scorers_score_whatever_the_padding(
    config: Config, tmp_path: Path
) -> None:
    chat_tokenizer().save_pretrained(tmp_path)
    (prompts, _), tokenizer = trl_side.tokenizers(tmp_path, config)
    pad, end, width = tokenizer.pad_token_id, tokenizer.eos_token_id, max(map(len, prompts.ids)) + 3
    answers = [
        str(prompts.data[0]["entry"]["answer"]),
        f"it is {prompts.data[1]['entry']['answer']}",
        "no number",
        "99999",
    ]
    rows = []
    for ids, answer in zip(prompts.ids, answers, strict=False):
        response = [*tokenizer(answer).input_ids, end]
        rows.append([pad] * (width - len(ids)) + ids + response + [pad] * (24 - len(response)))
    query_responses = torch.tensor(rows)
    real = query_responses != pad
    module = trl_side.scoring_module(
        tokenizer,
        prompts,
        width,
        trl_side.scorer_of(config),
    )
    hidden = module.backbone(
        input_ids=query_responses.masked_fill(~real, 0), attention_mask=real
    ).hidden_states[-1]
    assert hidden.shape == (4, width + 24, 1)
    scores = module.score(hidden)[:, -1, 0].tolist()
    assert scores[:2] == [1.0, 1.0]
    assert max(scores[2:]) < 1
    assert module.take() == (sum(scores) / 4, sum(len(answer) + 1 for answer in answers) / 4)


def test_a_run_is_one_line_that_says_what_it_was_and_then_its_curve(tmp_path: Path) -> None:
    learn.write_run(tmp_path / "seed0.jsonl", {"run": "seed0"}, [{"step": 0}, {"step": 1}])
    assert learn.read_run(tmp_path / "seed0.jsonl") == (
        {"run": "seed0"},
        [{"step": 0}, {"step": 1}],
    )
