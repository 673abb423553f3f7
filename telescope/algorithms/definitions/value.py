"""Value losses: squared error, Huber's error, and a histogram that is classified.

v is the critic's prediction under the weights of the update, V the one of the rollout, R the
target. Where predictions are clipped, the larger of the plain and the clipped error counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from telescope.algorithms.definitions import texts
from telescope.algorithms.definitions.base import (
    Bins,
    PredictedToken,
    PredictionError,
    Settings,
    Term,
    ValueLoss,
    Words,
    clamp,
)
from telescope.algorithms.definitions.notation import less, num, subscript

SHOWN_BINS = 5


class MseSettings(Settings):
    clip_value: float | None = Field(
        0.2, gt=0, description="predictions are clipped to V_old ± this in the loss; none: no clip"
    )


class HuberSettings(MseSettings):
    huber_delta: float = Field(1.0, gt=0, description="errors beyond this count linearly")


class HlGaussSettings(Settings):
    bins: int = Field(51, ge=2, le=10_000, description="outputs of the value head")
    value_low: float = Field(
        -2.0, ge=-1e30, description="lower end of the bins; a few bins below the returns"
    )
    value_high: float = Field(
        2.0, le=1e30, description="upper end of the bins; a return outside counts as the end"
    )
    sigma: float = Field(
        0.75, gt=0, le=1000, description="σ of the Gaussian around a return, in bin widths"
    )

    @model_validator(mode="after")
    def _check_range(self) -> HlGaussSettings:
        if self.value_low >= self.value_high:
            raise ValueError(
                f"critic.value_low = {self.value_low:g} is not below "
                f"critic.value_high = {self.value_high:g}"
            )
        return self


def bins_of(s: Any) -> Bins:
    return Bins(s.bins, s.value_low, s.value_high)


# ---- arithmetic on plain numbers ----


def squared(error: float) -> float:
    return 0.5 * error * error


def huber(error: float, delta: float) -> float:
    """½x² up to |x| = huber_delta, and a straight line beyond."""
    size = abs(error)
    if size <= delta:
        return squared(error)
    return delta * (size - 0.5 * delta)


def worse_error(
    x: PredictedToken, clip: float | None, cost: Callable[[float], float]
) -> tuple[float, str]:
    """The larger of the plain and the clipped error, and which one it is."""
    plain = cost(x.value - x.target)
    if clip is None:
        return plain, "off"
    inside = clamp(x.value, x.old_value - clip, x.old_value + clip)
    clipped = cost(inside - x.target)
    if clipped > plain:
        return clipped, "clipped"
    return plain, "inside" if inside == x.value else "kept"


def _mse(x: PredictedToken, s: Any) -> PredictionError:
    loss, state = worse_error(x, s.clip_value, squared)
    return PredictionError(loss, state == "clipped")


def _huber(x: PredictedToken, s: Any) -> PredictionError:
    loss, state = worse_error(x, s.clip_value, lambda error: huber(error, s.huber_delta))
    return PredictionError(loss, state == "clipped")


def target_shares(target: float, first: int, count: int, s: Any) -> list[float]:
    """The share of a Gaussian around the target that lies in each of `count` bins from `first`."""
    bins = bins_of(s)
    target = clamp(target, bins.low, bins.high)
    spread = s.sigma * bins.width * math.sqrt(2)

    def below(edge: int) -> float:
        return 0.5 * math.erfc((target - bins.low - edge * bins.width) / spread)

    whole = below(bins.count) - below(0)
    return [(below(k + 1) - below(k)) / whole for k in range(first, first + count)]


def _hl_gauss(x: PredictedToken, s: Any) -> PredictionError:
    shares = target_shares(x.target, x.first_bin, len(x.log_p), s)
    return PredictionError(-math.fsum(q * p for q, p in zip(shares, x.log_p, strict=True)))


# ---- one token, term by term ----


def _error_terms(
    x: PredictedToken,
    clip: float | None,
    cost: Callable[[float], float],
    shape: str,
    larger: str,
    note: str = "",
    variant: str | None = None,
) -> list[Term]:
    i = subscript(x.index)
    loss, state = worse_error(x, clip, cost)
    error = f"v{i} − R{i}"
    error_numbers = less(x.value, x.target)
    inputs = [x.value, x.target]
    ties = False
    if clip is None:
        formula = shape.format(error)
        substituted = shape.format(error_numbers)
    else:
        inside = clamp(x.value, x.old_value - clip, x.old_value + clip)
        clipped_error = f"clip(v{i}, V{i} ± {num(clip)}) − R{i}"
        formula = larger.format(error, clipped_error)
        substituted = larger.format(error_numbers, less(inside, x.target))
        inputs = [x.value, x.old_value, x.target]
        size = max(1.0, abs(x.value - x.target), *(abs(number) for number in inputs))
        gap = abs(abs(x.value - x.target) - abs(inside - x.target))
        ties = gap < 1e-5 * size
    term = Term("value_loss", f"L_V{i} = {formula}{note}", substituted, loss, inputs)
    return [replace(term, state=state, variant=variant, ties=ties)]


def _mse_terms(x: PredictedToken, s: Any) -> list[Term]:
    return _error_terms(x, s.clip_value, squared, "½·({})²", "½·max(({})², ({})²)")


def _huber_terms(x: PredictedToken, s: Any) -> list[Term]:
    delta = s.huber_delta
    half = num(delta / 2)
    note = f" [H(x) = ½·x² for |x| ≤ {num(delta)}, else {num(delta)}·(|x| − {half})]"
    return _error_terms(
        x,
        s.clip_value,
        lambda error: huber(error, delta),
        "H({})",
        "max(H({}), H({}))",
        note,
        variant="huber",
    )


def _hl_gauss_terms(x: PredictedToken, s: Any) -> list[Term]:
    """Cross-entropy over the recorded bins: those with most of the target, the rest as a sum."""
    if not x.log_p:
        return []
    i = subscript(x.index)
    bins = bins_of(s)
    shares = target_shares(x.target, x.first_bin, len(x.log_p), s)
    terms = [q * p for q, p in zip(shares, x.log_p, strict=True)]
    largest = sorted(range(len(terms)), key=lambda k: -shares[k])[:SHOWN_BINS]
    shown = sorted(largest)
    rest = math.fsum(term for k, term in enumerate(terms) if k not in shown)
    products = " + ".join(f"{num(shares[k])}·log {num(math.exp(x.log_p[k]))}" for k in shown)
    substituted = f"[v {num(x.value)}, R {num(x.target)}] −({products} + …({num(rest)}))"
    first_edge = num(bins.low + bins.width * (x.first_bin + shown[0]))
    last_edge = num(bins.low + bins.width * (x.first_bin + shown[-1] + 1))
    mean = f"R{i}"
    if not bins.low <= x.target <= bins.high:
        mean = f"clip(R{i}, {num(bins.low)}, {num(bins.high)})"
    spread = num(s.sigma * bins.width)
    formula = f"L_V{i} = −Σ q·log p, q = N({mean}, {spread}), bins {first_edge} … {last_edge}, …"
    total = -math.fsum(terms)
    return [Term("value_loss", formula, substituted, total, x.log_p, state="histogram")]


MSE = ValueLoss(
    name="mse",
    verl="compute_value_loss",
    formula="½·max((v − R)², (clip(v, V ± ε) − R)²)",
    paper="Schulman et al. 2017, arXiv:1707.06347",
    tensor="telescope.algorithms.losses:mse_terms",
    settings=MseSettings,
    error=_mse,
    terms=_mse_terms,
    words=Words(zh="平方误差的一半", en="half the squared error"),
    texts=texts.VALUE,
)

HUBER = ValueLoss(
    name="huber",
    formula="max(H(v − R), H(clip(v, V ± ε) − R)), H(x) = ½x² up to huber_delta, then linear",
    paper="Huber 1964",
    tensor="telescope.algorithms.losses:huber_terms",
    settings=HuberSettings,
    error=_huber,
    terms=_huber_terms,
    words=Words(zh="Huber 误差：大误差按直线增加", en="Huber's error: large errors grow linearly"),
    texts=texts.VALUE,
)

HL_GAUSS = ValueLoss(
    name="hl_gauss",
    formula="−Σ_k q_k·log p_k, q the mass of a Gaussian around R in each bin",
    paper="Imani & White 2018, arXiv:1806.04613; Farebrother et al. 2024, arXiv:2403.03950",
    tensor="telescope.algorithms.losses:hl_gauss_terms",
    settings=HlGaussSettings,
    error=_hl_gauss,
    terms=_hl_gauss_terms,
    histogram=bins_of,
    words=Words(
        zh="预测一个直方图，用交叉熵训练", en="the critic predicts a histogram; cross-entropy"
    ),
    texts=texts.VALUE,
)

VALUE_LOSSES = (MSE, HUBER, HL_GAUSS)
