from __future__ import annotations

import builtins
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from telescope.errors import TelescopeError
from telescope.explain.trace import traces
from telescope.ledger import samples
from telescope.viewer.runs import Runs
from telescope.viewer.server import HEADERS, app, serve
from telescope.viewer.static_files import media_type, static_files
from tests.viewer.fake import fake_run

STEP = "/api/runs/run/steps/40"
NUMBERS = ("result", "recorded")

uvicorn = pytest.importorskip(
    "uvicorn", reason="the live page needs uvicorn: pip install starlette uvicorn"
)
pytest.importorskip(
    "starlette", reason="the live page needs starlette: pip install starlette uvicorn"
)


def start(run: Path, token: str | None = None, *, modules: bool = True) -> tuple[Any, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(
            app(Runs(run), names={"127.0.0.1"}, port=port, token=token, modules=modules),
            log_level="error",
        )
    )
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server, port


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    server, port = start(fake_run(tmp_path_factory.mktemp("live") / "run"))
    yield port
    server.should_exit = True


def ask(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


@pytest.mark.parametrize(
    "path",
    ["/", "/app.js", "/css/base.css", "/api/runs", f"{STEP}/samples/0", "/api/no", "/nothing"],
)
def test_every_answer_carries_the_security_headers(port: int, path: str) -> None:
    _, headers, _ = ask(port, path)
    assert {k.lower(): headers.get(k.lower()) for k in HEADERS} == {
        k.lower(): v for k, v in HEADERS.items()
    }
    assert "unsafe" not in headers["content-security-policy"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "",
    ],
)
def test_a_foreign_host_header_is_refused(port: int, host: str) -> None:
    assert ask(port, "/api/runs", Host=host.format(port=port))[0] in (400, 421)


def test_localhost_is_the_same_page(port: int) -> None:
    assert ask(port, "/", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_only_get_is_answered(port: int, method: str) -> None:
    assert ask(port, "/api/runs", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../metrics.jsonl",
        "/%2e%2e/metrics.jsonl",
        "/static/../server.py",
        "/core/../../server.py",
        "/core/",
        "/api/runs/..",
        "/api/runs/..%2frun",
        "/api/runs/%2e%2e/metrics",
        "/api/runs/.%00",
        "/api/runs/run/../../metrics.jsonl",
        "/api/runs/run/steps/..%2f40",
        "/api/runs/run/steps/-1",
        "/api/runs/run/steps/40/samples/../../../etc/passwd",
        "/metrics.jsonl",
        "//etc/passwd",
    ],
)
def test_no_path_leads_out(port: int, path: str) -> None:
    status, _, body = ask(port, path)
    assert status == 404
    assert b"reward" not in body
    assert b"root:" not in body


def json_of(port: int, path: str) -> Any:
    status, _, body = ask(port, path)
    assert status == 200, body
    return json.loads(body)


def test_samples_and_traces_come_by_number(port: int) -> None:
    index = json_of(port, STEP)["index"]
    assert [row["score"] for row in index] == [1, 0, 1, 1, 0, 1]
    assert [row["position"] for row in index] == [0, 1, 2, 3, 4, 5]
    one = json_of(port, f"{STEP}/samples/3")
    assert one["position"] == 3
    assert one["columns"]["values"][0] == 0.4
    traces = json_of(port, f"{STEP}/samples/0/tokens/3")["traces"]
    assert {trace["name"]: trace["ok"] for trace in traces}["advantage"] is True


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/other",
        "/api/runs/run/steps/41",
        f"{STEP}/samples/99",
        f"{STEP}/samples/x",
        f"{STEP}/samples/0/tokens/99",
        f"{STEP}/samples/0/tokens/²",
        "/api/runs/run/steps/" + "9" * 400,
        "/api/runs/run/steps/" + "9" * 9,
        "/api/runs/run/metrics?after=x",
        "/api/runs/run/prompts/..",
        f"{STEP}/search",
        f"{STEP}/search?text=" + "x" * 300,
        f"{STEP}/whatif?nothing=1",
        f"{STEP}/whatif?estimator=gae&gamma=2",
        f"{STEP}/whatif?estimator=gae&lam=inf",
        f"{STEP}/whatif?estimator=no",
        "/api/runs/run/steps/41/whatif?estimator=gae",
        f"{STEP}/whatif/samples/99/tokens/0?estimator=gae",
        f"{STEP}/whatif/samples/0/tokens/99?estimator=gae",
    ],
)
def test_a_wrong_number_is_a_404_with_a_reason(port: int, path: str) -> None:
    status, _, body = ask(port, path.replace("²", "%C2%B2"))
    assert status == 404
    assert json.loads(body)["error"]


