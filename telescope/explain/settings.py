"""The settings that went into a response's numbers, as the run resolved them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telescope.algorithms.definitions import (
    DEFAULT_ESTIMATOR,
    DEFAULT_POLICY_LOSS,
    DEFAULT_VALUE_LOSS,
    ESTIMATORS,
    POLICY_LOSSES,
    VALUE_LOSSES,
)
from telescope.algorithms.definitions.base import (
    Bins,
    Estimator,
    PolicyLoss,
    ValueLoss,
    Words,
)
from telescope.config import ActorConfig, CreditConfig, CriticConfig, Section
from telescope.config.sections import ChosenSection, variant

_NOT_HERE = Words(
    zh="它的定义不在这里，只显示记录的数，不核对",
    en="its definition is not available here: numbers are shown as recorded, not checked",
)


UNKNOWN = "?"
"""The estimator of a trainer that did not say it and has no values."""


@dataclass(frozen=True)
class Settings:
    """Three sections of the run's config, and the sampling temperature.

    `Settings.of(gamma=0.9, clip_low=0.1)` makes them from plain names. The names are those of the
    config; `value_loss` stands for `critic.loss`.
    """

    credit: CreditConfig
    actor: ActorConfig
    critic: CriticConfig
    temperature: float = 1.0

    @classmethod
    def of(cls, **names: Any) -> Settings:
        """Settings by name. A setting of another algorithm than the chosen one is left out."""
        estimator = names.pop("estimator", DEFAULT_ESTIMATOR)
        loss = names.pop("loss", DEFAULT_POLICY_LOSS)
        value_loss = names.pop("value_loss", None) or DEFAULT_VALUE_LOSS
        given = {"kl_coef": 0.0, **names}
        return cls(
            _section(CreditConfig, estimator, given),
            _section(ActorConfig, loss, given),
            _section(CriticConfig, value_loss, given),
            float(names.get("temperature", 1.0)),
        )

    @classmethod
    def recorded(cls, data: Mapping[str, Any]) -> Settings:
        """From a ledger's metadata."""
        if "credit" not in data:
            return cls.of(**_from_version_2(data))
        return cls(
            _recorded_section(CreditConfig, data["credit"]),
            _recorded_section(ActorConfig, data["actor"]),
            _recorded_section(CriticConfig, data["critic"]),
            data.get("temperature", 1.0),
        )

    def change(self, **names: Any) -> Settings:
        """The same settings with some changed."""
        return Settings.of(**{**self.by_name(), **names})

    def to_json(self) -> dict[str, Any]:
        """What `recorded` reads: the three sections and the temperature."""
        return {
            "credit": self.credit.model_dump() | {"whiten": self.whiten},
            "actor": self.actor.model_dump(),
            "critic": self.critic.model_dump(),
            "temperature": self.temperature,
        }

    def by_name(self) -> dict[str, Any]:
        """Every setting by its plain name, for JSON and the page."""
        critic = self.critic.model_dump()
        names = {**critic, **self.actor.model_dump(), **self.credit.model_dump()}
        names["value_loss"] = self.critic.loss
        names["whiten"] = self.whiten
        names["temperature"] = self.temperature
        return names

    @property
    def estimator(self) -> str:
        return self.credit.estimator

    @property
    def loss(self) -> str:
        return self.actor.loss

    @property
    def estimator_definition(self) -> Estimator:
        """The run's estimator, or a stand-in for one whose definition is not here.

        A definition that would have to be run to be read is not here.
        """
        name = self.credit.estimator
        return ESTIMATORS.recorded(name) or Estimator(
            name=name,
            formula="?",
            tensor="",
            words=_NOT_HERE,
            rules=(),
            texts={"advantage": _NOT_HERE},
        )

    @property
    def has_critic(self) -> bool:
        return self.estimator_definition.needs.critic

    @property
    def policy_loss_definition(self) -> PolicyLoss | None:
        return POLICY_LOSSES.recorded(self.actor.loss)

    @property
    def value_loss_definition(self) -> ValueLoss:
        found = VALUE_LOSSES.recorded(self.critic.loss)
        return found or VALUE_LOSSES[DEFAULT_VALUE_LOSS]

    @property
    def gamma(self) -> float:
        return self.credit.gamma

    @property
    def whiten(self) -> bool:
        whiten = self.credit.whiten
        return self.estimator_definition.whiten if whiten == "auto" else whiten

    @property
    def histogram(self) -> Bins | None:
        if self.value_loss_definition.histogram is None:
            return None
        return self.value_loss_definition.histogram(self.critic)

    @property
    def huber_delta(self) -> float | None:
        return getattr(self.critic, "huber_delta", None)

    @property
    def lam_critic(self) -> float | None:
        """λ of the critic's targets, where it is another than that of the advantages."""
        return getattr(self.credit, "lam_critic", None)

    @property
    def own_lam(self) -> float | None:
        """λ as it was set; None where the estimator has no such setting."""
        return getattr(self.credit, "lam", None)

    def lam(self, tokens: int) -> float:
        """λ of a response of so many tokens, as GAE would have it."""
        own = self.estimator_definition.lam
        return 1.0 if own is None else own(self.credit, tokens)


def _section(section: type[ChosenSection], name: str, given: Mapping[str, Any]) -> Any:
    own = {key: value for key, value in given.items() if key in section.model_fields}
    definition = section.registry.recorded(name)
    if definition is None:
        return section.model_construct(**{**_defaults(section), **own, section.chosen_by: name})
    fields = definition.settings.model_fields
    own |= {key: value for key, value in given.items() if key in fields}
    return section.of(**{**own, section.chosen_by: name})


def _recorded_section(section: type[ChosenSection], data: Mapping[str, Any]) -> Any:
    """Not validated again: it was when the run started, and a newer version may be stricter."""
    name = data[section.chosen_by]
    definition = section.registry.recorded(name)
    base = section if definition is None else variant(section, name)
    return base.model_construct(**{**_defaults(base), **data})


def _defaults(section: type[Section]) -> dict[str, Any]:
    return {name: info.default for name, info in section.model_fields.items()}


def _from_version_2(data: Mapping[str, Any]) -> dict[str, Any]:
    """Ledgers of version 2 and older have one flat table, without the name of the value loss."""
    names = {key: value for key, value in data.items() if value is not None}
    if names.get("bins"):
        width = (names["value_high"] - names["value_low"]) / names["bins"]
        names["sigma"] = names.pop("value_sigma") / width
        names["value_loss"] = value_loss_with("bins")
    elif "huber_delta" in names:
        names["value_loss"] = value_loss_with("huber_delta")
    if "clip_value" not in names:
        names["clip_value"] = None
    return names


def value_loss_with(setting: str) -> str:
    """The built-in value loss that has this setting."""
    found = VALUE_LOSSES.built_in.items()
    return next(name for name, loss in found if setting in loss.settings.model_fields)
