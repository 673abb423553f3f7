"""Faults in another trainer's batch, each located by row and token.

Every check is a law that a correct batch cannot break, apart from the temperature's, which is a
statistic. They look at the arrays as the trainer gave them, padding included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from telescope.peers.given import Fault, Given
from telescope.peers.rows import Array
from telescope.peers.words import said

CLOSE = 1e-3
"""Numbers of bfloat16 that should be equal differ by less."""
LEAST_TOKENS = 32
"""Tokens that a statistic needs."""
SLOPE_ERRORS = 5.0
"""Standard errors by which the slope of a temperature differs from 1."""
UNSURE = 0.05
"""−log π of a token that is not certain: another temperature changes it …"""
LEAST_UNDECIDED = 16
"""… and so many of them show it …"""
AGREE = 0.2
"""… if no larger share of them has the same log-prob at both."""
LEAST_ROWS = 8
"""Rows that say how a trainer ends its answers."""
LIKE_SCORE = 0.25
"""A reward that differs from the score by a smaller share, as by a KL, is the score."""


def find_faults(given: Given) -> list[Fault]:
    """The first place of every fault. A check that cannot read the arrays finds none."""
    found = []
    for check in CHECKS:
        with contextlib.suppress(Exception):
            fault = check(given)
            if fault is not None:
                found.append(fault)
    return found


def _fault(fault: str, row: int, token: int, variant: str = "", **values: Any) -> Fault:
    return Fault(fault, row, token, **said(fault + variant, row=row, token=token, **values))


def _nan_in_padding(given: Given) -> Fault | None:
    for name in given.columns:
        for row, mask, column in given.rows(name):
            bad = ~np.isfinite(column[: len(mask)]) & (mask == 0)
            if bad.any():
                token = given.token(row, int(bad.argmax()))
                return _fault("nan_in_padding", row, token, name=name)
    return None


def _score_on_padding(given: Given) -> Fault | None:
    for row, lost in _lost_scores(given):
        if np.any(lost != 0):
            slot = int((lost != 0).argmax())
            token = given.token(row, slot)
            return _fault("score_on_padding", row, token, score=lost[slot])
    return None


def _lost_scores(given: Given) -> Iterator[tuple[int, Array]]:
    """(row, scores where the mask is 0, else 0), also where only rewards are known.

    A reward in padding may be a KL of padding. It is the score if it is as large, and if no return
    has it in it: TRL pays behind the last token and counts that slot as a time step.
    """
    for row, mask, scores in given.rows("token_level_scores"):
        yield row, np.nan_to_num(scores[: len(mask)]) * (mask == 0)
    if "token_level_scores" in given.columns or given.scores is None:
        return
    for row, mask, rewards in given.rows("token_level_rewards"):
        score = given.scores[row]
        if not score or not mask.any():
            continue
        off = np.nan_to_num(rewards[: len(mask)]) * (mask == 0)
        off[np.abs(off - score) > LIKE_SCORE * abs(score)] = 0
        last = int(np.flatnonzero(mask)[-1])
        returns = given.columns.get("returns")
        is_paid = returns is not None and abs(returns[row][last] - rewards[last]) > CLOSE
        yield row, off * (not is_paid)


def _mask_shifted(given: Given) -> Fault | None:
    """The mask must end at EOS, and the numbers of a row must be where it is 1."""
    for row, (ids, given_mask) in enumerate(zip(given.responses, given.mask, strict=True)):
        mask = np.asarray(given_mask[: len(ids)]) > 0
        if not mask.any():
            continue
        last = int(np.flatnonzero(mask)[-1])
        end = _end_of_answer(given, ids, mask, last)
        if end is not None:
            side, side_zh = ("early", "早") if last < end else ("late", "晚")
            return _fault(
                "mask_shifted",
                row,
                given.token(row, last),
                "_at_eos",
                end=given.token(row, end),
                apart=abs(end - last),
                side=side,
                side_zh=side_zh,
            )
        by = _shift_of_numbers(given, row, mask)
        if by:
            first = int((mask != np.roll(mask, -by)).argmax())
            side, side_zh = ("early", "早") if by == 1 else ("late", "晚")
            return _fault(
                "mask_shifted",
                row,
                given.token(row, first),
                "_beside_numbers",
                side=side,
                side_zh=side_zh,
            )
    return None


def _end_of_answer(given: Given, ids: Array, mask: Array, last: int) -> int | None:
    """Where EOS is, if the mask ends before it or goes on behind it; None if it ends there.

    An EOS alone says little: a turn may end in the middle of an answer, and a trainer may go on
    behind it on purpose. What follows must be padding.
    """
    at = np.flatnonzero(ids == given.eos) if given.eos is not None else np.zeros(0, int)
    if not len(at):
        return None
    if ids[last] == given.eos:
        rest = ids[last - 1 :]  # padding with EOS: the mask has the answer's own and one more
        goes_on = last > 0 and last + 1 < len(ids) and mask[last - 1] and (rest == given.eos).all()
        return last - 1 if goes_on else None
    after = at[at > last]
    if len(after):
        end = int(after[0])
        rest = ids[end + 1 :]
        may_be_padding = not given.whole and given.pad in (None, given.eos)
        pads_are_eos = may_be_padding and bool((rest == given.eos).all())
        if end != last + 1 or (pads_are_eos and not _always_ends_before_eos(given)):
            return None
        return end
    end = int(at[-1])
    rest = ids[end + 1 :]
    is_padding = bool((rest == rest[0]).all()) and mask[end + 1 : last + 1].all()
    known = (len(rest) > 1 or _stops_at_eos(given)) if given.pad is None else rest[0] == given.pad
    return end if is_padding and known else None


def _always_ends_before_eos(given: Given) -> bool:
    """Whether every row with two slots left ends before an EOS, after many different tokens.

    A stop word would be the same token in most rows; one such row may have been cut off.
    """
    ends = []
    for ids, mask in zip(given.responses, given.mask, strict=True):
        on = np.flatnonzero(mask[: len(ids)])
        if len(on) and on[-1] + 2 < len(ids):
            ends.append((int(ids[on[-1]]), ids[on[-1] + 1] == given.eos))
    tokens = {token for token, _ in ends}
    return len(ends) >= LEAST_ROWS and all(at for _, at in ends) and 2 * len(tokens) > len(ends)


def _stops_at_eos(given: Given) -> bool:
    """Whether more than half of the rows end with EOS: this trainer does not go on behind it."""
    rows = zip(given.responses, given.mask, strict=True)
    ends = [ids[np.flatnonzero(mask)[-1]] == given.eos for ids, mask in rows if np.any(mask)]
    return 2 * sum(map(bool, ends)) > len(ends)


def _shift_of_numbers(given: Given, row: int, mask: Array) -> int:
    """1 or −1 where the row's numbers are exactly 0 beside the mask instead of outside it."""
    there = np.zeros(len(mask), bool)
    for name in ("old_log_probs", "ref_log_prob", "values"):
        if name in given.columns:
            numbers = given.columns[name][row][: len(mask)]
            there |= np.isfinite(numbers) & (numbers != 0)
    if not there.any() or there.all() or mask.all() or (there == mask).all():
        return 0
    for by in (1, -1):
        moved = np.roll(mask, by)
        inside = slice(1, None) if by == 1 else slice(None, -1)
        if (moved == there)[inside].all():
            return by
    return 0


