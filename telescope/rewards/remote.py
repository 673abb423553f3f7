"""A reward function on a server: scores over HTTP, with a timeout and retries."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from telescope.errors import TelescopeError
from telescope.rewards.background import Background

_SPEC = re.compile(r"(?:(?P<name>\w+)=)?(?P<url>https?://\S+)")
MOST_BYTES = 1 << 26
"""Of an answer."""
MOST_SHOWN = 400
"""Bytes of an error's answer that are shown."""
_RETRIED = (408, 425, 429)  # 4xx codes after which the same request may succeed later


class RemoteReward:
    """Posts {"prompts": […], "completions": […], "columns": {name: […]}} as JSON.

    The answer is a list of scores, as a reward function returns. A failed connection, a timeout
    and the codes 5xx, 408, 425 and 429 are tried again after 1, 2, 4, … seconds. Any other answer
    is final.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        retries: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.server = f"the reward server {without_secrets(url)}"
        self.http = Http(
            with_secrets(url), self.server, timeout=timeout, retries=retries, headers=headers
        )
        self.trouble = self.http.trouble

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], **columns: Any
    ) -> list[Any]:
        question = {"prompts": prompts, "completions": completions, "columns": columns}
        try:
            body = json.dumps(question).encode()
        except (TypeError, ValueError) as error:
            raise TelescopeError(
                f"the data cannot be sent to {self.server} as JSON: {error}"
            ) from None
        answer = self.http.post(body)
        try:
            scores = json.loads(answer)
        except (ValueError, RecursionError):
            raise TelescopeError(
                f"{self.server} answered {answer[:60]!r}, which is not JSON: "
                "it should be a list of scores"
            ) from None
        if isinstance(scores, list) and len(scores) == len(completions):
            return scores
        found = f"a {type(scores).__name__}"
        if isinstance(scores, list):
            found = f"{len(scores)} scores"
        raise TelescopeError(
            f"{self.server} answered {found} for {len(completions)} responses: "
            "it should be a list with one for each"
        )


class Http:
    """Posts JSON to one address, with a timeout, retries and headers.

    ${NAME} in a header is that variable of the environment.
    """

    def __init__(
        self,
        url: str,
        server: str,
        *,
        timeout: float,
        retries: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.server = server
        self.timeout = timeout
        self.retries = retries
        own = {name: with_secrets(value) for name, value in (headers or {}).items()}
        self.headers = {"Content-Type": "application/json", **own}
        self.trouble: list[str] = []
        """Failed tries so far, in words."""

    def post(self, body: bytes) -> bytes:
        """The server's answer, after as many tries as are allowed."""
        # The scheme is http or https: see _SPEC.
        request = urllib.request.Request(self.url, body, self.headers)  # noqa: S310
        asked_pause = 0.0
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(max(min(2.0 ** (attempt - 1), 30.0), asked_pause))
            try:
                # The socket's own timeout counts from byte to byte: a slow server could hold a
                # step for hours. It comes first, so that its message is the one that is seen.
                asked = Background(lambda: self._answer(request))
                return asked.result(self.timeout + 0.5)
            except urllib.error.HTTPError as error:
                said = " ".join(error.read(MOST_SHOWN).decode(errors="replace").split())
                asked_pause = _seconds(error.headers.get("Retry-After"))
                error.close()
                problem = f"HTTP {error.code} {error.reason}" + (f": {said}" if said else "")
                if error.code < 500 and error.code not in _RETRIED:
                    raise TelescopeError(f"{self.server} refused the request: {problem}") from None
            except TimeoutError:
                problem = f"no answer within {self.timeout:g} s (reward.timeout)"
            except (OSError, HTTPException) as error:  # URLError is an OSError
                problem = str(error) or type(error).__name__
                if isinstance(getattr(error, "reason", None), TimeoutError):
                    problem = f"no connection within {self.timeout:g} s (reward.timeout)"
            self.trouble.append(f"{self.server} failed: {problem}")
        tries = f"{self.retries + 1} tries" if self.retries else "one try"
        raise TelescopeError(
            f"{self.server} gave no scores in {tries}, at last: {problem}; "
            "check the server, then continue with --resume"
        )

    def _answer(self, request: urllib.request.Request) -> bytes:
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:  # noqa: S310
            return bytes(answer.read(MOST_BYTES))


def _seconds(text: str | None) -> float:
    """The pause that a server asks for, at most a minute; 0 if it asks for none."""
    return min(float(text), 60.0) if text and text.isdigit() else 0.0


def without_secrets(url: str) -> str:
    """The address without password, query and fragment: they may hold a key."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def with_secrets(text: str) -> str:
    """An address or a header with ${NAME} replaced by that variable of the environment."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name not in os.environ:
            raise TelescopeError(
                f"the address or a header of a reward server has ${{{name}}}, "
                f"and the environment has no {name}: set it"
            )
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", value, text)


def holds_secret(spec: str) -> bool:
    """Whether an address seems to hold a key or a password itself."""
    found = _SPEC.fullmatch(spec)
    if not found or "${" in spec:
        return False
    return "@" in urlsplit(found["url"]).netloc or "?" in found["url"]


def remote_reward(
    spec: str,
    *,
    timeout: float,
    retries: int,
    headers: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[str, RemoteReward] | None:
    """Name and function of 'https://host/path' or 'name=https://host/path'; None for others.

    By default the name is the last part of the path. `headers` are those of each name.
    """
    found = _SPEC.fullmatch(spec)
    if not found:
        return None
    url = found["url"]
    try:
        parts = urlsplit(url)
        _ = parts.port  # checked only when it is read
    except ValueError as error:
        raise TelescopeError(
            f"{url.partition('?')[0]} is not an address of a reward server: {error}"
        ) from None
    last_part = parts.path.rstrip("/").rpartition("/")[2]
    name = found["name"] or last_part or str(parts.hostname)
    own = (headers or {}).get(name)
    return name, RemoteReward(url, timeout=timeout, retries=retries, headers=own)
