"""A large run, written quickly: chat prompts, long answers, tools, truncation, groups, parts.

Its arithmetic is right, so that every trace agrees with the record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from telescope.explain.settings import Settings
from telescope.ledger.reader import path_of
from telescope.ledger.schema import SCHEMA
from telescope.viewer.typed_run import schema_of

WORDS = [
    "The",
    "total",
    "cost",
    "is",
    "so",
    "we",
    "add",
    "and",
    "then",
    "subtract",
    "3",
    "4",
    "12",
    "15",
    "from",
    "it",
    "which",
    "gives",
    "=",
    "+",
    "*",
    "each",
    "of",
    "them",
    "gets",
    "half",
    "the",
    "eggs",
    "Therefore",
    "answer",
    "per",
    "day",
    "####",
    "42\n",
    "First,",
    "Next,",
    "apples",
    "pencils",
    "boxes",
    "dollars",
    "$",
    "minutes",
    "数",
    "因此",
    "等于",
]
PEOPLE = ("Anna", "Ben", "Chen", "Dora", "Emil", "Fay", "Gus", "Hana")
THINGS = ("eggs", "pencils", "books", "apples", "tickets")
CHAT = (
    "<|im_start|>system\nSolve the problem step by step.<|im_end|>\n<|im_start|>user\n"
    "{} has {} boxes with {} {} in each and gives away {}. How many are left?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
GROUP = 4
"""Responses to one prompt."""
Array = np.ndarray[Any, np.dtype[Any]]


def big_run(
    folder: Path, steps: int = 500, samples: int = 64, tokens: int = 300, *, every: int = 1
) -> Path:
    """Writes a run of so many steps, each `every` with a ledger file of `samples` responses.

    Responses have up to `tokens` tokens. The same 40 prompts come back through training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    config = f'name = "{folder.name}"\nsteps = {steps}\nseed = 0\n[actor]\nlr = 2e-6\n'
    (folder / "config.toml").write_text(config)
    _write_metrics(folder, steps, tokens, random)
    settings = Settings.of(kl_coef=0.05)
    for step in range(every, steps + 1, every):
        progress = step / steps
        path = path_of(folder, step)
        path.parent.mkdir(exist_ok=True)
        table = _table(step, progress, samples, tokens, settings, random)
        meta = schema_of(folder.name, step, settings).metadata
        table = table.replace_schema_metadata(meta)
        parquet.write_table(table, path, compression="zstd")
    return folder


def _write_metrics(folder: Path, steps: int, tokens: int, random: np.random.Generator) -> None:
    phases = ("rollout", "values", "reference", "reward", "advantages", "update_critic")
    others = [f"perf/other_{i}" for i in range(16)]
    lines = []
    for step in range(steps + 1):
        up = 1 - np.exp(-3 * step / steps)
        noise = random.normal(0, 0.03, 40)
        row: dict[str, float] = {"step": step}
        if step:
            row |= {
                "reward/score_mean": 0.1 + 0.7 * up + noise[0],
                "reward/correct": 0.1 + 0.6 * up + noise[1],
                "reward/kl": 0.3 * up + noise[2] / 9,
                "actor/entropy": 0.9 - 0.6 * up + noise[3],
                "actor/pg_clipfrac": 0.02 + abs(noise[4]) / 4,
                "actor/lr": 2e-6 * (1 - step / steps),
                "critic/vf_loss": 0.2 - 0.1 * up + abs(noise[5]),
                "critic/explained_variance": 0.6 * up + noise[6],
                "response/length_mean": tokens * (0.7 + noise[7]),
                "response/truncated": max(0.0, 0.1 * (1 - up) + noise[8] / 5),
                "timing/step": 4.0 + noise[9],
                **{f"timing/{phase}": 0.6 + noise[i] for i, phase in enumerate(phases)},
                **{name: float(noise[i + 10]) for i, name in enumerate(others)},
            }
        if step % max(steps // 20, 1) == 0:
            row["eval/greedy_accuracy"] = 0.1 + 0.5 * up
        lines.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines), "utf-8")


# ---- one step ----


