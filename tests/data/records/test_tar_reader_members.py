"""The members of tar files, held against Python's own reader; and damage of every kind."""

import bz2
import gzip
import io
import lzma
import random
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tars import tar_bytes

from convoy.data.records.record import BadContentError
from convoy.data.records.tar_reader import DamageError, TarMember, members

FORMS = pytest.mark.parametrize(
    "form",
    [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT],
    ids=["ustar", "gnu", "pax"],
)
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300
).filter(lambda name: not name.endswith("/"))


def read(data: bytes) -> list[TarMember]:
    return list(members(io.BytesIO(data), len(data)))


def damage(data: bytes) -> DamageError:
    with pytest.raises(DamageError) as caught:
        read(data)
    assert 0 <= caught.value.offset <= len(data)
    return caught.value


def contents(data: bytes) -> list[tuple[str, bytes]]:
    return [
        (member.name.decode(), data[member.offset : member.offset + member.size])
        for member in read(data)
    ]


@FORMS
def test_names_and_contents_are_those_that_were_written(form: int) -> None:
    written = [("a.jpg", b"x"), ("b/c.cls", b""), ("d.json", bytes(512)), ("e", bytes(1300))]

    assert contents(tar_bytes(*written, form=form)) == written


@FORMS
def test_long_names_are_put_together(form: int) -> None:
    name = "folder/" * 14 + "n" * 90 + ".jpg"  # beyond 100 bytes, and cut at a slash where it must

    assert contents(tar_bytes((name, b"x"), ("b.jpg", b"y"), form=form)) == [
        (name, b"x"),
        ("b.jpg", b"y"),
    ]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@given(written=st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=5))
def test_any_names_are_read_as_python_reads_them(
    form: int, written: list[tuple[str, bytes]]
) -> None:
    data = tar_bytes(*written, form=form)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(one.name.encode(), one.offset_data, one.size) for one in tar]

    assert [(one.name, one.offset, one.size) for one in read(data)] == expected


def test_only_regular_files_count_as_such() -> None:
    buffer = io.BytesIO()
    kinds = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE]
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for kind in kinds:
            member = tarfile.TarInfo("one.jpg")
            member.type, member.linkname = kind, "other"
            tar.addfile(member)

    assert [one.is_file for one in read(buffer.getvalue())] == [False] * 4 + [True]


def test_a_size_beyond_eight_gigabytes_is_understood() -> None:
    """Twelve octal digits end there; PAX and GNU have ways of their own."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        member = tarfile.TarInfo("big.jpg")
        member.size = 9 * 2**30
        header = member.tobuf(form)

        assert f"a member of {9 * 2**30} bytes: 0 are left" in str(damage(header))


def test_headers_about_all_members_are_passed_over() -> None:
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "made by git"}
    ) as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))

    assert [one.name for one in read(buffer.getvalue())] == [b"a.jpg"]


def test_a_file_without_members_is_read() -> None:
    assert read(tar_bytes()) == []


DATA = tar_bytes(("a.jpg", b"x" * 700), ("ü" * 120, b"y"), ("b.cls", b"1"))


@pytest.mark.parametrize("size", range(0, len(DATA), 37))
def test_a_cut_is_seen_wherever_it_is(size: int) -> None:
    whole = [one for one in read(DATA) if one.offset + one.size <= size]
    if size > read(DATA)[-1].offset + 512:  # within the end mark; a whole block of it is enough
        assert read(DATA[:size] + bytes(512)) == read(DATA)
        return
    found = []
    with pytest.raises(DamageError):
        for member in members(io.BytesIO(DATA[:size]), size):
            found.append(member)

    assert found == whole


def test_a_cut_between_two_members_is_seen_by_the_missing_end_mark() -> None:
    last = read(DATA)[-1]

    assert "no end mark" in str(damage(DATA[: last.start]))
    assert damage(DATA[: last.start]).offset == last.start


def test_an_empty_file_lacks_its_end_mark() -> None:
    assert "no end mark" in str(damage(b""))


def test_joined_files_are_not_read_in_half() -> None:
    found = damage(DATA + DATA)

    assert "follow the end mark; were two files joined?" in str(found)
    assert found.after_end


def test_zeros_behind_the_end_are_padding() -> None:
    assert read(DATA + bytes(10_240)) == read(DATA)


def test_every_flip_of_a_bit_in_a_header_is_seen_or_changes_nothing() -> None:
    """Only blanks around the checksum itself may change. Flips in contents are another's task."""
    data = tar_bytes(("a.jpg", b"x"), ("b.jpg", b"y"), form=tarfile.USTAR_FORMAT)
    whole, unseen = read(data), 0
    for bit in range(2 * 8 * 512):
        damaged = bytearray(data)
        at = bit // 8 if bit < 8 * 512 else bit // 8 + 512  # the header of a, that of b
        damaged[at] ^= 1 << bit % 8
        try:
            assert read(bytes(damaged)) == whole
            unseen += 1
        except DamageError:
            pass

    assert unseen < 10


