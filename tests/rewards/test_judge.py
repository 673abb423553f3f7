"""A judge behind an OpenAI-compatible address, against a server in a thread."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from telescope.errors import TelescopeError
from telescope.rewards import judge as judge_module
from telescope.rewards import remote
from telescope.rewards.judge import Judge
from telescope.trainer import Trainer


class Server:
    """Replies to each chat completion with what `reply` makes of its last message."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failures = 0
        """Requests that are answered by 429 before the first reply."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fails = outer.failures > 0
                outer.failures -= fails
                outer.asked.append(body | {"path": self.path})
                outer.keys.append(self.headers["Authorization"])
                text = outer.reply(body["messages"][-1]["content"])
                answer = {"choices": [{"message": {"role": "assistant", "content": text}}]}
                self.send_response(429 if fails else 200)
                if fails:
                    self.send_header("Retry-After", "7")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def reply(self, question: str) -> str:
        return f"I see 1 answer.\nScore: {8 if 'fine' in question else 2}"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are asked for, which tests do not make."""
    made: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", made.append)
    return made


def make(server: Server, **options: Any) -> Judge:
    return Judge(url=server.url, model="m", **{"key": "", **options})


def test_the_score_is_the_last_number_of_the_reply_over_the_scale(server: Server) -> None:
    scores, metrics = make(server)(["2+2?", "2+2?"], ["fine 4", "bad 5"])
    assert scores == [0.8, 0.2]
    assert metrics == {"asked": 1.0, "unread": [0.0, 0.0]}
    body = server.asked[0]
    assert body["path"] == "/v1/chat/completions"
    assert (body["model"], body["temperature"]) == ("m", 0)
    assert "2+2?" in body["messages"][0]["content"]
    assert server.keys == [None, None]


def test_the_prompt_may_name_columns_and_hold_other_braces(server: Server) -> None:
    judge = make(server, prompt='{response} vs {answer}: reply {"score": 1}')
    judge(["p"], ["{not_a_column}"], answer=[4])
    assert server.asked[0]["messages"][0]["content"] == '{not_a_column} vs 4: reply {"score": 1}'
    with pytest.raises(
        TelescopeError, match=r"the judge's prompt has \{answer\}; there are prompt"
    ):
        judge(["p"], ["r"])


def test_the_same_question_is_asked_once_also_after_a_restart(
    server: Server, tmp_path: Path
) -> None:
    cache = str(tmp_path / "judge.jsonl")
    first = make(server, cache=cache)
    assert first(["p", "p"], ["fine", "fine"])[0] == [0.8, 0.8]
    assert first(["p"], ["fine"])[1]["asked"] == 0.0
    with open(cache, "a") as file:
        file.write('{"key": "cut by a cr')
    again = make(server, cache=cache)
    assert again(["p"], ["fine"])[0] == [0.8]
    assert len(server.asked) == 1
    assert make(server, cache=cache, max_tokens=9)(["p"], ["fine"])[1]["asked"] == 1.0


def test_the_key_comes_from_the_environment_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TelescopeError, match="the environment has no JUDGE_KEY: set it"):
        make(server, key="JUDGE_KEY")
    with pytest.raises(TelescopeError, match="not the key") as refused:
        make(server, key="sk-12345")
    assert "12345" not in str(refused.value)
    monkeypatch.setenv("JUDGE_KEY", "secret")
    make(server, key="JUDGE_KEY")(["p"], ["r"])
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scale": 0}, "scale = 0: the number is divided by it"),
        ({"pattern": "("}, "'(' is not a regular expression"),
        ({"cache": "/nowhere/judge.jsonl"}, "there is no folder /nowhere"),
        ({"url": "localhost:8000/v1"}, "url = 'localhost:8000/v1': begin it with http:// or"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TelescopeError, match=re.escape(reason)):
        Judge(**{"url": "http://127.0.0.1:1", "model": "m", "key": "", **options})


def test_a_busy_judge_is_asked_again_after_the_pause_it_asks_for(
    server: Server, pauses: list[float]
) -> None:
    server.failures = 2
    judge = make(server)
    assert judge(["p"], ["fine"])[0] == [0.8]
    assert pauses == [7.0, 7.0]
    assert len(judge.trouble) == 2
    assert "HTTP 429 Too Many Requests" in judge.trouble[0]


def test_requests_keep_to_the_rate(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(judge_module.time, "sleep", slept.append)
    monkeypatch.setattr(judge_module.time, "monotonic", lambda: 100.0)
    make(server, requests_per_minute=30)(["a", "b", "c"], ["x", "y", "z"])
    assert sorted(slept) == [0.0, 2.0, 4.0]


def test_a_reply_without_a_number_scores_otherwise_and_is_told(server: Server) -> None:
    server.reply = lambda question: "I would rather not say."  # type: ignore[method-assign]
    judge = make(server, otherwise=-0.5)
    scores, metrics = judge(["p"], ["r"])
    assert (scores, metrics["unread"]) == ([-0.5], [1.0])
    assert "replied without a number" in judge.trouble[0]


def test_a_server_that_is_no_judge_is_named(server: Server) -> None:
    server.http.RequestHandlerClass.do_POST = lambda self: (  # type: ignore[attr-defined]
        self.send_response(200), self.end_headers(), self.wfile.write(b"hello")
    )  # fmt: skip
    with pytest.raises(TelescopeError, match="answered b'hello', which is not a chat completion"):
        make(server)(["p"], ["r"])


def test_a_run_trains_on_a_judge(
    server: Server, make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    options = f"{{judge = {{url = '{server.url}', model = 'm', key = 'JUDGE_KEY', scale = 2}}}}"
    trainer = Trainer(
        make_config(
            ("reward.functions", "judge"),
            ("reward.options", options),
            ("steps", "1"),
            ("eval.samples", "1"),
            ("eval.prompts", "1"),
        )
    )
    metrics = trainer.fit()
    assert metrics["reward/judge"] == 1.0
    assert metrics["reward/judge/unread"] == 0.0
    assert "secret" not in (trainer.config.run_dir / "config.toml").read_text("utf-8")
