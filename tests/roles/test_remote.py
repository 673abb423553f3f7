"""Rewards over HTTP, against a server in a thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from telescope import Trainer
from telescope.errors import TelescopeError
from telescope.rewards import remote
from telescope.rewards.remote import RemoteReward, remote_reward
from telescope.roles.reward import Reward
from telescope.run.summary import warnings
from tests.fakes import hand_batch

Answers = list[Callable[[dict[str, Any]], tuple[int, bytes]]]


def scores(value: Any) -> Callable[[dict[str, Any]], tuple[int, bytes]]:
    return lambda asked: (200, json.dumps(value).encode())


def fails(code: int) -> Callable[[dict[str, Any]], tuple[int, bytes]]:
    return lambda asked: (code, b"no")


def slow(asked: dict[str, Any]) -> tuple[int, bytes]:
    time.sleep(0.6)
    return 200, b"[1.0]"


class Server:
    """Gives one answer after the other, the last for good, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: Answers = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.headers.append(dict(self.headers))
                outer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                code, body = answer(outer.asked[-1])
                try:
                    self.send_response(code)
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # nobody waits any more

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/score"
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, which tests do not make."""
    made: list[float] = []
    monkeypatch.setattr(
        remote.time, "sleep", lambda s: made.append(s) if s >= 1 else threading.Event().wait(s)
    )
    return made


def ask(
    server: Server, *answers: Any, timeout: float = 5.0, retries: int = 3, count: int = 1
) -> list[Any]:
    server.answers = list(answers)
    return RemoteReward(server.url, timeout=timeout, retries=retries)(["p"] * count, ["r"] * count)


def test_prompts_completions_and_columns_are_posted_and_the_scores_come_back(
    server: Server,
) -> None:
    server.answers = [scores([0.5, [0.25, 0.75]])]
    batch = hand_batch([[1, 0], [1, 1]]).with_info(data=[{"answer": "二"}, {"answer": None}])
    scored = Reward({"far": RemoteReward(server.url, timeout=5, retries=0)}).compute_reward(batch)
    assert scored["token_level_scores"].tolist() == [[0.5, 0], [0.25, 0.75]]
    (asked,) = server.asked
    assert asked["prompts"] == ["p", "p"]
    assert asked["completions"] == ["r", "r"]
    assert asked["columns"]["answer"] == ["二", None]
    assert [len(ids) for ids in asked["columns"]["response_ids"]] == [1, 2]


def test_a_server_that_fails_for_a_while_is_asked_again_with_growing_pauses(
    server: Server, waits: list[float]
) -> None:
    assert ask(server, fails(500), fails(503), fails(429), scores([2.0])) == [2.0]
    assert waits == [1.0, 2.0, 4.0]


def test_a_slow_server_is_asked_again_and_may_answer_then(server: Server) -> None:
    assert ask(server, slow, scores([3.0]), timeout=0.2) == [3.0]
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("answer", "timeout", "why"),
    [(fails(500), 5.0, "HTTP 500"), (slow, 0.1, r"no answer within 0.1 s \(reward.timeout\)")],
)
def test_after_the_last_try_the_server_is_named(
    server: Server, answer: Any, timeout: float, why: str
) -> None:
    with pytest.raises(
        TelescopeError,
        match=f"the reward server {server.url} gave no scores in 3 tries, at last: {why}",
    ):
        ask(server, answer, timeout=timeout, retries=2)
    assert len(server.asked) == 3


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(
        TelescopeError,
        match=r"the reward server http://127.0.0.1:9/x gave no scores in one try, at last: .*refused",
    ):
        RemoteReward("http://127.0.0.1:9/x?key=secret", timeout=1, retries=0)(["p"], ["r"])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (fails(404), "refused the request: HTTP 404"),
        (
            scores([1.0, 2.0]),
            "answered 2 scores for 1 responses: it should be a list with one for each",
        ),
        (scores({"scores": [1.0]}), "answered a dict for 1 responses"),
        (lambda asked: (200, b"<html>"), "answered b'<html>', which is not JSON"),
    ],
)
def test_an_answer_that_will_not_get_better_ends_the_first_try(
    server: Server, answer: Any, why: str
) -> None:
    with pytest.raises(TelescopeError, match=why) as error:
        ask(server, answer)
    assert server.url in str(error.value)
    assert len(server.asked) == 1


def test_scores_that_are_no_numbers_are_refused_as_a_functions_are(server: Server) -> None:
    server.answers = [lambda asked: (200, b"[NaN]")]
    with pytest.raises(TelescopeError, match="reward function 'far' returned nan for response 0"):
        Reward({"far": RemoteReward(server.url, timeout=5, retries=0)}).compute_reward(
            hand_batch([[1]])
        )


def test_a_column_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(
        TelescopeError, match=r"cannot be sent to the reward server http://host/x as JSON: .*bytes"
    ):
        RemoteReward("http://host/x", timeout=1, retries=0)(["p"], ["r"], image=[b"\0"])


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("https://host/v1/judge", "judge"),
        ("http://host:8000/", "host"),
        ("style=https://host/v1/judge?k=1", "style"),
    ],
)
def test_a_server_is_named_by_its_path_or_as_given(spec: str, name: str) -> None:
    found = remote_reward(spec, timeout=1, retries=0)
    assert found is not None
    assert found[0] == name


@pytest.mark.parametrize("spec", ["module:function", "file.py:function", "ftp://host/x"])
def test_other_functions_are_no_servers(spec: str) -> None:
    assert remote_reward(spec, timeout=1, retries=0) is None


def test_a_run_trains_on_a_server_by_its_address_alone(server: Server, make_config) -> None:
    server.answers = [
        lambda asked: (200, json.dumps([len(text) / 6 for text in asked["completions"]]).encode())
    ]
    metrics = Trainer(
        make_config(("reward.functions", server.url), ("reward.weights", "{score = 2.0}"))
    ).fit()
    assert metrics["reward/score_mean"] == pytest.approx(2 * metrics["reward/score"])
    assert "answer" in server.asked[0]["columns"]


def test_a_server_that_sends_a_byte_now_and_then_does_not_outlast_the_timeout() -> None:
    class Dribble(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.05)
            except OSError:
                pass  # nobody reads any more

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Dribble)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    reward = RemoteReward(f"http://127.0.0.1:{http.server_port}/", timeout=0.2, retries=0)
    with pytest.raises(TelescopeError, match=r"no answer within 0\.2 s"):
        reward(["p"], ["c"])
    http.shutdown()
    http.server_close()


def test_a_key_comes_from_the_environment_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TelescopeError, match="the environment has no SCORE_KEY"):
        remote_reward("https://host/score?key=${SCORE_KEY}", timeout=1, retries=0)
    monkeypatch.setenv("SCORE_KEY", "secret")
    found = remote_reward("https://me:pass@host/score?key=${SCORE_KEY}", timeout=1, retries=0)
    assert found is not None
    assert found[1].http.url.endswith("?key=secret")
    assert found[1].server == "the reward server https://host/score"


def test_the_body_of_a_refusal_is_shown(server: Server) -> None:
    answer = (400, b'{"detail":\n "the column answer is missing"}')
    with pytest.raises(
        TelescopeError, match=r"HTTP 400 Bad Request: .*the column answer is missing"
    ):
        ask(server, lambda asked: answer)


def test_headers_reach_the_server_with_their_key_from_the_environment(
    server: Server, make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORE_KEY", "secret")
    server.answers = [lambda asked: (200, json.dumps([0.0] * len(asked["completions"])).encode())]
    trainer = Trainer(
        make_config(
            ("reward.functions", server.url),
            ("reward.headers", "{score = {Authorization = 'Bearer ${SCORE_KEY}'}}"),
            ("steps", "0"),
        )
    )
    trainer.fit()
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert "secret" not in (trainer.config.run_dir / "config.toml").read_text("utf-8")


def test_a_key_written_into_a_header_is_warned_about(make_config) -> None:
    config = make_config(("reward.headers", "{score = {X-Api-Key = 'secret', Accept = 'a/b'}}"))
    (line,) = [each for each in warnings(config, 0, None, []) if "headers" in each]
    assert "reward.headers.score.X-Api-Key seems to be a key" in line
    assert "secret" not in line
