"""Training with tools: what a tool wrote earns and teaches nothing, and two tiny models learn to ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from telescope import Trainer, ledger
from telescope.algorithms import gae
from telescope.config import load_config
from telescope.explain.terminal import render
from telescope.explain.trace import traces
from telescope.run.live import explain_pair
from tests import ROOT

RECIPES = ROOT / "recipes"
RIVER = "the river of kaban is"
OFTEN = ("rollout.environment", "tests.rollout.test_tools:Often")


@pytest.mark.parametrize(
    "more", [(), (("credit.estimator", "remax"),), (("credit.bootstrap_truncated", "true"),)]
)
def test_a_tools_tokens_have_no_kl_no_credit_no_loss_and_take_no_step(
    make_config: Any, more: Any
) -> None:
    settings = [
        ("rollout.max_response_tokens", "12"),
        ("rollout.batch_size", "16"),
        ("credit.kl_coef", "0.1"),
        ("credit.gamma", "0.9"),
    ]
    config = make_config(OFTEN, *settings, *more)
    Trainer(config).fit()
    samples = ledger.samples(config.run_dir, 2)
    assert sum(not all(sample.mask) for sample in samples) > 4
    for sample in samples:
        tool, own = ([t for t, m in enumerate(sample.mask) if m == kind] for kind in (0, 1))
        updates = [getattr(u, "loss") for u in (*sample.actor_updates, *sample.critic_updates)]  # noqa: B009
        for name, column in [*sample.columns.items(), *(("loss", loss) for loss in updates)]:
            if isinstance(column[0], float):
                assert [column[t] for t in tool] == [0.0] * len(tool), name
        assert sample.columns["token_level_scores"][own[-1]] == pytest.approx(sample.score)
        assert not any(traces(sample, t) for t in tool)
        assert all(trace.ok is not False for t in own for trace in traces(sample, t))
        if (
            config.credit.estimator == "gae"
        ):  # the same credit as if the tool's tokens were not there
            rewards, values = (
                torch.tensor([[sample.columns[n][t] for t in own]])
                for n in ("token_level_rewards", "values")
            )
            credit = gae(
                rewards,
                values,
                torch.ones_like(rewards),
                gamma=0.9,
                lam=0.95,
                bootstrap=torch.tensor([sample.bootstrap]),
            )
            assert credit[0][0].tolist() == pytest.approx(
                [sample.columns["advantages"][t] for t in own], abs=1e-6
            )


@pytest.mark.parametrize(
    ("task", "prompt", "said", "tool", "answer"),
    [
        (
            "calculator",
            "37*48=?",
            "<calc>37*48</calc>",
            "<result> 1 7 7 6 </result>",
            "<answer>1776</answer>",
        ),
        (
            "search",
            "river of kaban ?",
            "<search>river kaban</search>",
            f"<information> {RIVER} {{}} </information>",
            "<answer>{}</answer>",
        ),
    ],
    ids=["calculator", "search"],
)
def test_a_tiny_model_learns_to_ask(
    tmp_path: Path, task: str, prompt: str, said: str, tool: str, answer: str
) -> None:
    """From reward alone: held-out answers are right only where the tool was asked the right thing. The full run is the recipe."""
    short = [
        ("steps", "8"),
        ("eval.samples", "128"),
        ("dir", str(tmp_path)),
        ("device", "cpu"),
        ("ledger.every", "8"),
    ]
    trainer = Trainer(load_config(RECIPES / f"{task}.toml", short))
    trainer.fit()
    first, last = trainer.history()[0], trainer.history()[-1]
    assert first["eval/sampled_accuracy"] < 0.35
    assert last["eval/sampled_accuracy"] > first["eval/sampled_accuracy"] + 0.3
    calls = [
        row["response/tool_calls"] for row in trainer.history() if "response/tool_calls" in row
    ]
    assert calls[-1] > calls[0] + 0.2

    from telescope.data import toys

    right = toys.row_of(task, prompt)["answer"]
    sample, _ = explain_pair(prompt, said + answer.format(right), str(trainer.config.run_dir))
    assert [
        b.decode() for b, m in zip(sample.token_bytes, sample.mask, strict=True) if not m
    ] == tool.format(right).split()
    assert sample.score == 1.0
    for lang in ("zh", "en"):
        text = render(sample, lang=lang, width=100, color=False, extent="all")  # type: ignore[arg-type]
        assert f"⚙{tool.split()[0]}"[:11] in text
        assert {"zh": "工具写的", "en": "written by a tool"}[lang] in text
