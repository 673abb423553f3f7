"""A reward function behind an address: scores over HTTP, with a limit on the wait and several tries."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from telescope.errors import TelescopeError

_SPEC = re.compile(r"(?:(?P<name>\w+)=)?(?P<url>https?://\S+)")
_PASSING = (408, 425, 429)  # of the 4xx: the same question may be answered later


class RemoteReward:
    """Posts {"prompts": […], "completions": […], "columns": {name: […]}} as JSON; the answer is a list of scores as a function's.

    What may pass (no connection, silence, 5xx, 408, 425, 429) is tried again after 1, 2, 4, … seconds; any other answer is final.
    """

    def __init__(self, url: str, *, timeout: float, retries: int) -> None:
        self.url, self.timeout, self.retries = url, timeout, retries
        self.server = f"the reward server {urlsplit(url)._replace(query='', fragment='').geturl()}"  # a query may hold a key

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], **columns: Any
    ) -> list[Any]:
        try:
            body = json.dumps(
                {"prompts": prompts, "completions": completions, "columns": columns}
            ).encode()
        except (TypeError, ValueError) as error:
            raise TelescopeError(
                f"the data cannot be sent to {self.server} as JSON: {error}"
            ) from None
        answer = self._post(body)
        try:
            scores = json.loads(answer)
        except ValueError:
            raise TelescopeError(
                f"{self.server} answered {answer[:60]!r}, which is not JSON: it should be a list of scores"
            ) from None
        if not isinstance(scores, list) or len(scores) != len(completions):
            found = (
                f"{len(scores)} scores"
                if isinstance(scores, list)
                else f"a {type(scores).__name__}"
            )
            raise TelescopeError(
                f"{self.server} answered {found} for {len(completions)} responses: it should be a list with one for each"
            )
        return scores

    def _post(self, body: bytes) -> bytes:
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(min(2.0 ** (attempt - 1), 30.0))
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                error.close()
                problem = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code not in _PASSING:
                    raise TelescopeError(f"{self.server} refused the request: {problem}") from None
            except TimeoutError:
                problem = f"no answer within {self.timeout:g} s (reward.timeout)"
            except (OSError, HTTPException) as error:  # URLError is an OSError
                late = isinstance(getattr(error, "reason", None), TimeoutError)
                problem = (
                    f"no connection within {self.timeout:g} s (reward.timeout)"
                    if late
                    else str(error) or type(error).__name__
                )
        tries = f"{self.retries + 1} tries" if self.retries else "one try"
        raise TelescopeError(
            f"{self.server} gave no scores in {tries}, at last: {problem}; see to it, then continue with --resume"
        )


def remote_reward(spec: str, *, timeout: float, retries: int) -> tuple[str, RemoteReward] | None:
    """'https://host/path' or 'name=https://host/path' -> (name, function), else None. The name is the path's last part by default."""
    found = _SPEC.fullmatch(spec)
    if not found:
        return None
    try:
        parts = urlsplit(found["url"])
        _ = parts.port  # looked at only when asked for
    except ValueError as error:
        raise TelescopeError(
            f"{found['url'].partition('?')[0]} is not an address of a reward server: {error}"
        ) from None
    name = found["name"] or parts.path.rstrip("/").rpartition("/")[2] or str(parts.hostname)
    return name, RemoteReward(found["url"], timeout=timeout, retries=retries)
