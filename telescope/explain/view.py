"""What every view of a sample shares: its words, numbers and styles, and how lines look."""

from __future__ import annotations

from collections.abc import Sequence

from telescope.algorithms.definitions.notation import num
from telescope.explain.already_whitened import note
from telescope.explain.chat import user_turn
from telescope.explain.drawing import cell_number
from telescope.explain.groups import group_of
from telescope.explain.instructive import instructive
from telescope.explain.sample import ActorUpdate, Sample
from telescope.explain.settings import Settings
from telescope.explain.text import both_ends, pieces, plain, shorten, visible, wrap
from telescope.explain.trace import Trace, Tracer
from telescope.explain.words import Lang, Level, assumed, column_name, ui

_STYLES = {
    "bold": "1",
    "dim": "2",
    "bad": "1;31",
    "up": "38;5;172",  # orange
    "down": "38;5;99",  # purple
}
_BRIEF_WARNINGS = 2
_LINES_OF_A_WARNING = 3
_LONGEST_QUOTE = 2048
"""Characters of a prompt or response that are looked at from either end."""


class View:
    """A sample, and how its sentences, quotations and drawings look.

    A Markdown page overrides the methods `says`, `quotes`, `draws` and `term`.
    """

    def __init__(
        self,
        sample: Sample,
        token: int | None,
        lang: Lang,
        level: Level,
        width: int,
        color: bool,
        batch: Sequence[Sample],
        every: bool,
    ) -> None:
        self.sample = sample
        self.mask = sample.mask
        self.lang = lang
        self.level = level
        self.width = width
        self.color = color
        self.batch = batch
        self.every = every
        self.above = 0
        """Lines that are printed before this view."""
        self.has_critic = sample.settings.has_critic
        self.group = group_of(batch, sample)
        self.tracer = Tracer(sample)
        self.full = self.tracer.full
        self.traces = [self._traces(t) for t in range(len(sample))]
        self.verdicts = [self.tracer.verdicts(t) for t in range(len(sample))]
        self.texts = pieces(sample.token_bytes)
        self.tokens = [self._label(t) for t in range(len(sample))]
        self.chosen = token is not None
        self.token = instructive(self.full) if token is None else token
        self.tracer.traces(self.token)  # refuses a token that is not there

    def text(self) -> str:
        """All parts, with an empty line between them."""
        parts = ["\n".join(line.rstrip() for line in part) for part in self.parts() if part]
        return "\n\n".join(parts) + "\n"

    def parts(self) -> list[list[str]]:
        """The blocks of lines that are shown."""
        return [self.header()]

    # ---- how things look ----

    def says(self, text: str, style: str | None = None, indent: str = "") -> list[str]:
        lines = wrap(text, self.width, indent)
        return [self.paint(line, style) for line in lines]

    def quotes(self, name: str, text: str) -> list[str]:
        """What a model read or wrote."""
        shown = both_ends(text, self.width - 10)
        return [self.paint(f"{name} {shown}", "bold")]

    def draws(self, lines: list[str]) -> list[str]:
        """Lines whose columns must stay under each other."""
        return lines

    def paint(self, text: str, style: str | None) -> str:
        """The text in a style of the terminal."""
        if not self.color or style is None:
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    def ui(self, key: str, *values: object) -> str:
        """A label of words.toml."""
        return ui(key, self.lang, self.level, *values)

    def head(self, key: str) -> str:
        """The name of a column of the table."""
        return column_name(key, self.lang, self.level)

    def numbers(self, text: str) -> str:
        """A text with numbers; for a child, without powers of ten."""
        if self.level == "kid":
            return plain(text, self.ui("almost"))
        return text

    def cell(self, x: float, signed: bool = False) -> str:
        """A number of a drawing. For a child, what would round to nothing is ≈0."""
        if self.level == "kid" and 0 < abs(x) < 5e-4:
            return "≈0"
        return cell_number(x, signed)

    # ---- tokens ----

    def _traces(self, t: int) -> list[Trace]:
        """The traces of token t; before its advantage, those of its group's baseline."""
        made = self.tracer.traces(t)
        if self.group is None:
            return made
        first = next((k for k, trace in enumerate(made) if trace.name == "advantage"), len(made))
        return [*made[:first], *self.group.traces(t), *made[first:]]

    def no_terms(self, t: int) -> list[str]:
        """Why a token that the policy did not write has none."""
        return self.says(self.ui("no_terms_padding" if t in self.sample.padding else "no_terms"))

    def _is_tool(self, t: int) -> bool:
        return not self.mask[t] and t not in self.sample.padding

    def _label(self, t: int) -> str:
        mark = "⚙" if self._is_tool(t) else ""
        return shorten(mark + self.texts[t], 12)

    def _update(self) -> ActorUpdate | None:
        """The update that is shown: the last one."""
        return self.full.actor_updates[-1] if self.full.actor_updates else None

    # ---- header ----

    def quoted(self, longest: int) -> dict[str, str]:
        """Prompt and response, if there are any: so many characters from either end."""
        said = {"prompt": user_turn(self.sample.prompt), "response": self.sample.response}
        return {
            key: visible(text[:longest] + text[longest:][-longest:], spaces=False)
            for key, text in said.items()
            if text
        }

    def header(self) -> list[str]:
        """Prompt, response, score and settings."""
        lines: list[str] = []
        for key, text in self.quoted(_LONGEST_QUOTE).items():
            lines += self.quotes(self.ui(key), text)
        facts = "   ".join(self._facts())
        lines += self.says(self.numbers(facts)) if facts else []
        return lines + self.warnings()

    def warnings(self, *, brief: bool = False) -> list[str]:
        """What the reader must know before the numbers: ⚠ faults, and rules that explain a ✗."""
        said = [note(self.sample, self.lang, brief=brief)]
        said += [fault.said(self.lang) for fault in self.sample.faults]
        if any(trace.ok is False for made in self.traces for trace in made):
            said += [rule.said(self.lang) for rule in self.sample.rules]
        lines = [self.says(f"⚠ {each}") for each in said if each]
        if brief:
            lines = [shown[:_LINES_OF_A_WARNING] for shown in lines[:_BRIEF_WARNINGS]]
        return [line for shown in lines for line in shown]

    def _facts(self) -> list[str]:
        x = self.sample
        facts: list[str] = []
        if x.score is not None:
            facts.append(self._fact("score", num(x.score)))
        for name, value in x.parts.items():
            facts.append(f"{visible(name)} {num(value)}")
        settings = {
            "kl_coef": self._fact("beta", num(x.settings.credit.kl_coef)),
            "gamma": self._fact("gamma", num(x.settings.gamma)),
            "lam": self._estimator(),
        }
        facts += [fact for name, fact in settings.items() if name not in x.assumed]
        not_said = assumed(x, self.lang, self.level)
        facts += [not_said] if not_said else []
        if x.settings.critic.reads:
            facts.append(self.ui("reads", visible(x.settings.critic.reads)))
        facts += [visible(x.run)] if x.run else []
        facts += self._place()
        if x.bootstrap and x.truncated:
            facts.append(self.ui("cut_v", num(x.bootstrap)))
        elif x.truncated:
            facts.append(self.ui("cut"))
        return facts

    def _place(self) -> list[str]:
        """Which response of the step or batch it is."""
        x = self.sample
        if x.run:
            return [self.ui("place", x.step, x.index, x.count)]
        return [self.ui("place_in_batch", x.index, x.count)] if x.count > 1 else []

    def _fact(self, key: str, value: object) -> str:
        return f"{self.ui(key)} {value}"

    def _estimator(self) -> str:
        """λ where there is one, else the estimator's name."""
        settings = self.sample.settings
        if settings.own_lam is not None:
            return self._fact("lam", num(self._lam()))
        return self._fact("estimator", settings.estimator_definition.name)

    def _lam(self) -> float:
        return self.sample.settings.lam(len(self.sample.written))

    def _lam_to_compare(self) -> float:
        """The run's λ; without one, the usual λ."""
        if self.sample.settings.own_lam is not None:
            return self._lam()
        return Settings.of().lam(len(self.sample.written))
