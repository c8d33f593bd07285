"""The members of tar files, compared with Python's tarfile, and damaged files."""

import bz2
import gzip
import io
import lzma
import random
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sweeps import sweep
from support.tar_files import tar_bytes

from convoy.data.records.record import BadContentError
from convoy.data.records.tar_reader import CorruptTarError, TarMember, iter_members

with_each_format = pytest.mark.parametrize(
    "form",
    [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT],
    ids=["ustar", "gnu", "pax"],
)
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300
).filter(lambda name: not name.endswith("/"))


def read(data: bytes) -> list[TarMember]:
    return list(iter_members(io.BytesIO(data), len(data)))


def read_error(data: bytes) -> CorruptTarError:
    with pytest.raises(CorruptTarError) as caught:
        read(data)
    assert 0 <= caught.value.offset <= len(data)
    return caught.value


def contents(data: bytes) -> list[tuple[str, bytes]]:
    return [
        (member.name.decode(), data[member.offset : member.offset + member.size])
        for member in read(data)
    ]


@with_each_format
def test_names_and_contents_are_read_as_written(form: int) -> None:
    written = [("a.jpg", b"x"), ("b/c.cls", b""), ("d.json", bytes(512)), ("e", bytes(1300))]

    assert contents(tar_bytes(*written, form=form)) == written


@with_each_format
def test_long_names_are_joined(form: int) -> None:
    name = "folder/" * 14 + "n" * 90 + ".jpg"  # above 100 bytes, split at a slash in ustar

    assert contents(tar_bytes((name, b"x"), ("b.jpg", b"y"), form=form)) == [
        (name, b"x"),
        ("b.jpg", b"y"),
    ]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@given(written=st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=5))
def test_any_names_are_read_as_by_python_tarfile(
    form: int, written: list[tuple[str, bytes]]
) -> None:
    data = tar_bytes(*written, form=form)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(member.name.encode(), member.offset_data, member.size) for member in tar]

    assert [(member.name, member.offset, member.size) for member in read(data)] == expected


def test_only_regular_files_are_files() -> None:
    buffer = io.BytesIO()
    types = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE]
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for type_flag in types:
            member = tarfile.TarInfo("a.jpg")
            member.type, member.linkname = type_flag, "other"
            tar.addfile(member)

    assert [member.is_file for member in read(buffer.getvalue())] == [False] * 4 + [True]


