from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from telescope.errors import TelescopeError
from telescope.explain.ask.checking import foreign_number, moved_number
from telescope.explain.ask.llm import Endpoint, reworded
from telescope.explain.example import RIGHT as EXAMPLE
from telescope.explain.questions import answer, questions

OURS = "Token 3: δ = 0.14, A = 0.3977, R = 0.9477. λ = 0.95, and −0.018 is the penalty (12.5 %)."


@pytest.mark.parametrize(
    "text",
    [
        "δ is 0.14 and A is 0.3977.",
        "A is about 0.40, or 0.4.",
        "A ≈ .398 for token 3",
        "the penalty is -0.018, roughly −0.02",
        "R is 95 % of what it could be, i.e. 94.8%",
        "no numbers at all",
        "λ² is not mentioned, three is token 3",
    ],
)
def test_our_numbers_and_their_roundings_pass(text: str) -> None:
    assert foreign_number(text.replace("λ²", "λ squared"), OURS) is None


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("A is 0.41", "0.41"),
        ("A is 0.39", "0.39"),
        ("the penalty is 0.018", "0.018"),
        ("δ = -0.14", "-0.14"),
        ("token 4 has more", "4"),
        ("50 % of the credit", "50 %"),
        ("seven tokens share it", "seven"),
        ("一共七个词", "七"),
        ("1e-3 is small", "1e-3"),
        ("0.95² of it", "²"),
    ],
)
def test_any_other_number_is_found(text: str, foreign: str) -> None:
    found = foreign_number(text, OURS)
    assert found is not None
    if foreign != "²":
        assert found == foreign


FACTS = """Token 0: δ = 0.11, λ = 0.95 and A = 0.3866; R[0] = A[0] + V[0] = 0.3866 + 0.5 = 0.8866.
  i  token     V       δ       A
  0  是      0.5    0.11  0.3866
  3  等于   0.55    0.14  0.3977"""


@pytest.mark.parametrize(
    "text",
    [
        "A is 0.3866 and δ is 0.11.",
        "A 是 0.39，δ 等于 0.11",
        "A₀ = 0.3866, and A[3] = 0.3977",
        "the advantage of token 3 is 0.3977, its TD error 0.14",
        "with a λ of 0.95 (95 %)",
        "R = 0.3866 + 0.5 = 0.8866",
        "adding 0.3866 and 0.5 gives 0.8866",
        "V before token 0 is 0.5",
    ],
)
def test_a_number_that_stays_with_its_quantity_passes(text: str) -> None:
    assert moved_number(text, FACTS) is None
    assert foreign_number(text, FACTS) is None


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("A is 0.11 and δ is 0.3866", "A is 0.11"),
        ("δ is 0.11, but A is only 0.11", "A is only 0.11"),
        ("A 是 0.11", "A 是 0.11"),
        ("A[3] = 0.3866", "A[3] = 0.3866"),
        ("A₃ = 0.3866", "A[3] = 0.3866"),
        ("the advantage of token 3 is 0.3866", "advantage of token 3 is 0.3866"),
        ("a λ of 0.5", "λ of 0.5"),
        ("优势是 0.5", "优势是 0.5"),
        ("R = A + V = 0.3866", "R = 0.3866"),
        ("A 0.11, δ 0.3866", "A 0.11"),
        ("ρ is 0.95", "ρ is 0.95"),
    ],
)
def test_a_number_given_to_another_quantity_is_found(text: str, moved: str) -> None:
    assert foreign_number(text, FACTS) is None
    assert moved_number(text, FACTS) == moved


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("level", ["expert", "kid"])
def test_our_own_answers_pass_their_own_check(lang: Any, level: Any) -> None:
    for key in questions():
        text = answer(key, EXAMPLE, lang, level).text()
        assert foreign_number(text, text) is None, key
        assert moved_number(text, text) is None, key


def test_swapped_numbers_are_not_shown(model: Any) -> None:
    handler, url = model
    handler.reply = "A is 0.11 and δ is 0.3866."
    shown = reworded(Endpoint(url, "m"), "why?", FACTS, "en")
    assert shown.endswith(FACTS)
    assert "A is 0.11" in shown.splitlines()[0]


class _Model(BaseHTTPRequestHandler):
    reply: Any = "A is 0.4."
    status = 200
    seen: dict[str, Any]

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        type(self).seen = {
            "path": self.path,
            "key": self.headers.get("Authorization"),
            **json.loads(self.rfile.read(length)),
        }
        body = self.reply
        if isinstance(body, str):
            body = json.dumps({"choices": [{"message": {"content": body}}]}).encode()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[tuple[type[_Model], str]]:
    handler = type("Handler", (_Model,), {})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_wording_with_our_numbers_is_shown(model: Any, monkeypatch: Any) -> None:
    handler, url = model
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert reworded(Endpoint(url, "m"), "why?", OURS, "en") == "A is 0.4."
    assert handler.seen["path"] == "/v1/chat/completions"
    assert handler.seen["model"] == "m"
    assert handler.seen["key"] == "Bearer k"
    sent = json.dumps(handler.seen["messages"], ensure_ascii=False)
    assert OURS in sent
    assert "why?" in sent


def test_a_wording_with_another_number_is_not(model: Any) -> None:
    handler, url = model
    handler.reply = "A is 0.7."
    shown = reworded(Endpoint(f"{url}/v1", "m"), "why?", OURS, "en")
    assert shown.endswith(OURS)
    assert "0.7" in shown.splitlines()[0]


def test_control_characters_of_a_wording_are_dropped(model: Any) -> None:
    handler, url = model
    handler.reply = "\x1b[31mA is 0.4\u202e.\nMore."
    shown = reworded(Endpoint(url, "m"), "why?", OURS, "en")
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (b"oops", 500, "HTTP 500"),
        (b"oops", 200, "not a chat completion"),
        (b'{"choices": []}', 200, "not a chat completion"),
        ("  ", 200, "an empty reply"),
    ],
)
def test_a_server_that_fails_costs_one_line(
    model: Any, reply: Any, status: int, reason: str
) -> None:
    handler, url = model
    handler.reply = reply
    handler.status = status
    first, rest = reworded(Endpoint(url, "m"), "why?", OURS, "en").split("\n", 1)
    assert reason in first
    assert rest == OURS


def test_a_server_that_is_not_there_costs_one_line() -> None:
    shown = reworded(Endpoint("http://127.0.0.1:9", "m", timeout=2), "为什么", OURS, "zh")
    assert shown.splitlines()[1] == OURS


def test_other_addresses_than_http_are_refused() -> None:
    with pytest.raises(TelescopeError, match="http"):
        reworded(Endpoint("file:///etc/passwd", "m"), "why?", OURS, "en")
