"""The same page live beside a running job.

It answers GET only, listens on loopback unless a token is given, and takes numbers, not paths.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import hmac
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from telescope.chinese import chinese
from telescope.errors import TelescopeError
from telescope.viewer.api import Api
from telescope.viewer.asking import BadRequestError
from telescope.viewer.bundle import bundled_files
from telescope.viewer.payload import dumps
from telescope.viewer.runs import Runs
from telescope.viewer.static_files import media_type, static_files

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COMPRESSION = 4
"""Level of gzip: the higher ones take longer than they save."""
LARGE = 300_000
"""Bytes of an answer that is mostly numbers: it is compressed at level 1."""
LEAST_COMPRESSED = 1_000
"""Bytes of an answer that is worth compressing."""
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


def serve(
    run: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    address: str = "",
) -> None:
    """Serves a run, or a folder of runs, until it is stopped. Port 0 takes a free one.

    Any host but loopback needs a token. `address`: which part of the page is printed.
    """
    try:
        import uvicorn
    except ImportError:
        raise TelescopeError(_INSTALL) from None
    if token is not None and not token.strip():
        raise TelescopeError("--token is empty, which would let everybody in: give a secret")
    if token is None and not _is_loopback(host):
        raise TelescopeError(
            f"host {host} can be reached from other machines: "
            "pass --token SECRET, or leave the host at 127.0.0.1"
        )
    runs = Runs(Path(run))
    listener = _listen(host, port)
    threading.Thread(target=_warm_up, args=(runs,), daemon=True).start()
    with listener:
        port = listener.getsockname()[1]
        print(f"{_address(host, port, token)}{address}   (Ctrl-C stops it)", flush=True)
        page = app(runs, names={host}, port=port, token=token)
        uvicorn.Server(uvicorn.Config(page, log_level="warning")).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # before its address is printed
    except (OSError, OverflowError) as error:
        listener.close()
        raise TelescopeError(
            f"cannot listen on {host}:{port} ({error}): choose another --port, or 0 for a free one"
        ) from None
    return listener


def _address(host: str, port: int, token: str | None) -> str:
    if host in ("0.0.0.0", "::"):  # noqa: S104 -- compared, not bound
        host = "127.0.0.1"
    query = f"?token={quote(token)}" if token else ""
    return f"http://{_in_address(host)}:{port}/{query}"


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _warm_up(runs: Runs) -> None:
    """Reads what the page will ask for first, while the browser is still opening."""
    with contextlib.suppress(TelescopeError):
        runs.listing()
        if runs.single:
            runs.first().header()


# ---- what is asked ----


def app(
    runs: Runs,
    *,
    names: set[str],
    port: int,
    token: str | None = None,
    modules: bool = False,
) -> App:
    """The ASGI application.

    `names`: hosts that a request may name in its Host header, besides those of loopback.
    `modules`: serve the page's modules one by one, to work on them. A browser takes four times as
    long to open a hundred files as to open one.
    """
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise TelescopeError(_INSTALL) from None

    api = Api(runs)

    def json(request: Request) -> Response:
        # Not async: Starlette runs it in a thread, so that reading a file blocks nobody.
        try:
            query = request.scope["query_string"].decode("latin-1")
            body = dumps(api.answer(request.scope["path"], query))
        except TelescopeError as error:
            said = str(error)
            if request.query_params.get("lang") == "zh":
                said = chinese(said)
            status = 400 if isinstance(error, BadRequestError) else 404
            return _answer(request, dumps({"error": said}), "application/json", status)
        return _answer(request, body, "application/json")

    files = static_files() if modules else bundled_files()

    def asset(address: str, path: str) -> Route:
        media = media_type(path) or ""
        return Route(address, lambda request: _answer(request, files[path], media))

    assets = [asset(f"/{path}", path) for path in files]
    inner = Starlette(routes=[asset("/", "index.html"), *assets, Route("/api/{path:path}", json)])
    hosts = {f"{_in_address(name)}:{port}" for name in names | {"127.0.0.1", "localhost", "::1"}}
    return _guarded(inner, hosts, port, token)


def _answer(request: Request, body: bytes, media_type: str, status: int = 200) -> Response:
    """A response, compressed where that helps and the browser takes it."""
    from starlette.responses import Response

    headers = {"Vary": "Accept-Encoding"}
    accepted = request.headers.get("accept-encoding", "")
    if len(body) >= LEAST_COMPRESSED and "gzip" in accepted:
        body = gzip.compress(body, COMPRESSION if len(body) < LARGE else 1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, media_type)


# ---- who may ask ----


def _guarded(inner: App, hosts: set[str], port: int, token: str | None) -> App:
    """Refuses foreign hosts, other methods than GET, and requests without the token."""
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response

    cookie = f"telescope_{port}"
    proof = hashlib.sha256((token or "").encode()).hexdigest()  # a cookie holds Latin-1 only

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
            welcome.set_cookie(cookie, proof, httponly=True, samesite="strict")
            return welcome
        if _same(request.cookies.get(cookie), proof):
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