def test_a_size_beyond_eight_gigabytes_is_read() -> None:
    """Octal sizes end at 8 GB; PAX and GNU encode larger sizes differently."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        member = tarfile.TarInfo("big.jpg")
        member.size = 9 * 2**30
        header = member.tobuf(form)

        assert f"a member of {9 * 2**30} bytes: only 0 remain" in str(read_error(header))


def test_global_headers_are_skipped() -> None:
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "made by git"}
    ) as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))

    assert [member.name for member in read(buffer.getvalue())] == [b"a.jpg"]


def test_a_tar_without_members_is_read() -> None:
    assert read(tar_bytes()) == []


DATA = tar_bytes(("a.jpg", b"x" * 700), ("ü" * 120, b"y"), ("b.cls", b"1"))


@sweep("size", range(0, len(DATA), 37))
def test_a_truncated_file_is_detected_at_every_length(size: int) -> None:
    complete = [member for member in read(DATA) if member.offset + member.size <= size]
    if size > read(DATA)[-1].offset + 512:  # inside the end marker; one block is enough
        assert read(DATA[:size] + bytes(512)) == read(DATA)
        return
    found = []
    with pytest.raises(CorruptTarError):
        for member in iter_members(io.BytesIO(DATA[:size]), size):
            found.append(member)

    assert found == complete


def test_truncation_between_members_is_detected_by_the_missing_end_marker() -> None:
    last = read(DATA)[-1]

    assert "no end-of-archive marker" in str(read_error(DATA[: last.start]))
    assert read_error(DATA[: last.start]).offset == last.start


def test_an_empty_file_has_no_end_marker() -> None:
    assert "no end-of-archive marker" in str(read_error(b""))


def test_concatenated_files_are_detected() -> None:
    error = read_error(DATA + DATA)

    assert "were two files concatenated?" in str(error)
    assert error.after_end_marker


def test_zeros_after_the_end_marker_are_padding() -> None:
    assert read(DATA + bytes(10_240)) == read(DATA)


def test_a_flipped_bit_in_a_header_is_detected_or_changes_nothing() -> None:
    """Only bits in the padding of the checksum field have no effect."""
    data = tar_bytes(("a.jpg", b"x"), ("b.jpg", b"y"), form=tarfile.USTAR_FORMAT)
    members, undetected = read(data), 0
    for bit in range(2 * 8 * 512):
        damaged = bytearray(data)
        position = bit // 8 if bit < 8 * 512 else bit // 8 + 512  # header of a, then of b
        damaged[position] ^= 1 << bit % 8
        try:
            assert read(bytes(damaged)) == members
            undetected += 1
        except CorruptTarError:
            pass

    assert undetected < 10


@pytest.mark.parametrize(
    ("compressed", "name"),
    [(gzip.compress(DATA), "gzip"), (bz2.compress(DATA), "bzip2"), (lzma.compress(DATA), "xz")],
)
def test_compressed_files_are_refused_with_the_compression(compressed: bytes, name: str) -> None:
    with pytest.raises(BadContentError, match=name):
        read(compressed)


def header(type_flag: bytes, size: int, content: bytes = b"") -> bytes:
    member = tarfile.TarInfo("a.jpg")
    member.type, member.size = type_flag, size
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(b"x", 2**40), "a header of 1099511627776 bytes; the limit is 65536"),
        (header(b"L", 2**16), "truncated inside a header of 65536 bytes: only 1024 remain"),
        (header(b"x", 6, b"9 a=b\n"), "an invalid PAX header"),
        (header(b"x", 6, b"2 a=b\n"), "an invalid PAX header"),
        (header(b"x", 6, b"0 a=b\n"), "an invalid PAX header"),
        (header(b"x", 6, b"-6 a=\n"), "an invalid PAX header"),
        (header(b"x", 12, b"6 a=b\n0 c=d\n"), "an invalid PAX header"),  # would loop forever
        (header(b"x", 11, b"11 size=-1\n"), "a PAX header with an invalid number"),
        (header(b"x", 24, b"24 size=" + b"9" * 15 + b"\n"), "an extended header without a member"),
        (header(b"S", 0), "a sparse member"),
        (header(b"x", 22, b"22 GNU.sparse.major=1\n") + header(b"0", 0), "a sparse member"),
        (header(b"0", 2**70), "truncated inside a member"),
        (b"no tar at all".ljust(512), "not a member header, or a damaged one; 1536 bytes"),
        (b"x" * 512, "a header with an invalid number"),
    ],
)
def test_an_invalid_header_is_refused(data: bytes, reason: str) -> None:
    assert reason in str(read_error(data + bytes(1024)))


def test_a_negative_size_is_refused() -> None:
    """It would make a reader loop forever."""
    member = bytearray(header(b"0", 0))
    member[124:136] = b"\xff" * 11 + b"\0"
    member[148:156] = f"{sum(member) - sum(member[148:156]) + 256:06o}\0 ".encode()

    assert "an invalid number" in str(read_error(bytes(member) + bytes(1024)))


def test_many_extended_headers_need_no_recursion() -> None:
    data = header(b"L", 5, b"a.png") * 5000 + header(b"0", 0) + bytes(1024)

    assert [member.name for member in read(data)] == [b"a.png"]


def test_damaged_files_give_members_within_the_file_or_a_documented_error() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        data = bytearray(DATA)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        del data[rng.randrange(len(data), 2 * len(data)) :]
        if rng.random() < 0.5:
            del data[rng.randrange(len(data)) :]
        try:
            found = read(bytes(data))
        except (CorruptTarError, BadContentError):
            continue
        assert all(member.offset + member.size <= len(data) for member in found)
