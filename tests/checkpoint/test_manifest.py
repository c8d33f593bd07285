"""The manifest, which nobody may change."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.checkpoint.manifest import Entry, Manifest, from_bytes
from convoy.checkpoint.strict_json import encode

ENTRY = Entry(10, "0" * 64)
MANIFEST = Manifest(
    update=3,
    files={"model.safetensors": ENTRY, "state.json": ENTRY},
    torch="2.13.0",
    created="2025-01-01T00:00:00Z",
)


def changed(**values: object) -> bytes:
    """The manifest with other values, as a hand or an attacker would write it."""
    return encode({**json.loads(MANIFEST.to_bytes()), **values})


def test_a_manifest_comes_back_as_it_was():
    assert from_bytes(MANIFEST.to_bytes()) == MANIFEST


def test_every_flipped_bit_is_noticed():
    data = MANIFEST.to_bytes()
    accepted = []
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            accepted.append(from_bytes(bytes(flipped)))
        except ValueError:
            continue

    assert accepted == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"{}", "not the manifest of a convoy checkpoint"),
        (b"[]", "not the manifest of a convoy checkpoint"),
        (changed(format=3), "is of version 3, this program reads 1"),
        (changed(format=None), "is of version None, this program reads 1"),
        (changed(update=-1), "gives -1 as update"),
        (changed(update=True), "gives True as update"),
        (changed(update="3"), "gives '3' as update"),
        (changed(update=10**16), "as update"),
        (changed(update=4), "its own SHA-256"),
        (changed(torch=None), "gives None as torch"),
        (changed(torch="2.14.0"), "its own SHA-256"),
        (changed(extra=1), "its own SHA-256"),
        (changed(files=None), "names no files"),
        (changed(files={}), "does not name model.safetensors, state.json"),
        (changed(files={"../x": {}}), r"names '../x', which is no file of a checkpoint"),
        (changed(files={"/etc/passwd": {}}), "names '/etc/passwd'"),
        (changed(files={"MANIFEST.json": {}}), r"names 'MANIFEST.json'"),
        (changed(files={"model.safetensors": 1, "state.json": 1}), "no size and SHA-256 for model"),
        (
            changed(files={name: {"bytes": 1, "sha256": "0"} for name in MANIFEST.files}),
            "no SHA-256 for model.safetensors",
        ),
        (
            changed(files={name: {"bytes": 2**21, "sha256": "0" * 64} for name in MANIFEST.files}),
            "as size of state.json; a whole number up to 1,048,576 was meant",
        ),
        (MANIFEST.to_bytes() + b"\n", "its own SHA-256"),
    ],
)
def test_another_manifest_is_refused_with_its_reason(data: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        from_bytes(data)


@given(st.integers(0, 600), st.binary(min_size=1, max_size=6))
@settings(deadline=None)
def test_random_damage_raises_nothing_but_value_errors(place: int, splash: bytes):
    data = MANIFEST.to_bytes()
    damaged = data[:place] + splash + data[place + len(splash) :]
    if damaged != data:
        with pytest.raises(ValueError):
            from_bytes(damaged)
