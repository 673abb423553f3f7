"""Whitening over a batch: one μ and one σ from the tokens of all its responses.

Beside it, for comparison: what each response by itself would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from telescope.algorithms.definitions.notation import less, num, subscript
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill, moments
from telescope.explain.sample import Sample
from telescope.explain.trace import Trace


def whiten_together(batch: Sequence[Sample]) -> list[Sample]:
    """The responses as one batch, in their order.

    Each gets the μ and σ of the advantages of all of them, unless μ and σ were given.
    """
    _check_shared(batch)
    mean, std = _batch_moments(batch)
    count = len(batch)
    return [
        replace(sample, index=i, count=count, whiten_mean=mean, whiten_std=std)
        for i, sample in enumerate(batch)
    ]


def _batch_moments(batch: Sequence[Sample]) -> tuple[float | None, float | None]:
    """μ and σ of a batch: the given ones, or those of the advantages of all its responses."""
    first = batch[0]
    own = [advantages(sample) for sample in batch]
    is_given = first.whiten_mean is not None
    if not first.settings.whiten or is_given or len(batch) == 1 or not any(own):
        return first.whiten_mean, first.whiten_std
    for i, row in enumerate(own):
        if not row:
            raise TelescopeError(
                f"response {i} has no advantages: whitening takes all responses, "
                "give each its rewards and values"
            )
    return moments([a for row in own for a in row])


def _check_shared(batch: Sequence[Sample]) -> None:
    """Raises an error if a setting differs between two responses."""
    first, *others = [
        sample.settings.by_name()
        | {"whiten_mean": sample.whiten_mean, "whiten_std": sample.whiten_std}
        for sample in batch
    ]
    for i, other in enumerate(others, 1):
        for name in first:
            if first[name] != other[name]:
                raise TelescopeError(
                    f"{name} is {first[name]} in response 0 and {other[name]} in response {i}: "
                    "a batch has one, write it once beside the responses"
                )


def advantages(sample: Sample) -> list[float]:
    """Raw advantages of the valid tokens; empty if they are not known."""
    full = fill(sample)
    return full.numbers("advantages") if "advantages" in full.columns else []


def whitening(batch: Sequence[Sample], sample: Sample, t: int) -> list[Trace]:
    """How μ and σ come about, and what token t would be if each response were whitened by itself.

    Empty if there is no batch, or if the sample's μ and σ do not come from these responses.
    """
    every = [a for x in batch for a in advantages(x)]
    mean, std = moments(every)
    is_own = (sample.whiten_mean, sample.whiten_std) == (mean, std)
    if len(batch) < 2 or not sample.settings.whiten or not is_own:
        return []
    n = len(every)
    total = math.fsum(every)
    squares = math.fsum((a - mean) * (a - mean) for a in every)
    var = squares / (n - 1)
    made = [
        Trace("batch_mean", "μ = ΣA/M", f"{num(total)}/{n}", mean),
        Trace("batch_variance", "var = Σ(A − μ)²/(M − 1)", f"{num(squares)}/{n - 1}", var),
        Trace("batch_std", "σ = √(var + 1e-8)", f"√({num(var)} + 1e-8)", std),
    ]
    if sample.mask[t]:
        a = fill(sample).columns["advantages"][t]
        mean, std = moments(advantages(sample))
        i = subscript(t)
        formula = f"Â{i}[row] = (A{i} − μ_row)/σ_row"
        made.append(Trace("row", formula, f"({less(a, mean)})/{num(std)}", (a - mean) / std))
    return made
