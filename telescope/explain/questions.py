"""The learner's questions (answers/*.toml), answered with the numbers of the sample at hand.

An answer is made of sentences. Each has the condition under which it holds (`when`) and, if it
states more than a definition, a `claim` that a program can check (telescope.explain.claims).
Tests compare its words, its claim and the numbers.
A sentence that names a fact which the sample lacks is left out.
"""

from __future__ import annotations

import functools
import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import num
from telescope.errors import TelescopeError
from telescope.explain.answer_table import Table, token_table
from telescope.explain.arithmetic import fill
from telescope.explain.claims import evaluate, names_in
from telescope.explain.example import RIGHT as EXAMPLE
from telescope.explain.facts import Facts, facts
from telescope.explain.sample import Sample
from telescope.explain.settings import UNKNOWN
from telescope.explain.words import Lang, Level, assumed, ui

MOST_SENTENCES = 4
MOST_CELLS = 400
"""Of a paragraph: five lines of 80 cells."""
_END = re.compile(r"[。！？](?![」）])|[.?!](?=\s|$)")
_SHARED = ("when", "claim", "simulated", "paragraph")
"""Fields that the expert's sentence and the child's have in common."""
_FOLDER = Path(__file__).with_name("answers")


@dataclass(frozen=True)
class Sentence:
    """One sentence of an answer, or a table of columns."""

    level: Level
    zh: str = ""
    en: str = ""
    when: str = "True"
    """The condition under which it holds."""
    claim: str | None = None
    """What it states about the sample's facts. None: a definition."""
    table: tuple[str, ...] = ()
    """Facts with one number per token, shown as a table in place of a sentence."""
    paragraph: bool = False
    """Another thought begins: it opens a paragraph."""
    simulated: bool = False
    """It quotes numbers of simulated episodes."""

    def text(self, lang: Lang) -> str:
        return self.zh if lang == "zh" else self.en

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The facts that the sentence needs."""
        fields = string.Formatter().parse(self.zh + self.en)
        named = {name for _, name, _, _ in fields if name}
        claimed = names_in(self.claim) if self.claim else frozenset()
        return frozenset(named | claimed | set(self.table)) | names_in(self.when)

    def holds(self, known: Facts) -> bool:
        """Whether the sentence can be said of a sample with these facts."""
        return self._needed <= known.keys() and bool(evaluate(self.when, known))

    @functools.cached_property
    def _needed(self) -> frozenset[str]:
        """The facts that must be there before any episode is simulated."""
        return frozenset(name for name in self.names if not name.startswith("sim_"))


@dataclass(frozen=True)
class Question:
    """A question, its other wordings, and the sentences of its answer."""

    id: str
    titles: Mapping[tuple[Lang, Level], str]
    needs: tuple[str, ...]
    """Columns without which the built-in example stands in."""
    critic: bool
    """The answer is about a critic's values: an estimator without one gets the example."""
    own: bool
    """It is about this answer alone: no example can stand in."""
    asked: tuple[str, ...]
    """How people ask it, in Chinese, English and a mix."""
    terms: tuple[str, ...]
    """Traces that the answer is about: `--code` shows their source."""
    related: tuple[str, ...]
    sentences: tuple[Sentence, ...]

    def title(self, lang: Lang, level: Level = "expert") -> str:
        return self.titles[lang, level]


@dataclass(frozen=True)
class Answer:
    """Paragraphs and tables, in order."""

    blocks: tuple[str | Table, ...]

    def text(self) -> str:
        """For a terminal; paragraphs are not wrapped."""
        shown = [block if isinstance(block, str) else block.text() for block in self.blocks]
        return "\n\n".join(shown)

    def markdown(self, write: Callable[[str], str] = str) -> str:
        """For Markdown; `write` may set the formulas of a paragraph (telescope.explain.tex)."""
        shown = [
            write(block) if isinstance(block, str) else block.markdown() for block in self.blocks
        ]
        return "\n\n".join(shown)


@functools.cache
def questions() -> dict[str, Question]:
    """Every question by its id, in the order of their numbers."""
    found: dict[str, Question] = {}
    for path in sorted(_FOLDER.glob("*.toml")):
        for key, entry in tomllib.loads(path.read_text("utf-8")).items():
            if key in found:
                raise ValueError(f"{path.name}: {key} is defined twice")
            found[key] = _question(key, entry)
    return dict(sorted(found.items(), key=lambda item: int(item[0][1:])))


def _question(key: str, entry: dict[str, Any]) -> Question:
    titles: dict[tuple[Lang, Level], str] = {
        ("zh", "expert"): entry["zh"],
        ("en", "expert"): entry["en"],
        ("zh", "kid"): entry["kid_zh"],
        ("en", "kid"): entry["kid_en"],
    }
    sentences: list[Sentence] = []
    for say in entry["say"]:
        sentences += _sentences(say)
    return Question(
        id=key,
        titles=titles,
        critic=entry.get("critic", False),
        own=entry.get("own", False),
        sentences=tuple(sentences),
        **{name: tuple(entry.get(name, ())) for name in ("needs", "asked", "terms", "related")},
    )


