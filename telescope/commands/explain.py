"""telescope explain: where the sample comes from, and which view of it is printed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from telescope.errors import TelescopeError
from telescope.explain.sample import Sample

_EXAMPLE = {
    "zh": "（内置例子，数是手写的。换成你自己的：telescope explain RUN，或 --numbers 文件，或 --prompt 请问1+1=2？）",
    "en": "(The built-in example, its numbers made by hand. For your own: telescope explain RUN, or --numbers FILE, or --prompt TEXT.)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        type=Path,
        help="run folder, e.g. runs/arithmetic (without any: a built-in example)",
    )
    parser.add_argument("--step", type=int, help="step of the run (default: the last recorded)")
    parser.add_argument(
        "--sample",
        type=int,
        default=0,
        help="which response of the step, or of the --numbers (default 0)",
    )
    parser.add_argument(
        "--token",
        type=int,
        help="explain this token term by term (default: that of the largest |A| before the last)",
    )
    parser.add_argument(
        "--numbers",
        type=Path,
        metavar="FILE",
        help="numbers typed by hand instead of a run, of one response or a batch: TOML, JSON or CSV",
    )
    parser.add_argument("--prompt", help="run the four roles on this prompt")
    parser.add_argument(
        "--response", help="with --prompt: the answer (default: the actor writes one)"
    )
    parser.add_argument(
        "--score", type=float, help="with --prompt: the score, in place of the reward's"
    )
    parser.add_argument(
        "--model",
        metavar="RUN_OR_DIR",
        help="with --prompt: a run or a model folder (default: the built-in model)",
    )
    parser.add_argument(
        "--lang",
        choices=["zh", "en"],
        default="zh" if os.environ.get("LANG", "").startswith("zh") else "en",
        help="default: zh where LANG begins with it, else en",
    )
    parser.add_argument(
        "--level", choices=["expert", "kid"], default="expert", help="kid: as to a 12-year-old"
    )
    parser.add_argument("--questions", action="store_true", help="list the questions it can answer")
    parser.add_argument(
        "--question",
        type=int,
        action="append",
        metavar="N",
        help="answer question N with this sample's numbers",
    )
    parser.add_argument(
        "--flow",
        action="store_true",
        help="the step as boxes and arrows, with this sample's shapes and numbers",
    )
    parser.add_argument(
        "--columns",
        action="store_true",
        help="every tensor: its symbol, its meaning, and whether a state's or an action's",
    )
    parser.add_argument(
        "--metaphors",
        action="store_true",
        help="what V, δ, A, λ and whitening are in seven pictures: a game, chess, coins, …",
    )
    parser.add_argument(
        "--save-dialogue",
        type=Path,
        metavar="DIR",
        help="also write questions and answers as a Markdown log",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--tex", action="store_true", help="as Markdown, the formulas in TeX")
    form.add_argument("--json", action="store_true", help="the sample and every trace as JSON")
    parser.add_argument("--plain", action="store_true", help="no colour")


def run(chosen: argparse.Namespace) -> None:
    from telescope.explain import markdown, tables
    from telescope.explain.questions import EXAMPLE, answer, titles
    from telescope.explain.tex import prose
    from telescope.explain.text import fold, wrap

    lang: Literal["zh", "en"] = chosen.lang
    views = [
        name
        for name in ("question", "questions", "columns", "metaphors", "flow")
        if getattr(chosen, name)
    ]
    if (views and chosen.json) or len(views) > 1:
        raise TelescopeError(
            f"--{views[0]} and --{'json' if chosen.json else views[1]} are two different things to show: leave one out"
        )
    width = shutil.get_terminal_size((100, 24)).columns
    if chosen.questions:
        for number, title in titles(lang, chosen.level):
            print(
                f"{number}. {prose(title)}"
                if chosen.tex
                else fold(f"{number:3}  {title}", width, "     ")
            )
        return
    if chosen.columns:
        print(markdown.columns(lang) if chosen.tex else tables.columns(lang, width))
        return
    if chosen.metaphors:
        print(markdown.metaphor_list(lang) if chosen.tex else tables.metaphor_list(lang, width))
        return
    sample, batch, outputs = _sample(chosen)
    if sample is EXAMPLE and not chosen.json:
        print("\n".join(wrap(_EXAMPLE[lang], width)) + "\n")
    if not len(sample):
        raise TelescopeError("this response has no token: choose another --sample")
    if chosen.token is not None and not 0 <= chosen.token < len(sample):
        raise TelescopeError(
            f"--token {chosen.token}: this response has tokens 0 to {len(sample) - 1}"
        )
    if chosen.question:
        asked = dict(titles(lang, chosen.level))
        rounds = [
            (asked.get(n, ""), answer(n, sample, lang, chosen.level, chosen.token, _simulate))
            for n in chosen.question
        ]
        if chosen.tex:
            rounds = [(prose(question), prose(text)) for question, text in rounds]
        print(
            "\n\n".join(
                f"### {q}\n\n{text}" if chosen.tex else fold(f"{q}\n{text}", width)
                for q, text in rounds
            )
        )
        if chosen.save_dialogue:
            from telescope.explain.dialogue import save_dialogue

            request = f"--save-dialogue {chosen.save_dialogue}"
            print(
                save_dialogue(chosen.save_dialogue, rounds, datetime.now(), request=request),
                file=sys.stderr,
            )
        return
    if chosen.save_dialogue:
        raise TelescopeError(
            "--save-dialogue writes questions and answers: say which with --question N (--questions lists them)"
        )
    if chosen.json:
        from telescope.explain.trace import Tracer

        tracer = Tracer(sample)
        every = [[trace.to_json() for trace in tracer.traces(t)] for t in range(len(sample))]
        text = json.dumps(
            {"sample": tracer.full.to_json(), "traces": every}, ensure_ascii=False, allow_nan=False
        )
        print(
            text.encode("utf-8", "backslashreplace").decode()
        )  # half a surrogate pair stays an escape
        return
    if chosen.flow:
        from telescope.explain.stages import flow

        sampled = chosen.run is not None or (chosen.prompt is not None and chosen.response is None)
        drawing = flow(sample, lang, width, chosen.token, given=not sampled)
        print(markdown.fenced(drawing) if chosen.tex else drawing)
        return
    from telescope.explain.terminal import render

    if outputs:
        from telescope.explain.stages import modules

        drawing = modules(outputs, lang, width)
        print(f"{markdown.fenced(drawing)}\n" if chosen.tex else drawing)
    if chosen.tex:
        print(
            markdown.page(
                sample, token=chosen.token, lang=lang, level=chosen.level, width=width, batch=batch
            )
        )
        return
    color = sys.stdout.isatty() and not chosen.plain and not os.environ.get("NO_COLOR")
    print(
        render(
            sample,
            token=chosen.token,
            lang=lang,
            level=chosen.level,
            width=width,
            color=color,
            batch=batch,
        )
    )


def _simulate() -> dict[str, str]:
    from telescope.run.simulation import facts

    return facts()


def _sample(chosen: argparse.Namespace) -> tuple[Sample, list[Sample], list[Any]]:
    """The response to explain; where numbers of several were typed, all of them; and what the four roles made."""
    if chosen.step is not None and chosen.run is None:
        raise TelescopeError(f"--step {chosen.step} belongs to a run: name it")
    if chosen.sample and chosen.run is None and chosen.numbers is None:
        raise TelescopeError(f"--sample {chosen.sample} belongs to a run or to --numbers: name one")
    ways = [
        chosen.run is not None,
        chosen.numbers is not None,
        chosen.prompt is not None or chosen.response is not None,
    ]
    if sum(ways) > 1:
        raise TelescopeError("say one thing to explain: a RUN, or --numbers FILE, or --prompt TEXT")
    if chosen.prompt is None and (chosen.model is not None or chosen.score is not None):
        raise TelescopeError("--model and --score belong to a prompt: give --prompt too")
    if not any(ways):
        from telescope.explain.questions import EXAMPLE

        return EXAMPLE, [], []
    if chosen.numbers is not None:
        from telescope.explain.numbers import read_numbers

        batch = read_numbers(chosen.numbers)
        if not 0 <= chosen.sample < len(batch):
            raise TelescopeError(
                f"--sample {chosen.sample}: {chosen.numbers} has {len(batch)} responses, 0 to {len(batch) - 1}"
            )
        return batch[chosen.sample], batch, []
    if chosen.run is None:
        if chosen.prompt is None:
            raise TelescopeError("--response answers a prompt: give --prompt too")
        from telescope.run.live import explain_pair

        sample, outputs = explain_pair(chosen.prompt, chosen.response, chosen.model, chosen.score)
        return sample, [], outputs
    from telescope import ledger

    recorded = ledger.steps(chosen.run)
    if not recorded:
        if not (chosen.run / "config.toml").is_file():
            raise TelescopeError(f"{chosen.run} has no ledger: there is no run in that folder")
        raise TelescopeError(
            f"{chosen.run} has no ledger: no step was finished yet, or it was trained with ledger.samples = off"
        )
    return (
        ledger.samples(
            chosen.run, recorded[-1] if chosen.step is None else chosen.step, [chosen.sample]
        )[0],
        [],
        [],
    )