def _returns_from_whitened(given: Given) -> Fault | None:
    if "token_level_rewards" not in given.columns:
        return _returns_without_rewards(given)
    rows = []
    for row, mask, *columns in given.rows("values", "returns", "whitened", "token_level_rewards"):
        is_cut = given.bootstrap is not None and given.bootstrap[row]  # its A has γ·V_end in it
        if mask.any() and not is_cut:
            rows.append((row, mask, int(np.flatnonzero(mask)[-1]), *columns))
    raws = [rewards[last] - values[last] for _, _, last, values, _, _, rewards in rows]
    used = [whitened[last] for _, _, last, _, _, whitened, _ in rows]
    if not _is_one_line(raws, used, given.rounding):
        return None
    for (row, mask, last, values, returns, whitened, _), raw in zip(rows, raws, strict=True):
        # raw is A of the last token, whatever λ is
        noise = given.rounding * (abs(returns) + abs(values) + abs(whitened))
        same = (np.abs(returns - values - whitened) < CLOSE + noise)[: len(mask)][mask]
        if same.all() and abs(raw - whitened[last]) > 10 * CLOSE + noise[last]:
            return _fault(
                "returns_from_whitened",
                row,
                given.token(row, last),
                returns=returns[last],
                value=values[last],
                whitened=whitened[last],
                raw=raw,
            )
    return None


