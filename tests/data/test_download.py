"""Downloads from a local server: complete, interrupted, resumed and refused."""

import errno
from pathlib import Path

import pytest
from support.file_server import (
    Response,
    cut,
    ranged,
    serving,
    stalled,
    status,
    without_length,
    without_ranges,
)

from convoy.data.download import download
from convoy.errors import DataError

CONTENT = bytes(range(256)) * 40  # 10 240 bytes
TOTAL = len(CONTENT)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three attempts without a pause."""
    monkeypatch.setattr("convoy.data.download.RETRY_PAUSES", (0.0, 0.0))


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "set.tar.gz.part"


def no_progress(done: int, total: int) -> None:
    assert 0 <= done <= total


def ranges(part: Path, *responses: Response) -> list[str | None]:
    """Download with these responses and return the requested ranges."""
    with serving(*responses) as server:
        download(server.url, part, TOTAL, no_progress)
        return [requested for _, requested in server.requests]


def error_message(part: Path, *responses: Response) -> str:
    with serving(*responses) as server, pytest.raises(DataError) as caught:
        download(server.url, part, TOTAL, no_progress)
    message = str(caught.value)
    assert server.url in message
    assert f"put it at {part.with_suffix('')} and run the command again" in message
    return message


def test_a_file_is_downloaded_with_one_request(part: Path) -> None:
    assert ranges(part, ranged(CONTENT)) == [None]
    assert part.read_bytes() == CONTENT


def test_an_interrupted_download_requests_only_the_missing_bytes(part: Path) -> None:
    requested = ranges(part, cut(CONTENT, 3000), cut(CONTENT, 5000), ranged(CONTENT))

    assert requested == [None, "bytes=3000-", "bytes=8000-"]
    assert part.read_bytes() == CONTENT


def test_a_partial_file_of_an_earlier_run_is_resumed(part: Path) -> None:
    part.write_bytes(CONTENT[:10_000])

    assert ranges(part, ranged(CONTENT)) == ["bytes=10000-"]
    assert part.read_bytes() == CONTENT


def test_a_complete_partial_file_needs_no_request(part: Path) -> None:
    part.write_bytes(CONTENT)

    assert ranges(part, status(500)) == []


def test_a_partial_file_that_is_too_long_is_downloaded_again(part: Path) -> None:
    part.write_bytes(CONTENT + b"more")

    assert ranges(part, ranged(CONTENT)) == [None]
    assert part.read_bytes() == CONTENT


def test_a_server_without_range_support_sends_everything_again(part: Path) -> None:
    part.write_bytes(b"x" * 4000)

    assert ranges(part, without_ranges(CONTENT)) == ["bytes=4000-"]
    assert part.read_bytes() == CONTENT


def test_a_response_without_a_length_is_accepted(part: Path) -> None:
    ranges(part, without_length(CONTENT))

    assert part.read_bytes() == CONTENT


def test_bytes_beyond_the_published_size_are_ignored(part: Path) -> None:
    ranges(part, without_length(CONTENT * 3))

    assert part.read_bytes() == CONTENT


def test_a_range_that_cannot_be_served_restarts_the_download(part: Path) -> None:
    part.write_bytes(b"x" * 4000)

    assert ranges(part, status(416), ranged(CONTENT)) == ["bytes=4000-", None]
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize("span", [f"bytes 17-{TOTAL - 1}/{TOTAL}", "nonsense", ""])
def test_a_response_with_a_wrong_range_is_not_used(part: Path, span: str) -> None:
    part.write_bytes(CONTENT[:4000])
    requested = ranges(part, status(206, Content_Range=span), ranged(CONTENT))

    assert requested == ["bytes=4000-", None]
    assert part.read_bytes() == CONTENT


def test_a_file_of_another_size_is_refused_with_both_sizes(part: Path) -> None:
    part.write_bytes(CONTENT[:4000])
    message = error_message(part, ranged(CONTENT + b"more"))

    assert f"offers {TOTAL + 4} bytes, not the published {TOTAL}" in message
    assert not part.exists()


def test_a_login_page_does_not_overwrite_the_partial_file(part: Path) -> None:
    part.write_bytes(CONTENT[:4000])
    message = error_message(part, without_ranges(b"<html>log in</html>"))

    assert "offers 19 bytes" in message
    assert part.read_bytes() == CONTENT[:4000]


def test_a_stalled_download_is_resumed_after_the_timeout(
    part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.data.download.TIMEOUT_SECONDS", 1.0)
    requested = ranges(part, stalled(CONTENT, 6000), ranged(CONTENT))

    assert requested == [None, "bytes=6000-"]
    assert part.read_bytes() == CONTENT


def test_temporary_errors_are_retried(part: Path) -> None:
    assert ranges(part, status(503), status(429), ranged(CONTENT)) == [None, None, None]


def test_the_last_attempt_fails_with_the_reason_and_a_hint(part: Path) -> None:
    with serving(cut(CONTENT, 1000)) as server, pytest.raises(DataError) as caught:
        download(server.url, part, TOTAL, no_progress)
    message = str(caught.value)

    assert len(server.requests) == 3
    assert f"the connection ended {TOTAL - 3000} bytes early" in message
    assert f"3 attempts, 3000 of {TOTAL} bytes downloaded" in message
    assert part.read_bytes() == CONTENT[:3000]


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_permanent_error_is_not_retried(part: Path, code: int) -> None:
    with serving(status(code)) as server, pytest.raises(DataError, match=f"returned {code} "):
        download(server.url, part, TOTAL, no_progress)

    assert len(server.requests) == 1


def test_without_a_network_the_error_has_a_hint(part: Path) -> None:
    with serving(status(200)) as server:
        url = server.url  # the server is stopped
    with pytest.raises(DataError) as caught:
        download(url, part, TOTAL, no_progress)
    message = str(caught.value)

    assert f"[Errno {errno.ECONNREFUSED}]" in message
    assert f"put it at {part.with_suffix('')}" in message


def test_each_retry_waits_longer(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("convoy.data.download.RETRY_PAUSES", (0.5, 1.0, 2.0))
    monkeypatch.setattr("convoy.data.download.time.sleep", pauses.append)
    with serving(status(503)) as server, pytest.raises(DataError):
        download(server.url, part, TOTAL, no_progress)

    assert pauses == [0.5, 1.0, 2.0]


def test_progress_starts_with_the_partial_file_and_ends_with_the_total(part: Path) -> None:
    part.write_bytes(CONTENT[:4000])
    calls: list[tuple[int, int]] = []
    with serving(ranged(CONTENT)) as server:
        download(server.url, part, TOTAL, lambda *counts: calls.append(counts))

    assert calls[0] == (4000, TOTAL)
    assert calls[-1] == (TOTAL, TOTAL)
    assert calls == sorted(calls)


def test_the_proxy_of_the_environment_is_used(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://data.invalid/set.tar.gz"
    with serving(ranged(CONTENT)) as server:
        monkeypatch.setenv("http_proxy", server.url.removesuffix("/set.tar.gz"))
        download(url, part, TOTAL, no_progress)

    assert server.requests == [(url, None)]


def test_the_error_for_an_unreachable_server_has_the_reason_of_the_system(part: Path) -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(DataError, match=r"no connection: .*refused") as caught:
        download(url, part, TOTAL, no_progress)

    assert "urlopen" not in str(caught.value)
