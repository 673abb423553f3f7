"""TRL's own trainers, watched: `make test-peers` runs these with TRL 1.12 and with 1.16."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import telescope
from telescope.errors import TelescopeError
from telescope.explain.groups import Group
from telescope.explain.settings import Settings
from telescope.explain.trace import Tracer
from telescope.ledger.reader import samples, steps
from telescope.peers.trl import watch_grpo
from tests.peers.batches import judged
from tests.tiny import write_tiny_model

has_trl = importlib.util.find_spec("trl") is not None
has_ppo = has_trl and importlib.util.find_spec("trl.experimental.ppo") is not None
needs_trl = pytest.mark.skipif(not has_trl, reason="TRL is not installed: make test-peers")
needs_ppo = pytest.mark.skipif(not has_ppo, reason="no TRL with PPO is installed: make test-peers")
PROMPTS = ["请问1+1=2？", "请问2+3=5？"]
COMMON: dict[str, Any] = {
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "learning_rate": 1e-3,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return write_tiny_model(tmp_path / "model")


def tokenizer_of(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, padding_side="left")


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text) % 3) for text in completions]


def variety(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(text))) for text in completions]


def train_grpo(model: Path, tmp_path: Path, *rewards: Callable[..., Any], **settings: Any) -> Any:
    """TRL's GRPO trainer with these rewards, after it was watched for two steps."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    own = {
        "output_dir": str(tmp_path / "out"),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "max_steps": 2,
    }
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=list(rewards),
        args=GRPOConfig(**{**own, **COMMON, **settings}),
        train_dataset=Dataset.from_list([{"prompt": text} for text in PROMPTS * 4]),
        processing_class=tokenizer_of(model),
    )
    telescope.watch(trainer, tmp_path / "run", strict=True)
    trainer.train()
    return trainer


@needs_trl
def test_grpo_of_trl_is_recomputed(model: Path, tmp_path: Path) -> None:
    trainer = train_grpo(model, tmp_path, length, beta=0.04)
    assert steps(tmp_path / "run") == [0, 1]
    found = samples(tmp_path / "run", 1)
    assert len(found) == 8
    assert {sample.prompt for sample in found} <= set(PROMPTS)
    assert all(set(sample.parts) == {"length"} for sample in found)
    ends = {trainer.processing_class.eos_token_id, trainer.processing_class.pad_token_id}
    assert [sample.truncated for sample in found] == [s.token_ids[-1] not in ends for s in found]
    assert any(sample.truncated for sample in found)
    assert all(judged(tmp_path / "run", 1).values())


@needs_trl
@pytest.mark.parametrize(
    "settings",
    [
        {"mask_truncated_completions": True},
        {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.5]},
        {"num_generations": 2, "gradient_accumulation_steps": 2, "num_iterations": 2},
        {"scale_rewards": "batch"},
    ],
    ids=["truncated are masked", "two rewards", "two answers", "the batch's spread"],
)
def test_other_settings_of_trls_grpo_are_no_fault(
    settings: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    from trl import GRPOConfig

    if not set(settings) <= GRPOConfig.__dataclass_fields__.keys():
        pytest.skip("this TRL has no such setting")
    rewards = [length, variety] if "reward_weights" in settings else [length]
    train_grpo(model, tmp_path, *rewards, **settings)
    first = steps(tmp_path / "run")[0]
    assert all(judged(tmp_path / "run", first).values())
    found = samples(tmp_path / "run", first)
    assert found[0].faults == ()
    if "scale_rewards" in settings:
        assert all(trace.ok for trace in Group(found[:4], 0).traces(0))


@needs_trl
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_answers_without_a_reward_are_not_compared(scale: str, model: Path, tmp_path: Path) -> None:
    """Of four answers one has no reward at all, and one has only the first."""

    def first(completions: list[str], **_: Any) -> list[float | None]:
        return [None if i % 4 == 1 else float(i % 3) for i in range(len(completions))]

    def second(completions: list[str], **_: Any) -> list[float | None]:
        return [None if i % 4 in (1, 2) else 0.5 for i in range(len(completions))]

    train_grpo(model, tmp_path, first, second, max_steps=1, scale_rewards=scale)
    found = samples(tmp_path / "run", 0)
    assert all(judged(tmp_path / "run", 0).values())
    assert found[0].assumed == ()
    assert [sample.score is None for sample in found] == [False, True, False, False] * 2
    assert [set(sample.parts) for sample in found[:3]] == [{"first", "second"}, set(), {"first"}]


LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dapo": ({"beta": 0.1}, {"loss": "clip", "aggregation": "token-mean", "kl_loss_coef": 0.1}),
    "grpo": (
        {"importance_sampling_level": "sequence", "epsilon": 0.01, "epsilon_high": 0.05},
        {"loss": "gspo", "clip_low": 0.01, "clip_high": 0.05},
    ),
    "cispo": ({"epsilon_high": 5.0}, {"loss": "cispo", "clip_high": 4.0}),
    "dr_grpo": ({}, {"loss": "clip", "aggregation": "seq-mean-token-sum-norm"}),
    "sapo": ({}, {"loss": "sapo", "tau_positive": 1.0, "tau_negative": 1.05}),
}


@needs_trl
@pytest.mark.parametrize(("name", "given", "ours"), [(n, *pair) for n, pair in LOSSES.items()])
def test_the_loss_of_trls_grpo_is_recorded_under_our_names(
    name: str, given: dict[str, Any], ours: dict[str, Any], tmp_path: Path
) -> None:
    from trl import GRPOConfig

    args = GRPOConfig(output_dir=str(tmp_path), loss_type=name, **given, **COMMON)
    trainer = SimpleNamespace(
        args=args,
        add_callback=lambda callback: None,
        _calculate_rewards=None,
        _generate_and_score_completions=None,
    )
    recorder = watch_grpo(trainer, tmp_path / "run", {})
    recorded = Settings.of(**recorder.settings).by_name()
    assert {key: recorded[key] for key in ours} == ours


@needs_ppo
def test_ppo_of_trl_is_recomputed_where_no_answer_ends_early(model: Path, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = tokenizer_of(model)
    arguments = PPOConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_ppo_epochs=2,
        num_mini_batches=1,
        response_length=8,
        total_episodes=16,
        num_sample_generations=0,
        **COMMON,
    )
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in PROMPTS * 4]
    scorer = AutoModelForSequenceClassification.from_pretrained
    trainer = PPOTrainer(
        args=arguments,
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(model),
        ref_model=AutoModelForCausalLM.from_pretrained(model),
        reward_model=scorer(model, num_labels=1),
        value_model=scorer(model, num_labels=1),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
    )
    recorder = telescope.watch(trainer, tmp_path / "run", strict=True)
    trainer.train()
    recorder.close()
    assert steps(tmp_path / "run") == [1, 2]
    whole = [s for s in samples(tmp_path / "run", 2) if len(s) == 8]
    assert whole
    for sample in whole:
        tracer = Tracer(sample)
        assert all(ok for i in range(8) for ok in tracer.verdicts(i).values())
        assert {"values", "returns", "whitened", "ref_log_prob"} <= sample.columns.keys()


def test_another_object_is_refused_with_a_way_out() -> None:
    with pytest.raises(TelescopeError, match=r"telescope\.record"):
        telescope.watch(object())
