"""telescope explain: where the sample comes from, and which view of it is printed."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telescope.commands.arguments import Parser, add_level, add_response, add_trust, print_json
from telescope.commands.language import language
from telescope.errors import TelescopeError

if TYPE_CHECKING:
    from telescope.explain.sample import Sample
    from telescope.explain.stages import Output

USAGE = "telescope explain [RUN | --numbers FILE | --prompt TEXT] [options]"
_VIEWS = ("question", "questions", "columns", "notation", "metaphors", "flow", "code", "json")
_EXAMPLE_NOTE = {
    "zh": "（内置例子，数是手写的：--sample 0 答对，--sample 1 答错。）",
    "en": "(The built-in example, made by hand: --sample 0 is right, --sample 1 is wrong.)",
}


@dataclass(frozen=True)
class Source:
    sample: Sample
    batch: list[Sample] = field(default_factory=list)
    """Every response of a --numbers file; of a run, those that the sample is compared with."""
    outputs: list[Output] = field(default_factory=list)
    """What actor, critic, reference and reward computed for a --prompt; else empty."""
    is_example: bool = False
    run: Path | None = None

    def whitened_with(self) -> list[Sample]:
        """The responses that whitening took: of a run, those recorded for the step."""
        if self.run is None:
            return self.batch
        from telescope import ledger

        return ledger.samples(self.run, self.sample.step)


def run(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)
    views = [name for name in _VIEWS if getattr(options, name)]
    if len(views) > 1:
        raise TelescopeError(
            f"--{views[0]} and --{views[-1]} are two different things to show: leave one out"
        )
    width = shutil.get_terminal_size((100, 24)).columns
    if options.questions:
        _print_questions(options, width)
    elif options.notation:
        _print_notation(options, width)
    elif options.columns or options.metaphors:
        _print_table(options, width)
    else:
        _explain_sample(options, width)


def _parser() -> Parser:
    description = "Recompute and explain every number of a response."
    parser = Parser(USAGE, description, own_lang=True)
    source = parser.add_argument_group("what is explained")
    add_response(source)
    source.add_argument(
        "--token",
        type=int,
        help="explain this token term by term, counted from 0 "
        "(default: the one with the largest |A|, punctuation and the last token excluded)",
    )
    source.add_argument("--prompt", help="run actor, critic, reference and reward on this prompt")
    source.add_argument(
        "--response", help="with --prompt: the answer (default: the actor writes one)"
    )
    source.add_argument(
        "--score", type=float, help="with --prompt: the score, in place of the reward's"
    )
    source.add_argument(
        "--model",
        metavar="RUN_OR_DIR",
        help="with --prompt: a run or a model folder (default: the built-in model)",
    )
    add_trust(source)

    view = parser.add_argument_group("what is shown")
    view.add_argument(
        "--all",
        action="store_true",
        help="every token's row, and the chosen token term by term",
    )
    view.add_argument("--questions", action="store_true", help="list the questions it can answer")
    view.add_argument(
        "--question",
        type=int,
        action="append",
        metavar="N",
        help="answer question N with this sample's numbers",
    )
    view.add_argument(
        "--flow",
        action="store_true",
        help="the step as boxes and arrows, with this sample's shapes and numbers",
    )
    view.add_argument(
        "--code",
        action="store_true",
        help="our source lines behind each term of the token, beside verl's names",
    )
    view.add_argument(
        "--columns",
        action="store_true",
        help="every tensor: its symbol, its meaning, and whether a state or an action has it",
    )
    view.add_argument(
        "--notation",
        action="store_true",
        help="the table of symbols: name, meaning, state or action, verl's name, our function",
    )
    view.add_argument(
        "--metaphors",
        action="store_true",
        help="what V, δ, A, λ and whitening are in seven pictures: a game, chess, coins, …",
    )
    view.add_argument(
        "--save-dialogue",
        type=Path,
        metavar="DIR",
        help="with --question: also write questions and answers as a Markdown log",
    )
    view.add_argument(
        "--save-dialogue-as",
        type=Path,
        metavar="NAME.md",
        help="the same under this name, e.g. codex_YYYYMMDD_HHMMSS.md (the time is filled in); "
        "an existing log is continued",
    )

    form = parser.add_argument_group("how it is written")
    form.add_argument(
        "--lang",
        choices=["zh", "en"],
        default=language(),
        help="default: zh if LANG begins with zh, else en",
    )
    add_level(form)
    form.add_argument("--plain", action="store_true", help="no colour")
    markup = form.add_mutually_exclusive_group()
    markup.add_argument("--tex", action="store_true", help="Markdown, with formulas in TeX")
    markup.add_argument(
        "--json",
        action="store_true",
        help="the sample, and every number's formula with its values (a trace), as JSON",
    )
    return parser


def _print_questions(options: argparse.Namespace, width: int) -> None:
    from telescope.explain.questions import titles
    from telescope.explain.tex import prose
    from telescope.explain.text import fold

    for number, (_, title) in enumerate(titles(options.lang, options.level), 1):
        if options.tex:
            print(f"{number}. {prose(title)}")
        else:
            print(fold(f"{number:3}  {title}", width, "     "))


def _print_notation(options: argparse.Namespace, width: int) -> None:
    from telescope.explain.symbols import notation, notation_markdown

    print(notation_markdown(options.lang) if options.tex else notation(options.lang, width))


def _print_table(options: argparse.Namespace, width: int) -> None:
    """The columns of a batch, or the metaphors: texts that need no sample."""
    from telescope.explain import markdown, tables

    name = "columns" if options.columns else "metaphor_list"
    if options.tex:
        print(getattr(markdown, name)(options.lang))
    else:
        print(getattr(tables, name)(options.lang, width))


def _explain_sample(options: argparse.Namespace, width: int) -> None:
    from telescope.explain.text import wrap

    source = read_source(options)
    if source.is_example and not options.json:
        print("\n".join(wrap(_EXAMPLE_NOTE[options.lang], width)))

    if options.question:
        _answer_questions(options, source.sample, width)
    elif options.save_dialogue or options.save_dialogue_as:
        raise TelescopeError(
            "--save-dialogue writes questions and answers: say which with --question N "
            "(--questions lists them)"
        )
    elif options.json:
        _print_json(source.sample)
    elif options.flow:
        _print_flow(options, source, width)
    else:
        _print_page(options, source, width)


def _answer_questions(options: argparse.Namespace, sample: Sample, width: int) -> None:
    from telescope.explain.questions import answer, titles
    from telescope.explain.tex import prose
    from telescope.explain.text import fold

    asked = dict(titles(options.lang, options.level))
    rounds: list[tuple[str, str]] = []
    for number in options.question:
        question = asked.get(f"q{number}", "")
        found = answer(number, sample, options.lang, options.level, options.token, _simulate)
        text = found.text()
        if options.tex:
            question = prose(question)
            text = found.markdown(prose)
        rounds.append((question, text))

    if options.tex:
        shown = [f"### {question}\n\n{text}" for question, text in rounds]
    else:
        shown = [fold(f"{question}\n{text}", width) for question, text in rounds]
    print("\n\n".join(shown))

    _save_dialogue(options, rounds)


def _save_dialogue(options: argparse.Namespace, rounds: list[tuple[str, str]]) -> None:
    from telescope.explain.dialogue import Dialogue

    now = datetime.now()
    if options.save_dialogue:
        log = Dialogue.start(options.save_dialogue, now)
        print(log.save(rounds, f"--save-dialogue {options.save_dialogue}"), file=sys.stderr)
    if options.save_dialogue_as:
        log = Dialogue.named(options.save_dialogue_as, now)
        print(log.save(rounds, f"--save-dialogue-as {options.save_dialogue_as}"), file=sys.stderr)


def _simulate() -> dict[str, str]:
    """The simulated numbers that one of the answers quotes. They need torch."""
    from telescope.run.simulation import facts

    return facts()


def _print_json(sample: Sample) -> None:
    from telescope.explain.trace import Tracer

    tracer = Tracer(sample)
    traces = [[trace.to_json() for trace in tracer.traces(t)] for t in range(len(sample))]
    print_json({"sample": tracer.full.to_json(), "traces": traces}, allow_nan=False)


def _print_flow(options: argparse.Namespace, source: Source, width: int) -> None:
    from telescope.explain.markdown import fenced
    from telescope.explain.stages import flow

    written_by_actor = options.prompt is not None and options.response is None
    sampled = options.run is not None or written_by_actor
    drawing = flow(
        source.sample,
        options.lang,
        width,
        options.token,
        level=options.level,
        given=not sampled,
        batch=source.batch,
    )
    print(fenced(drawing) if options.tex else drawing)


def _print_page(options: argparse.Namespace, source: Source, width: int) -> None:
    from telescope.explain import markdown
    from telescope.explain.stages import modules
    from telescope.explain.terminal import Extent, render

    if source.outputs:
        drawing = modules(source.outputs, options.lang, width)
        print(f"{markdown.fenced(drawing)}\n" if options.tex else drawing)
    shared: dict[str, Any] = {
        "token": options.token,
        "lang": options.lang,
        "level": options.level,
        "width": width,
        "batch": source.batch,
    }
    if options.tex:
        print(markdown.page(source.sample, every=options.all, **shared))
        return
    color = sys.stdout.isatty() and not options.plain and not os.environ.get("NO_COLOR")
    extent: Extent = "first" if options.token is None else "token"
    if options.code or options.all:
        extent = "code" if options.code else "all"
    above = 1 if source.is_example else 0
    print(render(source.sample, color=color, extent=extent, above=above, **shared), end="")
    _print_audit(options, source, width)


def _print_audit(options: argparse.Namespace, source: Source, width: int) -> None:
    """What an audit of the step says about the chosen token, if there is one."""
    if source.run is None or options.token is None:
        return
    from telescope.audit import file
    from telescope.audit.words import token_line
    from telescope.explain.text import fold

    sample = source.sample
    audit = file.load(source.run, sample.step)
    is_kid = options.level == "kid"
    if audit is not None:
        line = token_line(audit, sample.index, options.token, options.lang, kid=is_kid)
        print(fold(line, width), end="\n" if line else "")


def read_source(options: argparse.Namespace) -> Source:
    """The sample that the options name. It has tokens, also the one that they name."""
    _check_source(options)
    source = _named_source(options)
    length = len(source.sample)
    if not length:
        raise TelescopeError("this response has no token: choose another --sample")
    if options.token is not None and not 0 <= options.token < length:
        raise TelescopeError(f"--token {options.token}: this response has tokens 0 to {length - 1}")
    return source


def _named_source(options: argparse.Namespace) -> Source:
    if options.run is not None:
        return _recorded_sample(options.run, options.step, options.sample)
    if options.numbers is not None:
        from telescope.explain.numbers import read_numbers

        batch = read_numbers(options.numbers)
        return Source(_chosen(batch, options.sample, str(options.numbers)), batch=batch)
    if options.prompt is not None:
        from telescope.run.live import explain_pair

        sample, outputs = explain_pair(
            options.prompt,
            options.response,
            options.model,
            options.score,
            trusted=options.trust,
        )
        return Source(sample, outputs=outputs)

    from telescope.explain.example import BATCH

    return Source(_chosen(BATCH, options.sample), batch=BATCH, is_example=True)


def _check_source(options: argparse.Namespace) -> None:
    """Refuses options that belong to another source, and two sources at once."""
    has_run = options.run is not None
    has_numbers = options.numbers is not None
    has_prompt = options.prompt is not None
    has_response = options.response is not None
    if options.step is not None and not has_run:
        raise TelescopeError(f"--step {options.step} belongs to a run: name it")
    if options.sample and has_prompt:
        raise TelescopeError(
            f"--sample {options.sample}: a --prompt has one response; leave --sample out"
        )
    if sum([has_run, has_numbers, has_prompt or has_response]) > 1:
        raise TelescopeError("say one thing to explain: a RUN, or --numbers FILE, or --prompt TEXT")
    if not has_prompt and (options.model is not None or options.score is not None):
        raise TelescopeError("--model and --score belong to a prompt: give --prompt too")
    if not has_prompt and has_response:
        raise TelescopeError("--response answers a prompt: give --prompt too")


def _chosen(batch: list[Sample], index: int, name: str = "the built-in example") -> Sample:
    """The response that --sample names."""
    if not 0 <= index < len(batch):
        last = len(batch) - 1
        raise TelescopeError(f"--sample {index}: {name} has {last + 1} responses, 0 to {last}")
    return batch[index]


def _recorded_sample(run: Path, step: int | None, index: int) -> Source:
    from telescope import ledger

    recorded = ledger.steps(run)
    if not recorded:
        if not run.is_dir():
            raise TelescopeError(
                f"no run {run}: give the folder of a run, e.g. runs/arithmetic-seed0"
            )
        if not (run / "config.toml").is_file():
            raise TelescopeError(f"{run} has no ledger: there is no run in that folder")
        raise TelescopeError(
            f"{run} has no ledger: no step has finished yet, or ledger.samples = off"
        )
    chosen = recorded[-1] if step is None else step
    (sample,) = ledger.samples(run, chosen, [index])
    is_compared = sample.settings.estimator_definition.needs.groups
    group = ledger.group(run, chosen, index) if is_compared else []
    return Source(sample, batch=group, run=run)
