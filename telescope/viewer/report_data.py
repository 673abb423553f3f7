"""What a report holds: a map from addresses of the page to their answers.

Steps and samples are chosen until the room is full. What the answers of many tokens have in common
stands once: `words`, the sentences, and `shapes`, the formulas with holes for their numbers.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import quote

from telescope.errors import TelescopeError
from telescope.viewer.api import Api
from telescope.viewer.columns import only_samples
from telescope.viewer.formulas import shape_of, translate_shape
from telescope.viewer.payload import MAX_TOKENS, MAX_TRACE_TEXT, dumps, page_sample, page_traces
from telescope.viewer.prompts import recurring_prompts
from telescope.viewer.run_data import RunData
from telescope.viewer.runs import Runs
from telescope.viewer.tour import example_tour, run_tour

_log = logging.getLogger("telescope")

T = TypeVar("T")

MAX_STEPS = 5
MAX_EVALUATIONS = 12
"""Greedy answers to one fixed prompt."""
SAMPLES = 8
"""Samples of one step."""
PER_PROMPT = 4
"""Samples of one prompt."""
MAX_POINTS = 400
"""Points of one chart."""
_PLAIN = "!'()*"
"""Signs that the page leaves as they are in an address."""
HOW = {
    "zh": "取第一步、最后一步和中间几步；每步一半取 |A| 最大的提示，其余按记录的顺序，"
    "同一提示的回答尽量都取",
    "en": "the first step, the last one and some between; of each, half from the prompts with the "
    "largest |A|, the others as recorded, with the other answers to the same prompt",
}


def report_data(runs: Runs, *, room: int) -> dict[str, Any]:
    """The data of a report that takes about `room` bytes when it is compressed."""
    return _Report(runs, room).data()


class _Report:
    def __init__(self, runs: Runs, room: int) -> None:
        self.runs = runs
        self.api = Api(runs)
        self.run: RunData = runs.first()
        self.base = f"api/runs/{quote(self.run.id, safe=_PLAIN)}"
        self.room = room
        self.answers: dict[str, Any] = {}
        self.words: dict[str, Any] = {}
        self.shapes: dict[str, Any] = {}
        self.held: dict[int, list[int]] = {}
        """step -> positions of the samples in the report"""

    def data(self) -> dict[str, Any]:
        header = self.run.header()
        header |= {"alarms": self.run.alarms(wait=True), "damage": self.run.damage(wait=True)}
        metrics = self.run.metrics.to_json(most=MAX_POINTS)
        self._add(f"{self.base}/metrics", {"series": metrics})
        self._add("api/tour", example_tour())
        chosen = self._chosen(header["ledger"], header["instructive"])
        for step, position in _in_turns(chosen):
            if not self._add_sample(step, position):
                break
        for step in chosen:
            self._add_step(step)
        self._add_prompts()
        header["evaluations"] = self._add_answers(header["evaluations"][-1:])
        self._add_run(header)
        return {"answers": self.answers, "words": self.words, "shapes": self.shapes}

    def _add(self, path: str, answer: Any) -> None:
        self.answers[path] = answer
        self.room -= _packed_size(answer)

    # ---- what is chosen ----

    def _chosen(self, steps: list[int], first: dict[str, int] | None) -> dict[int, list[int]]:
        """Steps, and positions of samples in each. The one to open with comes first."""
        wanted = spread(steps, MAX_STEPS)
        if first is not None and first["step"] not in wanted:
            nearest = min(wanted, key=lambda step: abs(step - first["step"]))
            wanted[wanted.index(nearest)] = first["step"]
        chosen: dict[int, list[int]] = {}
        for step in wanted:
            opens = first["sample"] if first is not None and step == first["step"] else None
            try:
                chosen[step] = chosen_samples(self.run.index(step), opens)
            except TelescopeError as error:  # a damaged file costs this step, not the report
                _log.warning("left out of the report: %s", error)
        return chosen

    # ---- what goes in ----

    def _add_sample(self, step: int, position: int) -> bool:
        """Adds the sample and the arithmetic of all its tokens, if there is room for it."""
        sample = self.run.sample(step, position)
        shown = page_sample(sample) | {
            "position": position,
            "audit": self.run.audit(step, position),
        }
        tracer = self.run.tracer(step, position)
        count = min(len(sample), MAX_TOKENS)
        tokens = [page_traces(tracer, t, self.words) for t in range(count)]
        size = _packed_size(shown) + _packed_size(tokens) + _column_bytes(count)
        if size > self.room and self.held:
            return False
        self.room -= size
        path = f"{self.base}/steps/{step}/samples/{position}"
        self.answers[path] = shown
        self.answers[f"{path}/tokens"] = tokens
        if any(sample.mask):
            self._add(f"{path}/tour", run_tour(self.run, step, position))
        self.held.setdefault(step, []).append(position)
        self._add_shapes(text for traces in tokens for trace in traces for text in _lines(trace))
        return True

    def _add_shapes(self, texts: Iterable[str]) -> None:
        for text in texts:
            shape, _ = shape_of(text)
            if shape not in self.shapes:
                translated = translate_shape(shape)
                if translated is not None:
                    self.shapes[shape] = list(translated)

    def _add_step(self, step: int) -> None:
        """The step's list, with the samples that are in the report."""
        held = self.held.get(step)
        if not held:
            return
        answer = self.run.step(step)
        index = [row for row in answer["index"] if row["position"] in held]
        path = f"{self.base}/steps/{step}"
        own = answer["settings"]["estimator"]
        offers = [x for x in answer["offers"] if x["recursion"] is not None or x["name"] == own]
        self.answers[path] = answer | {"index": index, "offers": offers, "losses": []}
        self.answers[f"{path}/columns"] = only_samples(self.run.columns(step), held)

    def _add_prompts(self) -> None:
        """Each prompt through training, as far as its responses are in the report."""
        found = [
            (step, row["prompt_key"], row["user"])
            for step in self.held
            for row in self.answers[f"{self.base}/steps/{step}"]["index"]
        ]
        found += self._add_evaluations()
        self.answers[f"{self.base}/prompts"] = {"prompts": recurring_prompts(found)}
        for key in sorted({key for _, key, _ in found}):
            rows = self.run.prompt_rows(key)
            held = [row for row in rows if self._path_of(row) in self.answers]
            self.answers[f"{self.base}/prompts/{key}"] = {"rows": held}

    def _add_evaluations(self) -> list[tuple[int, str, str]]:
        """Greedy answers to the fixed prompts at some evaluations: (step, prompt's key, user)."""
        added = []
        for prompt in self.run.recurring_prompts():
            rows = [r for r in self.run.prompt_rows(prompt["key"]) if r["kind"] == "eval"]
            for row in spread(rows, MAX_EVALUATIONS):
                answer = self.api.answer_address(f"/{self._path_of(row)}")
                if _packed_size(answer) < self.room:
                    self._add(self._path_of(row), answer)
                    added.append((row["step"], prompt["key"], prompt["user"]))
        return added

    def _add_answers(self, steps: list[int]) -> list[int]:
        """The greedy answers of an evaluation, if there is room; returns the steps that are in."""
        found = {}
        for step in steps:
            for verdict in ("all", "right", "wrong"):
                path = f"{self.base}/evaluations/{step}/answers?set=&kind=greedy&is={verdict}"
                with contextlib.suppress(TelescopeError):  # a damaged file costs this list
                    answer = self.api.answer_address(f"/{path}")
                    # The others are not in the report, so there is nothing to choose.
                    found[path] = answer | {"sets": [answer["set"]], "kinds": [answer["kind"]]}
        if not found or _packed_size(found) > self.room:
            return []
        for path, answer in found.items():
            self._add(path, answer)
        return steps

    def _path_of(self, row: dict[str, Any]) -> str:
        """The address of a row's sample."""
        folder = "evaluations" if row["kind"] == "eval" else "steps"
        return f"{self.base}/{folder}/{row['step']}/samples/{row['position']}"

    def _add_run(self, header: dict[str, Any]) -> None:
        """The header, with what was left out and how the rest was chosen."""
        steps = sorted(self.held)
        recorded = header["ledger"]
        total = max((len(self.run.index(step)) for step in steps), default=0)
        shown = max((len(positions) for positions in self.held.values()), default=0)
        first = header["instructive"]
        if first is None or first["sample"] not in self.held.get(first["step"], ()):
            first = next(
                ({"step": step, "sample": positions[0]} for step, positions in self.held.items()),
                None,
            )
        over = header["total_steps"] is not None and header["step"] >= header["total_steps"]
        going = header["status"] in ("running", "silent")
        status = ("finished" if over else "stopped") if going else header["status"]
        listing = self.runs.listing()
        for row in listing["runs"]:
            row |= {"status": status, "silent_for": None, "eta_s": None}
        # Not the time of day: reports of the same files are the same, byte for byte.
        now = header["updated"]
        self.answers["api/runs"] = listing | {"now": now}
        self.answers[self.base] = header | {
            "now": now,
            "status": status,
            "silent_for": None,
            "eta_s": None,
            "ledger": steps,
            "instructive": first,
            "recorded": {
                "steps": len(recorded),
                "samples": total,
                "shown_steps": len(steps),
                "shown_samples": shown,
                "how_zh": HOW["zh"],
                "how_en": HOW["en"],
            },
        }