def test_every_file_of_the_page_has_its_media_type_and_nothing_else_is_served(port: int) -> None:
    for path in static_files():
        status, headers, _ = ask(port, f"/{path}")
        assert status == 200
        assert headers["content-type"].split(";")[0] == media_type(path)
    assert ask(port, "/")[1]["content-type"].split(";")[0] == "text/html"
    assert ask(port, "/vendor/NOTICE")[0] == 404


def test_a_run_of_any_name_is_found_by_its_encoded_name(tmp_path: Path) -> None:
    name = "100% #1? (a)'s 训练"
    server, port = start(fake_run(tmp_path / name))
    try:
        assert json_of(port, "/api/runs")["runs"][0]["id"] == name
        assert json_of(port, f"/api/runs/{quote(name, safe='')}/steps/40")["index"]
    finally:
        server.should_exit = True


def test_a_page_for_visitors_is_three_files(tmp_path: Path) -> None:
    server, port = start(fake_run(tmp_path / "run"), modules=False)
    try:
        for path, kind in {"/": "html", "/page.css": "css", "/page.js": "javascript"}.items():
            status, headers, body = ask(port, path)
            assert status == 200
            assert headers["content-type"].split(";")[0] == f"text/{kind}"
            assert len(body) > 300
        assert ask(port, "/app.js")[0] == 404
    finally:
        server.should_exit = True


def test_answers_are_compressed_for_a_browser_that_takes_it(port: int) -> None:
    _, plain_headers, plain = ask(port, STEP)
    _, headers, small = ask(port, STEP, **{"Accept-Encoding": "gzip, br"})
    assert "content-encoding" not in plain_headers
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    assert len(small) < len(plain) / 2
    assert gzip.decompress(small) == plain


def test_many_visitors_at_once_get_the_same_answers(port: int) -> None:
    paths = [STEP, f"{STEP}/columns", f"{STEP}/samples/0", f"{STEP}/samples/1/tokens/2"]
    alone = {path: ask(port, path)[2] for path in paths}
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda i: (i, ask(port, paths[i % 4])), range(200)))
    for i, (status, _, body) in answers:
        assert status == 200
        assert body == alone[paths[i % 4]]


@pytest.mark.parametrize("token", ["s3cret", "密码 ;é"])
def test_with_a_token_nothing_is_shown_without_it(token: str, tmp_path: Path) -> None:
    server, port = start(fake_run(tmp_path / "run"), token=token)
    try:
        assert ask(port, "/api/runs")[0] == ask(port, "/?token=wrong")[0] == 403
        status, headers, _ = ask(port, f"/?token={quote(token)}")
        assert (status, headers["location"]) == (303, "/")
        assert "httponly" in headers["set-cookie"].lower()
        assert "samesite=strict" in headers["set-cookie"].lower()
        assert ask(port, "/api/runs", Cookie=headers["set-cookie"].split(";")[0])[0] == 200
    finally:
        server.should_exit = True


def test_another_host_than_loopback_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="--token"):
        serve(tmp_path, host="0.0.0.0")


def test_without_uvicorn_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__
    monkeypatch.setattr(
        builtins,
        "__import__",
        lambda name, *rest: (
            (_ for _ in ()).throw(ImportError) if name == "uvicorn" else real(name, *rest)
        ),
    )
    with pytest.raises(TelescopeError, match=r"starlette uvicorn"):
        serve(tmp_path)


def test_page_and_explain_show_the_same_traces(port: int, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    for position, one in enumerate(samples(run, 40)):
        for t in range(len(one)):
            explained = [trace.to_json() for trace in traces(one, t)]
            live = json_of(port, f"{STEP}/samples/{position}/tokens/{t}")["traces"]
            for found, same in zip(live, explained, strict=True):
                for key, value in same.items():
                    assert found[key] == (pytest.approx(value) if key in NUMBERS else value)
