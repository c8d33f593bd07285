"""Reads a YAML configuration strictly: every value with its line, every fault a ConfigError.

Scalars follow the YAML 1.2 core schema with decimal numbers only, and nothing is built from tags.
Where a mapping merges two parents (two `<<` lines, or a list) the later parent wins, as in the
reference configurations, and its own keys win over both.
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
from convoy.text import MOST_DIGITS, control_character, printable, shown

MOST_BYTES = 256 * 1024  # the largest reference file has 10 KB
MOST_NODES = 20_000  # keys, values and collections, after aliases and merges are expanded
MOST_DEPTH = 20  # the file's own mapping is level 1

Scalar = bool | int | float | str | None

_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # C is faster
_CORE = "tag:yaml.org,2002:"  # what `!!` stands for
_BARE = "bare"  # our tag of a scalar without quotes and tag
_SCALARS = ("str", "int", "float", "bool", "null")  # the core tags a scalar may carry
# Before content the C parser and the pure one disagree on tabs, on empty lines both complain.
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

    def plain(self) -> Any:
        """The value without lines, in containers of its own."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value


def read_yaml(path: Path) -> dict[str, YamlEntry]:
    """The top-level mapping of a file; an empty file is an empty mapping."""
    return parse_yaml(read_limited(path), str(path))


def parse_yaml(text: str | bytes, name: str) -> dict[str, YamlEntry]:
    """The top-level mapping of a text; `name` is what messages call it."""
    root = _compose(clean_text(text, name), name)
    value = None if root is None else _Reader(name).value(root, depth=1)
    if value is None:  # nothing, or a lone `---`
        return {}
    if not isinstance(value, dict):
        raise refusal(name, _line(root), "the top level must be a mapping, `name: value` lines")
    return value


def read_limited(path: Path) -> bytes:
    """The bytes of a regular file that is small enough to be a configuration."""
    name = printable(str(path))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{name} is {_kind(status.st_mode)}, not a configuration file")
        _check_size(status.st_size, name)
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)  # the file may have grown since it was measured
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {name}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name} cannot be read: {reason}") from None
    _check_size(len(data), name)
    return data


def clean_text(source: str | bytes, name: str) -> str:
    """Text of an allowed size, without byte order mark, control characters or tab indents."""
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    _check_size(len(data), printable(name))
    try:
        text = source if isinstance(source, str) else source.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise refusal(name, data.count(b"\n", 0, error.start) + 1, reason) from None
    text = text.removeprefix("\ufeff")
    if found := control_character(text):
        reason = f"the control character U+{ord(found[0]):04X} has no place in a configuration"
        raise refusal(name, text.count("\n", 0, found.start()) + 1, reason)
    if found := _TAB_INDENT.search(text):
        reason = "the line is indented with a tab; use spaces"
        raise refusal(name, text.count("\n", 0, found.start()) + 1, reason)
    return text


def refusal(name: str, line: int, reason: str) -> ConfigError:
    """The error for one place of a file, on one line whatever the file's name holds."""
    return ConfigError(f"{printable(name)}, line {line}: {reason}")


def _check_size(size: int, name: str) -> None:
    if size > MOST_BYTES:
        raise ConfigError(
            f"{name} is too big for a configuration: it has {size:,} bytes or more, "
            f"and at most {MOST_BYTES:,} are read"
        )


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


class _Loader(Composer, _PARSER):  # type: ignore[misc] # the class of the parser is chosen above
    """Nodes from the parser's events. The C composer is left out: deep nesting crashes it."""

    def __init__(self, text: str) -> None:
        _PARSER.__init__(self, text)
        Composer.__init__(self)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """The tag of a node that has none of its own: no guess about the type of a scalar."""
        del value
        if kind is yaml.ScalarNode:
            return _BARE if implicit[0] else f"{_CORE}str"
        return f"{_CORE}map" if kind is yaml.MappingNode else f"{_CORE}seq"


