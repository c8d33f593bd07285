"""Strict JSON, safetensors and the manifest: round trips, and refusal of invalid input."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from convoy.checkpoint.format import (
    FileEntry,
    Manifest,
    TensorFile,
    decode_tensors,
    encode_json,
    parse_json,
    weights_sha256,
)

FINITE_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(min_value=-(2**63), max_value=2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FINITE_FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' appears twice"),
        (b'{"update": NaN}', "NaN is not finite"),
        (b"[-Infinity]", "-Infinity is not finite"),
        (b"[1e999]", "1e999 is not finite"),
        (b"[" + b"9" * 5000 + b"]", "5000 digits"),
        (b"[" * 100_000, "nested more than 32"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nested more than 32"),
        (b"[" * 33 + b"]" * 33, "nested more than 32"),
        (b'["' + b"x" * 2**20 + b'"]', "limit is 1,048,576"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b"\xff\xfe", "can't decode"),
        (b"1 2", "Extra data"),
    ],
)
def test_hostile_json_is_refused_with_its_reason(data: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        parse_json(data)


def test_nesting_up_to_the_limit_is_read():
    assert parse_json(b"[" * 32 + b"]" * 32) != []


def test_a_duplicate_among_many_keys_is_found_in_linear_time():
    keys = b",".join(b'"%d":0' % key for key in range(60_000))

    with pytest.raises(ValueError, match="'59999' appears twice"):
        parse_json(b"{" + keys + b',"59999":1}')


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": 10**30}, {"a": {1, 2}}])
def test_values_that_cannot_be_read_back_are_not_written(value: object):
    with pytest.raises(ValueError):
        encode_json(value)


@given(VALUES)
@settings(deadline=None)
def test_json_values_round_trip(value: object):
    assert parse_json(encode_json(value)) == value


@given(st.binary(max_size=64) | TEXT.map(str.encode))
@settings(deadline=None)
def test_random_bytes_raise_only_value_errors(data: bytes):
    try:
        parse_json(data)
    except ValueError as error:
        assert str(error)


TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
TENSORS = {
    **{str(dtype): torch.arange(3).to(dtype) for dtype in TYPES},
    "scalar": torch.tensor(4.0),
    "empty": torch.empty(0, 5),
    "name with spaces, ü and \U0001f69a": torch.rand(2, 3, 4, 5).to(
        memory_format=torch.channels_last
    ),
}


def file_bytes(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(TensorFile(tensors).chunks())


def make_file(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def header_entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_every_dtype_and_shape_round_trips_bit_exactly():
    assert weights_sha256(decode_tensors(file_bytes(TENSORS))) == weights_sha256(TENSORS)


def test_other_programs_can_read_our_files(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(file_bytes(TENSORS))

    assert weights_sha256(load_file(tmp_path / "a.safetensors")) == weights_sha256(TENSORS)


def test_the_size_is_known_before_a_byte_is_written():
    assert TensorFile(TENSORS).bytes == len(file_bytes(TENSORS))


def test_a_file_without_tensors_is_valid():
    assert decode_tensors(file_bytes({})) == {}


def test_every_tensor_is_aligned_to_its_type():
    data = file_bytes(TENSORS)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    starts = {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}

    assert all(start % TENSORS[name].element_size() == 0 for name, start in starts.items())


@pytest.mark.parametrize("tensors", [{"__metadata__": torch.ones(1)}, {"a": torch.ones(1) * 1j}])
def test_a_tensor_that_safetensors_cannot_store_is_refused(tensors: dict):
    with pytest.raises(ValueError, match="cannot be stored in safetensors"):
        TensorFile(tensors)


def test_too_many_tensors_to_read_back_are_not_written():
    tensor = torch.zeros(0)

    with pytest.raises(ValueError, match="20,000 tensors are too many"):
        TensorFile({str(n): tensor for n in range(20_000)})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a"),
        (b"\x08\0\0", "header claims 8 of 0 bytes"),
        ((2**63).to_bytes(8, "little") + b"{}", "9,223,372,036,854,775,808"),
        ((3 * 2**20).to_bytes(8, "little") + b"{" + b" " * 3 * 2**20, "limit is 2,097,152"),
        (make_file([]), "not a table of tensors"),
        (make_file(b'{"a":' * 15_000), "nested"),
        (make_file({str(n): header_entry([0], 0, 0) for n in range(20_000)}), "more than 16,384"),
        (
            make_file({"a": header_entry([2], 0, 8), "b": header_entry([2], 4, 12)}, b"\0" * 12),
            "offset",
        ),
        (
            make_file({"a": header_entry([2], 0, 8), "b": header_entry([2], 0, 8)}, b"\0" * 8),
            "offset",
        ),
        (make_file({"a": header_entry([1], 4, 8)}, b"\0" * 8), "offset"),
        (make_file({"a": header_entry([1], 0, 4)}, b"\0" * 8), "not fully covered"),
        (make_file({"a": header_entry([2], 0, 8)}, b"\0" * 4), "not a usable"),
        (make_file({"a": header_entry([2**62, 8], 0, 0)}), "overflow"),
        (make_file({"a": header_entry([0, 2**62, 2**62], 0, 0)}), "not a usable"),
        (make_file({"a": header_entry([1] * 9, 0, 4)}, b"\0" * 4), "'a' has 9 dimensions"),
        (make_file({"a": header_entry([-1], 0, 4)}, b"\0" * 4), "not a usable"),
        (make_file({"a": header_entry([8], 0, 4, "F4")}, b"\0" * 4), "not a usable"),
        (make_file({"a": header_entry([1], 0, 4, "PICKLE")}, b"\0" * 4), "not a usable"),
        (
            make_file(
                b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                b'"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}',
                b"\0" * 4,
            ),
            "'a' appears twice",
        ),
    ],
)
def test_a_hostile_file_is_refused_with_its_reason(data: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        decode_tensors(data)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=6))
@settings(deadline=None)
def test_random_damage_raises_only_value_errors(position: int, replacement: bytes):
    data = file_bytes({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.int64)})
    damaged = (data[:position] + replacement + data[position + len(replacement) :])[: len(data)]
    try:
        decode_tensors(damaged)
    except ValueError as error:
        assert str(error)


ENTRY = FileEntry(10, "0" * 64)
MANIFEST = Manifest(
    update=3,
    files={"model.safetensors": ENTRY, "state.json": ENTRY},
    torch="2.13.0",
    created="2025-01-01T00:00:00Z",
)


def changed_manifest(**values: object) -> bytes:
    """The manifest with changed values and its old SHA-256."""
    return encode_json({**json.loads(MANIFEST.to_bytes()), **values})


def test_a_manifest_round_trips():
    assert Manifest.from_bytes(MANIFEST.to_bytes()) == MANIFEST


def test_every_flipped_bit_is_detected():
    data = MANIFEST.to_bytes()
    accepted = []
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            accepted.append(Manifest.from_bytes(bytes(flipped)))
        except ValueError:
            continue

    assert accepted == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"{}", "not the manifest of a convoy checkpoint"),
        (b"[]", "not the manifest of a convoy checkpoint"),
        (changed_manifest(format=3), "version 3, but this program reads version 1"),
        (changed_manifest(format=None), "version None, but this program reads version 1"),
        (changed_manifest(update=-1), "has -1 as update"),
        (changed_manifest(update=True), "has True as update"),
        (changed_manifest(update="3"), "has '3' as update"),
        (changed_manifest(update=10**16), "as update"),
        (changed_manifest(update=4), "its own SHA-256"),
        (changed_manifest(torch=None), "its own SHA-256"),
        (changed_manifest(torch="2.14.0"), "its own SHA-256"),
        (changed_manifest(extra=1), "its own SHA-256"),
        (changed_manifest(files=None), "lists no files"),
        (changed_manifest(files={}), "does not list model.safetensors, state.json"),
        (changed_manifest(files={"../x": {}}), r"lists '../x', which is not a checkpoint file"),
        (changed_manifest(files={"/etc/passwd": {}}), "lists '/etc/passwd'"),
        (changed_manifest(files={"MANIFEST.json": {}}), r"lists 'MANIFEST.json'"),
        (
            changed_manifest(files={"model.safetensors": 1, "state.json": 1}),
            "no size and SHA-256 for model",
        ),
        (
            changed_manifest(files={name: {"bytes": 1, "sha256": "0"} for name in MANIFEST.files}),
            "no SHA-256 for model.safetensors",
        ),
        (
            changed_manifest(
                files={name: {"bytes": 2**21, "sha256": "0" * 64} for name in MANIFEST.files}
            ),
            "as size of state.json; expected an integer up to 1,048,576",
        ),
        (MANIFEST.to_bytes() + b"\n", "its own SHA-256"),
    ],
)
def test_an_invalid_manifest_is_refused_with_its_reason(data: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        Manifest.from_bytes(data)


@given(st.integers(0, 600), st.binary(min_size=1, max_size=6))
@settings(deadline=None)
def test_random_damage_of_a_manifest_raises_only_value_errors(position: int, replacement: bytes):
    data = MANIFEST.to_bytes()
    damaged = data[:position] + replacement + data[position + len(replacement) :]
    if damaged != data:
        with pytest.raises(ValueError):
            Manifest.from_bytes(damaged)
