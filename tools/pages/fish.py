"""convoy/completions/convoy.fish: one `complete` command for each word."""

from collections.abc import Iterator

from pages.command_words import (
    DIRECTORIES,
    FILES,
    Spelling,
    Value,
    VerbCompletion,
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

function __convoy_positional # true for this verb with so many positional arguments after it
    set -l words (string match -v -- '-*' (commandline -opc))
    set -l verb (string split ' ' -- $argv[1])
    set -l last (math 1 + (count $verb))
    test (count $words) -eq (math $last + $argv[2]); and test "$words[2..$last]" = "$argv[1]"
end

complete -c convoy -f
"""


def fish_script() -> str:
    """The complete script."""
    return _SCRIPT + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    first = "test (count (commandline -opc)) -eq 1"  # only the name of the program
    yield from (_line(first, f"-l {word}") for word in ("help", "version"))
    yield from (
        _line(first, f"-a {verb.name}", verb.description)
        for verb in all_verbs()
        if " " not in verb.name
    )
    for verb in all_verbs():
        yield from _positionals(verb)
        for option in verb.options:
            yield _option(f"__convoy_verb {_quoted(verb)}", option, option.description)
    run_verbs = " ".join(_quoted(verb) for verb in all_verbs() if verb.takes_run_options)
    for option in run_options():
        description = f"same as {option.alias_of}" if option.alias_of else option.description
        yield _option(f"__convoy_verb {run_verbs}", option, description)


def _positionals(verb: VerbCompletion) -> Iterator[str]:
    for index, value in enumerate(verb.positionals):
        condition = f"__convoy_positional {_quoted(verb)} {index}"
        if value.takes == "many":
            condition = f"__convoy_verb {_quoted(verb)}"
        if value.offered:
            yield _line(condition, _offered(value))


def _quoted(verb: VerbCompletion) -> str:
    return f'"{verb.name}"' if " " in verb.name else verb.name


def _option(condition: str, option: Spelling, description: str) -> str:
    values = "" if option.value.takes == "none" else f" {_offered(option.value)}"
    return _line(condition, f"-l {option.text.removeprefix('--')}{values}", description)


def _offered(value: Value) -> str:
    if not value.offered:
        return "-x"
    if value.offered == (FILES,):
        return "-rF"
    if value.offered == (DIRECTORIES,):
        return "-xa '(__fish_complete_directories)'"
    return f"-xa '{' '.join(value.offered)}'"


def _line(condition: str, arguments: str, description: str = "") -> str:
    quoted = description.replace("\\", "\\\\").replace("'", "\\'")
    line = f"complete -c convoy -n '{condition}' {arguments}"
    return line + (f" -d '{quoted}'" if description else "")