def _compose(text: str, name: str) -> Any:
    try:
        return yaml.compose(text, Loader=_Loader)
    except RecursionError:
        raise ConfigError(
            f"{printable(name)} is nested more than {MOST_DEPTH} levels deep"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark, start = error.problem_mark or error.context_mark, error.context_mark
        reason = " ".join(str(error.problem).split())[:200]
        if error.context and start:
            reason = f"{error.context} on line {start.line + 1}, {reason}"
        raise refusal(name, mark.line + 1 if mark else 1, f"not YAML: {reason}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The pure parser lets the last two out for absurd escapes and version numbers.
        raise ConfigError(f"{printable(name)} is not YAML: {shown(str(error))}") from None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Nodes → entries, within the limits of size and depth. An alias is the node of its anchor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes = 0
        self._open: list[Any] = []  # collections around the node that is being read

    def value(self, node: Any, depth: int, key: str = "") -> Any:
        """The value of a node at this depth; `key` is the prefix of a message about a scalar."""
        self._count(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key)
        if node in self._open:
            raise self._refusal(node, "an alias to this value is inside: it contains itself")
        if depth > MOST_DEPTH:
            raise self._refusal(node, f"nested more than {MOST_DEPTH} levels deep")
        is_mapping = isinstance(node, yaml.MappingNode)
        self._tag(node, ("map" if is_mapping else "seq",))
        self._open.append(node)
        value = self._mapping(node, depth) if is_mapping else self._items(node, depth, key)
        self._open.pop()
        return value

    def _items(self, node: Any, depth: int, key: str) -> list[YamlEntry]:
        return [YamlEntry(self.value(item, depth + 1, key), _line(item)) for item in node.value]

    def _mapping(self, node: Any, depth: int) -> dict[str, YamlEntry]:
        merged: dict[str, YamlEntry] = {}
        own: dict[str, YamlEntry] = {}
        for key, value in node.value:
            if key.tag == _BARE and key.value == "<<":
                self._count(key)
                for parent in self._parents(value):
                    merged.update(self.value(parent, depth))
                continue
            name = self.value(key, depth) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                called = name if isinstance(key, yaml.ScalarNode) else "of several values"
                reason = f"the key {called} is no text; put it in quotes if it is a name"
                raise self._refusal(key, reason)
            if name in own:
                reason = f"the key {shown(name)} is already set on line {own[name].line}"
                raise self._refusal(key, reason)
            own[name] = YamlEntry(self.value(value, depth + 1, f"{shown(name)}: "), _line(key))
        return merged | own

    def _parents(self, node: Any) -> Iterator[Any]:
        several = isinstance(node, yaml.SequenceNode)
        if several:
            self._count(node)
        for parent in node.value if several else [node]:
            if not isinstance(parent, yaml.MappingNode):
                raise self._refusal(parent, "`<<` merges mappings only, or a list of mappings")
            yield parent

    def _scalar(self, node: Any, key: str) -> Scalar:
        try:
            if node.tag == _BARE:
                return resolve(node.value)
            return convert(node.value, self._tag(node, _SCALARS))
        except ValueError as error:
            raise self._refusal(node, f"{key}{error}") from None

    def _tag(self, node: Any, allowed: tuple[str, ...]) -> str:
        """The short name of a core tag."""
        kind: str = node.tag.removeprefix(_CORE)
        if kind in allowed and kind != node.tag:
            return kind
        words = ", ".join("!!" + word for word in allowed)
        short = shown(node.tag if kind == node.tag else "!!" + kind)
        raise self._refusal(node, f"the tag {short} is not allowed here, only {words}")

    def _count(self, node: Any) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            reason = f"more than {MOST_NODES:,} values, counting what aliases repeat"
            raise self._refusal(node, reason)

    def _refusal(self, node: Any, reason: str) -> ConfigError:
        return refusal(self._name, _line(node), reason)


def resolve(text: str) -> Scalar:
    """The value of a bare scalar: what its spelling says, text if it says nothing else."""
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    return _number(text) if _FLOAT.fullmatch(text) else _checked(text)


def convert(text: str, tag: str) -> Scalar:
    """The value of a scalar with a core tag; the text must fit the tag."""
    if tag == "str":
        return _checked(text)
    value = resolve(text)
    if tag == "float" and type(value) is int:
        return float(value)
    kind = {"int": int, "float": float, "bool": bool, "null": type(None)}[tag]
    if type(value) is not kind:  # isinstance would take true for an int
        raise ValueError(f"{shown(text)} does not fit its tag !!{tag}")
    return value


def _checked(text: str) -> str:
    """Text as it is, unless escapes have put a control character into it."""
    if found := control_character(text):
        raise ValueError(f"the text holds the control character U+{ord(found[0]):04X}")
    return text


def _number(text: str) -> int | float:
    if zeros := _LEADING_ZERO.fullmatch(text):
        bare = zeros[1] + zeros[2]
        raise ValueError(
            f"{shown(text)} begins with a zero, which some read as octal; "
            f"write {shown(bare)[1:-1]} for a number, or put text in quotes"
        )
    if _INT.fullmatch(text):
        digits = len(text.lstrip("+-"))
        if digits > MOST_DIGITS:
            raise ValueError(f"a whole number of {digits} digits; at most {MOST_DIGITS} are read")
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is not a finite number")
    return value
