"""convoy/completions/convoy.bash: static word lists, and a function that reads the line."""

from collections.abc import Iterable, Iterator

from pages.command_words import Value, VerbCompletion, all_verbs, run_options

_SCRIPT = """\
# Completes convoy in bash (3.2 or newer). Written by tools/write_docs.py.

_convoy_verbs='@verbs@'
_convoy_run='@run@'
_convoy_older='@older@' # offered if nothing else matches

_convoy_options() { # verb → options, older
    options= older=
    case $1 in
@options@
    esac
}

_convoy_value() { # verb, option → takes, offered
    takes=one offered=
    case "$1 $2" in
@values@
    esac
}

_convoy_positional() { # verb, number of positional arguments before → offered
    offered=
    case "$1 $2" in
@positionals@
    esac
}

_convoy_offer() { # offered words, current word
    local candidates=(-W "$1") word
    case $1 in
    /files) candidates=(-f) ;;
    /directories) candidates=(-d) ;;
    esac
    [[ $1 == /* ]] && compopt -o filenames 2>/dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen "${candidates[@]}" -- "$2")
}

_convoy() {
    local verb=${COMP_WORDS[1]} current=${COMP_WORDS[COMP_CWORD]}
    local option= takes= offered= options= older= index=0 first=2 i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _convoy_offer "$_convoy_verbs --help --version" "$current"
        return
    fi
    if [[ $verb == data ]] && ((COMP_CWORD > 2)); then # its actions have their own options
        verb="data ${COMP_WORDS[2]}" first=3
    fi
    for ((i = first; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) return ;;
        =) option=${COMP_WORDS[i - 1]} takes=one ;; # bash splits --option=value into three words
        -[!0-9.]*)
            option=${COMP_WORDS[i]}
            _convoy_value "$verb" "$option"
            [[ $takes == none ]] && option=
            ;;
        *)
            [[ -z $option ]] && ((index++))
            [[ $takes == many ]] || option=
            ;;
        esac
    done
    if [[ $current == = ]]; then
        option=${COMP_WORDS[COMP_CWORD - 1]} current=
    fi
    if [[ -n $option && $current != -* ]]; then
        _convoy_value "$verb" "$option"
        _convoy_offer "$offered" "$current"
        [[ $takes == many ]] || return
    elif [[ $current != -* ]]; then
        _convoy_positional "$verb" "$index"
        [[ -n $offered ]] && _convoy_offer "$offered" "$current" && return
    fi
    _convoy_options "$verb"
    ((${#COMPREPLY[@]})) || _convoy_offer "$options" "$current"
    ((${#COMPREPLY[@]})) || _convoy_offer "$older" "$current"
}

complete -F _convoy convoy
"""


def bash_script() -> str:
    """The complete script."""
    return fill(
        _SCRIPT,
        {
            "verbs": " ".join(verb.name for verb in all_verbs() if " " not in verb.name),
            "run": " ".join(option.text for option in run_options() if not option.alias_of),
            "older": " ".join(option.text for option in run_options() if option.alias_of),
            "options": [_options(verb) for verb in all_verbs()],
            "values": [*value_cases("offered")],
            "positionals": [*positional_cases("offered")],
        },
    )


def fill(script: str, values: dict[str, str | list[str]]) -> str:
    """Replace each `@name@` of a template by a text or by lines."""
    for name, value in values.items():
        text = value if isinstance(value, str) else "\n".join(f"    {line}" for line in value)
        script = script.replace(f"@{name}@", text)
    return script


def value_cases(variable: str) -> Iterator[str]:
    """The values of each option; those of a verb come first and may differ from those of a run."""
    run = {option.text for option in run_options()}
    of_verbs = [
        (f"'{verb.name} {option.text}'", option.value)
        for verb in all_verbs()
        for option in verb.options
        if option.value != Value() or (verb.takes_run_options and option.text in run)
    ]
    shared = [
        (f"*' {option.text}'", option.value) for option in run_options() if option.value != Value()
    ]
    yield from _cases(of_verbs, variable)
    yield from _cases(shared, variable)


def positional_cases(variable: str) -> Iterator[str]:
    """The values of each positional argument of a verb; the last one may take many."""
    positionals = [
        (verb.name, index, value)
        for verb in all_verbs()
        for index, value in enumerate(verb.positionals)
        if value.offered
    ]
    single = [
        (f"'{verb} {index}'", value) for verb, index, value in positionals if value.takes == "one"
    ]
    many = [
        (f"'{verb} '*", Value("one", value.offered))
        for verb, _, value in positionals
        if value.takes == "many"
    ]
    yield from _cases(single, variable)
    yield from _cases(many, variable)


def _cases(entries: Iterable[tuple[str, Value]], variable: str) -> Iterator[str]:
    """One line of a `case` statement for all entries with the same value."""
    patterns: dict[Value, list[str]] = {}
    for pattern, value in entries:
        patterns.setdefault(value, []).append(pattern)
    for value, same in patterns.items():
        takes = f"takes={value.takes} " if value.takes != "one" else ""
        offered = f"{variable}='{' '.join(value.offered)}' " if value.offered else ""
        yield f"{' | '.join(same)}) {takes}{offered}{'' if takes or offered else ': '};;"


def _options(verb: VerbCompletion) -> str:
    options = " ".join(option.text for option in verb.options)
    if not verb.takes_run_options:
        return f"'{verb.name}') options='{options}' ;;"
    return f"'{verb.name}') options=\"{options} $_convoy_run\" older=$_convoy_older ;;"
