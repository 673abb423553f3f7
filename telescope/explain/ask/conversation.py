"""A conversation about one response: each message is a question, or a follow-up of the last one.

Answers come from our texts with the sample's numbers, and from nowhere else. What no text answers
is refused, with the three nearest questions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from telescope.algorithms.definitions.notation import num
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill
from telescope.explain.ask.about_run import (
    RELATED,
    AboutRun,
    RunFacts,
    Topic,
    read_run,
    topic_of,
)
from telescope.explain.ask.follow_ups import FollowUp, recognise, token_in
from telescope.explain.ask.index import ENOUGH, Hit, Index
from telescope.explain.ask.library import look_up, symbol_of
from telescope.explain.ask.replies import say
from telescope.explain.ask.retry import (
    changes_credit,
    notes,
    retry,
    whitened_with,
)
from telescope.explain.ask.tokens import is_chinese
from telescope.explain.ask.wordings import all_wordings
from telescope.explain.code import code_of
from telescope.explain.instructive import instructive
from telescope.explain.questions import (
    Answer,
    Question,
    answer,
    filled_columns,
    find_question,
    questions,
)
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.text import pieces
from telescope.explain.trace import Tracer
from telescope.explain.words import Lang, Level

NEAREST = 3
ABOUT_THE_SCORE = "q69"
"""The question why the answer is wrong: the right one is told too, where the data has it."""
ABOUT_A_CHANGE = "q70"
"""The question that «what if λ = 0.95» is about where none came before it."""
_BY_NUMBER = re.compile(r"^\s*(?:q|#|问题|question|no\.?)\s*(\d+)\s*[.?？。]?\s*$", re.IGNORECASE)
_CHOICE = re.compile(r"^\s*([1-3])\s*[.。)）]?\s*$")


@dataclass(frozen=True)
class Reply:
    """An answer, or a refusal, and what it was about."""

    answered: str | None
    """Id of the question, or of the column, setting, … that was looked up. None: refused."""
    nearest: tuple[str, ...]
    answer: Answer
    lang: Lang
    level: Level
    token: int | None = None
    changed: dict[str, Any] = field(default_factory=dict)
    follows: bool = False
    """It answers a follow-up of the question before."""

    @property
    def text(self) -> str:
        return self.answer.text()

    def to_json(self) -> dict[str, Any]:
        return {
            "answered": self.answered,
            "nearest": list(self.nearest),
            "text": self.text,
            "lang": self.lang,
            "level": self.level,
            "token": self.token,
            "changed": self.changed,
        }


@functools.cache
def _index() -> Index:
    return Index(all_wordings())


def search(text: str) -> list[Hit]:
    """Every question, the one that fits best first."""
    return _index().search(text)


class Conversation:
    """Keeps the last question, so that follow-ups have something to follow."""

    def __init__(
        self,
        sample: Sample,
        *,
        lang: Lang | None = None,
        level: Level = "expert",
        token: int | None = None,
        batch: Callable[[], Sequence[Sample]] = tuple,
        run: Path | None = None,
    ) -> None:
        self.sample = sample
        self.run = run
        """The run's folder, for questions about the run itself."""
        self._read_batch = batch
        """The responses that the sample was whitened with. They are read when a change needs
        them."""
        self.lang = lang
        """None: that of each message."""
        self.level = level
        self.token = token
        self.last: Reply | None = None
        self._offered: tuple[str, ...] = ()

    def ask(self, text: str) -> Reply:
        """The reply to a message."""
        chosen = self._chosen(text)
        if chosen is not None:
            return self._remember(self._answer(chosen, self._nearest(chosen), self._lang(text)))
        follow_up = recognise(text)
        if follow_up is not None:
            if self._repeats_topic(follow_up):
                return self._again(follow_up, text)
            if self._before() is not None or follow_up.changes:
                return self._follow(follow_up, text)
        return self._remember(self._find(text, follow_up))

    def _remember(self, reply: Reply) -> Reply:
        if reply.answered is not None:
            self.last = reply
        self._offered = reply.nearest if reply.answered is None else ()
        return reply

    def _before(self) -> Reply | None:
        """The last reply that answered one of the questions."""
        last = self.last
        return last if last is not None and last.answered in questions() else None

    def _lang(self, text: str) -> Lang:
        if self.lang is not None:
            return self.lang
        if is_chinese(text):
            return "zh"
        spelled = re.search(r"[A-Za-z]{2,}", re.sub(r"(?i)token|lambda|gamma|q\d+", "", text))
        if spelled is None and self.last is not None:
            return self.last.lang
        return "en"

    # ---- a question ----

    def _chosen(self, text: str) -> str | None:
        """The question that a message names by its number, or picks from those offered."""
        choice = _CHOICE.match(text)
        if choice and int(choice[1]) <= len(self._offered):
            return self._offered[int(choice[1]) - 1]
        named = _BY_NUMBER.match(text)
        if named and f"q{int(named[1])}" in questions():
            return f"q{int(named[1])}"
        return None

    def _nearest(self, key: str) -> tuple[str, ...]:
        return (key, *find_question(key).related)[:NEAREST]

    def _find(self, text: str, follow_up: FollowUp | None) -> Reply:
        lang = self._lang(text)
        topic = topic_of(text)
        if topic is not None:
            return self._about_run(topic, lang, self.level, self._named(text))
        hits = search(text)
        nearest = tuple(hit.id for hit in hits if hit.id in questions())[:NEAREST]
        best = hits[0]

        def reply(about: str | None, said: str) -> Reply:
            return Reply(about, nearest, Answer((said,)), lang, self.level)

        if follow_up is not None and follow_up.kind not in ("example", "code"):
            return reply(None, say("no before", lang))
        looked_up = look_up(text)
        if looked_up is not None:
            name, entry = looked_up
            if not _is_named(name, best.id):
                return reply(entry.id, entry.text(lang))
        symbol = symbol_of(text)
        if symbol is not None and not _is_in_title(symbol.id.removeprefix("symbol:"), best.id):
            return reply(symbol.id, symbol.text(lang))
        if best.score >= ENOUGH and best.id in questions():
            return self._answer(best.id, nearest, lang, self._named(text))
        lines = [say("no answer", lang)]
        for number, key in enumerate(nearest, 1):
            lines.append(f"  {number}. {find_question(key).title(lang, self.level)}")
        return reply(None, "\n".join([*lines, say("choose", lang)]))

    def _about_run(self, topic: Topic, lang: Lang, level: Level, named: int | None) -> Reply:
        token = self.token if named is None else named
        found = Answer((self._about(lang, token, level).answer(topic),))
        return Reply(f"run:{topic}", RELATED[topic], found, lang, level, token)

    def _repeats_topic(self, follow_up: FollowUp) -> bool:
        """Whether a question about the run is asked again: of another token, or said otherwise."""
        before = self.last is not None and (self.last.answered or "").startswith("run:")
        return before and follow_up.kind == "again" and not follow_up.changes

    def _again(self, follow_up: FollowUp, text: str) -> Reply:
        assert self.last is not None
        before = self.last
        topic = cast(Topic, str(before.answered).removeprefix("run:"))
        lang = follow_up.lang or self.lang or self._lang(text)
        try:
            token = before.token
            if follow_up.token is not None:
                token = self._token(follow_up.token, lang)
        except TelescopeError as error:
            return replace(before, answer=Answer((str(error),)), lang=lang)
        reply = self._about_run(topic, lang, follow_up.level or before.level, token)
        return self._remember(replace(reply, follows=True))

    def _about(self, lang: Lang, token: int | None, level: Level) -> AboutRun:
        return AboutRun(self.sample, lang, level, token, self._run_facts, lambda: self._batch)

    @functools.cached_property
    def _run_facts(self) -> RunFacts | None:
        return None if self.run is None else read_run(self.run)

    def _answer(
        self, key: str, nearest: tuple[str, ...], lang: Lang, named: int | None = None
    ) -> Reply:
        """The answer about the token that the question names, or that of the conversation."""
        token = self.token if named is None else named
        found = answer(key, self.sample, lang, self.level, token)
        right = (
            self._about(lang, token, self.level).right_answer() if key == ABOUT_THE_SCORE else None
        )
        if right is not None:
            found = Answer((*found.blocks, right))
        return Reply(key, nearest, found, lang, self.level, token)

    def _named(self, text: str) -> int | None:
        """The token that a question names, if the policy wrote it."""
        index = token_in(text)
        return index if index in self.sample.written else None

    # ---- a follow-up ----

    def _follow(self, follow_up: FollowUp, text: str) -> Reply:
        """The last question again, with what the message wants to be different."""
        lang = follow_up.lang or self.lang or self._lang(text)
        before = self._before() or self._answer(ABOUT_A_CHANGE, (), lang)
        assert before.answered is not None
        level = follow_up.level or before.level
        if follow_up.kind == "more" and follow_up.level is None:
            level = "expert"
        changed = {} if follow_up.reset else {**before.changed, **follow_up.changes}
        now = replace(
            before,
            nearest=self._nearest(before.answered),
            lang=lang,
            level=level,
            changed=changed,
            follows=self._before() is not None,
        )
        try:
            if follow_up.token is not None:
                now = replace(now, token=self._token(follow_up.token, lang))
            sample = retry(self.sample, changed, lang, self._batch if changed else ())
            found = self._say(follow_up, now, sample)
        except TelescopeError as error:
            # The wish cannot be met: say why, and keep what was before it.
            unmet = Answer((str(error),))
            return replace(now, answer=unmet, changed=before.changed, token=before.token)
        told = [*self._notes(follow_up, now), *self._moved_note(now, sample)]
        self.last = replace(now, answer=Answer((*told, *found.blocks)))
        self._offered = ()
        return self.last

    def _token(self, index: int, lang: Lang) -> int:
        length = len(self.sample)
        if index == -1:
            return self.sample.written[-1] if self.sample.written else 0
        if not 0 <= index < length:
            raise TelescopeError(say("no token", lang, length - 1, index))
        if not self.sample.mask[index]:
            raise TelescopeError(say("not written", lang, index))
        return index

    def _notes(self, follow_up: FollowUp, now: Reply) -> list[str]:
        """What is different, before the answer."""
        said = notes(self.sample.settings, now.changed, now.lang, now.level)
        said += self._whitening_note(now)
        if follow_up.token is not None and now.token is not None:
            shown = pieces(self.sample.token_bytes)[now.token]
            key = "word" if now.level == "kid" else "token"
            said.append(say(key, now.lang, now.token, shown))
        return said

    def _moved_note(self, now: Reply, sample: Sample) -> list[str]:
        """What a change of γ or λ does to the token that the answer is about."""
        if now.level == "kid" or not changes_credit(now.changed):
            return []
        recorded = fill(self.sample)
        tried = fill(sample)
        at = instructive(Tracer(self.sample).full) if now.token is None else now.token
        shown = pieces(self.sample.token_bytes)[at]
        told: list[str] = []
        for symbol, name in (("A", "advantages"), ("Â", "whitened")):
            if name not in recorded.columns or name not in tried.columns:
                continue
            before = num(recorded.columns[name][at])
            after = num(tried.columns[name][at])
            if before != after:
                told.append(say("moved", now.lang, symbol, before, after))
        return [say("moved token", now.lang, at, shown, "".join(told))] if told else []

    @functools.cached_property
    def _batch(self) -> Sequence[Sample]:
        return self._read_batch()

    def _whitening_note(self, now: Reply) -> list[str]:
        """Which responses μ and σ are over, where a change recomputed them."""
        whitens = self.sample.settings.whiten and now.changed.get("whiten", True)
        known = now.changed.keys() & self.sample.settings.by_name().keys()
        recomputed = changes_credit(known) and "advantages" in filled_columns(self.sample)
        if not whitens or not recomputed:
            return []
        key, count = whitened_with(self.sample, self._batch)
        return [say(f"{key} kid" if now.level == "kid" else key, now.lang, count)]

    def _say(self, follow_up: FollowUp, now: Reply, sample: Sample) -> Answer:
        assert now.answered is not None
        question = find_question(now.answered)
        if follow_up.kind == "code":
            return places_of(question, sample.settings, now.lang)
        if follow_up.kind == "why":
            return reason_of(question, now, sample)
        plain = answer(question.id, sample, now.lang, now.level, now.token)
        if follow_up.kind not in ("example", "more") or now.level == "kid":
            return plain
        example = example_of(question, sample, now.token, now.lang)
        if follow_up.kind == "example" and example.blocks:
            return example
        return Answer((*plain.blocks, *example.blocks))


