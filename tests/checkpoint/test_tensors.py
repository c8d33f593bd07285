"""safetensors files: ours are standard, and hostile ones are refused."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.tensors import TensorFile, decode

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


def whole(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(TensorFile(tensors).chunks())


def crafted(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def described(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_every_type_and_shape_comes_back_bit_for_bit():
    assert weights_sha256(decode(whole(TENSORS))) == weights_sha256(TENSORS)


def test_other_programs_can_read_our_files(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(whole(TENSORS))

    assert weights_sha256(load_file(tmp_path / "a.safetensors")) == weights_sha256(TENSORS)


def test_the_size_is_known_before_a_byte_is_written():
    assert TensorFile(TENSORS).bytes == len(whole(TENSORS))


def test_no_tensors_make_a_file_too():
    assert decode(whole({})) == {}


def test_every_tensor_is_aligned_to_its_type():
    data = whole(TENSORS)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    starts = {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}

    assert all(start % TENSORS[name].element_size() == 0 for name, start in starts.items())


@pytest.mark.parametrize("tensors", [{"__metadata__": torch.ones(1)}, {"a": torch.ones(1) * 1j}])
def test_a_tensor_without_a_place_in_the_format_is_refused(tensors: dict):
    with pytest.raises(ValueError, match="no place in safetensors"):
        TensorFile(tensors)


def test_more_tensors_than_could_be_read_again_are_not_written():
    tensor = torch.zeros(0)

    with pytest.raises(ValueError, match="20,000 tensors are more"):
        TensorFile({str(n): tensor for n in range(20_000)})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a"),
        (b"\x08\0\0", "header would be 8 bytes of 0"),
        ((2**63).to_bytes(8, "little") + b"{}", "9,223,372,036,854,775,808"),
        ((3 * 2**20).to_bytes(8, "little") + b"{" + b" " * 3 * 2**20, "at most 2,097,152"),
        (crafted([]), "no table of tensors"),
        (crafted(b'{"a":' * 15_000), "nested"),
        (crafted({str(n): described([0], 0, 0) for n in range(20_000)}), "more than 16,384"),
        (crafted({"a": described([2], 0, 8), "b": described([2], 4, 12)}, b"\0" * 12), "offset"),
        (crafted({"a": described([2], 0, 8), "b": described([2], 0, 8)}, b"\0" * 8), "offset"),
        (crafted({"a": described([1], 4, 8)}, b"\0" * 8), "offset"),
        (crafted({"a": described([1], 0, 4)}, b"\0" * 8), "not fully covered"),
        (crafted({"a": described([2], 0, 8)}, b"\0" * 4), "not a usable"),
        (crafted({"a": described([2**62, 8], 0, 0)}), "overflow"),
        (crafted({"a": described([0, 2**62, 2**62], 0, 0)}), "not a usable"),
        (crafted({"a": described([1] * 9, 0, 4)}, b"\0" * 4), "'a' has 9 axes"),
        (crafted({"a": described([-1], 0, 4)}, b"\0" * 4), "not a usable"),
        (crafted({"a": described([8], 0, 4, "F4")}, b"\0" * 4), "not a usable"),
        (crafted({"a": described([1], 0, 4, "PICKLE")}, b"\0" * 4), "not a usable"),
        (
            crafted(
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
        decode(data)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=6))
@settings(deadline=None)
def test_random_damage_raises_nothing_but_value_errors(place: int, splash: bytes):
    data = whole({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.int64)})
    damaged = (data[:place] + splash + data[place + len(splash) :])[: len(data)]
    try:
        decode(damaged)
    except ValueError as error:
        assert str(error)
