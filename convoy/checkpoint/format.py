"""The file formats of a checkpoint: strict JSON, safetensors, and MANIFEST.json.

Untrusted input is limited in size before it is parsed, and nothing in it is ever executed. Nothing
is written that could not be read back. Every problem is a ValueError with a one-line message.
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
        raise ValueError(f"{len(data):,} bytes of JSON; the limit is {max_bytes:,}")
    try:
        value: JSON = json.loads(
            data.decode(),
            object_pairs_hook=_refuse_duplicate_keys,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_parse_float,
        )
    except RecursionError:
        raise ValueError(f"JSON is nested more than {_MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from error
    _check_nesting(value)
    return value


def encode_json(value: JSON) -> bytes:
    """Encode as indented JSON with sorted keys; deterministic."""
    try:
        data = json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
    except (TypeError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error
    parse_json(data)  # never write what cannot be read back
    return data


def _refuse_duplicate_keys(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    table = dict(pairs)
    if len(table) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated[:80]!r} appears twice")
    return table


def _parse_int(text: str) -> int:
    # int() is quadratic in the digits; a number this long is corrupt or malicious.
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits; the limit is {_MAX_DIGITS}")
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is not finite")
    return value


def _check_nesting(root: JSON) -> None:
    """Limit the depth, and refuse strings that cannot be encoded."""
    level: list[JSON] = [root]
    for _ in range(_MAX_DEPTH):
        for value in level:
            if isinstance(value, str):
                value.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
        tables = [value for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list)]
        level = list(chain(*lists, *tables, *(table.values() for table in tables)))
        if not level:
            return
    raise ValueError(f"JSON is nested more than {_MAX_DEPTH} levels deep")


# safetensors takes 2.5 s for a header of 16 MiB with 200,000 names; no network here has 5,000.
_MAX_HEADER_BYTES = 2 * 2**20
_MAX_TENSORS = 2**14
_MAX_AXES = 8
_LENGTH_BYTES = 8
_ALIGNMENT = 8
_METADATA = "__metadata__"

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
    """Return the elements in row-major order, for any strides and device; a view if possible."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data


