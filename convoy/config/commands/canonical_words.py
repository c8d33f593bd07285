"""A spoken command as words of a canonical one, which says exactly the same."""

from collections.abc import Mapping

from convoy.config.command_line import as_flags
from convoy.config.commands.spoken import Spoken
from convoy.config.dialects.speech import Given
from convoy.config.layers import Setting
from convoy.config.named import read_named
from convoy.config.resolve import RIVALS, Asked, Resolved, resolve
from convoy.config.schema import option_table


def words_of_target(spoken: Spoken) -> list[str]:
    """For a verb that works on a run: its own settings hold, so only what was said is repeated."""
    assert spoken.target is not None
    return [spoken.target, *_as_words(spoken.asked.command_line)]


def words_of_run(spoken: Spoken, resolved: Resolved) -> list[str]:
    """For a verb that needs all of it: what the canonical defaults would not say."""
    named = read_named(spoken.config, None)[0] if spoken.config else {}
    unsaid = resolve(Asked(named=named, environment=spoken.asked.environment)).settings
    config = ["--config", spoken.config] if spoken.config else []
    return [*config, *_as_words(_differing(resolved.settings, unsaid))]


def _as_words(settings: Given) -> list[str]:
    return [
        word for name, one in settings.items() for word in as_flags(option_table()[name], one.value)
    ]


def _differing(settings: Mapping[str, Setting], unsaid: Mapping[str, Setting]) -> Given:
    """To unset an option, its rival has to be said, even where it has its usual value."""
    changed = {name for name, one in settings.items() if one.value != unsaid[name].value}
    unset = {name for name in changed if settings[name].value in (None, ())}
    for rivals in RIVALS:
        if unset & set(rivals):
            changed |= {name for name in rivals if settings[name].value not in (None, ())}
    return {name: one for name, one in settings.items() if name in changed}
