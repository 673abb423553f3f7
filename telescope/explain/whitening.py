"""Whitening over a batch: one μ and one σ from the tokens of all its responses, beside what each response alone would give."""

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
    """The responses as one batch, in their order: each with μ and σ of the advantages of all, unless they were given."""
    first, own = batch[0], [advantages(sample) for sample in batch]
    for i, sample in enumerate(batch):
        one, other = _shared(first), _shared(sample)
        for name in one:
            if one[name] != other[name]:
                said = f"{name} is {one[name]} in response 0 and {other[name]} in response {i}"
                raise TelescopeError(f"{said}: a batch has one, write it once beside the responses")
    if (
        not first.settings.whiten
        or first.whiten_mean is not None
        or len(batch) == 1
        or not any(own)
    ):
        mean, std = first.whiten_mean, first.whiten_std
    elif all(own):
        mean, std = moments([a for row in own for a in row])
    else:
        lacking = next(i for i, row in enumerate(own) if not row)
        raise TelescopeError(
            f"response {lacking} has no advantages: whitening takes all responses, give each its rewards and values"
        )
    return [
        replace(x, index=i, count=len(batch), whiten_mean=mean, whiten_std=std)
        for i, x in enumerate(batch)
    ]


def advantages(sample: Sample) -> list[float]:
    """Of the tokens that the policy wrote, before whitening; none where they do not follow from what is known."""
    return [
        a
        for a, m in zip(fill(sample).columns.get("advantages", ()), sample.mask, strict=False)
        if m
    ]


def whitening(batch: Sequence[Sample], sample: Sample, t: int) -> list[Trace]:
    """How μ and σ come about, and what they would make of token t if every response were whitened by itself.

    None where there is no batch, or where its μ and σ do not come from these responses.
    """
    every = [a for x in batch for a in advantages(x)]
    mean, std = moments(every)
    if (
        len(batch) < 2
        or not sample.settings.whiten
        or (sample.whiten_mean, sample.whiten_std) != (mean, std)
    ):
        return []
    n, squares = len(every), math.fsum((a - mean) * (a - mean) for a in every)
    made = [
        Trace("batch_mean", "μ = ΣA/n", f"{num(math.fsum(every))}/{n}", mean),
        Trace(
            "batch_variance",
            "var = Σ(A − μ)²/(n − 1)",
            f"{num(squares)}/{n - 1}",
            squares / (n - 1),
        ),
        Trace("batch_std", "σ = √(var + 1e-8)", f"√({num(squares / (n - 1))} + 1e-8)", std),
    ]
    if sample.mask[t]:
        a, (mean, std), i = (
            fill(sample).columns["advantages"][t],
            moments(advantages(sample)),
            subscript(t),
        )
        sub = f"({less(a, mean)})/{num(std)}"
        made.append(Trace("row", f"Â{i}[row] = (A{i} − μ_row)/σ_row", sub, (a - mean) / std))
    return made


def _shared(sample: Sample) -> dict[str, float | str | bool | None]:
    """What all responses of a batch have in common."""
    return sample.settings.by_name() | {
        "whiten_mean": sample.whiten_mean,
        "whiten_std": sample.whiten_std,
    }
