"""Audits of tiny runs: which policy writes, what is refused, what the command prints."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from telescope import ledger
from telescope.audit import file
from telescope.audit.findings import summarise
from telescope.audit.words import number
from telescope.commands import main
from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.rollout.prefix import ContinuingSampler
from telescope.rollout.sampler import Rollout
from telescope.run.audit import _prompt_texts, audit_run
from tests.audit.conftest import Train

FEW = {"states": 12, "continuations": 4}


@pytest.fixture
def copied(critic_run: Config, tmp_path: Path) -> Path:
    """A copy of the run, to take checkpoints away from."""
    run = tmp_path / "run"
    shutil.copytree(critic_run.run_dir, run)
    return run


def test_the_same_call_gives_the_same_numbers(critic_run: Config) -> None:
    one, two = (audit_run(critic_run.run_dir, step=2, **FEW) for _ in range(2))
    assert replace(one, seconds=0) == replace(two, seconds=0)
    assert (one.needed, one.checkpoint) == (1, 1)
    assert 10 <= one.states <= 12


def test_the_number_of_rows_per_call_changes_nothing(
    critic_run: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = audit_run(critic_run.run_dir, step=2, **FEW)
    monkeypatch.setattr("telescope.run.audit.MOST_ROWS", 8)
    parts = audit_run(critic_run.run_dir, step=2, **FEW)
    for a, b in zip(whole.posts, parts.posts, strict=True):
        assert a.mean == pytest.approx(b.mean, abs=1e-5)


def test_the_first_step_needs_only_the_model(copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints")
    audit = audit_run(copied, **FEW)
    assert (audit.step, audit.checkpoint, audit.needed) == (1, 0, 0)
    summary = summarise(audit)
    assert summary.slope is None  # the value head starts at zero


def test_by_default_the_last_step_with_its_policy_is_audited(copied: Path) -> None:
    assert audit_run(copied, **FEW).step == 3
    shutil.rmtree(copied / "checkpoints" / "step_000002")
    assert audit_run(copied, **FEW).step == 2


def test_another_policy_is_used_only_on_request(copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints" / "step_000001")
    with pytest.raises(TelescopeError, match=r"policy of checkpoint 1, and .* has 0, 2, 3 "):
        audit_run(copied, step=2, **FEW)
    audit = audit_run(copied, step=2, nearest=True, **FEW)
    assert (audit.needed, audit.checkpoint) == (1, 0)


def test_during_warm_up_the_policy_is_that_of_the_start(train: Train) -> None:
    config = train(("critic_warmup", "2"), ("checkpoint.every", "0"))
    assert audit_run(config.run_dir, step=3, **FEW).checkpoint == 0


def test_group_baselines_are_audited_where_there_is_no_critic(group_run: Config) -> None:
    audit = audit_run(group_run.run_dir, step=2, **FEW)
    assert audit.estimate == "baselines"
    rows = ledger.read(group_run.run_dir, 2).to_pylist()
    for post in audit.posts:
        assert post.predicted == rows[post.sample]["baselines"][post.token]
    overall = summarise(audit).overall
    assert overall is not None
    assert overall.count == len({(p.state, p.predicted) for p in audit.posts if p.token == 0})
    assert set(summarise(audit).signs.wrong) == {"advantages", "whitened", "deltas"}


def test_shaped_scores_use_the_moments_of_the_step(train: Train) -> None:
    """The outcomes average about what the recorded rewards of the step add up to."""
    config = train(("reward.normalise", "true"), ("credit.kl_coef", "0"))
    audit = audit_run(config.run_dir, step=1, states=64, continuations=32)
    again = audit_run(config.run_dir, step=1, states=64, continuations=32)
    assert audit.posts == again.posts
    logged = json.loads((config.run_dir / "metrics.jsonl").read_text().splitlines()[1])
    scores = [0.0, 1.0]
    low, high = ((x - logged["reward/norm_mean"]) / logged["reward/norm_std"] for x in scores)
    assert all(low - 1e-6 <= post.mean <= high + 1e-6 for post in audit.posts)
    assert min(post.mean for post in audit.posts) < 0


def test_what_cannot_be_audited_is_refused(critic_run: Config, tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="is not a run folder"):
        audit_run(tmp_path)
    with pytest.raises(TelescopeError, match="at least 2"):
        audit_run(critic_run.run_dir, continuations=1)
    with pytest.raises(TelescopeError, match="no ledger of step 9"):
        audit_run(critic_run.run_dir, step=9)
    with pytest.raises(TelescopeError, match="uses tools"):
        audit_run(critic_run.run_dir, overrides=[("rollout.environment", "calculator")])


def test_the_command_prints_and_keeps_the_audit(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["audit", str(copied), "--step", "2", "--states", "12", "--continuations", "4"]
    main([*arguments, "--lang", "en"])
    out = capsys.readouterr().out
    assert out.startswith("Audit of run, step 2: is the critic right?")
    assert out.rstrip().endswith("audit/step_000002.json")
    kept = file.load(copied, 2)
    assert kept is not None
    main([*arguments, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["summary"]["overall"]["count"] == len(kept.posts)
    main([*arguments, "--lang", "zh"])
    assert "第 2 步的核查：critic 对不对？" in capsys.readouterr().out


def test_explain_adds_what_the_audit_says_about_the_token(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explain = ["explain", str(copied), "--step", "2", "--token", "0", "--lang"]
    main([*explain, "en"])
    assert "continuations" not in capsys.readouterr().out
    main(["audit", str(copied), "--step", "2", "--states", "12", "--continuations", "4"])
    audit = file.load(copied, 2)
    assert audit is not None
    capsys.readouterr()
    main([*explain, "en"])
    said = " ".join(capsys.readouterr().out.split())
    post = audit.posts[0]
    assert f"4 continuations from here earned {number(post.mean)} on average" in said
    main([*explain, "zh", "--level", "kid"])
    assert "写手从这里重写 4 次" in capsys.readouterr().out


class Fixed:
    """A sampler that writes 7, 8, 9, … up to each row's limit."""

    version = 5

    def load_weights(self, named: object, version: int) -> None: ...

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **more: object):
        self.seen = (input_ids.tolist(), attention_mask.tolist())
        limits = more["limits"]
        width = max(limits)
        lengths = torch.tensor(limits)
        tokens = torch.arange(7, 7 + width).expand(len(limits), width)
        log_probs = -torch.ones(tokens.shape)
        return Rollout(tokens, lengths, log_probs, torch.ones(len(limits)).bool())


def test_a_continued_response_begins_with_its_prefix() -> None:
    inner = Fixed()
    sampler = ContinuingSampler(inner, [[3], []], limit=3, pad=0)
    out = sampler.generate(torch.tensor([[0, 4], [5, 6]]), torch.tensor([[0, 1], [1, 1]]), seed=1)
    assert inner.seen == ([[4, 3], [5, 6]], [[1, 1], [1, 1]])
    assert out.responses.tolist() == [[3, 7, 8], [7, 8, 9]]
    assert out.lengths.tolist() == [3, 3]
    assert out.log_probs.tolist() == [[0, -1, -1], [-1, -1, -1]]


def test_a_prompt_is_named_by_what_it_asks_not_by_its_template() -> None:
    asked = "29 - 51 ="
    prompt = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    samples = {0: SimpleNamespace(prompt_index=7, prompt=prompt)}
    assert _prompt_texts(samples, SimpleNamespace(tokens=[(0, 0), (0, 1)])) == {7: asked}
