"""Named tensors ↔ bytes of a safetensors file.

Writing streams from the tensors' own memory, so that a background thread can hash and write
without holding the interpreter. Reading bounds the header first and then leaves the work to
safetensors' own parser, which refuses gaps, overlaps and overflow. Problems are ValueErrors.
"""

import json
from collections.abc import Iterator, Mapping

import torch
from safetensors.torch import load
from torch import Tensor

from convoy.checkpoint.digest import raw_bytes
from convoy.checkpoint.strict_json import parse

# safetensors takes 2.5 s for a header of 16 MiB with 200,000 names; no network here has 5,000.
_HEADER_LIMIT = 2 * 2**20
_TENSORS_LIMIT = 2**14
_AXES_LIMIT = 8
_LENGTH_BYTES = 8
_ALIGNMENT = 8

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorFile:
    """A safetensors file that is about to be written."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Wide types first keeps every tensor aligned; names make the bytes a function of content.
        order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self._tensors = [tensors[name] for name in order]
        self._header = _header(order, self._tensors)
        self.bytes = len(self._header) + sum(tensor.nbytes for tensor in self._tensors)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The file from its first byte to its last."""
        yield self._header
        for tensor in self._tensors:
            yield raw_bytes(tensor)


def _header(names: list[str], tensors: list[Tensor]) -> bytes:
    """Length, then name → type, shape and place, padded so that the data is aligned."""
    entries, end = {}, 0
    for name, tensor in zip(names, tensors, strict=True):
        if name == "__metadata__" or tensor.dtype not in _CODES:
            raise ValueError(f"the tensor {name!r} of {tensor.dtype} has no place in safetensors")
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > _HEADER_LIMIT or len(entries) > _TENSORS_LIMIT:
        raise ValueError(f"{len(entries):,} tensors are more than one file may hold")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def decode(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file; nothing in it is ever executed."""
    _check_header(data)
    try:
        return load(data)
    except Exception as error:  # whatever it raises, the file is unusable
        raise ValueError(f"not a usable safetensors file: {error}") from error


def _check_header(data: bytes) -> None:
    """Bound the work of the parser, and refuse names given twice, which it would merge."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    room = len(data) - _LENGTH_BYTES
    if length > min(room, _HEADER_LIMIT):
        raise ValueError(
            f"not a safetensors file: its header would be {length:,} bytes of {max(room, 0):,}, "
            f"at most {_HEADER_LIMIT:,} are read"
        )
    header = data[_LENGTH_BYTES : _LENGTH_BYTES + length]
    if header.count(b"{") > _TENSORS_LIMIT + 1:
        raise ValueError(f"more than {_TENSORS_LIMIT:,} tensors in one file")
    table = parse(header, _HEADER_LIMIT)
    if not isinstance(table, dict):
        raise ValueError("not a safetensors file: its header is no table of tensors")
    for name, entry in table.items():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if isinstance(shape, list) and len(shape) > _AXES_LIMIT:
            raise ValueError(f"the tensor {name[:80]!r} has {len(shape):,} axes")
