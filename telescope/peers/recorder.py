"""Writes the steps of another trainer into a run folder, in the background.

A recorder never raises into its host: it says once what is wrong and goes on. It keeps at most
`max_mb` on disk: past that it thins the recorded steps evenly, and records half as often from then.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w

from telescope.errors import TelescopeError
from telescope.explain.settings import Settings
from telescope.ledger.reader import path_of, steps
from telescope.ledger.schema import ACTOR_UPDATE, PER_TOKEN, VERSION
from telescope.ledger.table import TokenBytes, arrow_table, list_column, save_table
from telescope.peers.faults import Fault, find_faults, given_batch
from telescope.peers.rows import Array, WatchedStep, watched_step
from telescope.peers.whitening import batch_moments

_log = logging.getLogger("telescope")


class Recorder:
    """One watched run.

    `samples`: responses recorded of a step. `every`: records each n-th step. `settings`: what the
    trainer was set to, under our names (estimator, gamma, lam, kl_coef, clip_low, clip_high, …).
    `rules`: where the trainer's rules differ from ours, as {"zh": …, "en": …}.
    `strict`: raises mistakes instead of logging them, for files that are read afterwards.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        samples: int = 32,
        every: int = 1,
        max_mb: float = 2_000,
        tokenizer: Any = None,
        settings: Mapping[str, Any] | None = None,
        trainer: str = "",
        rules: Sequence[Mapping[str, str]] = (),
        strict: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.samples = samples
        self.every = every
        self.max_bytes = max_mb * 1e6
        self.tokenizer = tokenizer
        self.settings = dict(settings or {})
        self.trainer = trainer
        self.rules = list(rules)
        self.strict = strict
        self._bytes: TokenBytes | None = None
        self._writer = ThreadPoolExecutor(1, "telescope-watch")
        self._writing: Future[None] | None = None
        self._said: set[str] = set()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def record(
        self, step: int, *, metrics: Mapping[str, float] | None = None, **given: Any
    ) -> None:
        """Records one step; `given` are the arguments of `rows.watched_step`.

        Returns once the arrays are copied. It never raises: a mistake is logged once.
        """
        with self.guarded():
            settings = self.settings | dict(given.pop("settings", None) or {})
            self.tokenizer = given.pop("tokenizer", None) or self.tokenizer
            if metrics:
                self._append_metrics(step, metrics)
            if step % self.every:
                return
            watched = watched_step(**given)
            faults = find_faults(given_batch(watched, given, self._eos()))
            for fault in faults:
                self._say(f"step {step}: {fault.en}", once_for=fault.id)
            moments = batch_moments(watched, _settings_of(settings))
            shown = _first(watched, self.samples)
            if self._writing is not None and not self._writing.done():
                self._writing.result()  # one step at a time: memory stays bounded
            self._writing = self._writer.submit(self._write, step, shown, settings, moments, faults)

    def close(self) -> None:
        """Waits until everything is on disk."""
        with self.guarded():
            if self._writing is not None:
                self._writing.result()
                self._writing = None

    # ---- in the background ----

    def _write(
        self,
        step: int,
        watched: WatchedStep,
        settings: dict[str, Any],
        moments: tuple[float, float] | None,
        faults: Sequence[Fault],
    ) -> None:
        with self.guarded():
            self.folder.mkdir(parents=True, exist_ok=True)
            resolved = _settings_of(settings)
            meta = {
                "version": VERSION,
                "run": self.folder.name,
                "step": step,
                "settings": resolved.to_json(),
                "trainer": self.trainer,
                "rules": self.rules,
                "faults": [fault.to_json() for fault in faults],
            }
            columns = self._columns(watched, moments)
            save_table(arrow_table(columns, meta), path_of(self.folder, step))
            self._write_config(settings)
            self._thin()

    def _columns(self, watched: WatchedStep, moments: tuple[float, float] | None) -> dict[str, Any]:
        count = len(watched)
        lengths = np.array([len(row) for row in watched.responses])
        prompts = watched.prompts or self._decoded(watched.prompt_ids, count)
        responses = watched.texts or self._decoded(watched.responses, count)
        columns: dict[str, Any] = {
            "sample": list(range(count)),
            "prompt": prompts,
            "prompt_index": watched.group or list(range(count)),
            "response": responses,
            "score": watched.scores or [None] * count,
            "parts": [list(part.items()) for part in watched.parts or [{}] * count],
            "token_bytes": [self._pieces(row) for row in watched.responses],
            "responses": _lists(watched.responses, lengths, "responses"),
            "response_mask": _lists(watched.mask, lengths, "response_mask"),
            "actor_updates": _update(watched, lengths),
        }
        if watched.prompt_ids is not None:
            columns["prompt_ids"] = [row.tolist() for row in watched.prompt_ids]
        per_row = {
            "group": watched.group,
            "truncated": watched.truncated,
            "bootstrap": watched.bootstrap,
            "scale": watched.scale,
        }
        columns |= {name: values for name, values in per_row.items() if values is not None}
        if moments is not None:
            columns["whiten_mean"] = [moments[0]] * count
            columns["whiten_std"] = [moments[1]] * count
        for name, rows in watched.columns.items():
            columns[name] = _lists(_silent(rows, watched.mask), lengths, name)
        return columns

    def _decoded(self, rows: Sequence[Array] | None, count: int) -> list[str]:
        if rows is None:
            return [""] * count
        if self.tokenizer is None:
            return [" ".join(map(str, row.tolist())) for row in rows]
        return [str(self.tokenizer.decode(row.tolist())) for row in rows]

    def _pieces(self, ids: Array) -> list[bytes]:
        """The bytes of each token; without a tokenizer its id in brackets."""
        if self.tokenizer is None:
            return [f"[{i}]".encode() for i in ids.tolist()]
        if self._bytes is None:
            self._bytes = TokenBytes(self.tokenizer)
        return [self._bytes[i] for i in ids.tolist()]

    def _append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        row: dict[str, Any] = {"step": step}
        for name, value in metrics.items():
            number = float(value)
            row[name] = number if math.isfinite(number) else None
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock, (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _write_config(self, settings: Mapping[str, Any]) -> None:
        """watched.toml: what is known of the trainer's settings. Never overwritten by less."""
        path = self.folder / "watched.toml"
        known = {key: value for key, value in settings.items() if value is not None}
        text = tomli_w.dumps({"trainer": self.trainer, "settings": known})
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")

    def _thin(self) -> None:
        """Keeps the folder under its limit: every second step goes, the first and last stay."""
        while True:
            recorded = steps(self.folder)
            size = sum(path_of(self.folder, step).stat().st_size for step in recorded)
            if size <= self.max_bytes or len(recorded) < 3:
                return
            self.every *= 2
            for step in recorded[1:-1:2]:
                path_of(self.folder, step).unlink(missing_ok=True)
            limit = f"{self.max_bytes / 1e6:.0f} MB"
            self._say(f"{self.folder} reached {limit}: every second recorded step was removed")

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.strict else _Quietly(self._say)

    def _eos(self) -> int | None:
        return getattr(self.tokenizer, "eos_token_id", None)

    def _say(self, text: str, once_for: str | None = None) -> None:
        key = once_for or text
        if key not in self._said:
            self._said.add(key)
            _log.warning("telescope: %s", text)


class _Quietly(contextlib.AbstractContextManager[None]):
    """Turns any error into one logged line: a recorder must not stop training."""

    def __init__(self, say: Any) -> None:
        self.say = say

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        what = str(error) if isinstance(error, TelescopeError) else f"{kind.__name__}: {error}"
        self.say(f"not recorded: {what}")
        return True


def _settings_of(names: Mapping[str, Any]) -> Settings:
    return Settings.of(**{key: value for key, value in names.items() if value is not None})


def _first(watched: WatchedStep, count: int) -> WatchedStep:
    """The first responses of the step."""

    def cut(value: Any) -> Any:
        return None if value is None else value[:count]

    return replace(
        watched,
        **{
            name: cut(getattr(watched, name))
            for name in watched.__dataclass_fields__
            if name != "columns"
        },
        columns={name: rows[:count] for name, rows in watched.columns.items()},
    )


def _silent(rows: Sequence[Array], mask: Sequence[Array]) -> list[Array]:
    """The columns with 0 where the policy did not write: trainers leave anything there."""
    return [np.where(m > 0, row, 0.0) for row, m in zip(rows, mask, strict=True)]


def _lists(rows: Sequence[Array], lengths: Array, name: str) -> pa.ListArray:
    kind = PER_TOKEN[name]
    flat = np.concatenate(rows) if len(rows) else np.zeros(0)
    return list_column(flat, lengths, kind)


def _update(watched: WatchedStep, lengths: Array) -> pa.ListArray:
    """The last update of the policy, where its log-probs are known; else none."""
    kinds = {name: ACTOR_UPDATE[name] for name in ("old_log_probs", "log_probs")}
    fields = [("epoch", pa.int16()), ("minibatch", pa.int16()), *kinds.items()]
    old = watched.columns.get("old_log_probs")
    if watched.log_probs is None or old is None:
        return pa.array([[] for _ in lengths], pa.list_(pa.struct(fields)))
    updates = [
        [{"epoch": -1, "minibatch": -1, "old_log_probs": a.tolist(), "log_probs": b.tolist()}]
        for a, b in zip(
            _silent(old, watched.mask), _silent(watched.log_probs, watched.mask), strict=True
        )
    ]
    return pa.array(updates, pa.list_(pa.struct(fields)))


_recorders: dict[Path, Recorder] = {}


def record(step: int, *, folder: Path | str = "runs/watched", **given: Any) -> None:
    """Records one step of any training loop into `folder`.

        telescope.record(step, responses=ids, mask=mask, values=values, advantages=advantages)

    `responses` are token ids, as lists or as a padded [B, T] array with `mask` (1 = the policy
    wrote the token). Every other array is optional: old_log_probs, ref_log_prob, values,
    token_level_rewards, advantages, whitened, returns, entropy, …, `scores`, `prompts`, `group`,
    `truncated`, `tokenizer`, `settings`, `metrics`. What is missing stays absent.
    """
    place = Path(folder).resolve()
    if place not in _recorders:
        _recorders[place] = Recorder(folder)
    _recorders[place].record(step, **given)
