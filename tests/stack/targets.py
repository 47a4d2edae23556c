"""An HTTP server on loopback that answers as it is told by the path, and remembers what it got."""

import http.server
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


class Target:
    """``/status/404``, ``/first/500/200`` (the first request 500, then 200), ``/slow/3``,
    ``/fails/2`` (twice 500, then 200), ``/redirect``, ``/later/429/2`` (the first 429 with ``Retry-After: 2``, then 200), ``/echo``.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._times: Counter[str] = Counter()
        target = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                target.answer(self, body)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, path: str) -> list[Received]:
        return [each for each in self.received if each.path == path]

    def answer(self, request: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        path = request.path
        headers = {name.lower(): value for name, value in request.headers.items()}
        self._times[path] += 1
        first = self._times[path] == 1
        self.received.append(Received(request.command, path, headers, body, time.time()))
        match path.strip("/").split("/"):
            case ["status", code]:
                self._send(request, int(code), {})
            case ["first", once, then]:
                self._send(request, int(once if first else then), {})
            case ["fails", times]:
                self._send(request, 500 if self._times[path] <= int(times) else 200, {})
            case ["later", code, seconds]:
                more = {"Retry-After": seconds} if first else {}
                self._send(request, int(code) if first else 200, {}, **more)
            case ["slow", seconds]:
                time.sleep(float(seconds))
                self._send(request, 200, {})
            case ["redirect"]:
                self._send(request, 302, {}, Location=f"{self.base}/status/200")
            case _:
                self._send(request, 200, {"got": json.loads(body) if body else None})

    def _send(
        self, request: http.server.BaseHTTPRequestHandler, status: int, body: Any, **headers: str
    ) -> None:
        raw = json.dumps(body).encode()
        try:
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(raw)))
            request.end_headers()
            request.wfile.write(raw)
        except OSError:
            pass  # who asked has gone