def _is_named(name: str, key: str) -> bool:
    """Whether a question is about this name: one of its wordings has it."""
    return any(name.lower() in wording.lower() for wording in _index().of(key))


def _is_in_title(symbol: str, key: str) -> bool:
    """Whether a question asks about the symbol."""
    if key not in questions():
        return False
    title = questions()[key].title("zh")
    return title.startswith(f"{symbol} ") or f"{symbol} 是什么" in title


def reason_of(question: Question, now: Reply, sample: Sample) -> Answer:
    """The answer to a related question, if possible one that asks why."""
    related = [find_question(key) for key in question.related]
    if not related:
        return answer(question.id, sample, now.lang, now.level, now.token)
    asks_why = [
        each
        for each in related
        if "为什么" in each.title("zh") or "why" in each.title("en").lower()
    ]
    reason = (asks_why or related)[0]
    found = answer(reason.id, sample, now.lang, now.level, now.token)
    key = "why" if asks_why else "related"
    return Answer((say(key, now.lang, reason.title(now.lang, now.level)), *found.blocks))


def example_of(question: Question, sample: Sample, token: int | None, lang: Lang) -> Answer:
    """The arithmetic of one token for the terms that the question is about."""
    tracer = Tracer(sample)
    if not sample.written:
        return Answer(())
    at = instructive(tracer.full) if token is None else token
    wanted = question.terms or ("delta", "advantage")
    lines = [
        f"  {trace.formula} = {trace.substituted} = {num(trace.result)}"
        for trace in tracer.traces(at)
        if trace.name in wanted
    ]
    if not lines:
        return Answer(())
    shown = pieces(sample.token_bytes)[at]
    return Answer((say("example", lang, at, shown), "\n".join(lines)))


def places_of(question: Question, settings: Settings, lang: Lang) -> Answer:
    """Where the question's terms are computed: our file and line, next to verl's names."""
    lines: list[str] = []
    for term in question.terms:
        for code in code_of(term, settings):
            lines.append(f"  {term}: {code.place}")
            lines += [f"    verl: {verl}" for verl in code.verl]
            if code.note(lang):
                lines.append(f"    {code.note(lang)}")
    if not lines:
        return Answer((say("no code", lang),))
    shown = "\n".join(dict.fromkeys(lines))
    return Answer((say("code", lang), shown))
