"""The same page live beside a running job.

It answers GET only, listens on loopback unless a token is given, and takes numbers, not paths.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from telescope.chinese import chinese
from telescope.errors import TelescopeError
from telescope.viewer.asking import BadRequestError, answer_of, read_asked
from telescope.viewer.payload import dumps, page_sample, page_term, page_traces, page_whatif
from telescope.viewer.report import SCRIPTS
from telescope.viewer.run_data import RunData
from telescope.viewer.whatif import read_whatif, token_terms, tracer_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_SAMPLES = 16
"""Samples that one request may ask for."""
MAX_WHATIF_SAMPLES = 256
"""Samples that a what-if may whiten together."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_INSTALL = "the live page needs Starlette and uvicorn: pip install starlette uvicorn"


def serve(run: Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
    """Serves `run` until it is stopped. Port 0 takes a free one.

    Any host but loopback needs a token.
    """
    try:
        import uvicorn
    except ImportError:
        raise TelescopeError(_INSTALL) from None
    if token is None and not _is_loopback(host):
        raise TelescopeError(
            f"host {host} can be reached from other machines: "
            "pass --token SECRET, or leave the host at 127.0.0.1"
        )
    data = RunData(Path(run))
    listener = _listen(host, port)
    threading.Thread(target=_warm_up, args=(data,), daemon=True).start()
    with listener:
        port = listener.getsockname()[1]
        print(f"{_address(host, port, token)}   (Ctrl-C stops it)", flush=True)
        page = app(data, names={host}, port=port, token=token)
        uvicorn.Server(uvicorn.Config(page, log_level="warning")).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise TelescopeError(
            f"cannot listen on {host}:{port} ({error}): choose another --port, or 0 for a free one"
        ) from None
    return listener


def _address(host: str, port: int, token: str | None) -> str:
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    query = f"?token={quote(token)}" if token else ""
    return f"http://{_in_address(host)}:{port}/{query}"


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _warm_up(data: RunData) -> None:
    """Reads the step that the page will ask for first, while the browser is still opening."""
    with contextlib.suppress(TelescopeError):
        for step in data.steps()[-1:]:
            data.index(step)


# ---- what is asked ----


class _Api:
    """The JSON of each address."""

    def __init__(self, data: RunData) -> None:
        self.data = data

    def run(self, request: Request) -> Any:
        return self.data.info()

    def prompt(self, request: Request) -> Any:
        return {"steps": self.data.steps_of_prompt(request.path_params["key"])}

    def samples(self, request: Request) -> Any:
        """The index of the step, or the samples in `ids`."""
        step = request.path_params["step"]
        wanted = request.query_params.get("ids")
        if wanted is None:
            return {
                "index": self.data.index(step),
                "estimators": self.data.estimators(step),
                "paths": self.data.paths(step),
            }
        return {"samples": [self._sample(step, position) for position in _ids(wanted)]}

    def sample(self, request: Request) -> Any:
        """One sample, or the traces of its token `t`."""
        step = request.path_params["step"]
        position = request.path_params["sample"]
        t = request.query_params.get("t")
        if t is None:
            return self._sample(step, position)
        words: dict[str, Any] = {}
        found = page_traces(self.data.sample(step, position), _ids(t)[0], words)
        return {"traces": found, "words": words}

    def whatif(self, request: Request) -> Any:
        """The samples in `ids` with another estimator, γ or λ, or the terms of a token of one."""
        step = request.path_params["step"]
        asked = request.query_params
        settings = self.data.settings(step)
        name = asked.get("estimator", "")
        whatif = read_whatif(settings, name, asked.get("gamma"), asked.get("lam"))
        positions = list(dict.fromkeys(_ids(asked.get("ids", ""), most=MAX_WHATIF_SAMPLES)))
        tried = self.data.whatif(step, positions, whatif)
        by_position = dict(zip(positions, tried, strict=True))
        if "t" not in asked:
            return {"samples": [page_whatif(i, sample) for i, sample in by_position.items()]}
        (position,) = _ids(asked.get("sample", ""), most=1)
        if position not in by_position:
            raise TelescopeError("the sample of a token is one of ids")
        tracer = tracer_of(by_position[position])
        return {"terms": [page_term(term) for term in token_terms(tracer, _ids(asked["t"])[0])]}

    def ask(self, request: Request) -> Any:
        """The reply to `text`, a question about the sample; `after` is what was asked before."""
        step = request.path_params["step"]
        sample = self.data.sample(step, request.path_params["sample"])
        return answer_of(
            sample, read_asked(request.query_params), lambda: self.data.samples_of(step)
        )

    def _sample(self, step: int, position: int) -> dict[str, Any]:
        return page_sample(self.data.sample(step, position)) | {"position": position}


def _ids(text: str, *, most: int = MAX_SAMPLES) -> list[int]:
    parts = text.split(",")
    numbers = all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
    if len(parts) > most or not numbers:
        raise TelescopeError(f"ids are up to {most} numbers with commas between them")
    return [int(part) for part in parts]


def app(data: RunData, *, names: set[str], port: int, token: str | None = None) -> App:
    """The ASGI application.

    `names`: hosts that a request may name in its Host header, besides those of loopback.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise TelescopeError(_INSTALL) from None

    def asset(name: str, media_type: str) -> Callable[[Request], Response]:
        content = (files("telescope.viewer") / "static" / name).read_bytes()
        return lambda _: Response(content, media_type=media_type)

    def json(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
        # Not async: Starlette runs it in a thread, so that reading a file blocks nobody.
        def endpoint(request: Request) -> Response:
            try:
                return Response(dumps(make(request)), media_type="application/json")
            except TelescopeError as error:
                said = str(error)
                if request.query_params.get("lang") == "zh":
                    said = chinese(said)
                status = 400 if isinstance(error, BadRequestError) else 404
                return Response(dumps({"error": said}), status, media_type="application/json")

        return endpoint

    api = _Api(data)
    routes = {
        "/": asset("index.html", "text/html"),
        "/page.css": asset("page.css", "text/css"),
        **{f"/{name}": asset(name, "text/javascript") for name in SCRIPTS},
        "/api/run": json(api.run),
        "/api/prompt/{key}": json(api.prompt),
        "/api/step/{step:int}/samples": json(api.samples),
        "/api/step/{step:int}/sample/{sample:int}": json(api.sample),
        "/api/step/{step:int}/sample/{sample:int}/ask": json(api.ask),
        "/api/step/{step:int}/whatif": json(api.whatif),
    }
    inner = Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes.items()]
    )
    hosts = {f"{_in_address(name)}:{port}" for name in names | {"127.0.0.1", "localhost", "::1"}}
    return _guarded(inner, hosts, port, token)


# ---- who may ask ----


def _guarded(inner: App, hosts: set[str], port: int, token: str | None) -> App:
    """Refuses foreign hosts, other methods than GET, and requests without the token."""
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response

    cookie = f"telescope_{port}"

    def refusal(request: Request) -> Response | None:
        server = request.scope.get("server") or ("", None)
        here = f"{server[0]}:{server[1]}"  # where the connection came in, for a wildcard host
        if request.headers.getlist("host") not in ([host] for host in hosts | {here}):
            return Response("this page answers only to its own address", 421)
        if request.method != "GET":
            return Response("GET only", 405, {"Allow": "GET"})
        if token is None:
            return None
        if request.scope["path"] == "/" and _same(request.query_params.get("token"), token):
            welcome = RedirectResponse("/", 303)  # without the token in the address bar
            welcome.set_cookie(cookie, token, httponly=True, samesite="strict")
            return welcome
        if _same(request.cookies.get(cookie), token):
            return None
        return Response("open the address with ?token=… that `telescope view` printed", 403)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await inner(scope, receive, send)
        if scope["type"] != "http":
            return

        async def send_safely(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        answer: App = refusal(Request(scope)) or inner
        await answer(scope, receive, send_safely)

    return guarded


def _same(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), token.encode())


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
