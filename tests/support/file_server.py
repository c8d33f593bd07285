"""A local web server with configured responses: correct, invalid, slow or missing."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    server: "FileServer"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Range"]))
        index = min(len(self.server.requests), len(self.server.responses)) - 1
        self.server.responses[index](self)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing; tests read `requests`."""


Response = Callable[[Handler], None]


class FileServer(ThreadingHTTPServer):
    """Sends its responses in order and repeats the last one."""

    def __init__(self, responses: tuple[Response, ...]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.responses = responses
        self.requests: list[tuple[str, str | None]] = []  # path and Range of each request
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/set.tar.gz"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing; tests disconnect early on purpose."""


@contextmanager
def serving(*responses: Response) -> Iterator[FileServer]:
    with FileServer(responses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()


def reply(handler: Handler, status: int, **headers: object) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()


def start_of(handler: Handler) -> int:
    requested = handler.headers["Range"]
    return int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0


def reply_from(handler: Handler, start: int, total: int) -> None:
    """The header of a response that supports ranges."""
    if start == 0:
        reply(handler, 200, Content_Length=total)
        return
    span = f"bytes {start}-{total - 1}/{total}"
    reply(handler, 206, Content_Length=total - start, Content_Range=span)


def ranged(content: bytes) -> Response:
    """A correct response."""
    return cut(content, len(content))


def cut(content: bytes, after: int) -> Response:
    """Closes the connection after `after` bytes."""

    def respond(handler: Handler) -> None:
        start = start_of(handler)
        reply_from(handler, start, len(content))
        handler.wfile.write(content[start : start + after])

    return respond


def without_ranges(content: bytes) -> Response:
    """Ignores the requested range."""

    def respond(handler: Handler) -> None:
        reply(handler, 200, Content_Length=len(content))
        handler.wfile.write(content)

    return respond


def without_length(content: bytes) -> Response:
    """Sends no Content-Length."""

    def respond(handler: Handler) -> None:
        reply(handler, 200)
        handler.wfile.write(content)

    return respond


def status(code: int, **headers: object) -> Response:
    """A status without content."""
    return lambda handler: reply(handler, code, Content_Length=0, **headers)


def stalled(content: bytes, after: int) -> Response:
    """Sends `after` bytes, then nothing, and keeps the connection open."""

    def respond(handler: Handler) -> None:
        start = start_of(handler)
        reply_from(handler, start, len(content))
        handler.wfile.write(content[start : start + after])
        handler.server.closing.wait()

    return respond
