"""Faults in another trainer's batch, each located by row and token.

Every check is a law that a correct batch cannot break, apart from the temperature's, which is a
statistic. They look at the arrays as the trainer gave them, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from telescope.peers.rows import TOKEN_COLUMNS, Array, WatchedStep, ragged

CLOSE = 1e-3
"""Numbers of bfloat16 that should be equal differ by less."""
LEAST_TOKENS = 32
"""Tokens that a statistic needs."""


@dataclass(frozen=True)
class Fault:
    """What is wrong, where, and how it can be seen."""

    id: str
    row: int
    token: int
    en: str
    zh: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Given:
    """A batch as it was given: rows of any width, padding included."""

    responses: Sequence[Array]
    mask: Sequence[Array]
    columns: Mapping[str, Sequence[Array]]
    prompts: Sequence[Any] | None = None
    eos: int | None = None

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """(row number, mask, columns …) where all of these columns are there."""
        if all(name in self.columns for name in names):
            columns = [self.columns[name] for name in names]
            yield from zip(range(len(self.mask)), self.mask, *columns, strict=True)


def given_batch(watched: WatchedStep, given: Mapping[str, Any], eos: int | None) -> Given:
    """The arrays of `record` as they were given, with their padding.

    `watched` is the same batch without it, for what was not given.
    """
    mask = given.get("mask")
    whole = [name for name in TOKEN_COLUMNS if given.get(name) is not None]
    return Given(
        responses=ragged("responses", given["responses"], None),
        mask=watched.mask if mask is None else ragged("mask", mask, None),
        columns={name: ragged(name, given[name], None) for name in whole},
        prompts=watched.prompts or watched.prompt_ids,
        eos=eos,
    )


def find_faults(given: Given) -> list[Fault]:
    """The first place of every fault."""
    return [fault for check in CHECKS for fault in [check(given)] if fault is not None]


def _nan_in_padding(given: Given) -> Fault | None:
    for name in given.columns:
        for row, mask, column in given.rows(name):
            bad = ~np.isfinite(column[: len(mask)]) & (mask == 0)
            if bad.any():
                token = int(bad.argmax())
                return Fault(
                    "nan_in_padding",
                    row,
                    token,
                    f"{name} is not a number at token {token} of row {row}, where the mask is 0. "
                    "NaN × 0 is NaN: one such slot can poison a loss or a gradient. "
                    "Write 0 wherever the mask is 0.",
                    f"第 {row} 行 token {token} 的 {name} 不是数，而那里的掩码是 0。"
                    "NaN × 0 仍是 NaN：一个这样的位置就可能毁掉损失或梯度。掩码为 0 处请写 0。",
                )
    return None


def _score_on_padding(given: Given) -> Fault | None:
    for row, mask, scores in given.rows("token_level_scores"):
        lost = np.nan_to_num(scores[: len(mask)]) * (mask == 0)
        if np.any(lost != 0):
            token = int((lost != 0).argmax())
            return Fault(
                "score_on_padding",
                row,
                token,
                f"the score {lost[token]:.4g} of row {row} stands on token {token}, where the mask "
                "is 0: no token gets it. Pay it on the last token that the policy wrote.",
                f"第 {row} 行的得分 {lost[token]:.4g} 记在 token {token} 上，那里的掩码是 0："
                "没有 token 得到它。请记在策略写的最后一个 token 上。",
            )
    return None


def _mask_shifted(given: Given) -> Fault | None:
    if given.eos is None:
        return None
    for row, (ids, mask) in enumerate(zip(given.responses, given.mask, strict=True)):
        at = np.flatnonzero(ids[: len(mask)] == given.eos)
        if not len(at) or not mask.any():
            continue
        end = int(at[0])
        last = int(np.flatnonzero(mask)[-1])
        if last == end:
            continue
        side, side_zh = ("early", "早") if last < end else ("late", "晚")
        return Fault(
            "mask_shifted",
            row,
            last,
            f"the mask of row {row} ends at token {last}, but EOS is token {end}: it ends "
            f"{abs(end - last)} too {side}. EOS is the policy's choice and must be trained; "
            "padding must not.",
            f"第 {row} 行的掩码到 token {last} 为止，而 EOS 是 token {end}：{side_zh}了 "
            f"{abs(end - last)} 个。EOS 是策略选的，要参与训练；填充不要。",
        )
    return None


def _returns_from_whitened(given: Given) -> Fault | None:
    rows = list(given.rows("values", "returns", "whitened", "token_level_rewards"))
    if not rows:
        return None
    for row, mask, values, returns, whitened, rewards in rows:
        on = mask > 0
        last = int(np.flatnonzero(on)[-1]) if on.any() else None
        if last is None:
            continue
        same = np.abs(returns - values - whitened)[: len(mask)][on] < CLOSE
        raw = rewards[last] - values[last]  # A of the last token, whatever λ is
        if same.all() and abs(raw - whitened[last]) > 10 * CLOSE:
            return Fault(
                "returns_from_whitened",
                row,
                last,
                f"in row {row} R − V is the whitened advantage on every token, e.g. "
                f"{returns[last]:.4g} − {values[last]:.4g} = {whitened[last]:.4g} at token {last}, "
                f"where the raw one is {raw:.4g}. The critic is trained towards the wrong scale: "
                "compute R before whitening.",
                f"第 {row} 行每个 token 的 R − V 都等于白化后的优势，例如 token {last}："
                f"{returns[last]:.4g} − {values[last]:.4g} = {whitened[last]:.4g}，"
                f"而未白化的是 {raw:.4g}。critic 学到的尺度是错的：请在白化之前计算 R。",
            )
    return None


def _values_after_token(given: Given) -> Fault | None:
    """Rows with the same prompt and the same first tokens are in the same state: V is equal."""
    if given.prompts is None or "values" not in given.columns:
        return None
    seen: dict[Any, tuple[int, float, int]] = {}
    for row, mask, values in given.rows("values"):
        ids = given.responses[row]
        if not len(mask) or not mask[0] or not len(ids):
            continue
        prompt = given.prompts[row]
        key = prompt if isinstance(prompt, str) else tuple(np.asarray(prompt).tolist())
        other = seen.setdefault(key, (row, float(values[0]), int(ids[0])))
        apart = abs(other[1] - float(values[0]))
        if apart > 10 * CLOSE and other[2] != int(ids[0]):
            return Fault(
                "values_after_token",
                row,
                0,
                f"rows {other[0]} and {row} answer the same prompt, but V[0] is {other[1]:.4g} and "
                f"{values[0]:.4g}. V[0] is from before the first token, so it must be equal: these "
                "values have seen their token. Take them one position earlier.",
                f"第 {other[0]} 行和第 {row} 行回答同一个提示，V[0] 却是 {other[1]:.4g} 和 "
                f"{values[0]:.4g}。V[0] 是写第一个 token 之前的，应当相等：这些值已经看到了自己的 "
                "token。请往前取一位。",
            )
    return None


def _other_temperature(given: Given) -> Fault | None:
    """Where the two differ by a temperature, old grows in proportion to the sampler's."""
    pairs = [
        (row, np.flatnonzero(mask), old, sampled)
        for row, mask, old, sampled in given.rows("old_log_probs", "rollout_log_probs")
    ]
    old_all = [old[on] for _, on, old, _ in pairs]
    sampled_all = [sampled[on] for _, on, _, sampled in pairs]
    if not old_all:
        return None
    x = np.concatenate(sampled_all).astype(np.float64)
    y = np.concatenate(old_all).astype(np.float64)
    if len(x) < LEAST_TOKENS or not np.isfinite(x).all() or not np.isfinite(y).all():
        return None
    if x.std() < CLOSE or np.abs(y - x).mean() < 0.05:
        return None
    slope = float((x * y).sum() / (x * x).sum())
    fits = float(np.corrcoef(x, y)[0, 1])
    if fits < 0.9 or abs(slope - 1) < 0.05:
        return None
    row, on, old, sampled = max(pairs, key=lambda pair: _widest(*pair[1:])[0])
    token = _widest(on, old, sampled)[1]
    return Fault(
        "other_temperature",
        row,
        token,
        f"old log-probs are about {slope:.2f} times the sampler's (correlation {fits:.2f}), e.g. "
        f"{old[token]:.4g} against {sampled[token]:.4g} at token {token} of row {row}. The same "
        "policy at another temperature looks like this: divide the logits by the sampling "
        "temperature in training too.",
        f"old log-prob 约为采样器的 {slope:.2f} 倍（相关系数 {fits:.2f}），例如第 {row} 行 token "
        f"{token}：{old[token]:.4g} 对 {sampled[token]:.4g}。同一个策略、不同的温度就是这样："
        "训练时也请把 logits 除以采样温度。",
    )


def _widest(on: Array, old: Array, sampled: Array) -> tuple[float, int]:
    """The largest difference of a row, and its token."""
    if not len(on):
        return 0.0, 0
    apart = np.abs(old[on] - sampled[on])
    return float(apart.max()), int(on[apart.argmax()])


CHECKS: tuple[Callable[[Given], Fault | None], ...] = (
    _nan_in_padding,
    _score_on_padding,
    _mask_shifted,
    _values_after_token,
    _returns_from_whitened,
    _other_temperature,
)
