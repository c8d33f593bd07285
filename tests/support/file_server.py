"""A web server on this machine that answers as told: well, badly, slowly or not at all."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    server: "FileServer"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Range"]))
        turn = min(len(self.server.asked), len(self.server.answers)) - 1
        self.server.answers[turn](self)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the tests read `asked`."""


Answer = Callable[[Handler], None]


class FileServer(ThreadingHTTPServer):
    """Gives its answers in turn, the last one again and again."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.asked: list[tuple[str, str | None]] = []  # path and Range of each request
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/set.tar.gz"

    def handle_error(self, request: object, client_address: object) -> None:
        """Quiet: clients that leave early are what is tested."""


@contextmanager
def serving(*answers: Answer) -> Iterator[FileServer]:
    with FileServer(answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
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
    """The head of an answer that knows ranges."""
    if start == 0:
        reply(handler, 200, Content_Length=total)
        return
    span = f"bytes {start}-{total - 1}/{total}"
    reply(handler, 206, Content_Length=total - start, Content_Range=span)


def ranged(content: bytes) -> Answer:
    """Right in every way."""
    return cut(content, len(content))


def cut(content: bytes, after: int) -> Answer:
    """Promises all of the rest, but hangs up `after` bytes of it."""

    def answer(handler: Handler) -> None:
        start = start_of(handler)
        reply_from(handler, start, len(content))
        handler.wfile.write(content[start : start + after])

    return answer


def whole(content: bytes) -> Answer:
    """Knows no ranges."""

    def answer(handler: Handler) -> None:
        reply(handler, 200, Content_Length=len(content))
        handler.wfile.write(content)

    return answer


def unmeasured(content: bytes) -> Answer:
    """Does not tell the length."""

    def answer(handler: Handler) -> None:
        reply(handler, 200)
        handler.wfile.write(content)

    return answer


def status(code: int, **headers: object) -> Answer:
    """Only a status, with no content."""
    return lambda handler: reply(handler, code, Content_Length=0, **headers)


def stalled(content: bytes, after: int) -> Answer:
    """Sends `after` bytes, then nothing, and does not hang up."""

    def answer(handler: Handler) -> None:
        start = start_of(handler)
        reply_from(handler, start, len(content))
        handler.wfile.write(content[start : start + after])
        handler.server.over.wait()

    return answer