def _returns_without_rewards(given: Given) -> Fault | None:
    """R − V is Â on every token of the batch, and has the mean 0 and the σ 1 of whitening."""
    rows = list(given.rows("values", "returns", "whitened"))
    if not rows:
        return None
    less = np.concatenate([(r - v)[: len(mask)][mask] for _, mask, v, r, _ in rows])
    used = np.concatenate([w[: len(mask)][mask] for _, mask, _, _, w in rows])
    if len(less) < LEAST_TOKENS or not (np.abs(less - used) < CLOSE).all():
        return None
    if abs(less.mean()) > CLOSE or abs(less.std() - 1) > 10 * CLOSE:
        return None
    row, mask, values, returns, _ = next(each for each in rows if each[1].any())
    last = int(np.flatnonzero(mask)[-1])
    return _fault(
        "returns_from_whitened",
        row,
        given.token(row, last),
        "_in_batch",
        returns=returns[last],
        value=values[last],
        less=returns[last] - values[last],
        mean=less.mean(),
        std=less.std(),
    )


def _is_one_line(raw: Sequence[float], used: Sequence[float], rounding: float) -> bool:
    """Whether used = (raw − μ)/σ with the same μ and σ in every row, as whitening has it."""
    x = np.array(raw, np.float64)
    y = np.array(used, np.float64)
    if not (np.isfinite(x) & np.isfinite(y)).all():
        return False
    if len(x) < 3 or x.std() < CLOSE:
        return True
    slope, start = np.polyfit(x, y, 1)
    noise = rounding * (np.abs(slope * x) + np.abs(y))
    return bool((np.abs(slope * x + start - y) < 10 * CLOSE + noise).all())


PREFIX = 16
"""Tokens for which rows with the same prompt are followed."""


def _values_after_token(given: Given) -> Fault | None:
    """Rows with the same prompt and the same tokens so far are in the same state: V is equal.

    Unless V has seen the next token. Then it differs with that token, and only with it.
    """
    states = _states(given)
    same = _apart(states)
    close = CLOSE if given.whole else 5 * CLOSE  # half of what V may be apart by rounding
    return next((f for visits in states if (f := _differs(visits, same, close)) is not None), None)


class Visit(NamedTuple):
    """A row that was in a state: V there, and the id of the token that it chose."""

    row: int
    token: int
    value: float
    chosen: int


def _apart(states: Sequence[Sequence[Visit]]) -> float:
    """How far V is apart where state and next token are the same: it is 0 but for rounding."""
    apart = [0.0]
    for visits in states:
        by_token: dict[int, list[float]] = {}
        for visit in visits:
            by_token.setdefault(visit.chosen, []).append(visit.value)
        apart += [max(values) - min(values) for values in by_token.values()]
    return max(apart)


def _states(given: Given) -> list[list[Visit]]:
    """The visits of each state: a prompt and the tokens so far."""
    if given.prompts is None or "values" not in given.columns:
        return []
    states: dict[Any, list[Visit]] = {}
    for row, mask, values in given.rows("values"):
        ids = given.responses[row]
        on = np.flatnonzero(mask[: len(ids)])
        if not len(on):
            continue
        prompt = given.prompts[row]
        key = prompt if isinstance(prompt, str) else tuple(np.asarray(prompt).tolist())
        first = int(on[0])
        start = _end_of_left_padding(given, ids[:first])
        for slot in range(first, min(len(ids), first + PREFIX)):
            if mask[slot]:
                state = (key, tuple(ids[start:slot].tolist()))
                visit = Visit(row, slot - first, float(values[slot]), int(ids[slot]))
                states.setdefault(state, []).append(visit)
    return list(states.values())


def _end_of_left_padding(given: Given, before: Array) -> int:
    """How many tokens before the first written one are padding.

    Others are part of the state: a tool's, or one that a shifted mask leaves out.
    """
    if given.pad is not None:
        is_padding = bool((before == given.pad).all())
    else:
        is_padding = len(before) > 1 and bool((before == before[0]).all())
    return len(before) if is_padding else 0


def _differs(visits: Sequence[Visit], same: float, close: float) -> Fault | None:
    """A fault where V of one state differs with the token that was chosen in it.

    The row whose V is farthest from that of most rows is named; of two rows the second. `same`: how
    far V is apart where that token is the same.
    """
    if len({visit.chosen for visit in visits}) < 2:
        return None
    middle = visits[0].value
    if len(visits) > 2:
        middle = float(np.median([visit.value for visit in visits]))

    def distance(visit: Visit) -> float:
        return abs(visit.value - middle)

    other = max(visits, key=distance)
    first = min((visit for visit in visits if visit.chosen != other.chosen), key=distance)
    apart = abs(other.value - first.value)
    noise = 2 * max(close, 2 * close * abs(first.value), same)
    if not apart > noise:
        return None
    return _fault(
        "values_after_token",
        other.row,
        other.token,
        first=first.row,
        first_value=first.value,
        value=other.value,
    )


