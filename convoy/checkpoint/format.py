"""The file formats of a checkpoint: strict JSON, safetensors, and MANIFEST.json.

Bytes of unknown origin are bounded before they are parsed; nothing in them is ever executed, and
what could not be read again is not written. Every problem is a ValueError with one line of text.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TypeAlias

import torch
from safetensors.torch import load
from torch import Tensor

from convoy.errors import CheckpointError

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_JSON_BYTES = 2**20
_MAX_DEPTH = 32
_MAX_DIGITS = 20  # a 64-bit seed has at most 20 digits


def parse_json(data: bytes, max_bytes: int = MAX_JSON_BYTES) -> JSON:
    if len(data) > max_bytes:
        raise ValueError(f"{len(data):,} bytes of JSON, at most {max_bytes:,} are read")
    try:
        value: JSON = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_int=_bounded_int,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise ValueError(f"JSON nested more than {_MAX_DEPTH} deep") from None
    except ValueError as error:
        raise ValueError(f"not the JSON expected here: {error}") from error
    _check_tree(value)
    return value


def encode_json(value: JSON) -> bytes:
    """Readable bytes with sorted keys; always the same for the same value."""
    try:
        data = json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
    except (TypeError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error
    parse_json(data)  # what could not be read again must not be written
    return data


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated[:80]!r} appears twice")
    return found


def _bounded_int(text: str) -> int:
    # int() is quadratic in the digits, and a number this long is damage or malice.
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits, at most {_MAX_DIGITS} are read")
    return int(text)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is not finite")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _check_tree(root: JSON) -> None:
    """Bound the depth, and refuse strings that no file or terminal could take."""
    level: list[JSON] = [root]
    for _ in range(_MAX_DEPTH):
        for value in level:
            if isinstance(value, str):
                value.encode()  # half of a surrogate pair is a UnicodeEncodeError, a ValueError
        tables = [value for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list)]
        level = list(chain(*lists, *tables, *(table.values() for table in tables)))
        if not level:
            return
    raise ValueError(f"JSON nested more than {_MAX_DEPTH} deep")


# safetensors takes 2.5 s for a header of 16 MiB with 200,000 names; no network here has 5,000.
_MAX_HEADER_BYTES = 2 * 2**20
_MAX_TENSORS = 2**14
_MAX_AXES = 8
_LENGTH_BYTES = 8
_ALIGNMENT = 8

_DTYPE_NAMES = {
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


def raw_bytes(tensor: Tensor) -> memoryview:
    """The elements in row order, whatever the strides and the device; a view where possible."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data


class TensorFile:
    """A safetensors file to be written.

    It streams from the tensors' own memory, so that a background thread can hash and write without
    holding the interpreter.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Wide types first keeps every tensor aligned; names make the bytes a function of content.
        order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self._tensors = [tensors[name] for name in order]
        self._header = _header(order, self._tensors)
        self.bytes = len(self._header) + sum(tensor.nbytes for tensor in self._tensors)

    def chunks(self) -> Iterator[bytes | memoryview]:
        yield self._header
        for tensor in self._tensors:
            yield raw_bytes(tensor)


def _header(names: list[str], tensors: list[Tensor]) -> bytes:
    """Length, then name → dtype, shape and offsets, padded so that the data is aligned."""
    table, end = {}, 0
    for name, tensor in zip(names, tensors, strict=True):
        if name == "__metadata__" or tensor.dtype not in _DTYPE_NAMES:
            raise ValueError(
                f"the tensor {name!r} of {tensor.dtype} cannot be stored in safetensors"
            )
        begin, end = end, end + tensor.nbytes
        table[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > _MAX_HEADER_BYTES or len(table) > _MAX_TENSORS:
        raise ValueError(f"{len(table):,} tensors are more than one file may hold")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def decode_tensors(data: bytes) -> dict[str, Tensor]:
    _check_header(data)
    try:
        return load(data)
    except Exception as error:  # whatever it raises, the file is unusable
        raise ValueError(f"not a usable safetensors file: {error}") from error


def _check_header(data: bytes) -> None:
    """Bound the work of the parser, and refuse names given twice, which it would merge."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    size = len(data) - _LENGTH_BYTES
    if length > min(size, _MAX_HEADER_BYTES):
        raise ValueError(
            f"not a safetensors file: its header would be {length:,} bytes of {max(size, 0):,}, "
            f"at most {_MAX_HEADER_BYTES:,} are read"
        )
    header = data[_LENGTH_BYTES : _LENGTH_BYTES + length]
    if header.count(b"{") > _MAX_TENSORS + 1:
        raise ValueError(f"more than {_MAX_TENSORS:,} tensors in one file")
    table = parse_json(header, _MAX_HEADER_BYTES)
    if not isinstance(table, dict):
        raise ValueError("not a safetensors file: its header is not a table of tensors")
    for name, entry in table.items():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if isinstance(shape, list) and len(shape) > _MAX_AXES:
            raise ValueError(f"the tensor {name[:80]!r} has {len(shape):,} axes")


MANIFEST = "MANIFEST.json"
STATE = "state.json"
TENSOR_FILES = {  # field of `Contents` → file
    "model": "model.safetensors",
    "optimizer": "optimizer.safetensors",
    "averages": "averages.safetensors",
}

FORMAT = 1
_KIND = "convoy checkpoint"
_REQUIRED = {TENSOR_FILES["model"], STATE}
_KNOWN = {*TENSOR_FILES.values(), STATE}
_MAX_UPDATE = 10**15
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """One file as it was written."""

    bytes: int
    sha256: str

    def check(self, bytes: int, sha256: str) -> None:
        """Refuse a file that is not, bit for bit, the one that was written."""
        if bytes != self.bytes:
            raise ValueError(f"has {bytes:,} bytes, the manifest says {self.bytes:,}")
        if sha256 != self.sha256:
            raise ValueError(
                f"has SHA-256 {sha256[:12]}…, the manifest says {self.sha256[:12]}…: "
                "it was damaged or changed"
            )


