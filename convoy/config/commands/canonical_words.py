"""What a command means as words of a canonical one, which says exactly the same."""

from collections.abc import Mapping

from convoy.config.command_line import as_flags
from convoy.config.dialects.speech import Given
from convoy.config.layers import Setting
from convoy.config.named import read_named
from convoy.config.resolve import RIVALS, Asked, Resolved, resolve
from convoy.config.schema import option_table

_BRINGING = ("model", "data")  # values of others follow these, unless they are said
_UNSET = (None, ())


def words_of_target(target: str, said: Given) -> list[str]:
    """For a verb that works on a run: its own settings hold, so only what was said is repeated."""
    return [target, *_as_words(said)]


def words_of_run(
    config: str | None, resolved: Resolved, environment: Mapping[str, str]
) -> list[str]:
    """For a verb that needs all of it: what the canonical defaults would not say."""
    said = _differing(resolved.settings, _unsaid(config, resolved, environment))
    if config is not None and _unsays(said):
        return words_of_run(None, resolved, environment)
    choice = ["--config", config] if config else []
    return [*choice, *_as_words(said)]


def _unsaid(config: str | None, resolved: Resolved, environment: Mapping[str, str]) -> Given:
    """Each option as it would be if nothing was said of it but of the network and its data."""
    named = read_named(config, None)[0]
    chosen = {name: resolved.settings[name] for name in _BRINGING}
    usual = resolve(Asked(named=named, environment=environment)).settings
    brought = resolve(Asked(chosen, named, environment=environment)).settings
    return brought | {name: usual[name] for name in _BRINGING}


def _as_words(settings: Given) -> list[str]:
    return [
        word for name, one in settings.items() for word in as_flags(option_table()[name], one.value)
    ]


def _differing(settings: Mapping[str, Setting], unsaid: Mapping[str, Setting]) -> Given:
    """To unset an option, its rival has to be said, even where it has its usual value."""
    changed = {name for name, one in settings.items() if one.value != unsaid[name].value}
    unset = {name for name in changed if settings[name].value in _UNSET}
    for rivals in RIVALS:
        if unset & set(rivals):
            changed |= {name for name in rivals if settings[name].value not in _UNSET}
    return {name: one for name, one in settings.items() if name in changed}


def _unsays(said: Given) -> bool:
    """Whether an option would have to be unset that has no rival to do it: no word does."""
    unset = {name for name, one in said.items() if one.value is None}
    return not unset <= {
        name for rivals in RIVALS if said.keys() & set(rivals) - unset for name in rivals
    }
