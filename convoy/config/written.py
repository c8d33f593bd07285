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
_JOINTLY = ("gradient_accumulation", "replicas")


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
    content = json.dumps(values | dict(_joint(settings)), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def changed(before: Mapping[str, Setting], now: Mapping[str, Setting]) -> list[str]:
    """`--lr was 0.1, now 0.2` for each option that the weights depend on and that differs."""
    alone = [
        f"{option_table()[name].flag} was {spelled(before[name].value)}, "
        f"now {spelled(now[name].value)}"
        for name in now
        if _binds(name) and name in before and before[name].value != now[name].value
    ]
    pairs = zip(_joint(before), _joint(now), strict=False)
    return alone + [f"{name} was {old}, now {new}" for (name, old), (_, new) in pairs if old != new]


def _joint(settings: Mapping[str, Setting]) -> list[tuple[str, int]]:
    """What the layout may not change: the micro-batches of an update, and who shares statistics."""
    if any(name not in settings for name in _JOINTLY):
        return []
    accumulation, replicas = (int(settings[name].value) for name in _JOINTLY)
    product = ("--gradient-accumulation × --replicas", accumulation * replicas)
    span = settings["bn_span"].value if "bn_span" in settings else 1
    return [product] if span == 1 else [product, ("--replicas (with --bn-span)", replicas)]


def _binds(name: str) -> bool:
    return not option_table()[name].declared.free
