"""The recipes: each parses, what their headers say is what the plan says, and those for real models
run with a tiny one in its place.
"""

from __future__ import annotations

import json
import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope import Trainer, ledger
from telescope.config import load_config
from telescope.data.files import read_rows
from telescope.models.load import quiet
from telescope.models.quantize import quantized_layers
from telescope.roles.functions import load_function
from telescope.run.evaluate import evaluate_run
from telescope.scale.plan.job import Job, all_gpus
from telescope.scale.plan.memory import memories, memory_of
from telescope.scale.plan.shapes import GIB, SHAPES
from tests import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
GSM8K = ROOT / "recipes" / "gsm8k.py"
QUESTIONS = [
    ("Ann has 3 pens and buys 4. How many?", "3 + 4 = <<3+4=7>>7\n#### 7"),
    ("A farm has 40 rows of 25 trees. How many trees?", "40 * 25 = 1000\n#### 1,000"),
    ("It is 3 degrees and gets 10 colder. How many degrees?", "3 - 10 = -7\n#### -7"),
]
ANSWERS = [answer.splitlines()[-1] for _, answer in QUESTIONS]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_parses(recipe: Path) -> None:
    assert load_config(recipe).name in recipe.stem


# ---- what the headers say


@pytest.mark.parametrize(
    ("name", "shape", "gpus"),
    [
        ("qwen2.5-0.5b-gsm8k", "0.5B", 1),
        ("qwen2.5-7b-8gpu", "7B", 8),
        ("llama-3.1-8b-8gpu", "8B", 8),
        ("small-gpu", "7B", 1),
    ],
)
def test_the_memory_in_a_header_is_the_plans(name: str, shape: str, gpus: int) -> None:
    path = ROOT / "recipes" / f"{name}.toml"
    config, header = load_config(path), path.read_text("utf-8")
    memory = memory_of(
        Job(
            config,
            gpus,
            SHAPES[shape],
            SHAPES[shape],
            config.data.max_prompt_tokens,
            config.rollout.max_response_tokens,
        )
    )
    said = re.search(r"sampling takes (\d+) GiB(?: per GPU)? and updating (\d+)", header)
    assert said is not None
    assert [int(number) for number in said.groups()] == [
        round(memory.sampling / GIB),
        round(memory.updating / GIB),
    ]
    more = re.search(r"loading (\d+) and saving (\d+)", header)
    if more is not None:
        assert [int(number) for number in more.groups()] == [
            round(memory.loading / GIB),
            round(memory.saving / GIB),
        ]
    assert memory.peak / GIB < (0.9 * 80 if gpus == 8 else 24)


def test_the_memory_in_the_70b_header_is_the_plans() -> None:
    path = ROOT / "recipes" / "llama-70b-64gpu.toml"
    config, header = load_config(path), path.read_text("utf-8")
    sizes = (config.data.max_prompt_tokens, config.rollout.max_response_tokens)
    kinds = memories(Job(config, all_gpus(config), SHAPES["70B"], SHAPES["70B"], *sizes))
    said = re.search(
        r"loading takes (\d+) GiB.*passes (\d+), updating (\d+), sending weights (\d+) and "
        r"saving (\d+); on one that\n# samples sampling takes (\d+)",
        header,
    )
    assert said is not None
    trains = [
        getattr(kinds["trains"], phase)
        for phase in ("loading", "forward", "updating", "sending", "saving")
    ]
    expected = [*trains, kinds["samples"].sampling]
    assert [int(number) for number in said.groups()] == [round(of / GIB) for of in expected]


def test_the_gsm8k_recipe_trains_as_verls_quickstart_does() -> None:
    """verl's keys, as its command and its defaults set them.

    The tables of docs/coming-from.md map the names.
    """
    config = load_config(ROOT / "recipes" / "qwen2.5-0.5b-gsm8k.toml")
    questions, epochs, mini_batch = 7473, 15, 64
    assert config.steps == epochs * (questions // config.rollout.batch_size)
    assert (
        config.rollout.batch_size / config.actor.minibatches
        == config.rollout.batch_size / config.critic.minibatches
        == mini_batch
    )
    assert (config.actor.lr, config.critic.lr) == (1e-6, 1e-5)
    assert (config.credit.gamma, config.credit.lam, config.credit.kl_coef) == (1.0, 1.0, 0.0)
    assert (
        config.actor.clip_low,
        config.actor.clip_high,
        config.actor.dual_clip,
        config.critic.clip_value,
    ) == (0.2, 0.2, 3.0, 0.5)


# ---- GSM8K: the reward and the files


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("3 + 4 = 7\n#### 7", "7", 1.0),
        ("3 + 4 = 8\n#### 8", "7", 0.0),
        ("The answer is 7.", "7", 0.0),
        ("####7", "7", 0.0),
        ("", "7", 0.0),
        ("#### 1,000", "1000", 1.0),
        ("#### -7", "-7", 1.0),
        ("#### 7", "-7", 0.0),
        ("#### $7", "7", 0.0),
        ("#### 7 dollars", "7", 1.0),
        ("#### 7.", "7", 0.0),
        ("#### 7.0", "7", 0.0),
        ("#### 8, no: #### 7", "7", 1.0),
        ("#### 7, no: #### 8", "7", 0.0),
        ("#### 7" + " " * 294, "7", 1.0),
        ("#### 7" + " " * 295, "7", 0.0),
    ],
)
def test_gsm8k_pays_the_last_number_after_four_hashes(
    response: str, truth: str, score: float
) -> None:
    """As verl's strict scorer does, unforgiving where it is: a dollar sign or a full stop, no
    space, 300 characters or more after it.
    """
    _, reward = load_function(f"{GSM8K}:gsm8k")
    assert reward(completions=[response, "#### 7"], ground_truth=[truth, "7"]) == [score, 1.0]


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("The answer is 7.", "7", 1.0),
        ("She pays $1,000.00 in all.", "1000", 1.0),
        ("\\boxed{-7}", "-7", 1.0),
        ("#### 7", "7", 1.0),
        ("7 pens, of which 3 are red", "7", 0.0),
        ("seven", "7", 0.0),
        ("", "7", 0.0),
    ],
)
def test_lenient_pays_the_last_number_whatever_its_form(
    response: str, truth: str, score: float
) -> None:
    _, reward = load_function(f"{GSM8K}:lenient")
    assert reward(completions=[response, "8"], ground_truth=[truth, "7"]) == [score, 0.0]


