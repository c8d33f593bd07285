"""Settings → the words of the canonical command that means them."""

from collections.abc import Mapping

from convoy.config.command_line import as_flags
from convoy.config.flags import Given
from convoy.config.named import read_named
from convoy.config.resolve import RequestedOptions, Resolved, resolve
from convoy.config.schema import mutually_exclusive, option_table
from convoy.config.settings import Setting

_BRINGING = ("model", "data")  # they bring values of other options
_UNSET = (None, ())


def flags_of(settings: Given) -> list[str]:
    """These settings as canonical flags."""
    table = option_table()
    return [
        word for name, setting in settings.items() for word in as_flags(table[name], setting.value)
    ]


def words_of_run(
    config: str | None, resolved: Resolved, environment: Mapping[str, str]
) -> list[str]:
    """All options of a run that neither the configuration nor the canonical defaults imply."""
    said = _differing(resolved.settings, _implied(config, resolved, environment))
    if config is not None and _cannot_unset(said):
        return words_of_run(None, resolved, environment)
    choice = ["--config", config] if config else []
    return [*choice, *flags_of(said)]


def _implied(config: str | None, resolved: Resolved, environment: Mapping[str, str]) -> Given:
    """Each option as it would be if only network and data were given, and these as if not."""
    named = read_named(config, None)[0]
    chosen = {name: resolved.settings[name] for name in _BRINGING}
    settings = resolve(RequestedOptions(chosen, named, environment=environment)).settings
    for name in _BRINGING:
        settings[name] = named.get(name, Setting(option_table()[name].default, "default"))
    return settings


def _differing(settings: Mapping[str, Setting], implied: Mapping[str, Setting]) -> Given:
    """To unset an option, its rival has to be given, even where it has its usual value."""
    changed = {name for name, setting in settings.items() if setting.value != implied[name].value}
    unset = {name for name in changed if settings[name].value in _UNSET}
    for rivals in mutually_exclusive():
        if unset & set(rivals):
            changed |= {name for name in rivals if settings[name].value not in _UNSET}
    return {name: setting for name, setting in settings.items() if name in changed}


def _cannot_unset(said: Given) -> bool:
    """Whether an option would have to be unset that has no rival to do it: no flag does."""
    unset = {name for name, setting in said.items() if setting.value is None}
    return not unset <= {
        name
        for rivals in mutually_exclusive()
        if said.keys() & set(rivals) - unset
        for name in rivals
    }
