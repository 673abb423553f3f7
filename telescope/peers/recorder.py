"""Writes the steps of another trainer into a run folder, in the background.

A recorder never raises into its host and never lets it wait: it copies the arrays and returns. What
is wrong is said once. Where the disk is slower than training, steps are left out: at most 64 of
them, and at most HELD bytes, wait. It keeps at most `max_mb` on disk: past that it thins the
recorded steps evenly, and records half as often from then.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from telescope.errors import TelescopeError
from telescope.explain.settings import Settings
from telescope.ledger.reader import path_of, steps
from telescope.ledger.schema import VERSION
from telescope.ledger.table import TokenBytes, arrow_table, save_table
from telescope.peers.background import Background
from telescope.peers.columns import columns_of
from telescope.peers.faults import find_faults
from telescope.peers.found import assumed_rule, settings_of
from telescope.peers.given import given_batch
from telescope.peers.rows import WatchedStep, rounding_of, watched_step
from telescope.peers.rules import Moments, rules_of
from telescope.peers.snapshot import size_of, snapshot
from telescope.peers.whitening import batch_moments, given_moments

_log = logging.getLogger("telescope")
HELD = 512e6
"""Bytes of steps that may wait for the disk."""
PATIENCE = 60.0
"""Seconds that `close` waits for the disk."""


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
        self._own_tokenizer: tuple[Any, Any] = (None, None)
        self._background = Background("telescope-watch")
        self._said: set[str] = set()
        self._size: int | None = None
        self._held = 0.0
        atexit.register(self.close)

    def record(
        self, step: int, *, metrics: Mapping[str, float] | None = None, **given: Any
    ) -> None:
        """Records one step; `given` are the arguments of `rows.watched_step`.

        Returns once the arrays are copied. It never raises: a mistake is logged once.
        """
        with self.guarded():
            step = int(step)
            tokenizer = given.pop("tokenizer", None) or self.tokenizer
            self.tokenizer = tokenizer
            own = dict(given.pop("settings", None) or {})
            settings = {k: v for k, v in (self.settings | own).items() if v is not None}
            rows = dict(metrics or {})
            if step % self.every:
                self.log(step, rows)
                return
            known = given.pop("moments", None)
            copied, whole = snapshot(given, self.samples)
            if known is None and not whole:
                known = given_moments(given, Settings.of(**settings))
            tokenizer = self._tokenizer_of_thread()
            size = size_of(copied)
            if self._held and self._held + size > HELD:
                self._leave_out(f"step {step}")
                return
            self._held += size

            def write() -> None:
                try:
                    self._write(step, copied, settings, known, tokenizer, rows)
                finally:
                    self._held -= size

            if not self._do(write, f"step {step}"):
                self._held -= size

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends numbers of a step to metrics.jsonl."""
        with self.guarded():
            if metrics:
                self._do(lambda: self._append_metrics(step, metrics), f"the metrics of step {step}")

    def close(self) -> None:
        """Waits until everything is on disk."""
        with self.guarded():
            if not self._background.finish(PATIENCE):
                self._say(f"the last steps are not on disk after {PATIENCE:.0f} s")

    def _do(self, job: Callable[[], None], what: str) -> bool:
        """Does the job in the background, if there is room; at once if strict."""
        if self.strict:
            job()
        elif not self._background.submit(self.guarded()(job)):
            self._leave_out(what)
            return False
        return True

    def _leave_out(self, what: str) -> None:
        self._say(f"{what} was left out: the disk is slower than training", once_for="left out")

    def _tokenizer_of_thread(self) -> Any:
        """A copy for the background: a fast tokenizer refuses to be used by two threads at once."""
        if self.strict or self.tokenizer is None:
            return self.tokenizer
        if self._own_tokenizer[0] is not self.tokenizer:
            self._own_tokenizer = (self.tokenizer, None)  # where it cannot be copied, there is none
            self._own_tokenizer = (self.tokenizer, copy.deepcopy(self.tokenizer))
        return self._own_tokenizer[1]

    # ---- in the background ----

    @np.errstate(all="ignore")  # NaN is reported by us, not by numpy
    def _write(
        self,
        step: int,
        given: dict[str, Any],
        known_settings: dict[str, Any],
        moments: Moments,
        tokenizer: Any,
        metrics: dict[str, float],
    ) -> None:
        watched = self._watched(step, given, metrics)
        faults = find_faults(given_batch(watched, given, *self._ends()))
        for fault in faults:
            self._say(f"step {step}: {fault.en}", once_for=fault.id)
        settings, assumed = settings_of(known_settings, watched)
        moments = moments or batch_moments(watched, settings)
        rules = [*self.rules, *self._rules_of(watched, settings, moments)]
        self.folder.mkdir(parents=True, exist_ok=True)
        meta = {
            "version": VERSION,
            "run": self.folder.name,
            "step": step,
            "settings": settings.to_json(),
            "trainer": self.trainer,
            "rules": [*rules, *assumed_rule(assumed, settings)],
            "assumed": assumed,
            "rounding": rounding_of(given),
            "faults": [asdict(fault) for fault in faults],
        }
        shown = watched.first(self.samples)
        try:
            columns = columns_of(shown, moments, self._bytes_of(tokenizer))
        except Exception as error:
            if self.strict or tokenizer is None:
                raise
            self._say(f"the tokenizer fails, tokens are numbers: {error}", once_for="tokenizer")
            columns = columns_of(shown, moments, None)
        path = path_of(self.folder, step)
        save_table(arrow_table(columns, meta), path)
        self._write_config(known_settings)
        self._thin(path.stat().st_size)

    def _watched(self, step: int, given: dict[str, Any], metrics: dict[str, float]) -> WatchedStep:
        """The step; its metrics are written even if its arrays are wrong."""
        found: dict[str, float] = {}
        try:
            watched = watched_step(**given)
            found = _means(watched)
        finally:
            if found or metrics:
                self._append_metrics(step, found | metrics)
        return watched

    def _rules_of(
        self, watched: WatchedStep, settings: Settings, moments: Moments
    ) -> list[dict[str, str]]:
        """Rules that the numbers show; none where they cannot be read."""
        if self.rules:
            return []  # this trainer's are known
        with contextlib.suppress(Exception):
            return rules_of(watched, watched.first(self.samples), settings, moments)
        return []

    def _bytes_of(self, tokenizer: Any) -> TokenBytes | None:
        """The bytes of the tokenizer's tokens, kept from step to step."""
        if tokenizer is None:
            return None
        if self._bytes is None or self._bytes.tokenizer is not tokenizer:
            self._bytes = TokenBytes(tokenizer)
        return self._bytes

    def _append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        row: dict[str, Any] = {"step": step}
        for name, value in metrics.items():
            number = float(value)
            row[name] = number if math.isfinite(number) else None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "metrics.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if path.stat().st_size > self.max_bytes / 10:
            self._thin_metrics(path)

    def _write_config(self, settings: Mapping[str, Any]) -> None:
        """watched.toml: what is known of the trainer's settings. Never overwritten by less."""
        path = self.folder / "watched.toml"
        text = tomli_w.dumps({"trainer": self.trainer, "settings": dict(settings)})
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")

    def _thin_metrics(self, path: Path) -> None:
        """Removes every second row; the first and the last stay."""
        rows = path.read_text("utf-8").splitlines(keepends=True)
        kept = [*rows[:-1:2], rows[-1]]
        path.write_text("".join(kept), "utf-8")

    def _thin(self, written: int) -> None:
        """Keeps the folder under its limit: every second step goes, the first and last stay."""
        self._size = None if self._size is None else self._size + written
        while self._size is None or self._size > self.max_bytes:
            recorded = steps(self.folder)
            self._size = sum(path_of(self.folder, step).stat().st_size for step in recorded)
            if self._size <= self.max_bytes or len(recorded) < 3:
                return
            self.every *= 2
            for step in recorded[1:-1:2]:
                path_of(self.folder, step).unlink(missing_ok=True)
            self._size = None
            limit = f"{self.max_bytes / 1e6:.0f} MB"
            self._say(f"{self.folder} reached {limit}: every second recorded step was removed")

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Nothing that goes wrong inside reaches the trainer, unless `strict`."""
        with contextlib.nullcontext() if self.strict else _quietly(self._say):
            yield

    def _ends(self) -> tuple[int | None, int | None]:
        """The ids of EOS and of padding."""
        found = (getattr(self.tokenizer, name, None) for name in ("eos_token_id", "pad_token_id"))
        eos, pad = (name if isinstance(name, int) else None for name in found)
        return eos, pad

    def _say(self, text: str, once_for: str | None = None) -> None:
        key = once_for or re.sub(r"\d+", "#", text)  # of another step it is the same mistake
        if key not in self._said:
            self._said.add(key)
            _log.warning("telescope: %s", text)


@contextlib.contextmanager
def _quietly(say: Callable[[str], None]) -> Iterator[None]:
    """Turns any error into one logged line: a recorder must not stop training."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # an error may refuse to be printed
            kind = "" if isinstance(error, TelescopeError) else f"{type(error).__name__}: "
            say(f"not recorded: {kind}{error}")


def _means(watched: WatchedStep) -> dict[str, float]:
    """Curves that every trainer has: the mean score and length of the step's responses."""
    if not len(watched):
        return {}
    found = {"response/length_mean": float(np.mean([len(row) for row in watched.responses]))}
    scores = [score for score in watched.scores or [] if score is not None]
    if scores:
        found["reward/score_mean"] = float(np.mean(scores))
    return found


_recorders: dict[Path, Recorder] = {}


def record(step: int, *, folder: Path | str = "runs/watched", **given: Any) -> None:
    """Records one step of any training loop into `folder`.

        telescope.record(step, responses=ids, mask=mask, values=values, advantages=advantages)

    `responses` are token ids, as lists or as a padded [B, T] array with `mask` (1 = the policy
    wrote the token). Every other array is optional: old_log_probs, ref_log_prob, values,
    token_level_rewards, advantages, whitened, returns, entropy, …, `scores`, `prompts`, `group`,
    `truncated`, `tokenizer`, `settings`, `metrics`. What is missing stays absent.
    """
    with _quietly(lambda text: _log.warning("telescope: %s", text)):
        place = Path(folder).resolve()
        if place not in _recorders:
            _recorders[place] = Recorder(folder)
        _recorders[place].record(step, **given)
