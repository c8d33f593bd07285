"""Downloads from a server on this machine: whole, cut, resumed, refused."""

import errno
from pathlib import Path

import pytest
from file_server import (
    Answer,
    cut,
    ranged,
    serving,
    stalled,
    status,
    unmeasured,
    whole,
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
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries without a pause."""
    monkeypatch.setattr("convoy.data.download.RETRY_PAUSES", (0.0, 0.0))


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "set.tar.gz.part"


def quiet(here: int, total: int) -> None:
    assert 0 <= here <= total


def ranges(part: Path, *answers: Answer) -> list[str | None]:
    """Download with these answers; what was asked for."""
    with serving(*answers) as server:
        download(server.url, part, TOTAL, quiet)
        return [asked for _, asked in server.asked]


def complaint(part: Path, *answers: Answer) -> str:
    with serving(*answers) as server, pytest.raises(DataError) as caught:
        download(server.url, part, TOTAL, quiet)
    said = str(caught.value)
    assert server.url in said
    assert f"put it at {part.with_suffix('')} and run it again" in said
    return said


def test_a_file_arrives_with_one_request(part: Path) -> None:
    assert ranges(part, ranged(CONTENT)) == [None]
    assert part.read_bytes() == CONTENT


def test_an_interrupted_download_asks_only_for_what_is_missing(part: Path) -> None:
    asked = ranges(part, cut(CONTENT, 3000), cut(CONTENT, 5000), ranged(CONTENT))

    assert asked == [None, "bytes=3000-", "bytes=8000-"]
    assert part.read_bytes() == CONTENT


def test_a_part_of_an_earlier_run_is_gone_on_with(part: Path) -> None:
    part.write_bytes(CONTENT[:10_000])

    assert ranges(part, ranged(CONTENT)) == ["bytes=10000-"]
    assert part.read_bytes() == CONTENT


def test_a_complete_part_needs_no_request(part: Path) -> None:
    part.write_bytes(CONTENT)

    assert ranges(part, status(500)) == []


def test_a_part_that_is_too_long_is_begun_anew(part: Path) -> None:
    part.write_bytes(CONTENT + b"more")

    assert ranges(part, ranged(CONTENT)) == [None]
    assert part.read_bytes() == CONTENT


def test_a_server_without_ranges_sends_everything_anew(part: Path) -> None:
    part.write_bytes(b"x" * 4000)

    assert ranges(part, whole(CONTENT)) == ["bytes=4000-"]
    assert part.read_bytes() == CONTENT


def test_a_server_that_does_not_tell_the_length_is_believed(part: Path) -> None:
    ranges(part, unmeasured(CONTENT))

    assert part.read_bytes() == CONTENT


def test_no_more_than_the_published_bytes_are_kept(part: Path) -> None:
    ranges(part, unmeasured(CONTENT * 3))

    assert part.read_bytes() == CONTENT


def test_a_range_that_cannot_be_served_begins_anew(part: Path) -> None:
    part.write_bytes(b"x" * 4000)

    assert ranges(part, status(416), ranged(CONTENT)) == ["bytes=4000-", None]
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize("span", [f"bytes 17-{TOTAL - 1}/{TOTAL}", "nonsense", ""])
def test_an_answer_that_begins_elsewhere_is_not_used(part: Path, span: str) -> None:
    part.write_bytes(CONTENT[:4000])
    asked = ranges(part, status(206, Content_Range=span), ranged(CONTENT))

    assert asked == ["bytes=4000-", None]
    assert part.read_bytes() == CONTENT


def test_a_file_that_changed_its_size_is_refused_with_both_sizes(part: Path) -> None:
    part.write_bytes(CONTENT[:4000])
    said = complaint(part, ranged(CONTENT + b"more"))

    assert f"has {TOTAL + 4} bytes there, not the published {TOTAL}" in said
    assert not part.exists()


def test_a_login_page_does_not_cost_the_part(part: Path) -> None:
    part.write_bytes(CONTENT[:4000])
    said = complaint(part, whole(b"<html>log in</html>"))

    assert "has 19 bytes there" in said
    assert part.read_bytes() == CONTENT[:4000]


def test_a_silent_server_is_left_and_its_bytes_are_kept(
    part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.data.download.TIMEOUT_SECONDS", 1.0)
    asked = ranges(part, stalled(CONTENT, 6000), ranged(CONTENT))

    assert asked == [None, "bytes=6000-"]
    assert part.read_bytes() == CONTENT


def test_passing_trouble_is_tried_again(part: Path) -> None:
    assert ranges(part, status(503), status(429), ranged(CONTENT)) == [None, None, None]


def test_tries_end_with_the_reason_and_the_way_out(part: Path) -> None:
    with serving(cut(CONTENT, 1000)) as server, pytest.raises(DataError) as caught:
        download(server.url, part, TOTAL, quiet)
    said = str(caught.value)

    assert len(server.asked) == 3
    assert f"the connection ended {TOTAL - 3000} bytes early" in said
    assert f"3 tries, 3000 of {TOTAL} bytes here" in said
    assert part.read_bytes() == CONTENT[:3000]


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_final_answer_is_asked_for_once(part: Path, code: int) -> None:
    with serving(status(code)) as server, pytest.raises(DataError, match=f"answers {code} "):
        download(server.url, part, TOTAL, quiet)

    assert len(server.asked) == 1


def test_a_machine_without_a_network_is_told_what_to_do(part: Path) -> None:
    with serving(status(200)) as server:
        url = server.url  # nobody listens there any more
    with pytest.raises(DataError) as caught:
        download(url, part, TOTAL, quiet)
    said = str(caught.value)

    assert f"[Errno {errno.ECONNREFUSED}]" in said
    assert f"put it at {part.with_suffix('')}" in said


def test_each_further_try_waits_longer(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("convoy.data.download.RETRY_PAUSES", (0.5, 1.0, 2.0))
    monkeypatch.setattr("convoy.data.download.time.sleep", pauses.append)
    with serving(status(503)) as server, pytest.raises(DataError):
        download(server.url, part, TOTAL, quiet)

    assert pauses == [0.5, 1.0, 2.0]


def test_progress_begins_with_what_is_here_and_ends_with_all(part: Path) -> None:
    part.write_bytes(CONTENT[:4000])
    told: list[tuple[int, int]] = []
    with serving(ranged(CONTENT)) as server:
        download(server.url, part, TOTAL, lambda *counts: told.append(counts))

    assert told[0] == (4000, TOTAL)
    assert told[-1] == (TOTAL, TOTAL)
    assert told == sorted(told)


def test_the_proxy_of_the_environment_is_used(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://data.invalid/set.tar.gz"
    with serving(ranged(CONTENT)) as server:
        monkeypatch.setenv("http_proxy", server.url.removesuffix("/set.tar.gz"))
        download(url, part, TOTAL, quiet)

    assert server.asked == [(url, None)]


def test_a_server_that_is_not_there_is_named_with_the_systems_reason(part: Path) -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(DataError, match=r"no connection: .*refused") as caught:
        download(url, part, TOTAL, quiet)

    assert "urlopen" not in str(caught.value)
