"""A resolved configuration as a YAML file: every value, and who set it as a comment."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from convoy.config.layers import Setting
from convoy.config.schema import option_table
from convoy.config.user_text import printable
from convoy.config.values import spelled

# An update's micro-batches may be shared out in any way; only their number matters.
_JOINTLY = ("gradient_accumulation", "fine_tune_gradient_accumulation", "replicas")


def settings_as_yaml(settings: Mapping[str, Setting]) -> str:
    """One line an option. JSON values are YAML values, and quote themselves."""
    lines = ["# What this run was asked for. `convoy resume` reads it back."]
    for name, setting in settings.items():
        value = json.dumps(setting.value, ensure_ascii=False)
        lines.append(f"{name}: {value}  # {printable(setting.source)}")
    return "\n".join(lines) + "\n"


def binding_values(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Every value that the weights depend on, alone or with others, as JSON holds it."""
    values = {name: one.value for name, one in settings.items() if _binds(name) or name in _JOINTLY}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}


def digest(settings: Mapping[str, Setting]) -> str:
    """SHA-256 of every value that the weights depend on."""
    values = {name: one for name, one in binding_values(settings).items() if name not in _JOINTLY}
    content = json.dumps(values | _joint(settings), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def changed(before: Mapping[str, Setting], now: Mapping[str, Setting]) -> list[str]:
    """`--lr was 0.1, now 0.2` for each option that the weights depend on and that differs."""
    alone = [
        f"{option_table()[name].flag} was {spelled(before[name].value)}, "
        f"now {spelled(now[name].value)}"
        for name in now
        if _binds(name) and name in before and before[name].value != now[name].value
    ]
    old, new = _joint(before), _joint(now)
    both = [name for name in old if name in new and old[name] != new[name]]
    return alone + [f"{name} was {old[name]}, now {new[name]}" for name in both]


def _joint(settings: Mapping[str, Setting]) -> dict[str, int]:
    """What the layout may not change: the micro-batches of an update, and who shares statistics."""
    counts = {name: int(settings[name].value) for name in _JOINTLY if name in settings}
    replicas = counts.get("replicas", 0)
    joint = {
        f"{option_table()[name].flag} × --replicas": count * replicas
        for name, count in counts.items()
        if name != "replicas" and replicas and _counts(name, settings)
    }
    shares = "bn_span" in settings and settings["bn_span"].value > 1
    return joint | ({"--replicas (with --bn-span)": replicas} if joint and shares else {})


def _counts(name: str, settings: Mapping[str, Setting]) -> bool:
    """Whether a run has the phase that these micro-batches belong to."""
    if name != "fine_tune_gradient_accumulation":
        return True
    return "half_res_training" in settings and bool(settings["half_res_training"].value)


def _binds(name: str) -> bool:
    return not option_table()[name].declared.free