def test_form_pays_any_number_after_four_hashes() -> None:
    _, reward = load_function(f"{GSM8K}:form")
    responses = ["2 + 2 = 5\n#### 5", "#### $5", "so it is 4", "#### 4" + " " * 300]
    assert reward(completions=responses) == [1.0, 0.0, 0.0, 0.0]


def write_questions(folder: Path) -> Path:
    source = folder / "train.jsonl"
    source.write_text(
        "\n".join(json.dumps({"question": q, "answer": a}) for q, a in QUESTIONS) + "\n", "utf-8"
    )
    return source


def test_gsm8k_files_have_verls_columns_and_the_answer_where_the_reward_looks(
    tmp_path: Path,
) -> None:
    source, target = write_questions(tmp_path), tmp_path / "data" / "train.parquet"
    done = subprocess.run(
        [sys.executable, str(GSM8K), str(source), str(target)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"3 questions: {target}\n"
    rows = read_rows([str(target)])
    assert [row["ground_truth"] for row in rows] == ["7", "1000", "-7"]
    first = rows[0]
    asked = (
        "Ann has 3 pens and buys 4. How many? "
        'Let\'s think step by step and output the final answer after "####".'
    )
    assert first["prompt"] == [{"role": "user", "content": asked}]
    assert first["data_source"] == "openai/gsm8k"
    assert first["reward_model"] == {"style": "rule", "ground_truth": "7"}
    assert first["extra_info"] == {
        "split": "train",
        "index": 0,
        "question": QUESTIONS[0][0],
        "answer": QUESTIONS[0][1],
    }
    _, reward = load_function(f"{GSM8K}:gsm8k")
    truths = [row["ground_truth"] for row in rows]
    assert reward(completions=[answer for _, answer in QUESTIONS], ground_truth=truths) == [
        1.0,
        1.0,
        1.0,
    ]


def test_gsm8k_holds_out_the_same_500_questions_every_time(tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    lines = [json.dumps({"question": f"{i}?", "answer": f"#### {i}"}) for i in range(507)]
    source.write_text("\n".join(lines), "utf-8")
    _, convert = load_function(f"{GSM8K}:convert")
    seen = []
    for name in ("once", "again"):
        kept, held = tmp_path / name / "train.parquet", tmp_path / name / "held-out.parquet"
        assert convert(source, kept, held_out=held) == [(kept, 7), (held, 500)]
        seen.append([[row["ground_truth"] for row in read_rows([str(f)])] for f in (kept, held)])
    assert seen[0] == seen[1]
    assert sorted(map(int, seen[0][0] + seen[0][1])) == list(range(507))
    with pytest.raises(SystemExit, match="has 3 questions: too few to hold out 500"):
        convert(write_questions(tmp_path), tmp_path / "x.parquet", held_out=tmp_path / "y.parquet")


# ---- smoke runs


def write_model(folder: Path, family: str) -> Path:
    """A random model of a few thousand weights, of the recipe's architecture, that reads chats and
    has a token for each answer.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    words = ["<pad>", "<eos>", "<unk>", *ANSWERS, *string.ascii_lowercase, *string.digits, *" ?.,"]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split(
        Regex("|".join([*ANSWERS, "."])), behavior="isolated"
    )
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}a {% endif %}"
    )
    kind, settings = {
        "qwen": (Qwen2ForCausalLM, Qwen2Config),
        "llama": (LlamaForCausalLM, LlamaConfig),
    }[family]
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(0)
        kind(
            settings(vocab_size=len(words), max_position_embeddings=256, **sizes, **ends)
        ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def smoke(
    tmp_path: Path, name: str, family: str, *replaced: tuple[str, str]
) -> tuple[Any, Trainer]:
    """Two steps of the recipe: a tiny model, three questions, 16 short responses.

    All else as it stands there but for `replaced`.
    """
    _, convert = load_function(f"{GSM8K}:convert")
    convert(write_questions(tmp_path), tmp_path / "train.parquet")
    files = str(tmp_path / "train.parquet")
    small = [
        ("steps", "2"),
        ("rollout.batch_size", "16"),
        ("rollout.max_response_tokens", "24"),
        ("eval.samples", "4"),
        ("dir", str(tmp_path)),
    ]
    tiny = [
        ("model.path", str(write_model(tmp_path / "model", family))),
        ("data.files", files),
        ("data.eval_files", files),
    ]
    rewards = [
        ("reward.functions", f"{GSM8K}:gsm8k"),
        ("device", "cpu"),
    ]  # the recipe names it relative to the repository's root
    config = load_config(ROOT / "recipes" / f"{name}.toml", [*small, *tiny, *rewards, *replaced])
    trainer = Trainer(config)
    trainer.fit()
    return config, trainer


def check_run(config: Any, trainer: Trainer) -> None:
    steps = [row for row in trainer.history() if "reward/gsm8k" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert (
        0 < sum(row["reward/gsm8k"] for row in steps) < 2
    )  # by chance some wrote the right answer, most did not
    assert all(row["actor/grad_norm"] > 0 and row["critic/grad_norm"] > 0 for row in steps)
    assert steps[0]["actor/lr"] == config.actor.lr
    samples = [sample for step in (1, 2) for sample in ledger.samples(config.run_dir, step)]
    assert all(sample.prompt.endswith('the final answer after "####". a ') for sample in samples)
    assert {update.minibatch for sample in samples for update in sample.actor_updates} == set(
        range(config.actor.minibatches)
    )
    for sample in samples:
        written = [
            answer in sample.response
            for (question, _), answer in zip(QUESTIONS, ANSWERS, strict=True)
            if question in sample.prompt
        ]
        assert sample.score == 0 or written == [True], sample.response
    assert "eval/greedy_accuracy" in trainer.history()[0]


def test_the_gsm8k_recipe_runs_with_a_tiny_qwen2_in_place_of_qwen25(tmp_path: Path) -> None:
    """Replaced: the model, the questions, sizes. λ, clipping, minibatches, reward, bf16 and
    checkpointing are the recipe's.
    """
    check_run(*smoke(tmp_path, "qwen2.5-0.5b-gsm8k", "qwen"))


def test_the_recipe_for_small_gpus_runs_with_a_tiny_qwen2_on_one_quantised_base(
    tmp_path: Path,
) -> None:
    """Replaced: the model, the questions, the reward, sizes."""
    pytest.importorskip("bitsandbytes", reason="quantised weights need the extra `bitsandbytes`")
    _, trainer = smoke(tmp_path, "small-gpu", "qwen")
    steps = [row for row in trainer.history() if "reward/gsm8k" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["actor/grad_norm"] > 0 and row["critic/grad_norm"] > 0 for row in steps)
    actor, critic = (
        [layer.packed.data_ptr() for _, layer in quantized_layers(role.model)]
        for role in (trainer.roles.actor, trainer.roles.critic)
    )
    assert actor
    assert actor == critic


def test_our_gsm8k_recipe_runs_with_a_tiny_qwen2_and_reports_all_scores(tmp_path: Path) -> None:
    """Replaced: the model, the questions, sizes. A right answer is paid 1, a wrong one in the form
    0.1. The last number is reported, not paid, and `eval` can be told to count it.
    """
    parts = ",".join(f"{GSM8K}:{name}" for name in ("gsm8k", "form", "lenient"))
    tiny = [("ledger.every", "1"), ("reward.functions", parts)]
    config, trainer = smoke(tmp_path, "gsm8k", "qwen", *tiny)
    steps = [row for row in trainer.history() if "reward/gsm8k" in row]
    assert [row["step"] for row in steps] == [1, 2]
    for row in steps:
        paid = 0.9 * row["reward/gsm8k"] + 0.1 * row["reward/form"]
        assert row["reward/score_mean"] == pytest.approx(paid)
        assert row["reward/gsm8k"] <= row["reward/form"]
        assert 0 <= row["reward/lenient"] <= 1
        assert row["actor/grad_norm"] > 0
    samples = ledger.samples(config.run_dir, 2)
    assert all("step by step" in sample.prompt for sample in samples)
    overrides = [("reward.functions", f"{GSM8K}:lenient"), ("reward.weights", "{}")]
    found = evaluate_run(config.run_dir, overrides=overrides)
    assert 0 <= found["eval/greedy_accuracy"] == found["eval/greedy_score"] <= 1


def test_the_llama_recipe_runs_in_one_process_with_a_tiny_llama_and_the_torch_sampler(
    tmp_path: Path,
) -> None:
    """Replaced: the model, the questions, sizes, Ray's 8 workers by one process, and vLLM by the
    torch sampler.
    """
    check_run(
        *smoke(
            tmp_path,
            "llama-3.1-8b-8gpu",
            "llama",
            ("backend", "local"),
            ("rollout.engine", "torch"),
        )
    )
