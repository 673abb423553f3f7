"""critic.loss = "hl_gauss" from the settings to the exported folder: a critic that predicts a histogram of returns."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from telescope import Config, Trainer, ledger
from telescope.config import Bins, ModelConfig
from telescope.errors import TelescopeError
from telescope.explain.questions import answer
from telescope.explain.sample import CriticUpdate, Sample
from telescope.explain.settings import Settings
from telescope.explain.terminal import render
from telescope.explain.trace import traces
from telescope.models.forward import value_forward
from telescope.models.load import load_critic, quiet
from telescope.run.export import export_run
from telescope.run.live import explain_pair
from tests.fakes import hand_batch, read_shards
from tests.resumed import last_checkpoint, whole_and_resumed

HISTOGRAM = [
    ("critic.loss", "hl_gauss"),
    ("critic.bins", "11"),
    ("critic.value_low", "-1"),
    ("critic.value_high", "1"),
]


def varied(response_ids: list[list[int]]) -> list[float]:
    return [len(set(ids)) / 6 for ids in response_ids]


def test_a_histogram_starts_flat_in_float32_with_its_mean_in_the_middle(tiny_model: Path) -> None:
    model = load_critic(
        ModelConfig(path=str(tiny_model), dtype="bfloat16"), torch.device("cpu"), Bins(5, -1.0, 3.0)
    )
    out = value_forward(model, hand_batch([[1, 1]]))
    assert model.head.weight.dtype is torch.float32
    assert out.logits is not None
    assert out.logits.tolist() == [[[0.0] * 5] * 2]
    assert out.values[0].tolist() == pytest.approx([1.0, 1.0])
    assert out.final.tolist() == pytest.approx([1.0])


def test_the_built_in_job_learns_its_values_by_classification(tmp_path: Path) -> None:
    """The critic alone, on what the policy as it is writes: its loss falls, and its values explain more and more of the returns."""
    critic = {"loss": "hl_gauss", "lr": 1e-3, "schedule": "constant", "epochs": 8}
    changes = {
        "ledger": {"samples": 4},
        "eval": {"samples": 1},
        "checkpoint": {"every": 0},
    }
    trainer = Trainer(
        Config.builtin(dir=str(tmp_path), steps=12, critic_warmup=12, critic=critic, **changes)
    )
    trainer.fit()
    rows = [row for row in trainer.history() if "critic/vf_loss" in row]
    losses, explained = (
        [row[f"critic/{name}"] for row in rows] for name in ("vf_loss", "explained_variance")
    )
    updates = [
        update
        for sample in ledger.samples(trainer.config.run_dir, 1)
        for update in sample.critic_updates
    ]
    flat = next(update for update in updates if (update.epoch, update.minibatch) == (0, 0))
    assert flat.loss == pytest.approx([math.log(51)] * len(flat.loss))  # every bin is as likely
    assert sum(losses[-3:]) / 3 < losses[0] - 0.4
    assert abs(explained[0]) < 0.01
    assert sum(explained[-3:]) / 3 > 0.15  # 0.25 to 0.27 with seeds 0, 1 and 2
    assert {row["critic/out_of_range"] for row in rows} == {0.0}


def test_it_resumes_bit_for_bit_and_only_with_the_same_bins(make_config) -> None:
    whole, _ = whole_and_resumed(make_config, *HISTOGRAM, ("steps", "2"), reward=varied, after=1)
    head = read_shards(last_checkpoint(whole), "critic")["weight/head.weight"]
    assert head.shape == (11, 16)
    assert head.abs().max() > 0
    was = "was trained with critic.loss = hl_gauss with 11 bins from -1 to 1, and the config says "
    for change, says in (
        (
            [("critic.bins", "12")],
            "hl_gauss with 12 bins from -1 to 1: set it back, or use another --name",
        ),
        ([("critic.value_low", "-3")], "hl_gauss with 11 bins from -3 to 1"),
    ):
        with pytest.raises(TelescopeError, match=was + says):
            Trainer(
                make_config(*HISTOGRAM, *change, ("name", "part"), ("steps", "3")),
                reward=varied,
                resume=True,
            )
    with pytest.raises(TelescopeError, match=was + "one without bins"):
        Trainer(make_config(("name", "part"), ("steps", "3")), reward=varied, resume=True)
    Trainer(
        make_config(*HISTOGRAM, ("critic.sigma", "1"), ("name", "part"), ("steps", "3")),
        reward=varied,
        resume=True,
    ).fit()


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_the_exported_critic_names_its_bins_and_has_the_run_s_values(
    make_config, tmp_path: Path, lora: bool
) -> None:
    from transformers import AutoModelForTokenClassification

    if lora:
        pytest.importorskip("peft")
    trainer = Trainer(
        make_config(
            *HISTOGRAM, ("critic.lr", "1e-2"), *([("model.lora_rank", "2")] if lora else [])
        ),
        reward=varied,
    )
    trainer.fit()
    export_run(trainer.config.run_dir, tmp_path / "out")
    with quiet():
        model = AutoModelForTokenClassification.from_pretrained(tmp_path / "out" / "critic").eval()
    assert model.config.num_labels == 11
    middles = torch.tensor([float(model.config.id2label[k]) for k in range(11)])
    assert middles.tolist() == pytest.approx([-1 + (2 * k + 1) / 11 for k in range(11)])
    batch = hand_batch([[1, 1, 1, 1]])
    with torch.no_grad():
        values = value_forward(trainer.roles.critic.model, batch).values
        logits = model(input_ids=batch["input_ids"]).logits[:, 2:6]
    torch.testing.assert_close(logits.softmax(-1) @ middles, values, rtol=1e-4, atol=1e-5)
    assert values.abs().max() > 1e-3


def test_explain_recomputes_the_cross_entropy_from_what_was_recorded(make_config) -> None:
    """Returns beyond the range included: they count as its end, and the share of them is a metric."""
    trainer = Trainer(make_config(*HISTOGRAM, ("critic.sigma", "0.5"), ("critic.lr", "3e-2")), reward=lambda response_ids: [
        2.0 if sum(ids) % 2 else 0.5 for ids in response_ids
    ])  # fmt: skip
    trainer.fit()
    assert 0 < trainer.last_metrics()["critic/out_of_range"] < 1
    samples = ledger.samples(trainer.config.run_dir, 2)
    update = samples[0].critic_updates[0]
    assert {len(log_p) for log_p in update.log_p} == {7}  # 6 σ to either side, in bins of 2 σ
    assert len(update.first_bin) == len(samples[0])
    found = [
        trace
        for sample in samples
        for t in range(len(sample))
        for trace in traces(sample, t)
        if trace.name == "value_loss"
    ]
    assert all(trace.ok and trace.state == "histogram" for trace in found)
    assert any("N(clip(R" in trace.formula for trace in found)
    assert any("N(R" in trace.formula for trace in found)
    bent = replace(update, log_p=[[x - 0.01 for x in log_p] for log_p in update.log_p])
    assert [
        trace.name
        for trace in traces(replace(samples[0], critic_updates=[bent]), 0)
        if trace.ok is False
    ] == ["value_loss"]
    assert "cross-entropy of the critic's histogram" in render(samples[0], lang="en", width=100)
    assert "盒子" in render(samples[0], lang="zh", level="kid", width=100)
    assert "predicts a histogram" in answer(4, samples[0], "en").text()
    assert "predicts a histogram" not in answer(2, samples[0], "en").text()


def test_explaining_a_pair_shows_the_histogram(make_config) -> None:
    config = make_config(*HISTOGRAM, ("steps", "1"))
    Trainer(config).fit()
    sample, _ = explain_pair("请问1+1=2？", "是的，等于2！", str(config.run_dir))
    assert [
        trace.state for trace in traces(sample, 0) if trace.name == "value_loss" and trace.ok
    ] == ["histogram"]


def test_a_token_s_cross_entropy_by_hand() -> None:
    """Two bins over [−1, 1], σ = 1, R = 1: q = 0.2848, 0.7152; p = 1/4, 3/4."""
    settings = Settings.of(value_loss="hl_gauss", bins=2, value_low=-1.0, value_high=1.0, sigma=1.0)
    update = CriticUpdate(0, 0, [0.25], [False], [0.6006], [[math.log(0.25), math.log(0.75)]], [0])
    sample = Sample(
        [0], [b"x"], [1], {"values": [0.0], "returns": [1.0]}, settings, critic_updates=[update]
    )
    trace = next(trace for trace in traces(sample, 0) if trace.name == "value_loss")
    assert trace.formula == "L_V₀ = −Σ q·log p, q = N(R₀, 1), bins −1 … 1, …"
    assert trace.substituted == "[v 0.25, R 1] −(0.2848·log 0.25 + 0.7152·log 0.75 + …(0))"
    assert trace.result == pytest.approx(0.6006, abs=1e-4)
