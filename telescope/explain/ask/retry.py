"""The same response with another γ, λ, β or clip range: same rollout, same critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from telescope.errors import TelescopeError
from telescope.explain.ask.replies import say
from telescope.explain.sample import ActorUpdate, CriticUpdate, Sample
from telescope.explain.settings import Settings
from telescope.explain.words import Lang, Level

_CREDIT = ("deltas", "baselines", "advantages", "returns", "whitened")
"""Columns that follow from rewards and values."""
SYMBOLS = {"lam": "λ", "gamma": "γ", "kl_coef": "β", "clip_low": "ε", "clip_high": "ε"}
_IN_WORDS: dict[Lang, dict[str, str]] = {
    "zh": {"λ": "远处再打的折", "γ": "折扣", "β": "罚款率", "ε": "限制"},
    "en": {"λ": "extra discount", "γ": "discount", "β": "fine", "ε": "limit"},
}
"""What a child calls the symbols."""


def retry(sample: Sample, changes: Mapping[str, Any], lang: Lang) -> Sample:
    """The sample with these settings; every number that follows from them is dropped."""
    if not changes:
        return sample
    settings = _changed(sample.settings, changes, lang)
    dropped = set(_CREDIT)
    if "kl_coef" in changes and "token_level_scores" in sample.columns:
        dropped.add("token_level_rewards")
    columns = {name: column for name, column in sample.columns.items() if name not in dropped}
    return replace(
        sample,
        columns=columns,
        settings=settings,
        whiten_mean=None,
        whiten_std=None,
        already_whitened=False,
        actor_updates=[_bare(update) for update in sample.actor_updates],
        critic_updates=[] if settings.histogram else _bare_predictions(sample),
    )


def _bare(update: ActorUpdate) -> ActorUpdate:
    """The update's ratios without what followed from the old advantages."""
    return replace(update, clipped=[], dual_clipped=[], loss=[])


def _bare_predictions(sample: Sample) -> list[CriticUpdate]:
    """The critic's predictions without their errors. A histogram is stored around its target."""
    return [replace(update, clipped=[], loss=[]) for update in sample.critic_updates]


def _changed(settings: Settings, changes: Mapping[str, Any], lang: Lang) -> Settings:
    own: dict[str, Any] = dict(changes)
    if "lam" in own:
        own |= {"lam_alpha": None, "lam_critic": None}
    try:
        return settings.change(**own)
    except ValidationError as error:
        raise TelescopeError(_reason(error, lang)) from None


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


def has_setting(settings: Settings, name: str) -> bool:
    """Whether the chosen algorithms have this setting."""
    return name in settings.by_name()


def notes(settings: Settings, changes: Mapping[str, Any], lang: Lang, level: Level) -> list[str]:
    """What was changed, in a sentence each; a pair such as the two clip bounds once."""
    said: list[str] = []
    for name, value in changes.items():
        symbol = SYMBOLS.get(name, name)
        if level == "kid":
            symbol = _IN_WORDS[lang].get(symbol, symbol)
        if not has_setting(settings, name):
            said.append(say("no setting", lang, settings.estimator, symbol))
        elif name == "whiten":
            said.append(say("whiten off", lang))
        else:
            said.append(say("changed", lang, symbol, f"{value:g}"))
    return list(dict.fromkeys(said))
