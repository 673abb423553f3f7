from __future__ import annotations

import builtins
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from telescope.errors import TelescopeError
from telescope.explain.trace import traces
from telescope.ledger import samples
from telescope.viewer.report import write_report
from telescope.viewer.run_data import RunData
from telescope.viewer.server import HEADERS, app, serve
from tests.viewer.fake import fake_run

uvicorn = pytest.importorskip(
    "uvicorn", reason="the live page needs uvicorn: pip install starlette uvicorn"
)
pytest.importorskip(
    "starlette", reason="the live page needs starlette: pip install starlette uvicorn"
)


def start(run: Path, token: str | None = None) -> tuple[Any, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(
            app(RunData(run), names={"127.0.0.1"}, port=port, token=token), log_level="error"
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
    "path", ["/", "/page.js", "/page.css", "/api/run", "/api/step/40/samples", "/nothing"]
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
    assert ask(port, "/api/run", Host=host.format(port=port))[0] in (400, 421)


def test_localhost_is_the_same_page(port: int) -> None:
    assert ask(port, "/", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_only_get_is_answered(port: int, method: str) -> None:
    assert ask(port, "/api/run", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../metrics.jsonl",
        "/%2e%2e/metrics.jsonl",
        "/static/../server.py",
        "/page.js/../../server.py",
        "/api/step/..%2f40/samples",
        "/api/step/-1/samples",
        "/api/step/40/sample/../../../etc/passwd",
        "/metrics.jsonl",
        "//etc/passwd",
    ],
)
def test_no_path_leads_out(port: int, path: str) -> None:
    status, _, body = ask(port, path)
    assert status == 404
    assert b"reward" not in body
    assert b"root:" not in body


def test_samples_and_traces_come_by_number(port: int) -> None:
    index = json.loads(ask(port, "/api/step/40/samples")[2])["index"]
    assert [row["score"] for row in index] == [1, 0, 1, 1, 0, 1]
    two = json.loads(ask(port, "/api/step/40/samples?ids=3,0")[2])["samples"]
    assert [one["position"] for one in two] == [3, 0]
    assert json.loads(ask(port, "/api/step/40/sample/0")[2])["columns"]["values"][0] == 0.4
    answer = json.loads(ask(port, "/api/step/40/sample/0?t=3")[2])
    assert {trace["name"]: trace["ok"] for trace in answer["traces"]}["advantage"] is True


def test_a_what_if_is_recomputed_and_explained(port: int) -> None:
    path = "/api/step/40/whatif?estimator=gae&gamma=1&lam=0&ids=0,3"
    samples = json.loads(ask(port, path)[2])["samples"]
    assert [one["position"] for one in samples] == [0, 3]
    columns = samples[0]["columns"]
    assert set(columns) == {"deltas", "advantages", "returns", "whitened"}
    assert (
        columns["advantages"]
        == columns["deltas"]
        == pytest.approx([0.135, 0.01, 0.041, 0.102, 0.161, 0.05, 0.07])
    )
    assert samples[0]["weights"] == [1.0]
    terms = json.loads(ask(port, f"{path}&sample=0&t=3")[2])["terms"]
    assert {term["name"]: term["result"] for term in terms}["advantage"] == pytest.approx(0.102)


@pytest.mark.parametrize(
    "path",
    [
        "/api/step/41/samples",
        "/api/step/40/sample/99",
        "/api/step/40/samples?ids=x",
        "/api/step/40/samples?ids=-1",
        "/api/step/40/sample/0?t=99",
        "/api/step/40/samples?ids=" + "1," * 500 + "1",
        "/api/step/40/sample/0?t=²",
        "/api/step/" + "9" * 400 + "/samples",
        "/api/step/40/whatif",
        "/api/step/40/whatif?estimator=gae&ids=0&gamma=2",
        "/api/step/40/whatif?estimator=gae&ids=0&lam=inf",
        "/api/step/40/whatif?estimator=no&ids=0",
        "/api/step/40/whatif?estimator=gae&ids=99",
        "/api/step/41/whatif?estimator=gae&ids=0",
        "/api/step/40/whatif?estimator=gae&ids=" + "0," * 300 + "0",
        "/api/step/40/whatif?estimator=gae&ids=0&sample=1&t=0",
        "/api/step/40/whatif?estimator=gae&ids=0&sample=0&t=99",
        "/api/step/40/whatif?estimator=gae&ids=0&t=0",
    ],
)
def test_a_wrong_number_is_a_404_with_a_reason(port: int, path: str) -> None:
    status, _, body = ask(port, path.replace("²", "%C2%B2"))
    assert status == 404
    assert json.loads(body)["error"]


def test_with_a_token_nothing_is_shown_without_it(tmp_path: Path) -> None:
    server, port = start(fake_run(tmp_path / "run"), token="s3cret")
    try:
        assert ask(port, "/api/run")[0] == ask(port, "/?token=wrong")[0] == 403
        status, headers, _ = ask(port, "/?token=s3cret")
        assert (status, headers["location"]) == (303, "/")
        assert "httponly" in headers["set-cookie"].lower()
        assert "samesite=strict" in headers["set-cookie"].lower()
        assert ask(port, "/api/run", Cookie=headers["set-cookie"].split(";")[0])[0] == 200
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


def test_page_report_and_explain_show_the_same_traces(port: int, tmp_path: Path) -> None:
    html = write_report(fake_run(tmp_path / "run"), tmp_path / "r.html").read_text("utf-8")
    data = json.loads(html.split('id="data">')[1].split("</script>")[0])
    for position, one in enumerate(samples(tmp_path / "run", 40)):
        for t in range(len(one)):
            explained = [trace.to_json() for trace in traces(one, t)]
            live = json.loads(ask(port, f"/api/step/40/sample/{position}?t={t}")[2])["traces"]
            written = data["steps"]["40"]["samples"][position]["traces"][str(t)]
            assert live == written
            assert [{k: v for k, v in trace.items() if k != "words"} for trace in live] == explained
