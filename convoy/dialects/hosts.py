"""Lists and files of hosts, as launchers take them → how many processes start on each host."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from convoy.config.option import ValueType, WrongType
from convoy.config.yaml_reader import clean_text, read_limited
from convoy.errors import ConfigError
from convoy.text import shown

MAX_PROCESSES = 65536

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # a comma in brackets belongs to the name
_RANGE = re.compile(r"(.*?)\[([0-9,-]+)\](.*)")
_SLOTS = re.compile(r"\bslots\s*=\s*(\S+)")

Hosts = Counter[str]  # host → processes that are started there


def read_hosts(text: str) -> Hosts:
    """`a:4,node[0-2]`; each mention of a host without a number is one process."""
    hosts: Hosts = Counter()
    for entry in _ENTRY.findall(text):
        pattern, _, slots = entry.strip().partition(":")
        for host in _expand(pattern):
            hosts[host] += _number(slots) if slots else 1
            if len(hosts) > MAX_PROCESSES:
                raise WrongType(f"names more than {MAX_PROCESSES:,} hosts")
    return _checked(hosts, f", got {shown(text)}")


def read_hostfile(path: str) -> Hosts:
    """A line for each host: its name, optionally `slots=N` and a comment after `#`."""
    try:
        text = clean_text(read_limited(Path(path)), path)
    except ConfigError as error:
        raise WrongType(f"cannot be read: {error}") from None
    hosts: Hosts = Counter()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            slots = _SLOTS.search(" ".join(words[1:]))
            for host, processes in read_hosts(words[0]).items():
                hosts[host] += _number(slots[1]) if slots else processes
    return _checked(hosts, f": {shown(path)} is empty")


def _checked(hosts: Hosts, if_empty: str) -> Hosts:
    if not hosts:
        raise WrongType(f"names no host{if_empty}")
    if not 1 <= hosts.total() <= MAX_PROCESSES:
        raise WrongType(
            f"has places for {hosts.total():,} processes, not for 1 to {MAX_PROCESSES:,}"
        )
    return hosts


def _expand(pattern: str) -> Iterator[str]:
    """`node[0-2]` → node0, node1, node2."""
    found = _RANGE.fullmatch(pattern)
    if found is None:
        if not pattern or "[" in pattern:
            raise WrongType(f"cannot read the host {shown(pattern)}")
        yield pattern
        return
    prefix, numbers, suffix = found.groups()
    for span in numbers.split(","):
        first, _, last = span.partition("-")
        for number in range(_number(first), _number(last or first) + 1):
            for rest in _expand(suffix) if suffix else [""]:
                yield f"{prefix}{number:0{len(first)}}{rest}"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise WrongType(f"expects a whole number, got {shown(text)}")
    number: int = ValueType(int).read([text])
    return number
