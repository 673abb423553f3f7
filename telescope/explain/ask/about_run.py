"""Questions about the run itself: its task and settings, whether it learns, what the critic
expected, the right answer. They are answered from the run's own numbers; wordings and texts are in
about_run.toml.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from telescope.algorithms.definitions.notation import num
from telescope.config import checked_toml
from telescope.config.paths import check_ordinary
from telescope.errors import TelescopeError
from telescope.explain.ask.index import Index
from telescope.explain.ask.tokens import words
from telescope.explain.ask.wordings import all_wordings
from telescope.explain.chat import user_turn
from telescope.explain.facts import facts
from telescope.explain.instructive import instructive
from telescope.explain.questions import filled_columns
from telescope.explain.sample import Sample
from telescope.explain.settings import UNKNOWN
from telescope.explain.text import shorten
from telescope.explain.trace import Tracer
from telescope.explain.words import Lang, Level, assumed, toml

Topic = Literal["task", "settings", "length", "learning", "expected", "right"]
RIGHT_ANSWERS = ("answer", "ground_truth", "solution", "target", "label", "answers")
"""Columns of the data that may hold the right answer."""
_ACCURACIES = (
    ("held_out", "eval/greedy_accuracy"),
    ("held_out_sampled", "eval/sampled_accuracy"),
)
_SCORE = "reward/score_mean"
RELATED: dict[Topic, tuple[str, ...]] = {
    "task": ("q6", "q63"),
    "settings": ("q60", "q46", "q23"),
    "length": ("q41", "q30", "q57"),
    "learning": ("q63", "q71", "q1"),
    "expected": ("q9", "q71", "q3"),
    "right": ("q69", "q70"),
}
"""Questions that are offered beside an answer."""
_ENOUGH = 0.25
_AHEAD = 0.03
"""A message is about the run if it scores this much, and this much more than another question. Of
the 886 wordings and strangers in the tests none does; the highest has 0.18."""
_MEAN_OF = 10
"""Steps at each end of the training over which the score is averaged."""
_SHOWN = 40
"""Characters of a prompt or an answer that are shown."""


@dataclass(frozen=True)
class RunFacts:
    """What is known about a run besides its samples."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    """One entry per line of metrics.jsonl, each with its `step`."""


def read_run(run: Path) -> RunFacts:
    """Settings and metrics of a run folder; what is missing or damaged is left out."""
    config: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    with contextlib.suppress(TelescopeError):
        config = checked_toml(run / "config.toml")
    with contextlib.suppress(OSError):
        check_ordinary(run / "metrics.jsonl")
        lines = (run / "metrics.jsonl").read_text("utf-8", "replace").splitlines()
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return RunFacts(run.name, config, rows)


# ---- which question it is ----


def _data() -> dict[str, Any]:
    return toml("ask/about_run.toml")


@functools.cache
def _patterns() -> dict[Topic, re.Pattern[str]]:
    found: dict[Topic, re.Pattern[str]] = {}
    for topic in get_args(Topic):
        wordings = _data()["patterns"][topic]
        found[topic] = re.compile("|".join(f"(?:{each})" for each in _all(wordings)))
    return found


def _all(wordings: Mapping[str, list[str]]) -> list[str]:
    return [*wordings["en"], *wordings["zh"]]


def topic_of(text: str) -> Topic | None:
    """The question about the run that a message is, or None."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    plain = re.sub(r"[?？!！.。,，\s]+", " ", plain).strip()
    fillers = "|".join(sorted(_all(_data()["fillers"]), key=len, reverse=True))
    starts = re.compile(rf"^(?:{fillers})(?:\s+|(?<=[一-鿿])\s*)")
    ends = re.compile(rf"(?:\s+|\s*(?=[一-鿿]))(?:{fillers})$")
    tried = {plain, re.sub(r"(?<=[一-鿿]) | (?=[一-鿿])", "", plain)}
    for _ in range(2):
        tried |= {ends.sub("", starts.sub("", each)).strip() for each in tried}
        tried |= {starts.sub("", each).strip() for each in tried}
        tried |= {ends.sub("", each).strip() for each in tried}
    for topic, pattern in _patterns().items():
        if any(pattern.fullmatch(each) for each in tried):
            return topic
    return _nearest(text)


def _nearest(text: str) -> Topic | None:
    """The topic whose wordings are nearer than those of every other question, and near enough."""
    index = _index()
    if any(word.isascii() and word.isalpha() and not index.knows(word) for word in words(text)):
        return None  # «the task of a lawyer»
    best, second, *_ = index.search(text)
    owner, _, topic = best.id.partition(":")
    is_clear = best.score >= _ENOUGH and best.score - second.score >= _AHEAD
    return cast(Topic, topic) if owner == "run" and is_clear else None


@functools.cache
def _index() -> Index:
    near = {f"run:{topic}": wordings for topic, wordings in _data()["near"].items()}
    return Index({**all_wordings(), **near})


# ---- what is said ----


