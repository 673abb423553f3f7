"""A language model as a judge, behind an OpenAI-compatible address."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from telescope.data.loader import last_match
from telescope.errors import TelescopeError
from telescope.rewards.remote import Http, without_secrets
from telescope.rewards.terms import compiled

PROMPT = """You grade the answer of an assistant.

Question:
{prompt}

Answer:
{response}

How good is the answer, from 0 (wrong or useless) to 10 (right and clear)?
Reply with one number."""


class Judge:
    """Asks a model for a number about each response; the score is that number over `scale`.

    In `prompt`, {prompt} and {response} stand for the row's, {name} for a column of the data. The
    number is the last match of `pattern` in the reply. `otherwise` is the score of a reply without
    one. `key` names the variable of the environment that holds the key; empty: no key. The same
    question is asked once: replies are kept in memory, and in the file `cache` if it is given.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        prompt: str = PROMPT,
        pattern: str = r"-?\d+(?:\.\d+)?",
        scale: float = 10.0,
        otherwise: float = 0.0,
        key: str = "OPENAI_API_KEY",
        requests_per_minute: float = 0.0,
        workers: int = 8,
        cache: str | None = None,
        max_tokens: int = 512,
        timeout: float = 60.0,
        retries: int = 3,
    ) -> None:
        compiled("judge", pattern)
        if scale == 0:
            raise TelescopeError("judge: scale = 0: the number is divided by it, so give another")
        if not url.startswith(("http://", "https://")):
            raise TelescopeError(
                f"judge: url = {without_secrets(url)!r}: begin it with http:// or https://"
            )
        self.model = model
        self.prompt = prompt
        self.pattern = pattern
        self.scale = scale
        self.otherwise = otherwise
        self.workers = workers
        self.max_tokens = max_tokens
        headers = {"Authorization": f"Bearer {_secret(key)}"} if key else {}
        self.http = Http(
            url.rstrip("/") + "/chat/completions",
            f"the judge {without_secrets(url)}",
            timeout=timeout,
            retries=retries,
            headers=headers,
        )
        self.trouble = self.http.trouble
        """Failed tries and replies without a number so far, in words."""
        self.seconds_apart = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()
        self.cache = Path(cache).expanduser() if cache else None
        if self.cache and not self.cache.parent.is_dir():
            raise TelescopeError(
                f"judge: cache = {cache!r}: there is no folder {self.cache.parent}"
            )
        self.replies = _read_cache(self.cache)

    def __call__(
        self, prompts: Sequence[str], last_turns: Sequence[str], **columns: Any
    ) -> tuple[list[float], dict[str, Any]]:
        questions = []
        for row, (prompt, response) in enumerate(zip(prompts, last_turns, strict=True)):
            own = {name: values[row] for name, values in columns.items()}
            questions.append(self._question(own | {"prompt": prompt, "response": response}))
        keys = [hashlib.sha256(f"{self.http.url} {one}".encode()).hexdigest() for one in questions]
        new = {
            key: question
            for key, question in zip(keys, questions, strict=True)
            if key not in self.replies
        }
        with ThreadPoolExecutor(self.workers) as pool:
            for key, reply in zip(new, pool.map(self._ask, new.values()), strict=True):
                self._keep(key, reply)
        numbers = [self._number(self.replies[key]) for key in keys]
        scores = [self.otherwise if one is None else one / self.scale for one in numbers]
        unread = [float(one is None) for one in numbers]
        return scores, {"asked": len(new) / max(len(questions), 1), "unread": unread}

    def _question(self, row: Mapping[str, Any]) -> str:
        """The request as JSON."""

        def value(found: re.Match[str]) -> str:
            if found[1] not in row:
                raise TelescopeError(
                    f"the judge's prompt has {{{found[1]}}}; there are {', '.join(sorted(row))}"
                )
            return str(row[found[1]])

        content = re.sub(r"\{(\w+)\}", value, self.prompt)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        return json.dumps(body, ensure_ascii=False, sort_keys=True)

    def _ask(self, question: str) -> str:
        if self.seconds_apart:
            with self._lock:
                now = time.monotonic()
                self._next = max(self._next, now) + self.seconds_apart
                pause = self._next - self.seconds_apart - now
            time.sleep(max(pause, 0.0))
        answer = self.http.post(question.encode())
        try:
            return str(json.loads(answer)["choices"][0]["message"]["content"] or "")
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise TelescopeError(
                f"{self.http.server} answered {answer[:80]!r}, which is not a chat completion: "
                "its address ends before /chat/completions"
            ) from None

    def _number(self, reply: str) -> float | None:
        found = last_match(self.pattern, reply)
        try:
            return float(found or "")
        except ValueError:
            self.trouble.append(
                f"{self.http.server} replied without a number, at last: {reply[:60]!r}"
            )
            return None

    def _keep(self, key: str, reply: str) -> None:
        self.replies[key] = reply
        if self.cache is not None:
            with self.cache.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "reply": reply}) + "\n")


def _secret(variable: str) -> str:
    """The key in this variable of the environment."""
    if not re.fullmatch(r"[A-Za-z_]\w*", variable):
        raise TelescopeError(
            "judge: `key` is the name of the variable of the environment that holds the key, not "
            "the key: set key = 'MY_KEY' and the variable MY_KEY"
        )
    if variable not in os.environ:
        raise TelescopeError(
            f"judge: the environment has no {variable}: set it, or set key = '' for a server that "
            "needs no key"
        )
    return os.environ[variable]


def _read_cache(path: Path | None) -> dict[str, str]:
    """Replies by key; a line that a crash has cut is skipped."""
    replies: dict[str, str] = {}
    if path is None or not path.exists():
        return replies
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            kept = json.loads(line)
            replies[str(kept["key"])] = str(kept["reply"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return replies
