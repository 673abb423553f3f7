"""Trackers that get the metrics beside metrics.jsonl: TensorBoard, W&B and trackio."""

from __future__ import annotations

import html
import importlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.errors import TelescopeError, pip_install

_LOGIN = {
    "wandb": "run `wandb login`, set WANDB_API_KEY, or log on this machine with WANDB_MODE=offline",
    "trackio": "check TRACKIO_SPACE_ID and TRACKIO_SERVER_URL, or unset both to log here",
}
"""What to do if a tracker cannot start."""
Row = Sequence[str | float | None]
"""Of the sample table."""


def open_trackers(config: Config, *, after_step: int, sent: int) -> list[TensorBoard | Remote]:
    """The trackers of `log.trackers`, for a run that goes on after `after_step`.

    `sent` is the last step that they got before. A step below 0 means none.
    """
    return [_open(name, config, after_step, sent) for name in config.log.trackers]


def _open(name: str, config: Config, after_step: int, sent: int) -> TensorBoard | Remote:
    try:
        if name == "tensorboard":
            return TensorBoard(config, after_step)
        module = importlib.import_module(name)
    except ImportError:
        raise TelescopeError(
            f"log.trackers names {name}, which is not installed: {pip_install(name)}"
        ) from None
    try:
        return Remote(module, name, config, after_step, sent)
    except Exception as error:  # each service has errors of its own
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise TelescopeError(
            f"log.trackers: {name} cannot start ({reason}): {_LOGIN[name]}"
        ) from error


class TensorBoard:
    def __init__(self, config: Config, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides what older files say of the steps from `purge_step` on.
        self._writer: Any = SummaryWriter(
            str(config.run_dir / "tensorboard"), purge_step=after_step + 1
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Row]) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        table = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        self._writer.add_text("samples", table, step)

    def close(self) -> None:
        self._writer.close()


def _cell(value: str | float | None) -> str:
    """A text or a number in a Markdown table: no HTML, no new column, no new row; None is empty."""
    text = "" if value is None else html.escape(str(value), quote=False)
    return text.replace("|", "&#124;").replace("\n", "<br>")


class Remote:
    """wandb or trackio: both have the same API.

    A resumed run goes on with its run there. Neither can replace a step, so steps that were sent
    before are not sent again.
    """

    def __init__(self, module: Any, name: str, config: Config, after_step: int, sent: int) -> None:
        self._module = module
        self._sent = sent if after_step >= 0 else -1
        log = config.log
        more: dict[str, Any] = {}
        if name == "wandb":
            more = {"id": _run_id(config, is_new=after_step < 0), "tags": log.tags}
        module.init(
            project=log.project,
            name=config.name,
            group=log.group,
            config=_without_keys(config),
            resume="never" if after_step < 0 else "allow",
            **more,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step > self._sent:
            self._module.log(dict(metrics), step=step)

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Row]) -> None:
        if step > self._sent:
            table = self._module.Table(columns=list(columns), data=[list(row) for row in rows])
            self._module.log({"samples": table}, step=step)

    def close(self) -> None:
        self._module.finish()


def _run_id(config: Config, *, is_new: bool) -> str:
    """The run's id at W&B, kept in its folder so that a resumed run has the same."""
    path = config.run_dir / "wandb-id"
    if is_new or not path.is_file():
        path.write_text(uuid.uuid4().hex[:8], "utf-8")
    return path.read_text("utf-8").strip()


def _without_keys(config: Config) -> dict[str, Any]:
    """The settings for a tracker, which others may read: addresses without what may be a key."""
    settings = config.model_dump()
    reward = settings["reward"]
    reward["functions"] = [spec.partition("?")[0] for spec in reward["functions"]]
    reward["headers"] = {name: sorted(own) for name, own in reward["headers"].items()}
    return settings


def sample_table(batch: TokenBatch, count: int) -> tuple[list[str], list[Row]]:
    """Columns and rows of the first `count` responses: prompt, response, score and its parts."""
    scores = batch.scores[:count]
    names = list(dict.fromkeys(name for score in scores for name in score.parts))
    parts = names if len(names) > 1 else []
    rows: list[Row] = []
    for info, score in zip(batch.info, scores, strict=False):
        own = [score.parts.get(name) for name in parts]
        rows.append([info.prompt, info.response.text, score.total, *own])
    return ["prompt", "response", "score", *parts], rows
