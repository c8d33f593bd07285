"""convoy/completions/convoy.fish: one line for each word; fish itself knows the rest."""

from collections.abc import Iterator

from pages.command_words import (
    DIRECTORIES,
    FILES,
    Spelling,
    Value,
    VerbWords,
    all_verbs,
    run_options,
)

_SCRIPT = """\
# Completes convoy in fish. Written by tools/write_docs.py.

function __convoy_verb # true if the verb is one of these
    set -l words (commandline -opc)
    test (count $words) -gt 1; or return 1
    contains -- $words[2] $argv; or contains -- "$words[2] $words[3]" $argv
end

function __convoy_place # true if this is the verb, with so many words behind it but options
    set -l words (string match -v -- '-*' (commandline -opc))
    set -l verb (string split ' ' -- $argv[1])
    set -l behind (math 1 + (count $verb))
    test (count $words) -eq (math $behind + $argv[2]); and test "$words[2..$behind]" = "$argv[1]"
end

complete -c convoy -f
"""


def fish_script() -> str:
    """The script whole."""
    return _SCRIPT + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    first = "test (count (commandline -opc)) -eq 1"  # the program's name is all that is read
    yield from (_line(first, f"-l {word}") for word in ("help", "version"))
    yield from (
        _line(first, f"-a {verb.name}", verb.says) for verb in all_verbs() if " " not in verb.name
    )
    for verb in all_verbs():
        yield from _places(verb)
        for one in verb.own:
            yield _option(f"__convoy_verb {_quoted(verb)}", one, one.says)
    of_a_run = " ".join(_quoted(verb) for verb in all_verbs() if verb.of_a_run)
    for one in run_options():
        says = f"same as {one.stands_for}" if one.stands_for else one.says
        yield _option(f"__convoy_verb {of_a_run}", one, says)


def _places(verb: VerbWords) -> Iterator[str]:
    for place, value in enumerate(verb.places):
        where = f"__convoy_place {_quoted(verb)} {place}"
        if value.takes == "many":
            where = f"__convoy_verb {_quoted(verb)}"
        if value.offered:
            yield _line(where, _offered(value))


def _quoted(verb: VerbWords) -> str:
    return f'"{verb.name}"' if " " in verb.name else verb.name


def _option(where: str, one: Spelling, says: str) -> str:
    follows = "" if one.value.takes == "none" else f" {_offered(one.value)}"
    return _line(where, f"-l {one.text.removeprefix('--')}{follows}", says)


def _offered(value: Value) -> str:
    if not value.offered:
        return "-x"
    if value.offered == (FILES,):
        return "-rF"
    if value.offered == (DIRECTORIES,):
        return "-xa '(__fish_complete_directories)'"
    return f"-xa '{' '.join(value.offered)}'"


def _line(where: str, what: str, says: str = "") -> str:
    quoted = says.replace("\\", "\\\\").replace("'", "\\'")
    return f"complete -c convoy -n '{where}' {what}" + (f" -d '{quoted}'" if says else "")
