"""The flow of a step for a child: who does what, and about how much that was for one word."""

from __future__ import annotations

from dataclasses import dataclass

from telescope.explain.chat import user_turn
from telescope.explain.groups import Group
from telescope.explain.sample import Sample
from telescope.explain.terminal import push_key
from telescope.explain.text import about, pieces, shorten, visible, wrap
from telescope.explain.trace import Trace, Tracer
from telescope.explain.words import Lang, meaning, texts, ui

_CREDIT = "compute_advantages(batch)"
_SCORE = "reward.compute_reward(batch)"
_UPDATE_ACTOR = "actor.update_actor(batch)"
_UPDATE_CRITIC = "critic.update_critic(batch)"
_TOLD: dict[str, dict[str, str]] = {
    "critic.compute_values(batch)": {"values": "guess"},
    "reference.compute_log_prob(batch)": {"kl": "drift"},
    _CREDIT: {
        "token_level_rewards": "mark",
        "deltas": "surprise",
        "advantages": "credit",
        "whitened": "compared",
        "returns": "target",
    },
}
"""Stage -> column -> what a child calls it. Other columns are not told."""
_OF_FORECASTER = ("values", "deltas", "returns")


@dataclass(frozen=True)
class FlowStory:
    """The words of the boxes: no symbols, no shapes, one decimal."""

    full: Sample
    t: int
    lang: Lang
    given: bool
    group: Group | None

    def head(self, width: int) -> str:
        """The question, and which word the numbers are of."""
        prompt = visible(user_turn(self.full.prompt), spaces=False)
        title = self._ui("title", self.t, self._word(), len(self.full))
        return f"{shorten(prompt, width // 2)}   {title}"

    def stage(self, maker: str, width: int) -> tuple[str, list[str]]:
        """Who it is, what they do, and their numbers."""
        lines: list[str] = []
        if maker == _CREDIT and self.group is not None:
            lines += wrap(self.group.told(self.lang), width)
        lines += wrap(self._does(maker), width)
        for key, x in self._numbers(maker).items():
            name = texts()["flow_kid"]["names"][key][self.lang]
            lines += wrap(self._ui("told", name, about(x, self._ui("almost"))), width, "  ")
        return str(texts()["flow_kid"][maker]["who"][self.lang]), lines

    def _does(self, maker: str) -> str:
        told = texts()["flow_kid"][maker]
        if self.given and "given" in told:
            return str(told["given"][self.lang])
        said = str(told["does"][self.lang])
        if maker == _UPDATE_ACTOR:
            return self._lesson() or said
        if maker == _CREDIT:
            space = " " if self.lang == "en" else ""
            return f"{said}{space}{self._how_credit_is_made()}"
        return said

    def _numbers(self, maker: str) -> dict[str, float]:
        """What a child calls a number -> the number."""
        has_critic = self.full.settings.has_critic
        found: dict[str, float] = {}
        for column, key in _TOLD.get(maker, {}).items():
            if column in self.full.columns and (has_critic or column not in _OF_FORECASTER):
                found[key] = self.full.columns[column][self.t]
        if maker == _SCORE and self.full.score is not None:
            found["score"] = self.full.score
        if maker == _UPDATE_CRITIC:
            found["new_guess"] = self.full.critic_updates[-1].values[self.t]
        return found

    def _how_credit_is_made(self) -> str:
        """What the estimator of this sample does, at this word."""
        said = [meaning(x, self.lang, "kid") for x in self._traces() if x.name == "advantage"]
        return said[0] if said else ""

    def _lesson(self) -> str:
        """Whether the word will be written more or less often; empty if the loss does not say."""
        key = push_key(self.full, self.t, self._traces())
        return self._ui(key, self._word()) if key else ""

    def _traces(self) -> list[Trace]:
        return Tracer(self.full).traces(self.t)

    def _word(self) -> str:
        return shorten(pieces(self.full.token_bytes)[self.t], 12)

    def _ui(self, key: str, *values: object) -> str:
        return ui(key, self.lang, "kid", *values)
