"""One file over HTTP into a `.part` file: goes on where the last try ended, and gives up in words.

Whether the bytes are the right ones is the caller's question; here only their number is known.
"""

import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener

from convoy.errors import DataError

Progress = Callable[[int, int], None]  # bytes here, bytes in all

_CHUNK = 2**18
_NEWS_BYTES = 1024  # a connection that brings less in `Patience.seconds` counts as lost
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that another try may change


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, and how often to ask again."""

    seconds: float = 30.0  # without news
    tries: int = 4
    pause: float = 0.5  # seconds before the second try; doubles with each further one


PATIENCE = Patience()


class _Lost(Exception):
    """This try came to nothing; the next one may not."""


def download(url: str, part: Path, total: int, on_progress: Progress, patience: Patience) -> None:
    """Bring `part` to `total` bytes, keeping those it has."""
    reason = ""
    for attempt in range(patience.tries):
        if attempt:
            time.sleep(patience.pause * 2 ** (attempt - 1))
        try:
            return _try(url, part, total, on_progress, patience.seconds)
        except _Lost as lost:
            reason = str(lost)
    here = _size(part)
    raise DataError(
        f"{url}: {reason} ({patience.tries} tries, {here} of {total} bytes here). Run the same "
        f"command again to go on, or {by_hand(part)}"
    )


def by_hand(part: Path) -> str:
    """What to do without a network, or with a server that has something else."""
    return f"get the file by other means, put it at {part.with_suffix('')} and run it again"


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _try(url: str, part: Path, total: int, on_progress: Progress, seconds: float) -> None:
    here = _size(part)
    if here > total:  # from something else
        part.unlink()
        here = 0
    on_progress(here, total)
    if here == total:
        return
    with _ask(url, part, here, seconds) as response:
        here = _first_byte(response, url, part, here, total)
        with part.open("ab" if here else "wb") as file:
            for piece in _pieces(response, total - here, seconds):
                file.write(piece)
                here += len(piece)
                on_progress(here, total)


def _ask(url: str, part: Path, here: int, seconds: float) -> HTTPResponse:
    """Send the request for all bytes from `here` on."""
    request = Request(url, headers={"User-Agent": "convoy"})
    if here:
        request.add_header("Range", f"bytes={here}-")
    try:
        # A fresh opener reads the proxy variables of now; urlopen keeps those of its first use.
        response: HTTPResponse = build_opener().open(request, timeout=seconds)
    except HTTPError as error:
        error.close()
        raise _refusal(error.code, error.reason, url, part) from error
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise DataError(f"{url}: {error.reason.verify_message}; {by_hand(part)}") from error
        raise _Lost(f"no connection: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise _Lost(f"no answer: {_words(error)}") from error
    return response


def _refusal(code: int, reason: str, url: str, part: Path) -> DataError | _Lost:
    if code == 416:  # the server's file ends before ours: ours is of another one
        part.unlink(missing_ok=True)
        return _Lost("the server's file is shorter than the part that was here")
    if code in _PASSING:
        return _Lost(f"the server answers {code} {reason}")
    return DataError(f"{url}: the server answers {code} {reason}; {by_hand(part)}")


def _first_byte(response: HTTPResponse, url: str, part: Path, here: int, total: int) -> int:
    """Where the answer begins: at `here`, or at 0 from a server that knows no ranges."""
    start, offered = _span(response)
    if offered not in (None, total):
        if response.status == 206:  # else it may be any page, and the part is still good
            part.unlink(missing_ok=True)
        raise DataError(
            f"{url}: the server has {offered} bytes there, not the published {total}; "
            f"{by_hand(part)}"
        )
    if start is None or start not in (0, here):
        part.unlink(missing_ok=True)
        raise _Lost(f"asked for the bytes from {here} on, the server sent those from {start}")
    return start


def _span(response: HTTPResponse) -> tuple[int | None, int | None]:
    """The first byte of the answer and the size of the whole file, as far as they are told."""
    if response.status != 206:
        return 0, _number(response.headers.get("Content-Length", ""))
    told = response.headers.get("Content-Range", "")  # such as `bytes 100-199/200`
    span, _, whole = told.removeprefix("bytes ").partition("/")
    return _number(span.partition("-")[0]), _number(whole)


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _pieces(response: HTTPResponse, missing: int, seconds: float) -> Iterator[bytes]:
    """What arrives, as it arrives; never more than is missing."""
    since, news = time.monotonic(), 0
    while missing > 0:
        try:
            piece = response.read1(min(_CHUNK, missing))
        except (OSError, HTTPException) as error:
            raise _Lost(f"the connection broke: {_words(error)}") from error
        if not piece:
            raise _Lost(f"the connection ended {missing} bytes early")
        yield piece
        missing -= len(piece)
        news += len(piece)
        if news >= _NEWS_BYTES:
            since, news = time.monotonic(), 0
        elif missing and time.monotonic() - since > seconds:
            raise _Lost(f"less than {_NEWS_BYTES} bytes in {seconds:g} s")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