def _other_temperature(given: Given) -> Fault | None:
    """Where the two differ by a temperature, old varies more or less than the sampler's."""
    pairs = [
        (row, np.flatnonzero(mask), old, sampled)
        for row, mask, old, sampled in given.rows("old_log_probs", "rollout_log_probs")
    ]
    found = _of_temperature(pairs, LEAST_TOKENS)
    if found is None:
        pairs = _rows_apart(pairs)
        found = _of_temperature(pairs, LEAST_TOKENS // 2)
    if found is None or _is_one_id(given, pairs):
        return None
    ratio, fits = found
    row, on, old, sampled = max(pairs, key=lambda pair: _widest(*pair[1:])[0])
    slot = _widest(on, old, sampled)[1]
    return _fault(
        "other_temperature",
        row,
        given.token(row, slot),
        ratio=ratio,
        fits=fits,
        old=old[slot],
        sampled=sampled[slot],
    )


Pairs = list[tuple[int, Array, Array, Array]]
"""(row, tokens that the policy wrote, old log-probs, the sampler's) of some rows."""


def _of_temperature(pairs: Pairs, least: int) -> tuple[float, float] | None:
    """How much more old varies, and their correlation, if they differ as by a temperature."""
    if not pairs:
        return None
    x = np.concatenate([sampled[on] for _, on, _, sampled in pairs]).astype(np.float64)
    y = np.concatenate([old[on] for _, on, old, _ in pairs]).astype(np.float64)
    if len(x) < least or not np.isfinite(x).all() or not np.isfinite(y).all():
        return None
    undecided = np.maximum(np.abs(x), np.abs(y)) > UNSURE
    if undecided.sum() < LEAST_UNDECIDED:
        return None  # where tokens are certain, no temperature shows
    if x.std() < CLOSE or np.abs(y - x).mean() < 0.03 * np.abs(x).mean():
        return None
    ratio = float(y.std() / x.std())
    fits = float(np.corrcoef(x, y)[0, 1])
    grows = float(np.corrcoef(y - x, y + x)[0, 1])  # 0 where they differ by noise only
    if fits < 0.9 or abs(grows) < 0.8 or abs(ratio - 1) < 0.05:
        return None
    unsure = np.abs(x) > UNSURE
    if unsure.any() and (np.abs(y - x)[unsure] < CLOSE).mean() > AGREE:
        return None  # a temperature leaves no such token as it was: some tokens were banned
    if abs(np.log(ratio)) < SLOPE_ERRORS * _slope_error(x[undecided], y[undecided]):
        return None  # it hangs on a few tokens
    return ratio, fits


def _slope_error(x: Array, y: Array) -> float:
    """The standard error of log(σ_y/σ_x), by leaving out one token after the other.

        error² = (n − 1)/n · Σ_i (l_i − mean of l)²      l_i: the same without token i

    The jackknife (Efron 1982). One token that rules the slope makes it large.
    """
    slopes = np.log(_spreads_without(y) / _spreads_without(x))
    return float(np.sqrt((len(x) - 1) * slopes.var()))


def _spreads_without(x: Array) -> Array:
    """The standard deviation of all numbers but one, for each of them."""
    rest = len(x) - 1
    centred = x - x.mean()
    means = (centred.sum() - centred) / rest
    squares = ((centred**2).sum() - centred**2) / rest
    spreads: Array = np.sqrt(np.maximum(squares - means**2, CLOSE**2))
    return spreads


def _is_one_id(given: Given, pairs: Pairs) -> bool:
    """Whether the two vary alike but for the one token that differs most, e.g. a biased EOS."""
    ids = np.concatenate([given.responses[row][on] for row, on, _, _ in pairs])
    x = np.concatenate([sampled[on] for _, on, _, sampled in pairs]).astype(np.float64)
    y = np.concatenate([old[on] for _, on, old, _ in pairs]).astype(np.float64)
    kinds, kind_of = np.unique(ids, return_inverse=True)
    most = kinds[np.bincount(kind_of, np.abs(y - x)).argmax()]
    rest = ids != most
    return bool(rest.sum() >= LEAST_TOKENS and abs(y[rest].std() / x[rest].std() - 1) < 0.05)


def _rows_apart(pairs: Pairs) -> Pairs:
    """The row that differs most, if it differs 10 times as much as most rows do."""
    apart = [float(np.abs(old[on] - sampled[on]).mean()) if len(on) else 0.0
             for _, on, old, sampled in pairs]  # fmt: skip
    if len(apart) < 3 or max(apart) < 10 * float(np.median(apart)):
        return []
    return [pairs[int(np.argmax(apart))]]


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
