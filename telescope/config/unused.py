"""Settings that a run does not read: it starts, and says so once.

What is certainly a misunderstanding is refused instead (checks.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from telescope.config.checks import changed
from telescope.config.sections import ChosenSection, Config

_OF_RAY = ("workers", "fsdp_size", "address", "timeout", "max_restarts")
_OF_TRACKERS = ("project", "group", "tags", "samples", "samples_every")


def unused(config: Config) -> list[str]:
    """A line for each reason why settings that were given or changed do nothing."""
    lines = []
    for section, names, reason in _unread(config):
        given = _given(config, section)
        differing = changed(config, names, section)
        keys = [f"{section}.{name}" for name in names]
        found = [key for key in keys if key in given or key in differing]
        if found:
            lines.append(f"{', '.join(found)}: does nothing here, because {reason}")
    return lines


def _given(config: Config, section: str) -> Collection[str]:
    """The settings of a section that somebody wrote down, also those at their default.

    A saved config holds every setting: nobody can tell which ones were given.
    """
    settings = getattr(config, section)
    given = set(settings.model_fields_set)
    if given >= set(type(settings).model_fields):
        return ()
    if isinstance(settings, ChosenSection):
        given.discard(settings.chosen_by)  # validation fills it in
    return {f"{section}.{name}" for name in given}


def _unread(config: Config) -> Iterator[tuple[str, Iterable[str], str]]:
    """Section, settings, and why this run does not read them."""
    if not config.credit.by_critic:
        estimator = config.credit.estimator
        names = type(config.critic).model_fields
        yield "critic", names, f"credit.estimator = '{estimator}' has no critic"
    if config.backend == "local":
        yield "ray", _OF_RAY, "backend = 'local'"
    trackers = set(config.log.trackers)
    if not trackers:
        yield "log", _OF_TRACKERS, "log.trackers is empty"
    elif trackers == {"tensorboard"}:
        yield "log", ("project", "group", "tags"), "tensorboard has no such thing"
    elif "wandb" not in trackers:
        yield "log", ("tags",), "only W&B has tags"
    if config.credit.kl_target is None:
        yield "credit", ("kl_horizon",), "credit.kl_target is not set"
    if not config.actor.kl_loss_coef:
        yield "actor", ("kl_loss_kind",), "actor.kl_loss_coef = 0"
    if config.actor.importance == "off":
        yield "actor", ("importance_cap",), "actor.importance = 'off'"
    if config.reward.model is None:
        yield "reward", ("micro_batch_tokens",), "reward.model is not set"
    if not any(_asks_a_server(spec) for spec in config.reward_functions):
        yield "reward", ("timeout", "retries"), "no reward is a server or a judge"


def _asks_a_server(spec: str) -> bool:
    return "://" in spec or spec.rpartition("=")[2] == "judge"
