"""The same page live beside a running job. GET only, loopback unless a token is given, ids instead of paths."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import threading
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from telescope.errors import TelescopeError
from telescope.viewer.payload import RunData, dumps, page_sample, page_traces
from telescope.viewer.report import SCRIPTS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_SAMPLES = 16
"""Samples per request."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(run: Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
    """Serves `run` until it is stopped; port 0 takes a free one. Any other host than loopback needs a token."""
    try:
        import uvicorn
    except ImportError:
        raise TelescopeError(
            "the live page needs Starlette and uvicorn: pip install starlette uvicorn"
        ) from None
    if token is None and not _is_loopback(host):
        raise TelescopeError(
            f"host {host} can be reached from other machines: pass --token SECRET, or leave the host at 127.0.0.1"
        )
    data = RunData(Path(run))
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise TelescopeError(
            f"cannot listen on {host}:{port} ({error}): choose another --port, or 0 for a free one"
        ) from None
    threading.Thread(target=_warm_up, args=(data,), daemon=True).start()
    with listener:
        port = listener.getsockname()[1]
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        print(
            f"http://{shown}:{port}/"
            + (f"?token={quote(token)}" if token else "")
            + "   (Ctrl-C stops it)",
            flush=True,
        )
        uvicorn.Server(
            uvicorn.Config(app(data, names={host}, port=port, token=token), log_level="warning")
        ).run(sockets=[listener])


def app(data: RunData, *, names: set[str], port: int, token: str | None = None) -> Any:
    """The ASGI application. `names`: hosts that a request may name in its Host header, besides loopback's own names."""
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import RedirectResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise TelescopeError(
            "the live page needs Starlette and uvicorn: pip install starlette uvicorn"
        ) from None

    def asset(name: str, media_type: str) -> Callable[[Request], Response]:
        content = (files("telescope.viewer") / "static" / name).read_bytes()
        return lambda _: Response(content, media_type=media_type)

    def json(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
        def endpoint(
            request: Request,
        ) -> Response:  # not async: Starlette runs it in a thread, so that reading blocks nobody
            try:
                return Response(dumps(make(request)), media_type="application/json")
            except TelescopeError as error:
                return Response(dumps({"error": str(error)}), 404, media_type="application/json")

        return endpoint

    def samples(request: Request) -> Any:
        step, wanted = request.path_params["step"], request.query_params.get("ids")
        if wanted is None:
            return {"index": data.index(step)}
        return {
            "samples": [page_sample(data.sample(step, i)) | {"position": i} for i in _ids(wanted)]
        }

    def sample(request: Request) -> Any:
        step, position = request.path_params["step"], request.path_params["sample"]
        found = data.sample(step, position)
        if (t := request.query_params.get("t")) is not None:
            words: dict[str, Any] = {}
            return {"traces": page_traces(found, _ids(t)[0], words), "words": words}
        return page_sample(found) | {"position": position}

    routes = {
        "/": asset("index.html", "text/html"),
        "/page.css": asset("page.css", "text/css"),
        **{f"/{name}": asset(name, "text/javascript") for name in SCRIPTS},
        "/api/run": json(lambda _: data.info()),
        "/api/prompt/{key}": json(
            lambda request: {"steps": data.steps_of_prompt(request.path_params["key"])}
        ),
        "/api/step/{step:int}/samples": json(samples),
        "/api/step/{step:int}/sample/{sample:int}": json(sample),
    }
    inner = Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes.items()]
    )
    hosts = {
        f"{f'[{name}]' if ':' in name else name}:{port}"
        for name in names | {"127.0.0.1", "localhost", "::1"}
    }
    cookie = f"telescope_{port}"

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await inner(scope, receive, send)
            return
        request, response = Request(scope), None
        here = scope.get("server") or (
            "",
            None,
        )  # where the connection came in: right for a wildcard host too
        if request.headers.getlist("host") not in ([h] for h in hosts | {f"{here[0]}:{here[1]}"}):
            response = Response("this page answers only to its own address", 421)
        elif request.method != "GET":
            response = Response("GET only", 405, {"Allow": "GET"})
        elif (
            token is not None
            and scope["path"] == "/"
            and _same(request.query_params.get("token"), token)
        ):
            response = RedirectResponse("/", 303)
            response.set_cookie(cookie, token, httponly=True, samesite="strict")
        elif token is not None and not _same(request.cookies.get(cookie), token):
            response = Response("open the address with ?token=… that `telescope view` printed", 403)

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((k.lower().encode(), v.encode()) for k, v in HEADERS.items()),
                ]
            await send(message)

        await (response or inner)(scope, receive, send_safely)

    return guarded


def _warm_up(data: RunData) -> None:
    """Reads the step that the page will ask for first, while the browser is still opening."""
    with contextlib.suppress(TelescopeError):
        for step in data.steps()[-1:]:
            data.index(step)


def _ids(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) > MAX_SAMPLES or not all(
        part.isascii() and part.isdigit() and len(part) < 10 for part in parts
    ):
        raise TelescopeError(f"ids are up to {MAX_SAMPLES} numbers with commas between them")
    return [int(part) for part in parts]


def _same(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), token.encode())


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