def _sentences(say: dict[str, Any]) -> list[Sentence]:
    """The expert's sentence and the child's, which share condition and claim."""
    common: dict[str, Any] = {key: say[key] for key in _SHARED if key in say}
    if "table" in say:
        return [Sentence("expert", table=tuple(say["table"]), **common)]
    out: list[Sentence] = []
    if "zh" in say:
        out.append(Sentence("expert", say["zh"], say["en"], **common))
    if "kid_zh" in say:
        out.append(Sentence("kid", say["kid_zh"], say["kid_en"], **common))
    return out


def titles(lang: Lang = "zh", level: Level = "expert") -> list[tuple[str, str]]:
    """Id and text of every question."""
    return [(key, question.title(lang, level)) for key, question in questions().items()]


def find_question(name: int | str) -> Question:
    """A question by its number or id."""
    key = f"q{name}" if str(name).isdecimal() else str(name)
    found = questions().get(key)
    if found is None:
        raise TelescopeError(f"no question {name}: there are 1 to {len(questions())}")
    return found


def answer(
    name: int | str,
    sample: Sample,
    lang: Lang = "zh",
    level: Level = "expert",
    token: int | None = None,
    simulate: Callable[[], Facts] | None = None,
) -> Answer:
    """The answer to a question with this sample's numbers.

    An answer about one token takes `token`, or the first that the policy wrote. `simulate` draws
    many episodes and returns their numbers (telescope.run.simulation.facts, which needs torch);
    without it that part of an answer is left out.
    """
    question = find_question(name)
    missing = missing_for(question, sample)
    if missing and question.own:
        return Answer((ui("not_said", lang, level, ", ".join(missing)),))
    used = EXAMPLE if missing else sample
    if missing:
        token = None
    elif token is not None and token not in sample.written:
        raise TelescopeError(
            f"token {token} was not written by the policy, so no answer is about it: choose another"
        )
    known = facts(used, lang, token)
    if level == "kid":
        known |= _named_for_a_child(known, lang)
    said = [each for each in question.sentences if each.level == level and each.holds(known)]
    if simulate is not None and any(each.simulated for each in said):
        known |= simulate()
    else:
        said = [each for each in said if not each.simulated]
    blocks = _blocks(said, used, known, lang, level)
    if missing:
        blocks.insert(0, ui("stands_in", lang, level, ", ".join(missing)))
    elif level == "expert" and any(each.claim for each in said):
        note = assumed(sample, lang, level)
        blocks[:0] = [note] if note else []
    return Answer(tuple(blocks))


def _named_for_a_child(known: Facts, lang: Lang) -> Facts:
    """The names of tokens in a child's words: 第 0 个词「是」."""
    names: Facts = {}
    for name in ("tok", "last_tok"):
        index, _, quoted = str(known[name]).partition(" ")
        names[name] = f"第 {index} 个词「{quoted[1:-1]}」" if lang == "zh" else known[name]
    return names


def _blocks(
    said: Sequence[Sentence], sample: Sample, known: Facts, lang: Lang, level: Level
) -> list[str | Table]:
    """Sentences joined to paragraphs.

    A new one begins where the text turns from what is always so to this sample, or back, and where
    the paragraph would become too long. A table stands between paragraphs.
    """
    blocks: list[str | Table] = []
    formatter = _Numbers(lang, level)
    space = " " if lang == "en" else ""
    previous: Sentence | None = None
    for sentence in said:
        if sentence.table:
            blocks.append(token_table(sample, sentence.table, known))
            previous = None
            continue
        text = formatter.vformat(sentence.text(lang), (), known)
        longer = f"{blocks[-1]}{space}{text}" if blocks else text
        if previous is not None and _goes_on(previous, sentence) and _fits(longer):
            blocks[-1] = longer
        else:
            blocks.append(text)
        previous = sentence
    return blocks


def _goes_on(one: Sentence, other: Sentence) -> bool:
    """Whether both are general, or both are about this sample."""
    if other.simulated or other.paragraph:
        return False
    return (one.claim is None) == (other.claim is None)


def _fits(paragraph: str) -> bool:
    return count_sentences(paragraph) <= MOST_SENTENCES and cell_len(paragraph) <= MOST_CELLS


def count_sentences(text: str) -> int:
    """How many sentences a text has; 0.95 ends none."""
    return len(_END.findall(text))


class _Numbers(string.Formatter):
    """Writes a fact: four digits for an expert, at most one decimal for a child."""

    def __init__(self, lang: Lang, level: Level) -> None:
        self.lang = lang
        self.level = level

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return str(value)
        if self.level == "expert" or isinstance(value, int):
            return num(float(value))
        shown = round(value, 1)
        if shown == 0 and abs(value) > 1e-9:
            return ui("almost", self.lang, "kid")
        return num(shown)


def missing_for(question: Question, sample: Sample, columns: Set[str] | None = None) -> list[str]:
    """What the answer needs and the sample lacks; `columns` are those of `filled_columns`."""
    if not any(sample.mask):
        return ["response_mask = 1"]
    estimator = sample.settings.estimator_definition
    if question.critic and not estimator.needs.critic and estimator.name != UNKNOWN:
        return [f"critic (estimator {estimator.name})"]
    if columns is None:
        columns = filled_columns(sample)
    return [name for name in question.needs if name not in columns]


def filled_columns(sample: Sample) -> set[str]:
    """The columns that the sample has, or that follow from those it has."""
    return set(fill(sample).columns) if any(sample.mask) else set()