@dataclass(frozen=True)
class Manifest:
    """The files of one checkpoint, with the size and SHA-256 of each.

    It is written last, so a folder that has one is complete, and it carries its own SHA-256.
    """

    update: int
    files: dict[str, FileEntry]
    torch: str  # version that wrote it
    created: str  # UTC

    def to_bytes(self) -> bytes:
        """The file, the same for the same manifest."""
        table: dict[str, JSON] = {"format": FORMAT, "kind": _KIND, **asdict(self)}
        return encode_json({**table, "sha256": hashlib.sha256(encode_json(table)).hexdigest()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """The manifest in these bytes, provided that they are exactly what was written."""
        table = parse_json(data)
        if not isinstance(table, dict) or table.get("kind") != _KIND:
            raise ValueError("is not the manifest of a convoy checkpoint")
        version = table.get("format")
        if version != FORMAT:
            raise ValueError(f"is of version {version!r:.40}, this program reads {FORMAT}")
        manifest = cls(
            update=_count(table.get("update"), "update", _MAX_UPDATE),
            files=_entries(table.get("files")),
            torch=_text(table.get("torch"), "torch"),
            created=_text(table.get("created"), "created"),
        )
        if manifest.to_bytes() != data:
            raise ValueError("does not agree with its own SHA-256: it was damaged or changed")
        return manifest


def _entries(value: JSON) -> dict[str, FileEntry]:
    if not isinstance(value, dict):
        raise ValueError("names no files")
    # Checked before anything is opened: a name from outside must never become a path.
    for name in value:
        if name not in _KNOWN:
            raise ValueError(f"names {name[:80]!r}, which is not a file of a checkpoint")
    if missing := sorted(_REQUIRED - value.keys()):
        raise ValueError(f"does not name {', '.join(missing)}")
    return {name: _entry(name, entry) for name, entry in value.items()}


def _entry(name: str, value: JSON) -> FileEntry:
    if not isinstance(value, dict):
        raise ValueError(f"has no size and SHA-256 for {name}")
    sha256 = _text(value.get("sha256"), f"SHA-256 of {name}")
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"has no SHA-256 for {name}")
    limit = MAX_JSON_BYTES if name == STATE else 2**63
    return FileEntry(_count(value.get("bytes"), f"size of {name}", limit), sha256)


def _count(value: JSON, what: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ValueError(f"gives {value!r:.40} as {what}; a whole number up to {limit:,} was meant")
    return value


def _text(value: JSON, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"gives {value!r:.40} as {what}; text was meant")
    return value


Tensors = dict[str, Tensor]
_NAMES_SHOWN = 4


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over sorted names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        # A line of JSON cannot run into its neighbors, and fixes how many bytes follow it.
        label = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(label).encode() + b"\n")
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()


@dataclass(frozen=True)
class Contents:
    """Model, optimizer and averages by name; `state` is everything that is not a tensor."""

    model: Tensors  # parameters and buffers
    optimizer: Tensors = field(default_factory=dict)  # `<parameter>/<slot>`
    averages: Tensors = field(default_factory=dict)
    state: dict[str, JSON] = field(default_factory=dict)  # `update` is always there

    @property
    def update(self) -> int:
        update = self.state.get("update")
        if not isinstance(update, int) or isinstance(update, bool) or update < 0:
            raise CheckpointError(f"the state of a checkpoint needs its update, not {update!r:.80}")
        return update

    @property
    def tensors(self) -> dict[str, Tensors]:
        return {"model": self.model, "optimizer": self.optimizer, "averages": self.averages}

    def copy(self, reuse: "Contents | None" = None) -> "Contents":
        """A copy on the CPU that later training cannot change; `reuse` gives up its memory."""
        spent = (reuse or Contents(model={})).tensors
        copies = {
            part: {
                name: _copy_tensor(tensor, spent[part].get(name)) for name, tensor in named.items()
            }
            for part, named in self.tensors.items()
        }
        return Contents(**copies, state=deepcopy(self.state))


def _copy_tensor(tensor: Tensor, spent: Tensor | None) -> Tensor:
    """One memcpy; fresh memory costs a page fault every 4 KiB on top, so it is used again."""
    if spent is None or spent.shape != tensor.shape or spent.dtype != tensor.dtype:
        spent = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return spent.copy_(tensor.detach())


def match(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], of: str = "model") -> None:
    """CheckpointError unless names, shapes and dtypes are exactly those expected."""
    pairs = {name: (one, expected[name]) for name, one in found.items() if name in expected}
    others = [
        f"{name} {shape_text(one)} for {shape_text(other)}"
        for name, (one, other) in pairs.items()
        if one.shape != other.shape or one.dtype != other.dtype
    ]
    problems = [
        list_names("missing", [name for name in expected if name not in found]),
        list_names("unexpected", [name for name in found if name not in expected]),
        list_names("of another shape or type", others),
    ]
    if any(problems):
        raise CheckpointError(
            f"the checkpoint does not fit this {of}: {'; '.join(filter(None, problems))}; "
            "train or validate with the options it was saved under"
        )


def shape_text(tensor: Tensor) -> str:
    """`10×64 float32`."""
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"


def list_names(what: str, names: list[str]) -> str:
    """`2 missing (fc.bias, fc.weight)`; empty if there are none."""
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names):,} {what} ({', '.join(names[:_NAMES_SHOWN])}{more})"
