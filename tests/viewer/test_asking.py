"""The page's question box: the address that answers it, and the box in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.viewer.fake import fake_run

pytest.importorskip("uvicorn", reason="the live page needs uvicorn")
pytest.importorskip("starlette", reason="the live page needs starlette")

from tests.viewer.test_server import ask, start

WHERE = "/api/runs/run/steps/40/samples/0/ask"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    server, port = start(fake_run(tmp_path_factory.mktemp("asked") / "run"))
    yield port
    server.should_exit = True


def asked(port: int, **query: Any) -> tuple[int, dict[str, Any]]:
    status, _, body = ask(port, f"{WHERE}?{urlencode(query, doseq=True)}")
    return status, json.loads(body)


def test_a_question_is_answered_about_the_sample(port: int) -> None:
    status, reply = asked(port, text="why not simply A = δ", token=3)
    assert status == 200
    assert reply["answered"] == "q12"
    assert "0.102" in reply["text"]
    assert set(reply["titles"]) == set(reply["nearest"])


def test_a_follow_up_builds_on_what_was_asked_before(port: int) -> None:
    _, reply = asked(port, text="λ=1 呢？", after=["why not simply A = δ"])
    assert (reply["answered"], reply["changed"], reply["lang"]) == ("q12", {"lam": 1.0}, "zh")


def test_a_question_without_an_answer_offers_three(port: int) -> None:
    status, reply = asked(port, text="how do I cook pasta")
    assert (status, reply["answered"], len(reply["titles"])) == (200, None, 3)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"text": " "},
        {"text": "x" * 301},
        {"text": "why", "after": ["x" * 301]},
        {"text": "why", "after": ["x"] * 7},
        {"text": "why", "token": "-1"},
        {"text": "why", "token": "²"},
        {"text": "why", "level": "wise"},
        {"text": "why", "lang": "fr"},
    ],
)
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_what_cannot_be_read_is_a_400_with_a_reason(
    port: int, query: dict[str, Any], lang: str
) -> None:
    status, reply = asked(port, **({"lang": lang} | query))
    assert status == 400
    in_chinese = query.get("lang", lang) == "zh"
    assert bool(re.search("[一-鿿]", reply["error"])) == in_chinese


@pytest.mark.parametrize(("lang", "said"), [("zh", "第 40 步记录了"), ("en", "step 40 has")])
def test_an_error_about_the_sample_is_in_the_language_of_the_page(
    port: int, lang: str, said: str
) -> None:
    path = WHERE.replace("samples/0", "samples/999")
    status, _, body = ask(port, f"{path}?text=why&lang={lang}")
    assert status == 404
    assert said in json.loads(body)["error"]


def test_a_foreign_host_and_other_methods_are_refused(port: int) -> None:
    path = f"{WHERE}?text=why"
    assert ask(port, path, Host="evil.example")[0] == 421
    assert ask(port, path, "POST")[0] == 405


def test_hostile_text_comes_back_as_data(port: int) -> None:
    status, reply = asked(port, text="<script>alert(1)</script>")
    assert (status, reply["answered"]) == (200, None)


def test_a_question_about_the_run_is_answered_with_its_metrics(port: int) -> None:
    _, reply = asked(port, text="is it learning?")
    assert reply["answered"] == "run:learning"
    assert re.search(r"from [\d.−]+ \(step \d+\) (up|down) to [\d.−]+ \(step \d+\)", reply["text"])
    assert set(reply["titles"]) == set(reply["nearest"])
