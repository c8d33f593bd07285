"""What a command means as words of a canonical one, which says exactly the same."""

from collections.abc import Mapping

from convoy.config.catalog import DATA, MODELS
from convoy.config.command_line import as_flags
from convoy.config.dialects.speech import Given
from convoy.config.layers import Setting
from convoy.config.named import read_named
from convoy.config.resolve import RIVALS, Asked, Resolved, resolve
from convoy.config.schema import option_table


def words_of_target(target: str, said: Given) -> list[str]:
    """For a verb that works on a run: its own settings hold, so only what was said is repeated."""
    return [target, *_as_words(said)]


def words_of_run(
    config: str | None, resolved: Resolved, environment: Mapping[str, str]
) -> list[str]:
    """For a verb that needs all of it: what the canonical defaults would not say."""
    named = read_named(config, None)[0]
    unsaid = resolve(Asked(named=named, environment=environment)).settings
    choice = ["--config", config] if config else []
    return [*choice, *_as_words(_differing(resolved.settings, unsaid))]


def _as_words(settings: Given) -> list[str]:
    return [
        word for name, one in settings.items() for word in as_flags(option_table()[name], one.value)
    ]


def _differing(settings: Mapping[str, Setting], unsaid: Mapping[str, Setting]) -> Given:
    """To unset an option, its rival has to be said, even where it has its usual value.

    A model and a data set that were not chosen before bring values of their own.
    """
    changed = {name for name, one in settings.items() if one.value != unsaid[name].value}
    brought = {
        **MODELS[settings["model"].value].defaults,
        **DATA[settings["data"].value].defaults,
    }
    changed |= {name for name, value in brought.items() if settings[name].value != value}
    unset = {name for name in changed if settings[name].value in (None, ())}
    for rivals in RIVALS:
        if unset & set(rivals):
            changed |= {name for name in rivals if settings[name].value not in (None, ())}
    return {name: one for name, one in settings.items() if name in changed}
