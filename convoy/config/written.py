"""A resolved configuration as a YAML file: every value, and who set it as a comment."""

import hashlib
import json
from collections.abc import Mapping

from convoy.config.layers import Setting
from convoy.config.schema import option_table
from convoy.config.values import spelled
from convoy.config.yaml_limits import printable


def settings_as_yaml(settings: Mapping[str, Setting]) -> str:
    """One line an option. JSON values are YAML values, and quote themselves."""
    lines = ["# What this run was asked for. `convoy resume` reads it back."]
    for name, setting in settings.items():
        value = json.dumps(setting.value, ensure_ascii=False)
        lines.append(f"{name}: {value}  # {printable(setting.source)}")
    return "\n".join(lines) + "\n"


def digest(settings: Mapping[str, Setting]) -> str:
    """SHA-256 of every value that the weights depend on."""
    values = {name: one.value for name, one in settings.items() if _binds(name)}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def changed(before: Mapping[str, Setting], now: Mapping[str, Setting]) -> list[str]:
    """`--lr was 0.1, now 0.2` for each option that the weights depend on and that differs."""
    return [
        f"{option_table()[name].flag} was {spelled(before[name].value)}, "
        f"now {spelled(now[name].value)}"
        for name in now
        if _binds(name) and name in before and before[name].value != now[name].value
    ]


def _binds(name: str) -> bool:
    return not option_table()[name].declared.free
