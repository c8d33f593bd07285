"""How the TensorFlow program spells values."""

from fractions import Fraction
from typing import Any

from convoy.config.values import Kind, WrongType

SCHEDULES = {
    "stepped": "step",
    "cosine": "cosine",
    "exponential": "exponential",
    "polynomial_decay_lr": "polynomial",
}
OPTIMIZERS = ("sgd", "momentum", "rmsprop", "lars")
ROUNDINGS = {"ON": True, "ON_prng_stable": True, "RI_prng_stable": True, "OFF": False}
PROFILES = ("NO_PROFILE", "DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE")
KEPT = Fraction("0.97")  # of the old statistics, when nothing is said


def lower(words: list[str]) -> str:
    """Case does not matter there."""
    return words[0].lower()


def schedule_of_rates(words: list[str]) -> str:
    """`stepped` → `step`, `polynomial_decay_lr` → `polynomial`."""
    return str(_one_of(words[0], SCHEDULES))


def optimizer_of(words: list[str]) -> str:
    if words[0].lower() not in OPTIMIZERS:
        raise WrongType(f"is SGD, momentum, RMSprop or LARS, got {words[0]!r}")
    return words[0].lower()


def rounding(words: list[str]) -> bool:
    """The modes of ON differ in how replicas agree; here they always do."""
    return bool(_one_of(words[0], ROUNDINGS))


def precise(words: list[str]) -> str:
    """`16.16` as it is written; a file may have read it as a number."""
    return words[0]


def decay_of_momentum(words: list[str]) -> float:
    """0.97 of the old statistics kept is 0.03 of the new ones added; 0 stands for 0.97."""
    decay = Kind(float).read(words)
    if not 0 <= decay < 1:
        raise WrongType(f"must be at least 0 and below 1, got {words[0]}")
    kept = Fraction(str(decay)) or KEPT
    return float(1 - kept)


def fractions(words: list[str]) -> tuple[float, ...]:
    """`0.5,0.75`: shares of the run."""
    shares: tuple[float, ...] = Kind(float, many=True).read(words)
    return shares


def device_numbers(words: list[str]) -> tuple[int, ...]:
    """AUTO takes what there is."""
    if [word.lower() for word in words] == ["auto"]:
        return ()
    numbers: tuple[int, ...] = Kind(int, many=True).read(words)
    return numbers


def profile_level(words: list[str]) -> str:
    return str(_one_of(words[0], {level: level for level in PROFILES}))


def _one_of(word: str, known: dict[str, Any]) -> Any:
    if word not in known:
        raise WrongType(f"is one of {', '.join(known)}, got {word!r}")
    return known[word]
