"""The addresses of the page: each is a path, and its answer is JSON.

The server answers them over HTTP. A report holds the answers of some of them, under the same paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from telescope.errors import TelescopeError
from telescope.viewer.asking import Query, answer_of
from telescope.viewer.evaluations import evaluation_answers
from telescope.viewer.payload import page_sample, page_terms, page_traces, with_formulas
from telescope.viewer.run_data import RunData
from telescope.viewer.runs import Runs
from telescope.viewer.tour import example_tour, run_tour
from telescope.viewer.whatif import Recomputed, read_whatif, sample_of, token_terms, tracer_of

MAX_NAMES = 200
"""Metrics that one request may name."""
MAX_SEARCH = 200
"""Characters of a search."""

NUMBERS = ("step", "sample", "token")
"""Parts of an address that are numbers; the others are text."""
RUN = r"/api/runs/(?P<run>[^/]+)"
KEY = r"(?P<key>[0-9a-f]{1,64})"
AT_STEP, AT_SAMPLE, AT_TOKEN = (rf"(?P<{name}>[0-9]{{1,9}})" for name in NUMBERS)
STEP = rf"{RUN}/steps/{AT_STEP}"
SAMPLE = rf"{STEP}/samples/{AT_SAMPLE}"


class Api:
    """Answers an address: `answer("/api/runs/a/steps/10")`."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        routes: dict[str, Callable[..., Any]] = {
            "/api/runs": lambda _: runs.listing(),
            RUN: lambda _, run: runs[run].header(),
            rf"{RUN}/metrics": self._metrics,
            rf"{RUN}/prompts": lambda _, run: {"prompts": runs[run].recurring_prompts()},
            rf"{RUN}/prompts/{KEY}": self._prompt,
            STEP: lambda _, run, step: runs[run].step(step),
            rf"{STEP}/columns": lambda _, run, step: runs[run].columns(step),
            rf"{STEP}/search": self._search,
            rf"{STEP}/whatif": self._whatif,
            rf"{STEP}/whatif/samples/{AT_SAMPLE}/tokens/{AT_TOKEN}": self._whatif_terms,
            SAMPLE: self._sample,
            rf"{RUN}/evaluations/{AT_STEP}/samples/{AT_SAMPLE}": self._evaluated,
            rf"{RUN}/evaluations/{AT_STEP}/answers": self._answers,
            rf"{SAMPLE}/tokens/{AT_TOKEN}": self._token,
            rf"{SAMPLE}/ask": self._ask,
            rf"{SAMPLE}/tour": lambda _, run, step, sample: run_tour(runs[run], step, sample),
            "/api/tour": lambda _: example_tour(),
        }
        self._routes = {re.compile(pattern): make for pattern, make in routes.items()}

    def answer(self, path: str, query: str = "") -> Any:
        """The JSON of a path that is already decoded. Raises TelescopeError with a reason."""
        for pattern, make in self._routes.items():
            found = pattern.fullmatch(path)
            if found:
                parts = found.groupdict()
                numbers = {name: int(parts[name]) for name in NUMBERS if name in parts}
                return make(Query(query), **(parts | numbers))
        raise TelescopeError("the page has no such address")

    def answer_address(self, address: str) -> Any:
        """The JSON of an address as the page writes it: encoded, with its query."""
        path, _, query = address.partition("?")
        return self.answer(unquote(path), query)

    # ---- runs ----

    def _metrics(self, query: Query, run: str) -> Any:
        names = query.get("names")
        wanted = None if names is None else names.split(",")[:MAX_NAMES]
        after = query.get("after")
        data = self.runs[run]
        data.check_exists()
        return {"series": data.metrics.refresh().to_json(wanted, _step_or_none(after))}

    def _prompt(self, query: Query, run: str, key: str) -> Any:
        return {"rows": self.runs[run].prompt_rows(key)}

    def _answers(self, query: Query, run: str, step: int) -> Any:
        chosen = [query.get("set") or "", query.get("kind") or "", query.get("is") or "all"]
        self.runs[run].check_exists()
        return evaluation_answers(self.runs[run].run, step, *chosen)

    # ---- a step ----

    def _search(self, query: Query, run: str, step: int) -> Any:
        text = query.get("text") or ""
        if not 0 < len(text) <= MAX_SEARCH:
            raise TelescopeError(f"search for 1 to {MAX_SEARCH} characters")
        return {"positions": self.runs[run].search(step, text)}

    def _whatif(self, query: Query, run: str, step: int) -> Any:
        return self._tried(query, self.runs[run], step).to_json()

    def _whatif_terms(self, query: Query, run: str, step: int, sample: int, token: int) -> Any:
        data = self.runs[run]
        recorded = data.sample(step, sample)
        tried = self._tried(query, data, step)
        tracer = tracer_of(sample_of(tried, recorded, sample))
        words: dict[str, Any] = {}
        traces = page_terms(token_terms(tracer, token), tried.settings, words)
        return {"traces": [with_formulas(trace) for trace in traces], "words": words}

    def _tried(self, query: Query, data: RunData, step: int) -> Recomputed:
        """All recorded samples of the step with the settings that are asked for."""
        return data.whatif(step, read_whatif(data.recorded(step), dict(query.pairs)))

    # ---- a sample ----

    def _sample(self, query: Query, run: str, step: int, sample: int) -> Any:
        data = self.runs[run]
        found = data.sample(step, sample)
        audit = data.audit(step, sample)
        return page_sample(found) | {"position": sample, "audit": audit}

    def _evaluated(self, query: Query, run: str, step: int, sample: int) -> Any:
        found = self.runs[run].evaluated(step, sample)
        return page_sample(found) | {"position": sample, "kind": "eval"}

    def _token(self, query: Query, run: str, step: int, sample: int, token: int) -> Any:
        words: dict[str, Any] = {}
        tracer = self.runs[run].tracer(step, sample)
        traces = page_traces(tracer, token, words)
        return {"traces": [with_formulas(trace) for trace in traces], "words": words}

    def _ask(self, query: Query, run: str, step: int, sample: int) -> Any:
        """The reply to `text`, a question about the sample; `after` is what was asked before."""
        data = self.runs[run]
        found = data.sample(step, sample)
        return answer_of(found, query, lambda: data.samples_of(step), data.run)


def _step_or_none(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise TelescopeError("after is a step")
    return float(text)