@dataclass(frozen=True)
class AboutRun:
    """Answers about a sample and the run that it is from."""

    sample: Sample
    lang: Lang
    level: Level
    token: int | None
    run: RunFacts | None
    batch: Callable[[], Sequence[Sample]]

    def answer(self, topic: Topic) -> str:
        """What the method of the topic's name says."""
        said: list[str] = getattr(self, topic)()
        return (" " if self.lang == "en" else "").join(said)

    def say(self, key: str, *values: object) -> str:
        text: str = _data()["texts"][key][self.lang]
        return text.format(*values)

    def task(self) -> list[str]:
        lines = []
        if self.run is not None and self.run.config:
            lines.append(self.say("source", self.run.name, _source(self.run.config)))
        lines.append(self.say("asked", _short(user_turn(self.sample.prompt))))
        prompts = [one.prompt for one in self.batch() if one.prompt != self.sample.prompt]
        others = list(dict.fromkeys(prompts))[:2]
        if others:
            lines.append(
                self.say("others", ", ".join(f"«{_short(user_turn(each))}»" for each in others))
            )
        parts = list(self.sample.parts)
        if not parts and self.run is not None:
            parts = list(self.run.config.get("reward", {}).get("functions", []))
        if parts:
            lines.append(self.say("scored", ", ".join(f"`{each}`" for each in parts)))
        return lines

    def settings(self) -> list[str]:
        """What the numbers of this answer were made with."""
        sample = self.sample
        used = sample.settings
        if used.estimator == UNKNOWN:
            return [self.say("unknown estimator")]
        needs = used.estimator_definition.needs
        if self.level == "kid":
            return [self.say("with forecaster" if needs.critic else "without forecaster")]
        lines = [self.say("estimator", used.estimator)]
        lines.append(self.say("with critic" if needs.critic else "without critic"))
        if needs.critic:
            lines.append(self.say("gamma", num(used.gamma)))
        if used.own_lam is not None:
            lines.append(self.say("lam", num(used.lam(len(sample.written)))))
        if needs.groups:
            group = [one for one in self.batch() if one.prompt_index == sample.prompt_index]
            lines.append(self.say("group size", len(group)))
        lines.append(self.say("kl", num(used.credit.kl_coef), num(used.actor.kl_loss_coef)))
        lines.append(self.say("whitened" if used.whiten else "not whitened"))
        lines.append(self.say("loss", used.loss))
        if hasattr(used.actor, "clip_low"):
            lines.append(self.say("epsilon", num(used.actor.clip_low)))
        lines.append(self.say("temperature", num(used.temperature)))
        return [*lines, *filter(None, [assumed(sample, self.lang, "expert")])]

    def length(self) -> list[str]:
        sample = self.sample
        unit = "words" if self.level == "kid" else "tokens"
        lines = [self.say(unit, len(sample), len(sample.written))]
        return [*lines, self.say("cut off" if sample.truncated else "ended")]

    def learning(self) -> list[str]:
        if self.run is None:
            return [self.say("no run")]
        lines = []
        for key, metric in _ACCURACIES:
            measured = _series(self.run.metrics, metric)
            if measured:
                lines.append(self._change(self.say(key), measured[0], measured[-1], len(measured)))
        has_accuracy = bool(lines)
        scores = _series(self.run.metrics, _SCORE)
        if scores:
            count = min(_MEAN_OF, max(1, len(scores) // 2))
            first, last = scores[:count], scores[-count:]
            ends = (first[0][0], _mean(first)), (last[-1][0], _mean(last))
            lines.append(self._change(self.say("mean_score", count), *ends, len(scores)))
        if not lines:
            return [self.say("no metrics", self.run.name)]
        if not has_accuracy:
            lines.append(self.say("no held out"))
        return lines

    def _change(
        self, name: str, first: tuple[int, float], last: tuple[int, float], count: int
    ) -> str:
        """From the first number to the last."""
        before, after = num(first[1]), num(last[1])
        if count == 1:
            return self.say("once", name, before, first[0])
        if before == after:
            return self.say("stayed", name, before, first[0], last[0])
        key = "rose" if last[1] > first[1] else "fell"
        return self.say(key, name, before, first[0], after, last[0])

    def expected(self) -> list[str]:
        sample = self.sample
        if not sample.settings.has_critic or "values" not in filled_columns(sample):
            return [self.say("no critic")]
        at = instructive(Tracer(sample).full) if self.token is None else self.token
        known = facts(sample, self.lang, at)
        if self.level == "kid":
            lines = [self.say("before word", known["tok"], f"{known['V']:.1f}")]
            if "came" in known:
                lines.append(self.say("came word", f"{known['came']:.1f}"))
            return lines
        lines = [self.say("before token", known["tok"], at, num(known["V"]))]
        if "V_next" in known and "d" in known:
            lines.append(self.say("after token", num(known["V_next"]), num(known["d"])))
        if "came" in known:
            lines.append(self.say("came", num(known["came"])))
        return lines

    def right(self) -> list[str]:
        found = self.right_answer()
        sample = self.sample
        columns = ", ".join(sample.data)
        shown = self.say("columns", columns) if columns else ""
        lines = [found or self.say("no right", shown), self.say("wrote", _short(sample.response))]
        if sample.score is not None:
            lines.append(self.say("score", num(sample.score)))
        return lines

    def right_answer(self) -> str | None:
        """The sentence with the right answer, if the data has one."""
        name = next((name for name in RIGHT_ANSWERS if self.sample.data.get(name)), None)
        return self.say("right", name, _short(self.sample.data[name])) if name else None


def _source(config: Mapping[str, Any]) -> str:
    data = config.get("data", {})
    if data.get("files"):
        return ", ".join(f"`{each}`" for each in data["files"][:3])
    if data.get("task") not in (None, "none"):
        return f"`{data['task']}` (reasoning-gym)"
    environment = config.get("rollout", {}).get("environment")
    return f"`{environment}`" if environment not in (None, "none") else "`arithmetic`"


def _series(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(step, number) of every line that has the metric; of a step that is there twice, the last."""
    found: dict[int, float] = {}
    for row in metrics:
        value = row.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            found[row["step"]] = float(value)
    return sorted(found.items())


def _mean(series: Sequence[tuple[int, float]]) -> float:
    return math.fsum(value for _, value in series) / len(series)


def _short(text: str) -> str:
    return shorten(" ".join(text.split()), _SHOWN)
