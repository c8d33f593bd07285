"""The rank of this process: a single process, or one started by torchrun or the supervisor."""

from collections.abc import Mapping
from dataclasses import dataclass

from convoy.errors import ConfigError

_MAX_PORT = 65_535
REPLICAS_VARIABLE = "CONVOY_REPLICAS"  # of a script, set by `convoy launch`


@dataclass(frozen=True)
class World:
    """One process of `world_size`, of which `local_world_size` run on this host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    rendezvous: str | None = None  # rendezvous file of the supervisor's workers
    replicas: int | None = None  # as given to `convoy launch`; None if a script chooses

    @property
    def on_one_host(self) -> bool:
        return self.local_world_size == self.world_size

    @classmethod
    def single_process(cls) -> "World":
        return cls(rank=0, world_size=1, local_rank=0, local_world_size=1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "World":
        """Read the variables that torchrun and other launchers set; all are checked."""
        world_size = _integer_variable(environment, "WORLD_SIZE", at_least=1)
        local_world_size = world_size
        if "LOCAL_WORLD_SIZE" in environment:  # torchrun sets it, older launchers do not
            local_world_size = _integer_variable(
                environment, "LOCAL_WORLD_SIZE", at_least=1, at_most=world_size
            )
        if not _required_variable(environment, "MASTER_ADDR").strip():
            raise ConfigError("MASTER_ADDR is empty; set it to the rendezvous host")
        _integer_variable(environment, "MASTER_PORT", at_least=1, at_most=_MAX_PORT)
        replicas = None
        if REPLICAS_VARIABLE in environment:
            replicas = _integer_variable(
                environment, REPLICAS_VARIABLE, at_least=1, at_most=world_size
            )
        return cls(
            rank=_integer_variable(environment, "RANK", at_most=world_size - 1),
            world_size=world_size,
            local_rank=_integer_variable(environment, "LOCAL_RANK", at_most=local_world_size - 1),
            local_world_size=local_world_size,
            replicas=replicas,
        )


def has_launcher(environment: Mapping[str, str]) -> bool:
    """Whether torchrun or a similar launcher started this process."""
    return "RANK" in environment or "WORLD_SIZE" in environment


def _required_variable(environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        raise ConfigError(
            f"{name} is not set, but RANK or WORLD_SIZE is, as in a process of a distributed run; "
            "start convoy with torchrun, or unset RANK and WORLD_SIZE"
        )
    return environment[name]


def _integer_variable(
    environment: Mapping[str, str], name: str, at_least: int = 0, at_most: int = 2**31 - 1
) -> int:
    text = _required_variable(environment, name)
    # isdecimal and length first: int() would accept "1_0", " 1" and a megabyte of digits.
    if not (text.isascii() and text.isdecimal() and len(text) < 11):
        raise ConfigError(f"{name} is {text[:40]!r}, not an integer of at least {at_least}")
    number = int(text)
    if not at_least <= number <= at_most:
        raise ConfigError(f"{name} is {number}; it must be between {at_least} and {at_most}")
    return number
