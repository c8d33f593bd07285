"""A strict YAML reader for configurations: every value has its line, every error is a ConfigError.

Scalars follow the YAML 1.2 core schema with decimal numbers only, and tags create no objects. If a
mapping merges two parents (two `<<` lines, or a list), the later parent wins, as in the reference
configurations, and the keys of the mapping itself win over both.
"""

import math
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from convoy.errors import ConfigError
from convoy.text import MAX_DIGITS, control_character, printable, quote_shortened

MAX_BYTES = 256 * 1024  # the largest reference file has 10 KB
MAX_NODES = 20_000  # keys, values and collections, after aliases and merges are expanded
MAX_DEPTH = 20  # the top-level mapping is level 1

Scalar = bool | int | float | str | None

_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # C is faster
_FILE_TYPES = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
_CORE = "tag:yaml.org,2002:"  # the prefix that `!!` abbreviates
_BARE = "bare"  # tag of convoy for a scalar without quotes or tag
_SCALARS = ("str", "int", "float", "bool", "null")  # the core tags a scalar may carry
# The C parser and the Python parser disagree on tabs before content; both reject empty lines.
_TAB_INDENT = re.compile("^ *\t", re.MULTILINE)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"([-+]?)0+([0-9].*)")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class YamlEntry:
    """A value and where it was set: the line of its key, or of the item in a list."""

    value: "Scalar | list[YamlEntry] | dict[str, YamlEntry]"
    line: int  # counts from 1

    def to_python(self) -> Any:
        """The value without line numbers, as new lists and dicts."""
        if isinstance(self.value, dict):
            return {key: entry.to_python() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.to_python() for entry in self.value]
        return self.value


def read_yaml(path: Path) -> dict[str, YamlEntry]:
    """Read the top-level mapping of a file; an empty file is an empty mapping."""
    return parse_yaml(read_limited(path), str(path))


def parse_yaml(data: bytes, name: str) -> dict[str, YamlEntry]:
    """Parse the top-level mapping of a file; messages refer to it by `name`."""
    root = _compose(decode_text(data, name), name)
    value = None if root is None else _Reader(name).value(root, depth=1)
    if value is None:  # an empty document or just `---`
        return {}
    if not isinstance(value, dict):
        reason = "the top level must be a mapping with lines `name: value`"
        raise yaml_error(name, _line(root), reason)
    return value


def read_limited(path: Path) -> bytes:
    """Read a regular file of at most MAX_BYTES."""
    name = printable(str(path))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "a device")
            raise ConfigError(f"{name} is {kind}, not a configuration file")
        _check_size(status.st_size, name)
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # the file may have grown since it was measured
    except FileNotFoundError:
        raise ConfigError(f"configuration file {name} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name} cannot be read: {reason}") from None
    _check_size(len(data), name)
    return data


def decode_text(data: bytes, name: str) -> str:
    """Decode a file; reject control characters and tab indents."""
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        reason = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise yaml_error(name, data.count(b"\n", 0, error.start) + 1, reason) from None
    if match := control_character(text):
        reason = f"the control character U+{ord(match[0]):04X} is not allowed in a configuration"
        raise yaml_error(name, text.count("\n", 0, match.start()) + 1, reason)
    if match := _TAB_INDENT.search(text):
        reason = "the line is indented with a tab; use spaces"
        raise yaml_error(name, text.count("\n", 0, match.start()) + 1, reason)
    return text


def yaml_error(name: str, line: int, reason: str) -> ConfigError:
    """An error at a line of a file, as a single line even if the file name contains line breaks."""
    return ConfigError(f"{printable(name)}, line {line}: {reason}")


def _check_size(size: int, name: str) -> None:
    if size > MAX_BYTES:
        raise ConfigError(
            f"{name} is too large for a configuration: it has at least {size:,} bytes, "
            f"the limit is {MAX_BYTES:,}"
        )


