"""The rank of this process among those of a run: alone, from torchrun or from our supervisor."""

from collections.abc import Mapping
from dataclasses import dataclass

from convoy.errors import ConfigError

_LARGEST_PORT = 65_535


@dataclass(frozen=True)
class World:
    """One process among `size`, of which `local_size` run on this host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    rendezvous: str | None = None  # the file where workers of our supervisor find each other

    @property
    def on_one_host(self) -> bool:
        return self.local_size == self.size

    @classmethod
    def alone(cls) -> "World":
        return cls(rank=0, size=1, local_rank=0, local_size=1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "World":
        """From the variables of torchrun and others; each must be set and valid."""
        size = _number(environment, "WORLD_SIZE", at_least=1)
        local_size = size
        if "LOCAL_WORLD_SIZE" in environment:  # torchrun sets it, older launchers do not
            local_size = _number(environment, "LOCAL_WORLD_SIZE", at_least=1, at_most=size)
        if not _text(environment, "MASTER_ADDR").strip():
            raise ConfigError("MASTER_ADDR is empty; it names the host of the rendezvous")
        _number(environment, "MASTER_PORT", at_least=1, at_most=_LARGEST_PORT)
        return cls(
            rank=_number(environment, "RANK", at_most=size - 1),
            size=size,
            local_rank=_number(environment, "LOCAL_RANK", at_most=local_size - 1),
            local_size=local_size,
        )


def has_launcher(environment: Mapping[str, str]) -> bool:
    """Whether torchrun, or something like it, started this process."""
    return "RANK" in environment or "WORLD_SIZE" in environment


def _text(environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        raise ConfigError(
            f"{name} is not set, though RANK or WORLD_SIZE say that this process is one of "
            "several; start it with torchrun, or unset them"
        )
    return environment[name]


def _number(
    environment: Mapping[str, str], name: str, at_least: int = 0, at_most: int = 2**31 - 1
) -> int:
    text = _text(environment, name)
    # isdecimal and a length first: int() would take "1_0", " 1" and a megabyte of digits.
    if not (text.isascii() and text.isdecimal() and len(text) < 11):
        raise ConfigError(f"{name} is {text[:40]!r}, not a whole number of at least {at_least}")
    number = int(text)
    if not at_least <= number <= at_most:
        raise ConfigError(f"{name} is {number}; it must lie between {at_least} and {at_most}")
    return number