@pytest.mark.parametrize(
    ("packed", "name"),
    [(gzip.compress(DATA), "gzip"), (bz2.compress(DATA), "bzip2"), (lzma.compress(DATA), "xz")],
)
def test_packed_files_are_refused_by_name(packed: bytes, name: str) -> None:
    with pytest.raises(BadContentError, match=name):
        read(packed)


def header(kind: bytes, size: int, content: bytes = b"") -> bytes:
    member = tarfile.TarInfo("a.jpg")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(b"x", 2**40), "a header of 1099511627776 bytes, at most 65536"),
        (header(b"L", 2**16), "cut in a header of 65536 bytes: 1024 are left"),
        (header(b"x", 6, b"9 a=b\n"), "a PAX header that is none"),
        (header(b"x", 6, b"2 a=b\n"), "a PAX header that is none"),
        (header(b"x", 6, b"0 a=b\n"), "a PAX header that is none"),
        (header(b"x", 6, b"-6 a=\n"), "a PAX header that is none"),
        (header(b"x", 12, b"6 a=b\n0 c=d\n"), "a PAX header that is none"),  # for ever at one place
        (header(b"x", 11, b"11 size=-1\n"), "a PAX header with a number that is none"),
        (header(b"x", 24, b"24 size=" + b"9" * 15 + b"\n"), "does not follow"),
        (header(b"S", 0), "a sparse member"),
        (header(b"x", 22, b"22 GNU.sparse.major=1\n") + header(b"0", 0), "a sparse member"),
        (header(b"0", 2**70), "cut in a member"),
        (b"no tar at all".ljust(512), "no header of a member, or a damaged one: 1536 bytes"),
        (b"x" * 512, "a header with a number that is none"),
    ],
)
def test_a_header_that_lies_is_not_followed(data: bytes, reason: str) -> None:
    assert reason in str(damage(data + bytes(1024)))


def test_a_negative_size_is_no_number() -> None:
    """It would send a reader back to where it was, for ever."""
    member = bytearray(header(b"0", 0))
    member[124:136] = b"\xff" * 11 + b"\0"
    member[148:156] = f"{sum(member) - sum(member[148:156]) + 256:06o}\0 ".encode()

    assert "a number that is none" in str(damage(bytes(member) + bytes(1024)))


def test_many_headers_about_one_member_need_no_recursion() -> None:
    data = header(b"L", 5, b"a.png") * 5000 + header(b"0", 0) + bytes(1024)

    assert [one.name for one in read(data)] == [b"a.png"]


def test_damaged_files_give_members_inside_them_or_the_documented_error() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        data = bytearray(DATA)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        del data[chance.randrange(len(data), 2 * len(data)) :]
        if chance.random() < 0.5:
            del data[chance.randrange(len(data)) :]
        try:
            found = read(bytes(data))
        except (DamageError, BadContentError):
            continue
        assert all(one.offset + one.size <= len(data) for one in found)
