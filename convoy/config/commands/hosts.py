"""Lists of hosts, as launchers take them: `a,b`, `a:2,b:2`, `node[0-3,7]`, or a file of lines."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from convoy.config.user_text import shown
from convoy.config.values import Kind, WrongType
from convoy.config.yaml_limits import clean_text, read_limited
from convoy.errors import ConfigError

MOST_PLACES = 65536

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # a comma in brackets belongs to the name
_RANGE = re.compile(r"(.*?)\[([0-9,-]+)\](.*)")
_PLACES = re.compile(r"\bslots\s*=\s*(\S+)")

Places = Counter[str]  # host → processes that are started there


def read_hosts(text: str) -> Places:
    """Hosts behind an option; one without a number, and each mention of it, is one process."""
    places: Places = Counter()
    for entry in _ENTRY.findall(text):
        name, _, number = entry.strip().partition(":")
        for host in _names(name):
            places[host] += _number(number) if number else 1
            if len(places) > MOST_PLACES:
                raise WrongType(f"names more than {MOST_PLACES:,} hosts")
    if not places:
        raise WrongType(f"names no host, got {shown(text)}")
    return _some(places)


def read_hostfile(path: str) -> Places:
    """A line for each host: its name, perhaps `slots=N`, perhaps a comment behind `#`."""
    try:
        text = clean_text(read_limited(Path(path)), path)
    except ConfigError as error:
        raise WrongType(f"cannot be read: {error}") from None
    places: Places = Counter()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            found = _PLACES.search(" ".join(words[1:]))
            for host, number in read_hosts(words[0]).items():
                places[host] += _number(found[1]) if found else number
    if not places:
        raise WrongType(f"names no host: {shown(path)} is empty")
    return _some(places)


def _some(places: Places) -> Places:
    if not 1 <= places.total() <= MOST_PLACES:
        raise WrongType(
            f"has places for {places.total():,} processes, not for 1 to {MOST_PLACES:,}"
        )
    return places


def _names(pattern: str) -> Iterator[str]:
    """`node[0-2]` → node0, node1, node2."""
    found = _RANGE.fullmatch(pattern)
    if found is None:
        if not pattern or "[" in pattern:
            raise WrongType(f"cannot read the host {shown(pattern)}")
        yield pattern
        return
    for span in found[2].split(","):
        first, _, last = span.partition("-")
        for number in range(_number(first), _number(last or first) + 1):
            for rest in _names(found[3]) if found[3] else [""]:
                yield f"{found[1]}{number:0{len(first)}}{rest}"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise WrongType(f"expects a whole number, got {shown(text)}")
    number: int = Kind(int).read([text])
    return number