class _Loader(Composer, _PARSER):  # type: ignore[misc] # the class of the parser is chosen above
    """Composes nodes in Python from parser events: deep nesting crashes the C composer."""

    def __init__(self, text: str) -> None:
        _PARSER.__init__(self, text)
        Composer.__init__(self)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Choose the tag of a node without one, without guessing the type of a scalar."""
        del value
        if kind is yaml.ScalarNode:
            return _BARE if implicit[0] else f"{_CORE}str"
        return f"{_CORE}map" if kind is yaml.MappingNode else f"{_CORE}seq"


def _compose(text: str, name: str) -> Any:
    file = printable(name)
    try:
        return yaml.compose(text, Loader=_Loader)
    except RecursionError:
        raise ConfigError(f"{file} is nested more than {MAX_DEPTH} levels deep") from None
    except yaml.MarkedYAMLError as error:
        mark, start = error.problem_mark or error.context_mark, error.context_mark
        reason = " ".join(str(error.problem).split())[:200]
        if error.context and start:
            reason = f"{error.context} on line {start.line + 1}, {reason}"
        raise yaml_error(name, mark.line + 1 if mark else 1, f"not YAML: {reason}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The Python parser raises the last two for absurd escapes and version numbers.
        raise ConfigError(f"{file} is not YAML: {quote_shortened(str(error))}") from None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Converts nodes to entries, within limits of size and depth. Aliases share one node."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes = 0
        self._ancestors: list[Any] = []  # collections that contain the current node

    def value(self, node: Any, depth: int, key: str = "") -> Any:
        """The value of a node at this depth; `key` prefixes messages about scalars."""
        self._count(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key)
        if node in self._ancestors:
            raise self._error(node, "the value contains an alias to itself")
        if depth > MAX_DEPTH:
            raise self._error(node, f"nested more than {MAX_DEPTH} levels deep")
        is_mapping = isinstance(node, yaml.MappingNode)
        self._tag(node, ("map" if is_mapping else "seq",))
        self._ancestors.append(node)
        value = self._mapping(node, depth) if is_mapping else self._list(node, depth, key)
        self._ancestors.pop()
        return value

    def _list(self, node: Any, depth: int, key: str) -> list[YamlEntry]:
        return [YamlEntry(self.value(item, depth + 1, key), _line(item)) for item in node.value]

    def _mapping(self, node: Any, depth: int) -> dict[str, YamlEntry]:
        merged: dict[str, YamlEntry] = {}
        entries: dict[str, YamlEntry] = {}
        for key, value in node.value:
            if key.tag == _BARE and key.value == "<<":
                self._count(key)
                for parent in self._merge_sources(value):
                    merged.update(self.value(parent, depth))
                continue
            name = self.value(key, depth) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                described = name if isinstance(key, yaml.ScalarNode) else "with several values"
                reason = f"the key {described} is not a string; put it in quotes"
                raise self._error(key, reason)
            quoted = quote_shortened(name)
            if name in entries:
                reason = f"the key {quoted} is already set on line {entries[name].line}"
                raise self._error(key, reason)
            entries[name] = YamlEntry(self.value(value, depth + 1, f"{quoted}: "), _line(key))
        return merged | entries

    def _merge_sources(self, node: Any) -> Iterator[Any]:
        is_list = isinstance(node, yaml.SequenceNode)
        if is_list:
            self._count(node)
        for parent in node.value if is_list else [node]:
            if not isinstance(parent, yaml.MappingNode):
                raise self._error(parent, "`<<` merges only a mapping or a list of mappings")
            yield parent

    def _scalar(self, node: Any, key: str) -> Scalar:
        try:
            if node.tag == _BARE:
                return parse_scalar(node.value)
            return parse_tagged_scalar(node.value, self._tag(node, _SCALARS))
        except ValueError as error:
            raise self._error(node, f"{key}{error}") from None

    def _tag(self, node: Any, allowed: tuple[str, ...]) -> str:
        """The short name of a core tag."""
        short_name: str = node.tag.removeprefix(_CORE)
        if short_name in allowed and short_name != node.tag:
            return short_name
        words = ", ".join("!!" + word for word in allowed)
        short = quote_shortened(node.tag if short_name == node.tag else "!!" + short_name)
        raise self._error(node, f"the tag {short} is not allowed here, only {words}")

    def _count(self, node: Any) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            reason = f"more than {MAX_NODES:,} values, including those repeated by aliases"
            raise self._error(node, reason)

    def _error(self, node: Any, reason: str) -> ConfigError:
        return yaml_error(self._name, _line(node), reason)


def parse_scalar(text: str) -> Scalar:
    """Parse a scalar without quotes or tag; everything else is text."""
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    if not _FLOAT.fullmatch(text):
        return _check_text(text)
    if zeros := _LEADING_ZERO.fullmatch(text):
        bare = zeros[1] + zeros[2]
        raise ValueError(
            f"{quote_shortened(text)} starts with a zero, which some parsers read as octal; "
            f"write {quote_shortened(bare)[1:-1]} for a number, or put text in quotes"
        )
    if _INT.fullmatch(text):
        digits = len(text.lstrip("+-"))
        if digits > MAX_DIGITS:
            raise ValueError(f"an integer of {digits} digits; the limit is {MAX_DIGITS}")
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{quote_shortened(text)} is not a finite number")
    return value


def parse_tagged_scalar(text: str, tag: str) -> Scalar:
    """Parse a scalar with a core tag; the text must match the tag."""
    if tag == "str":
        return _check_text(text)
    value = parse_scalar(text)
    if tag == "float" and type(value) is int:
        return float(value)
    expected = {"int": int, "float": float, "bool": bool, "null": type(None)}[tag]
    if type(value) is not expected:  # isinstance would take true for an int
        raise ValueError(f"{quote_shortened(text)} does not match its tag !!{tag}")
    return value


def _check_text(text: str) -> str:
    """Return the text unless an escape sequence put a control character into it."""
    if match := control_character(text):
        raise ValueError(f"the text contains the control character U+{ord(match[0]):04X}")
    return text
