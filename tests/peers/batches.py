"""Batches as trainers have them, and what is said of them once they are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from telescope.algorithms.advantages import gae
from telescope.algorithms.masked import masked_whiten
from telescope.explain.trace import Tracer
from telescope.ledger.reader import samples
from telescope.peers import Recorder

SETTINGS = {"estimator": "gae", "gamma": 0.9, "lam": 0.8, "kl_coef": 0.0}


def credit(given: dict[str, Any], **options: Any) -> torch.Tensor:
    """Adds returns and whitened advantages as they follow from the others; returns the raw ones."""
    mask = given["mask"]
    rewards, values = given["token_level_rewards"], given["values"]
    raw, given["returns"] = gae(rewards * mask, values * mask, mask, **options)
    given["whitened"] = masked_whiten(raw, mask)
    return raw


def batch(rows: int = 6, width: int = 9) -> dict[str, Any]:
    """A padded batch as a PPO loop has it, with a tool's tokens in the first answer."""
    torch.manual_seed(0)
    lengths = torch.randint(4, width + 1, (rows,))
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    mask[0, 1:3] = 0
    scores = torch.arange(rows) % 2
    rewards = torch.zeros(rows, width)
    rewards[torch.arange(rows), lengths - 1] = scores.float()
    values = torch.rand(rows, width)
    old = -torch.rand(rows, width)
    given = {
        "responses": torch.randint(5, 90, (rows, width)),
        "mask": mask,
        "values": values,
        "token_level_rewards": rewards,
        "old_log_probs": old,
        "log_probs": old + 0.3 * torch.randn(rows, width),
        "scores": scores.float(),
    }
    credit(given, gamma=0.9, lam=0.8)
    return given


EOS, PAD = 2, 0


def sampled(**kind: Any) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """A right batch, two answers to each prompt; the sampler's logits, and what it chose."""
    generator = torch.Generator().manual_seed(kind.get("seed", 1))
    rows, width = kind.get("rows", 8), kind.get("width", 14)
    lengths = torch.randint(7, width, (rows,), generator=generator)
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    exists = mask.clone()
    ids = torch.randint(5, 99, (rows, width), generator=generator)
    if "first" in kind:
        ids[:, 0] = kind["first"]
    last = lengths - 1
    if kind.get("eos", True):
        ids[torch.arange(rows), last] = EOS
    if kind.get("turns"):
        ids[:, 3] = EOS  # a turn ends; a tool answers
        mask[:, 4] = 0
    if kind.get("tools"):
        mask[:, 2:4] = 0
    ids[exists == 0] = kind.get("pad", PAD)
    values = torch.randn(rows, width, generator=generator) * kind.get("times", 0.3)
    for row in range(1, rows, 2):  # one state, one V: as long as the tokens are the same
        same = 1 + int((ids[row] == ids[row - 1]).long().cumprod(0).sum())
        values[row, :same] = values[row - 1, :same]
    logits = torch.randn(rows, width, 30, generator=generator) * 2
    chosen = torch.distributions.Categorical(logits=logits).sample()
    rollout = logits.log_softmax(-1).gather(-1, chosen[..., None]).squeeze(-1)
    old = rollout + 0.004 * torch.randn(rows, width, generator=generator)
    scores = torch.zeros(rows, width)
    scores[torch.arange(rows), last] = (torch.arange(rows) % 3 == 0).float()
    given: dict[str, Any] = {
        "responses": ids,
        "mask": mask,
        "prompts": [f"question {row // 2}" for row in range(rows)],
        "token_level_scores": scores,
        "token_level_rewards": scores.clone(),
        "old_log_probs": old,
        "rollout_log_probs": rollout,
    }
    if kind.get("critic", True):
        given["values"] = values
        credit(given, gamma=kind.get("gamma", 1.0), lam=kind.get("lam", 0.9))
    else:
        given["advantages"] = scores.sum(1, keepdim=True).expand(rows, width) - 0.5
    numbers = [name for name in given if name not in ("responses", "mask", "prompts")]
    if kind.get("zeros"):
        given |= {name: given[name] * mask for name in numbers}
    if "dtype" in kind:
        given |= {name: given[name].to(kind["dtype"]) for name in numbers}
    if kind.get("left"):
        for name in ("responses", "mask", *numbers):
            rolled = [row.roll(int(width - n)) for row, n in zip(given[name], lengths, strict=True)]
            given[name] = torch.stack(rolled)
    return given, logits, chosen


def make(**kind: Any) -> dict[str, Any]:
    """A right batch of this kind."""
    return sampled(**kind)[0]


def recorded(folder: Path, *given: dict[str, Any], **settings: Any) -> Path:
    """A run with these batches as its steps, from 1 on."""
    recorder = Recorder(folder, settings=settings, strict=True)
    for step, batch in enumerate(given, 1):
        recorder.record(step, **batch)
    recorder.close()
    return folder


def verdicts(folder: Path, step: int = 1) -> dict[tuple[str, int, int], bool]:
    """(number, row, token) -> whether it follows from the others."""
    return {
        (name, sample.index, t): ok
        for sample in samples(folder, step)
        for t in sample.written
        for name, ok in Tracer(sample).verdicts(t).items()
    }


def judged(folder: Path, step: int = 1) -> dict[str, bool]:
    """Number -> whether it follows from the others everywhere."""
    found: dict[str, bool] = {}
    for (name, _, _), ok in verdicts(folder, step).items():
        found[name] = found.get(name, True) and ok
    return found
