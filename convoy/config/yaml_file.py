"""Reads a YAML configuration, strictly: every value with its line, every fault a ConfigError.

Scalars follow the YAML 1.2 core schema, nothing is built from tags, and one pass over the parser's
events checks size, depth and keys. Where a mapping merges two parents (two `<<` lines, or a list)
the later parent wins, as in the reference configurations, and its own keys win over both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from convoy.config import yaml_scalars
from convoy.config.user_text import printable, shown
from convoy.config.yaml_limits import MOST_DEPTH, MOST_NODES, clean_text, read_limited, refusal
from convoy.config.yaml_scalars import Scalar
from convoy.errors import ConfigError

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # C is faster
_CORE = "tag:yaml.org,2002:"  # what `!!` stands for


@dataclass(frozen=True)
class Entry:
    """A value and where it was set: the line of its key, or of the item in a list."""

    value: "Scalar | list[Entry] | dict[str, Entry]"  # aliases share it: read, do not change
    line: int  # counts from 1

    def plain(self) -> Any:
        """The value without lines, in containers of its own."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value


def read_yaml(path: Path) -> dict[str, Entry]:
    """The top-level mapping of a file; an empty file is an empty mapping."""
    return parse_yaml(read_limited(path), str(path))


def parse_yaml(text: str | bytes, name: str) -> dict[str, Entry]:
    """The top-level mapping of a text; `name` is what messages call it."""
    document = _Document(name)
    for event in _events(clean_text(text, name), name):
        document.take(event)
    return document.mapping()