class TensorFile:
    """A safetensors file to be written.

    The data is streamed from the memory of the tensors, so that a background thread can hash and
    write it without holding the GIL.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        # Wide dtypes first, to keep every tensor aligned; then by name, to be deterministic.
        order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self._tensors = {name: tensors[name] for name in order}
        self._header = _encode_header(self._tensors, metadata)
        self.bytes = len(self._header) + sum(tensor.nbytes for tensor in self._tensors.values())

    def chunks(self) -> Iterator[bytes | memoryview]:
        yield self._header
        yield from map(raw_bytes, self._tensors.values())


def _encode_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    """Encode the length and the table of dtypes, shapes and offsets, padded for alignment."""
    table: dict[str, object] = {} if metadata is None else {_METADATA: dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        if name == _METADATA or tensor.dtype not in _DTYPE_NAMES:
            raise ValueError(f"tensor {name!r} of {tensor.dtype} cannot be stored in safetensors")
        begin, end = end, end + tensor.nbytes
        table[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > _MAX_HEADER_BYTES or len(table) > _MAX_TENSORS:
        raise ValueError(f"{len(table):,} tensors are too many for one file")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def decode_tensors(data: bytes) -> dict[str, Tensor]:
    _check_header(data)
    try:
        return load(data)
    except Exception as error:  # whatever it raises, the file is unusable
        raise ValueError(f"not a usable safetensors file: {error}") from error


def decode_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file that `decode_tensors` accepts."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    table = parse_json(data[_LENGTH_BYTES : _LENGTH_BYTES + length], _MAX_HEADER_BYTES)
    metadata = table.get(_METADATA) if isinstance(table, dict) else None
    items = metadata.items() if isinstance(metadata, dict) else ()
    return {name: str(text) for name, text in items}


def _check_header(data: bytes) -> None:
    """Limit the work of the parser, and refuse duplicate names, which it would merge."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    size = len(data) - _LENGTH_BYTES
    if length > min(size, _MAX_HEADER_BYTES):
        raise ValueError(
            f"not a safetensors file: its header claims {length:,} of {max(size, 0):,} bytes; "
            f"the limit is {_MAX_HEADER_BYTES:,}"
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
            raise ValueError(
                f"tensor {name[:80]!r} has {len(shape):,} dimensions; the limit is {_MAX_AXES}"
            )


MANIFEST = "MANIFEST.json"
STATE = "state.json"
TENSOR_FILES = {  # field of `CheckpointContents` → file
    "model": "model.safetensors",
    "optimizer": "optimizer.safetensors",
    "averages": "averages.safetensors",
}

FORMAT = 1
_KIND = "convoy checkpoint"
_REQUIRED_FILES = {TENSOR_FILES["model"], STATE}
_KNOWN_FILES = {*TENSOR_FILES.values(), STATE}
_MAX_UPDATE = 10**15
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """Size and SHA-256 of a file as it was written."""

    bytes: int
    sha256: str

    def check(self, bytes: int, sha256: str) -> None:
        """Raise ValueError unless the file is identical to the one that was written."""
        if bytes != self.bytes:
            raise ValueError(f"has {bytes:,} bytes, but the manifest lists {self.bytes:,}")
        if sha256 != self.sha256:
            raise ValueError(
                f"has SHA-256 {sha256[:12]}…, but the manifest lists {self.sha256[:12]}…: "
                "the file is damaged or was modified"
            )


@dataclass(frozen=True)
class Manifest:
    """The files of one checkpoint, with the size and SHA-256 of each.

    It is written last, so a folder with a manifest is complete, and it contains its own SHA-256.
    """

    update: int
    files: dict[str, FileEntry]
    torch: str  # the version that wrote it
    created: str  # UTC

    def to_bytes(self) -> bytes:
        """Encode the manifest; deterministic."""
        table: dict[str, JSON] = {"format": FORMAT, "kind": _KIND, **asdict(self)}
        return encode_json({**table, "sha256": hashlib.sha256(encode_json(table)).hexdigest()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Decode a manifest, after checking that it is exactly what was written."""
        table = parse_json(data)
        if not isinstance(table, dict) or table.get("kind") != _KIND:
            raise ValueError("is not the manifest of a convoy checkpoint")
        version = table.get("format")
        if version != FORMAT:
            raise ValueError(
                f"has format version {version!r:.40}, but this program reads version {FORMAT}"
            )
        manifest = cls(
            update=_parse_count(table.get("update"), "update", _MAX_UPDATE),
            files=_parse_entries(table.get("files")),
            torch=str(table.get("torch")),
            created=str(table.get("created")),
        )
        # Other types than strings are detected here, too.
        if manifest.to_bytes() != data:
            raise ValueError("does not match its own SHA-256: it is damaged or was modified")
        return manifest


def _parse_entries(value: JSON) -> dict[str, FileEntry]:
    if not isinstance(value, dict):
        raise ValueError("lists no files")
    # Check before opening anything: an untrusted name must never become a path.
    for name in value:
        if name not in _KNOWN_FILES:
            raise ValueError(f"lists {name[:80]!r}, which is not a checkpoint file")
    if missing := sorted(_REQUIRED_FILES - value.keys()):
        raise ValueError(f"does not list {', '.join(missing)}")
    return {name: _parse_entry(name, entry) for name, entry in value.items()}


def _parse_entry(name: str, value: JSON) -> FileEntry:
    if not isinstance(value, dict):
        raise ValueError(f"has no size and SHA-256 for {name}")
    sha256 = str(value.get("sha256"))
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"has no SHA-256 for {name}")
    limit = MAX_JSON_BYTES if name == STATE else 2**63
    return FileEntry(_parse_count(value.get("bytes"), f"size of {name}", limit), sha256)


def _parse_count(value: JSON, what: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ValueError(f"has {value!r:.40} as {what}; expected an integer up to {limit:,}")
    return value


Tensors = dict[str, Tensor]
_NAMES_SHOWN = 4


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over sorted names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        # A line of JSON is unambiguous, and determines how many bytes follow.
        label = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(label).encode() + b"\n")
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()


@dataclass(frozen=True)
class CheckpointContents:
    """Model, optimizer and averages by name; `state` is everything that is not a tensor."""

    model: Tensors  # parameters and buffers
    optimizer: Tensors = field(default_factory=dict)  # `<parameter>/<slot>`
    averages: Tensors = field(default_factory=dict)
    state: dict[str, JSON] = field(default_factory=dict)  # always contains `update`

    @property
    def update(self) -> int:
        update = self.state.get("update")
        if not isinstance(update, int) or isinstance(update, bool) or update < 0:
            raise CheckpointError(f"invalid update {update!r:.80} in the state of a checkpoint")
        return update

    @property
    def tensors(self) -> dict[str, Tensors]:
        return {"model": self.model, "optimizer": self.optimizer, "averages": self.averages}

    def copy(self, reuse: "CheckpointContents | None" = None) -> "CheckpointContents":
        """Copy to the CPU, into the tensors of `reuse` where they fit."""
        buffers = (reuse or CheckpointContents(model={})).tensors
        copies = {
            part: {
                name: _copy_tensor(tensor, buffers[part].get(name))
                for name, tensor in named.items()
            }
            for part, named in self.tensors.items()
        }
        return CheckpointContents(**copies, state=deepcopy(self.state))


def _copy_tensor(tensor: Tensor, buffer: Tensor | None) -> Tensor:
    """Copy into the buffer if it fits: new memory would cost a page fault every 4 KiB."""
    if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
        buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return buffer.copy_(tensor.detach())


def check_match(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str = "model"
) -> None:
    """Raise CheckpointError unless names, shapes and dtypes are exactly as expected."""
    mismatched = [
        f"{name} {describe_tensor(tensor)}, expected {describe_tensor(expected[name])}"
        for name, tensor in tensors.items()
        if name in expected and describe_tensor(tensor) != describe_tensor(expected[name])
    ]
    problems = [
        summarize_names("missing", [name for name in expected if name not in tensors]),
        summarize_names("unexpected", [name for name in tensors if name not in expected]),
        summarize_names("with the wrong shape or dtype", mismatched),
    ]
    if any(problems):
        raise CheckpointError(
            f"the checkpoint does not match this {what}: {'; '.join(filter(None, problems))}; "
            "use the model and network options that it was saved with"
        )


def describe_tensor(tensor: Tensor) -> str:
    """Return `10×64 float32`."""
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"


def summarize_names(what: str, names: list[str]) -> str:
    """Return `2 missing (fc.bias, fc.weight)`; empty if there are no names."""
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names):,} {what} ({', '.join(names[:_NAMES_SHOWN])}{more})"
