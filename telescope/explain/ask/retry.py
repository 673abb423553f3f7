"""The same response with another γ, λ, β or clip range: same rollout, same critic.

Whitening takes the responses that the recorded Â took: those of the step, all recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from telescope.errors import TelescopeError
from telescope.explain.arithmetic import moments
from telescope.explain.ask.replies import say
from telescope.explain.groups import compare_groups
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.whitening import advantages as advantages_of
from telescope.explain.words import Lang, Level

_CREDIT = ("deltas", "baselines", "advantages", "returns", "whitened")
"""Columns that follow from rewards and values."""
SYMBOLS = {"lam": "λ", "gamma": "γ", "kl_coef": "β", "clip_low": "ε", "clip_high": "ε"}
_IN_WORDS: dict[Lang, dict[str, str]] = {
    "zh": {"λ": "远处再打的折", "γ": "折扣", "β": "罚款率", "ε": "限制"},
    "en": {"λ": "extra discount", "γ": "discount", "β": "fine", "ε": "limit"},
}
"""What a child calls the symbols."""


def retry(
    sample: Sample, changes: Mapping[str, Any], lang: Lang, batch: Sequence[Sample] = ()
) -> Sample:
    """The sample with these settings; every number that follows from them is dropped.

    `batch`: the responses that it was whitened with. All get these settings, and give μ and σ.
    """
    if not changes:
        return sample
    tried = _retried(sample, changes, lang)
    if not changes_credit(changes) or not is_among(sample, batch):
        return tried
    every = compare_groups([_retried(other, changes, lang) for other in batch])
    place = next(k for k, other in enumerate(every) if other.index == sample.index)
    advantages = [a for other in every for a in advantages_of(other)]
    if not tried.settings.whiten or not advantages:
        return every[place]
    mean, std = moments(advantages)
    return replace(every[place], whiten_mean=mean, whiten_std=std)


def changes_credit(names: Iterable[str]) -> bool:
    """Whether A, and so μ and σ, may change; a clip range does not move them."""
    return any(name not in ("clip_low", "clip_high") for name in names)


def is_among(sample: Sample, batch: Sequence[Sample]) -> bool:
    """Whether the batch has the sample and at least one other."""
    return len(batch) > 1 and any(other.index == sample.index for other in batch)


def _retried(sample: Sample, changes: Mapping[str, Any], lang: Lang) -> Sample:
    """The sample with these settings, without what followed from the old ones."""
    own = dict(changes)
    if "lam" in own:
        own |= {"lam_alpha": None, "lam_critic": None}
    try:
        settings = sample.settings.change(**own)
    except ValidationError as error:
        raise TelescopeError(_reason(error, lang)) from None
    dropped: set[str] = set()
    if changes_credit(changes):
        dropped |= set(_CREDIT)
        sample = replace(sample, whiten_mean=None, whiten_std=None, already_whitened=False)
    if "kl_coef" in changes and "token_level_scores" in sample.columns:
        dropped.add("token_level_rewards")
        sample = replace(sample, reward_mean=None, reward_std=None)
    columns = {name: column for name, column in sample.columns.items() if name not in dropped}
    actor = [replace(x, clipped=[], dual_clipped=[], loss=[]) for x in sample.actor_updates]
    critic = [replace(x, clipped=[], loss=[]) for x in sample.critic_updates]
    if settings.histogram:
        critic = []  # its bins are stored around the old target
    return replace(
        sample, columns=columns, settings=settings, actor_updates=actor, critic_updates=critic
    )


def whitened_with(sample: Sample, batch: Sequence[Sample]) -> tuple[str, int]:
    """Which responses give μ and σ after a change: a key of the replies, and how many.

    The ledger has the whole batch if its responses give the recorded μ and σ.
    """
    if not is_among(sample, batch):
        return "whitened alone", 1
    recorded = [a for other in batch for a in advantages_of(other)]
    mean, std = moments(recorded)
    gaps = (mean - (sample.whiten_mean or 0.0), std - (sample.whiten_std or 0.0))
    is_whole = max(map(abs, gaps)) <= 1e-4 * max(1.0, abs(mean), std)
    return "whitened whole" if is_whole else "whitened part", len(batch)


def _reason(error: ValidationError, lang: Lang) -> str:
    """Why a number cannot be tried."""
    first = error.errors()[0]
    name = str(first["loc"][-1])
    symbol = SYMBOLS.get(name, name)
    given = f"{first['input']:g}"
    limits = first.get("ctx", {})
    for key, bounds in (("too high", ("le", "lt")), ("too low", ("ge", "gt"))):
        for bound in bounds:
            if bound in limits:
                return say(key, lang, symbol, given, f"{limits[bound]:g}")
    return say("not allowed", lang, symbol, given)


def notes(settings: Settings, changes: Mapping[str, Any], lang: Lang, level: Level) -> list[str]:
    """What was changed, in a sentence each; a pair such as the two clip bounds once."""
    said: list[str] = []
    for name, value in changes.items():
        symbol = SYMBOLS.get(name, name)
        if level == "kid":
            symbol = _IN_WORDS[lang].get(symbol, symbol)
        if name not in settings.by_name():
            said.append(say("no setting", lang, settings.estimator, symbol))
        elif name == "whiten":
            said.append(say("whiten off", lang))
        else:
            said.append(say("changed", lang, symbol, f"{value:g}"))
    return list(dict.fromkeys(said))
