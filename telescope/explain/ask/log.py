"""The conversation as a Markdown log: started, or read and continued."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from telescope.explain.ask.conversation import Reply
from telescope.explain.ask.retry import SYMBOLS
from telescope.explain.dialogue import Dialogue
from telescope.explain.sample import Sample


class Log:
    """Keeps every round, and writes them once a file is named."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._rounds: list[tuple[str, str, str]] = []
        self._dialogue: Dialogue | None = None
        self._context = ""

    def start(self, folder: Path, now: datetime) -> Path:
        """A new log with all rounds so far. Returns its path."""
        self._dialogue = Dialogue.start(folder, now, context_of(self.sample))
        for question, text, context in self._rounds:
            self._dialogue.append(question, text, context)
        return self._dialogue.write()

    def read(self, path: Path) -> list[str]:
        """Goes on with a saved log. Returns the questions of its rounds."""
        self._dialogue = Dialogue.read(path)
        return [question for question, _ in self._dialogue.rounds]

    def add(self, question: str, text: str, reply: Reply) -> Path | None:
        """Adds a round. Returns the path of the log, if there is one."""
        context = _changes(reply)
        note = context if context != self._context else ""
        if not context and self._context:
            note = _settings(self.sample)
        self._context = context
        self._rounds.append((question, text, note))
        if self._dialogue is None:
            return None
        self._dialogue.append(question, text, note)
        return self._dialogue.write()


def context_of(sample: Sample) -> dict[str, str]:
    """What the conversation is about, for the head of the log."""
    about = {"运行": sample.run or "内置例子或手写的数"}
    if sample.run:
        about["训练步"] = str(sample.step)
    about["样本"] = f"第 {sample.index} 条（从 0 数，共 {sample.count} 条）"
    about["提示"] = sample.prompt
    about["回答"] = sample.response
    about["设置"] = _settings(sample)
    return about


def _settings(sample: Sample) -> str:
    settings = sample.settings
    named = settings.by_name()
    parts = [f"估计器 {settings.estimator}"]
    for name in ("gamma", "lam", "kl_coef", "clip_low", "clip_high"):
        value = named.get(name)
        if value is not None:
            parts.append(f"{SYMBOLS[name]}={value:g}")
    parts.append("白化" if settings.whiten else "不白化")
    return "，".join(dict.fromkeys(parts))


def _changes(reply: Reply) -> str:
    parts: list[str] = []
    for name, value in reply.changed.items():
        is_off = name == "whiten" and not value
        parts.append("不白化" if is_off else f"{SYMBOLS.get(name, name)}={value:g}")
    return "，".join(dict.fromkeys(parts))