def _table(
    step: int,
    progress: float,
    samples: int,
    tokens: int,
    settings: Settings,
    random: np.random.Generator,
) -> pa.Table:
    longest = random.random(samples) < 0.06
    lengths = random.integers(max(tokens // 3, 2), tokens + 1, samples)
    lengths[longest] = tokens
    truncated = longest & (random.random(samples) < 0.8)
    right = random.random(samples) < 0.15 + 0.6 * progress
    right &= ~truncated
    exists = np.arange(tokens) < lengths[:, None]
    mask = exists.copy()
    for row in np.flatnonzero(random.random(samples) < 0.1):  # a tool spoke
        start = int(lengths[row]) // 2
        mask[row, start : start + min(12, int(lengths[row]) - start - 1)] = False
    columns, rows = _credit(mask, right, truncated, settings, random)
    per_token = {name: _lists(column, exists) for name, column in columns.items()}
    texts = _Texts(exists, truncated, random)
    groups = (np.arange(samples) // GROUP + step * (samples // GROUP)) % 40
    form = (right | (random.random(samples) < 0.5)).astype(float)
    data = {
        "sample": np.arange(samples),
        "policy_version": np.full(samples, step - 1),
        "group": groups,
        "truncated": truncated,
        **rows,
        "prompt": [_prompt(int(group)) for group in groups],
        "prompt_index": groups,
        "prompt_ids": [[1, 2, 3]] * samples,
        "response": texts.responses,
        "score": right.astype(float),
        "parts": [
            [("correct", float(a)), ("format", float(b))]
            for a, b in zip(right, form, strict=True)
        ],
        "token_bytes": texts.token_bytes,
        "responses": texts.ids,
        "response_mask": _lists(mask.astype(np.int32), exists),
        **per_token,
        "actor_updates": _updates(SCHEMA.field("actor_updates").type, _actor(columns, random, settings, mask), exists),
        "critic_updates": _updates(SCHEMA.field("critic_updates").type, _critic(columns, random, settings, mask), exists),
    }  # fmt: skip
    fields = [field for field in SCHEMA if field.name in data]
    arrays = [
        found.cast(field.type) if isinstance(found, pa.Array) else pa.array(found, field.type)
        for field, found in ((field, data[field.name]) for field in fields)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _prompt(group: int) -> str:
    name, thing = PEOPLE[group % 8], THINGS[group % 5]
    return CHAT.format(name, 2 + group % 7, 3 + group % 11, thing, 1 + group % 5)


class _Texts:
    """Tokens of the responses; the last one ends them, unless they were cut."""

    def __init__(self, exists: Array, truncated: Array, random: np.random.Generator) -> None:
        words = [f" {word}" for word in WORDS] + ["<|im_end|>"]
        end = len(words) - 1
        ids = random.integers(0, end, exists.shape)
        lengths = exists.sum(1)
        ends = np.flatnonzero(~truncated)
        ids[ends, lengths[ends] - 1] = end
        rows = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        self.responses = ["".join(words[i] for i in row if i != end) for row in rows]
        self.ids = _lists(ids.astype(np.int32), exists)
        flat = pa.array([word.encode() for word in words]).take(pa.array(ids[exists]))
        self.token_bytes = pa.ListArray.from_arrays(_offsets(exists), flat)


def _credit(
    mask: Array, right: Array, truncated: Array, settings: Settings, random: np.random.Generator
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Every column of a step, zero where the mask is zero, and its columns of rows."""
    shape = mask.shape
    old = -random.exponential(0.2, shape)
    ref = old - random.normal(0.02, 0.1, shape)
    drift = np.cumsum(random.normal(0, 0.02, shape), 1)
    trend = np.where(right, 0.5, -0.3)[:, None] * np.linspace(0, 1, shape[1]) ** 2
    values = np.clip(0.4 + drift + trend, -0.2, 1.1)
    kl = old - ref
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
    scores = np.zeros(shape)
    scores[np.arange(len(mask)), last] = right
    rewards = scores - settings.credit.kl_coef * kl
    bootstrap = np.zeros(len(mask))
    lam = settings.own_lam
    assert lam is not None
    deltas = np.zeros(shape)
    advantages = np.zeros(shape)
    value_after, advantage_after = bootstrap.copy(), np.zeros(len(mask))
    for t in reversed(range(shape[1])):
        own = mask[:, t]
        delta = rewards[:, t] + settings.gamma * value_after - values[:, t]
        advantage = delta + settings.gamma * lam * advantage_after
        deltas[:, t], advantages[:, t] = delta, advantage
        value_after = np.where(own, values[:, t], value_after)
        advantage_after = np.where(own, advantage, advantage_after)
    valid = advantages[mask]
    mean = valid.mean()
    std = np.sqrt(valid.var(ddof=1) + 1e-8)
    columns = {
        "rollout_log_probs": old,
        "old_log_probs": old,
        "ref_log_prob": ref,
        "values": values,
        "token_level_scores": scores,
        "kl": kl,
        "token_level_rewards": rewards,
        "deltas": deltas,
        "advantages": advantages,
        "returns": advantages + values,
        "whitened": (advantages - mean) / std,
    }
    full = np.ones(len(mask))
    rows = {"bootstrap": bootstrap, "whiten_mean": mean * full, "whiten_std": std * full}
    return {name: column * mask for name, column in columns.items()}, rows


def _actor(
    columns: dict[str, Array], random: np.random.Generator, settings: Settings, mask: Array
) -> list[dict[str, Array]]:
    """Two updates: in the first one the ratio is 1."""
    old, advantages = columns["old_log_probs"], columns["whitened"]
    low, high = 1 - settings.actor.clip_low, 1 + settings.actor.clip_high  # type: ignore[attr-defined]
    updates = []
    for spread in (0.0, 0.1):
        new = old + random.normal(0, spread, old.shape) * mask if spread else old
        ratio = np.exp(new - old)
        kept, cut = ratio * advantages, np.clip(ratio, low, high) * advantages
        nothing = np.zeros(old.shape, bool)
        updates.append(
            {
                "old_log_probs": old,
                "log_probs": new,
                "ratio": ratio,
                "clipped": cut < kept,
                "dual_clipped": nothing,
                "loss": -np.minimum(kept, cut),
            }
        )
    return updates


def _critic(
    columns: dict[str, Array], random: np.random.Generator, settings: Settings, mask: Array
) -> list[dict[str, Array]]:
    old, returns = columns["values"], columns["returns"]
    new = old + random.normal(0, 0.05, old.shape) * mask
    loss = 0.5 * (new - returns) ** 2
    clipped = np.zeros(old.shape, bool)
    if settings.critic.clip_value is not None:
        near = old + np.clip(new - old, -settings.critic.clip_value, settings.critic.clip_value)
        other = 0.5 * (near - returns) ** 2
        clipped = other > loss
        loss = np.maximum(loss, other)
    return [{"values": new, "clipped": clipped, "loss": loss}]


def _updates(kind: Any, updates: list[dict[str, Array]], exists: Array) -> pa.Array:
    """A list of updates per sample, as the ledger writes it."""
    count = len(exists)
    fields = []
    order = np.arange(count * len(updates)).reshape(len(updates), count).T.ravel()
    for field in kind.value_type:
        if field.name in ("epoch", "minibatch"):
            epochs = np.repeat(np.arange(len(updates)), count)
            column: Any = pa.array(epochs if field.name == "epoch" else epochs * 0, field.type)
        elif field.name in updates[0]:
            parts = [_lists(update[field.name], exists).cast(field.type) for update in updates]
            column = pa.concat_arrays(parts)
        else:
            column = pa.array([[]] * count * len(updates), field.type)
        fields.append(column.take(pa.array(order)))
    structs = pa.StructArray.from_arrays(fields, fields=list(kind.value_type))
    offsets = pa.array(np.arange(0, len(structs) + 1, len(updates)), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs)


def _offsets(exists: Array) -> pa.Array:
    return pa.array(np.concatenate([[0], exists.sum(1).cumsum()]), pa.int32())


def _lists(column: Array, exists: Array) -> pa.Array:
    flat = column[exists]
    kind = {"f": pa.float32(), "b": pa.bool_()}.get(flat.dtype.kind, pa.int32())
    return pa.ListArray.from_arrays(_offsets(exists), pa.array(flat).cast(kind))
