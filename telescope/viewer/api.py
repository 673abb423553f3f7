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

NUMBER = r"([0-9]{1,9})"
RUN = r"/api/runs/([^/]+)"
STEP = rf"{RUN}/steps/{NUMBER}"
SAMPLE = rf"{STEP}/samples/{NUMBER}"


class Api:
    """Answers an address: `answer("/api/runs/a/steps/10")`."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        routes: dict[str, Callable[..., Any]] = {
            "/api/runs": lambda _: runs.listing(),
            RUN: lambda _, run: runs[run].header(),
            rf"{RUN}/metrics": self._metrics,
            rf"{RUN}/prompts": lambda _, run: {"prompts": runs[run].recurring_prompts()},
            rf"{RUN}/prompts/([0-9a-f]{{1,64}})": self._prompt,
            STEP: lambda _, run, step: runs[run].step(int(step)),
            rf"{STEP}/columns": lambda _, run, step: runs[run].columns(int(step)),
            rf"{STEP}/search": self._search,
            rf"{STEP}/whatif": self._whatif,
            rf"{STEP}/whatif/samples/{NUMBER}/tokens/{NUMBER}": self._whatif_terms,
            SAMPLE: self._sample,
            rf"{RUN}/evaluations/{NUMBER}/samples/{NUMBER}": self._evaluated,
            rf"{RUN}/evaluations/{NUMBER}/answers": self._answers,
            rf"{SAMPLE}/tokens/{NUMBER}": self._token,
            rf"{SAMPLE}/ask": self._ask,
            rf"{SAMPLE}/tour": lambda _, run, *at: run_tour(runs[run], *map(int, at)),
            "/api/tour": lambda _: example_tour(),
        }
        self._routes = {re.compile(pattern): make for pattern, make in routes.items()}

    def answer(self, path: str, query: str = "") -> Any:
        """The JSON of a path that is already decoded. Raises TelescopeError with a reason."""
        for pattern, make in self._routes.items():
            found = pattern.fullmatch(path)
            if found:
                return make(Query(query), *found.groups())
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

    def _answers(self, query: Query, run: str, step: str) -> Any:
        chosen = [query.get("set") or "", query.get("kind") or "", query.get("is") or "all"]
        self.runs[run].check_exists()
        return evaluation_answers(self.runs[run].run, int(step), *chosen)

    # ---- a step ----

    def _search(self, query: Query, run: str, step: str) -> Any:
        text = query.get("text") or ""
        if not 0 < len(text) <= MAX_SEARCH:
            raise TelescopeError(f"search for 1 to {MAX_SEARCH} characters")
        return {"positions": self.runs[run].search(int(step), text)}

    def _whatif(self, query: Query, run: str, step: str) -> Any:
        return self._tried(query, self.runs[run], int(step)).to_json()

    def _whatif_terms(self, query: Query, run: str, step: str, sample: str, token: str) -> Any:
        data = self.runs[run]
        recorded = data.sample(int(step), int(sample))
        tried = self._tried(query, data, int(step))
        tracer = tracer_of(sample_of(tried, recorded, int(sample)))
        words: dict[str, Any] = {}
        traces = page_terms(token_terms(tracer, int(token)), tried.settings, words)
        return {"traces": [with_formulas(trace) for trace in traces], "words": words}

    def _tried(self, query: Query, data: RunData, step: int) -> Recomputed:
        """All recorded samples of the step with the settings that are asked for."""
        return data.whatif(step, read_whatif(data.recorded(step), dict(query.pairs)))

    # ---- a sample ----

    def _sample(self, query: Query, run: str, step: str, sample: str) -> Any:
        data = self.runs[run]
        found = data.sample(int(step), int(sample))
        audit = data.audit(int(step), int(sample))
        return page_sample(found) | {"position": int(sample), "audit": audit}

    def _evaluated(self, query: Query, run: str, step: str, sample: str) -> Any:
        found = self.runs[run].evaluated(int(step), int(sample))
        return page_sample(found) | {"position": int(sample), "kind": "eval"}

    def _token(self, query: Query, run: str, step: str, sample: str, token: str) -> Any:
        words: dict[str, Any] = {}
        tracer = self.runs[run].tracer(int(step), int(sample))
        traces = page_traces(tracer, int(token), words)
        return {"traces": [with_formulas(trace) for trace in traces], "words": words}

    def _ask(self, query: Query, run: str, step: str, sample: str) -> Any:
        """The reply to `text`, a question about the sample; `after` is what was asked before."""
        data = self.runs[run]
        found = data.sample(int(step), int(sample))
        return answer_of(found, query, lambda: data.samples_of(int(step)), data.run)


def _step_or_none(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise TelescopeError("after is a step")
    return float(text)