def _events(text: str, name: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise refusal(name, *_problem(error)) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The pure parser lets the last two out for absurd escapes and version numbers.
        raise ConfigError(f"{printable(name)} is not YAML: {shown(str(error))}") from None


def _problem(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Line and reason of a parser's complaint, with where the broken thing began."""
    mark, start = error.problem_mark or error.context_mark, error.context_mark
    line = mark.line + 1 if mark else 1
    reason = f"not YAML: {' '.join(str(error.problem).split())[:200]}"
    if error.context and start and start.line + 1 != line:
        reason += f" {error.context} that begins on line {start.line + 1}"
    return line, reason


@dataclass
class _Node:
    """A finished value with what the limits need to know of it."""

    entry: Entry
    nodes: int = 1  # after expansion
    height: int = 0  # levels of collections in it
    merges: bool = False  # it is a bare `<<`


@dataclass
class _Open:
    """A collection whose end has not come yet."""

    line: int
    is_mapping: bool
    anchor: str | None
    nodes_before: int
    children: list[_Node] = field(default_factory=list)  # in a mapping keys and values alternate

    def pairs(self) -> list[tuple[_Node, _Node]]:
        return list(zip(self.children[::2], self.children[1::2], strict=True))

    def height(self) -> int:
        """Merged parents dissolve in this collection, and so does a list of parents."""
        if not self.is_mapping:
            return 1 + max((child.height for child in self.children), default=0)
        below = [0]
        for key, value in self.pairs():
            dissolved = 0 if not key.merges else 2 if isinstance(value.entry.value, list) else 1
            below.append(value.height - dissolved)
        return 1 + max(below)


class _Document:
    """Takes a parser's events and grows the entries, without recursion."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[int, _Node | None]] = {}  # None: still open
        self._nodes = 0
        self._root: _Node | None = None
        self._documents = 0

    def mapping(self) -> dict[str, Entry]:
        """What the whole document holds."""
        if self._root is None:
            return {}
        entry = self._root.entry
        if isinstance(entry.value, dict):
            return entry.value
        if entry.value is None:  # a lone `---`
            return {}
        raise self._refusal(entry.line, "the top level must be a mapping, `name: value` lines")

    def take(self, event: Any) -> None:
        """Handle one event; stream marks and the document's end say nothing new."""
        line = event.start_mark.line + 1
        match event:
            case yaml.DocumentStartEvent():
                self._begin_document(line)
            case yaml.ScalarEvent():
                self._count(1, line)
                self._anchor(event.anchor, line)
                self._add(self._scalar(event, line), event.anchor)
            case yaml.AliasEvent():
                self._add(self._alias(event, line), None)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()

    def _begin_document(self, line: int) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self._refusal(line, "a second document begins here; a configuration is one")

    def _begin(self, event: Any, line: int) -> None:
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._tag(event.tag, ("map" if is_mapping else "seq",), line)
        self._check_depth(len(self._open) + 1, line)
        self._anchor(event.anchor, line)
        self._open.append(_Open(line, is_mapping, event.anchor, self._nodes))
        self._count(1, line)

    def _end(self) -> None:
        done = self._open.pop()
        height = done.height()
        # Aliases may make it deeper than it is written.
        self._check_depth(len(self._open) + height, done.line)
        value = self._keyed(done) if done.is_mapping else [node.entry for node in done.children]
        nodes = self._nodes - done.nodes_before
        self._add(_Node(Entry(value, done.line), nodes, height), done.anchor)

    def _add(self, node: _Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node.entry.line, node)
        if self._open:
            self._open[-1].children.append(node)
        else:
            self._root = node

    def _anchor(self, anchor: str | None, line: int) -> None:
        """Announce an anchor before its value is known, so that an alias inside is noticed."""
        if anchor is None:
            return
        if anchor in self._anchors:
            first = self._anchors[anchor][0]
            reason = f"the anchor {shown(anchor)} was already set on line {first}"
            raise self._refusal(line, reason)
        self._anchors[anchor] = (line, None)

    def _alias(self, event: Any, line: int) -> _Node:
        anchor = event.anchor
        if anchor not in self._anchors:
            raise self._refusal(line, f"the alias {shown(anchor)} has no anchor before it")
        node = self._anchors[anchor][1]
        if node is None:
            raise self._refusal(line, f"the alias {shown(anchor)} contains itself")
        self._count(node.nodes, line)
        return _Node(Entry(node.entry.value, line), node.nodes, node.height)

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            reason = f"more than {MOST_NODES:,} values, counting what aliases repeat"
            raise self._refusal(line, reason)

    def _check_depth(self, depth: int, line: int) -> None:
        if depth > MOST_DEPTH:
            raise self._refusal(line, f"nested more than {MOST_DEPTH} levels deep")

    def _tag(self, tag: str | None, allowed: tuple[str, ...], line: int) -> str | None:
        """The short name of an allowed core tag, None without a tag."""
        if tag is None:
            return None
        kind = tag.removeprefix(_CORE)
        if kind in allowed and kind != tag:
            return kind
        words = ", ".join("!!" + word for word in allowed)
        short = tag if kind == tag else "!!" + kind
        raise self._refusal(line, f"the tag {shown(short)} is not allowed here, only {words}")

    def _scalar(self, event: Any, line: int) -> _Node:
        tag = self._tag(event.tag, yaml_scalars.TAGS, line)
        bare = tag is None and event.implicit[0]
        text = event.value
        try:
            value = yaml_scalars.resolve(text) if bare else yaml_scalars.convert(text, tag or "str")
        except ValueError as error:
            raise self._refusal(line, f"{self._key_here()}{error}") from None
        return _Node(Entry(value, line), merges=bare and text == "<<")

    def _key_here(self) -> str:
        """`key: ` of the value that is being read, as far as there is one."""
        for collection in reversed(self._open):
            if collection.is_mapping:
                waiting = len(collection.children) % 2 == 1
                return f"{_name(collection.children[-1])}: " if waiting else ""
        return ""

    def _keyed(self, done: _Open) -> dict[str, Entry]:
        merged: dict[str, Entry] = {}
        own: dict[str, Entry] = {}
        for key, value in done.pairs():
            name, line = key.entry.value, key.entry.line
            if key.merges:
                for parent in self._parents(value.entry):
                    merged.update(parent)
            elif not isinstance(name, str):
                reason = f"the key {_name(key)} is no text; put it in quotes if it is a name"
                raise self._refusal(line, reason)
            elif name in own:
                reason = f"the key {shown(name)} is already set on line {own[name].line}"
                raise self._refusal(line, reason)
            else:
                own[name] = Entry(value.entry.value, line)
        return merged | own

    def _parents(self, entry: Entry) -> Iterator[dict[str, Entry]]:
        for one in entry.value if isinstance(entry.value, list) else [entry]:
            if not isinstance(one.value, dict):
                raise self._refusal(one.line, "`<<` merges mappings only, or a list of mappings")
            yield one.value

    def _refusal(self, line: int, reason: str) -> ConfigError:
        return refusal(self._name, line, reason)


def _name(key: _Node) -> str:
    """A key as a message calls it."""
    if isinstance(key.entry.value, str):
        return shown(key.entry.value)
    if isinstance(key.entry.value, list | dict):
        return "of several values"
    return str(key.entry.value)