def _lines(trace: dict[str, Any]) -> list[str]:
    texts = [trace["formula"], trace["substituted"], trace["shown"]]
    return [] if any(len(text) > MAX_TRACE_TEXT for text in texts) else texts


def spread(steps: list[T], most: int) -> list[T]:
    """The first step, the last one, and some between."""
    if len(steps) <= most:
        return list(steps)
    stride = (len(steps) - 1) / (most - 1)
    return [steps[round(i * stride)] for i in range(most)]


def chosen_samples(index: list[dict[str, Any]], first: int | None = None) -> list[int]:
    """Samples of whole prompts, so that they can be compared; `first` and its prompt come first.

    Half of the prompts are those with the largest |A|, the others come as recorded.
    """
    by_prompt: dict[str, list[int]] = {}
    for row in index:
        by_prompt.setdefault(row["prompt_key"], []).append(row["position"])
    groups_first = (sorted(group, key=lambda i: i != first) for group in by_prompt.values())
    recorded = [group[:PER_PROMPT] for group in groups_first]
    striking = sorted(recorded, key=lambda group: -max(index[i]["max_abs_a"] or 0.0 for i in group))
    chosen = next((list(group) for group in recorded if first in group), [])
    for groups, most in ((striking, SAMPLES // 2), (recorded, SAMPLES)):
        for group in groups:
            if group[0] not in chosen and len(chosen) < most:
                chosen += group
    return chosen[:SAMPLES]


def _in_turns(chosen: dict[int, list[int]]) -> Iterable[tuple[int, int]]:
    """The first sample of every step, then the second of every step, and so on."""
    for turn in range(SAMPLES):
        for step, positions in chosen.items():
            if turn < len(positions):
                yield step, positions[turn]


def _packed_size(answer: Any) -> int:
    return len(zlib.compress(dumps(answer), 6))


def _column_bytes(tokens: int) -> int:
    """About what a sample takes besides: ten numbers per token in the columns, and its tour."""
    return 40 * tokens + 6_000
