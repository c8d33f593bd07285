"""convoy/completions/convoy.bash: static lists of words, and a walk along the line."""

from collections.abc import Iterable, Iterator

from pages.command_words import Value, VerbWords, all_verbs, run_options

_SCRIPT = """\
# Completes convoy in bash (3.2 or newer). Written by tools/write_docs.py.

_convoy_verbs='@verbs@'
_convoy_run='@run@'
_convoy_older='@older@' # offered if nothing else begins so

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

_convoy_place() { # verb, words before without an option → offered
    offered=
    case "$1 $2" in
@places@
    esac
}

_convoy_offer() { # what can be typed, what is typed
    local kind=(-W "$1") word
    case $1 in
    /files) kind=(-f) ;;
    /directories) kind=(-d) ;;
    esac
    [[ $1 == /* ]] && compopt -o filenames 2>/dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen "${kind[@]}" -- "$2")
}

_convoy() {
    local verb=${COMP_WORDS[1]} current=${COMP_WORDS[COMP_CWORD]}
    local option= takes= offered= options= older= place=0 first=2 i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _convoy_offer "$_convoy_verbs --help --version" "$current"
        return
    fi
    if [[ $verb == data ]] && ((COMP_CWORD > 2)); then # its actions have options of their own
        verb="data ${COMP_WORDS[2]}" first=3
    fi
    for ((i = first; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) return ;;
        =) option=${COMP_WORDS[i - 1]} takes=one ;; # bash breaks --option=value in three
        -[!0-9.]*)
            option=${COMP_WORDS[i]}
            _convoy_value "$verb" "$option"
            [[ $takes == none ]] && option=
            ;;
        *)
            [[ -z $option ]] && ((place++))
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
        _convoy_place "$verb" "$place"
        [[ -n $offered ]] && _convoy_offer "$offered" "$current" && return
    fi
    _convoy_options "$verb"
    ((${#COMPREPLY[@]})) || _convoy_offer "$options" "$current"
    ((${#COMPREPLY[@]})) || _convoy_offer "$older" "$current"
}

complete -F _convoy convoy
"""


def bash_script() -> str:
    """The script whole."""
    return fill(
        _SCRIPT,
        {
            "verbs": " ".join(verb.name for verb in all_verbs() if " " not in verb.name),
            "run": " ".join(one.text for one in run_options() if not one.stands_for),
            "older": " ".join(one.text for one in run_options() if one.stands_for),
            "options": [_options(verb) for verb in all_verbs()],
            "values": [*value_cases("offered")],
            "places": [*place_cases("offered")],
        },
    )


def fill(script: str, parts: dict[str, str | list[str]]) -> str:
    """Put words, or lines at the place of a line, where the script says `@name@`."""
    for name, part in parts.items():
        text = part if isinstance(part, str) else "\n".join(f"    {line}" for line in part)
        script = script.replace(f"@{name}@", text)
    return script


def value_cases(variable: str) -> Iterator[str]:
    """What follows each option; a verb's own options come first, for they may differ."""
    run = {one.text for one in run_options()}
    own = [
        (f"'{verb.name} {one.text}'", one.value)
        for verb in all_verbs()
        for one in verb.own
        if one.value != Value() or (verb.of_a_run and one.text in run)
    ]
    shared = [(f"*' {one.text}'", one.value) for one in run_options() if one.value != Value()]
    yield from _cases(own, variable)
    yield from _cases(shared, variable)


def place_cases(variable: str) -> Iterator[str]:
    """What stands at each place of a verb; the last place may go on."""
    places = [
        (verb.name, place, value)
        for verb in all_verbs()
        for place, value in enumerate(verb.places)
        if value.offered
    ]
    one = [(f"'{verb} {place}'", value) for verb, place, value in places if value.takes == "one"]
    more = [
        (f"'{verb} '*", Value("one", value.offered))
        for verb, _, value in places
        if value.takes == "many"
    ]
    yield from _cases(one, variable)
    yield from _cases(more, variable)


def _cases(entries: Iterable[tuple[str, Value]], variable: str) -> Iterator[str]:
    """One line for all that take the same."""
    alike: dict[Value, list[str]] = {}
    for where, value in entries:
        alike.setdefault(value, []).append(where)
    for value, places in alike.items():
        takes = f"takes={value.takes} " if value.takes != "one" else ""
        offered = f"{variable}='{' '.join(value.offered)}' " if value.offered else ""
        yield f"{' | '.join(places)}) {takes}{offered}{'' if takes or offered else ': '};;"


def _options(verb: VerbWords) -> str:
    own = " ".join(one.text for one in verb.own)
    if not verb.of_a_run:
        return f"'{verb.name}') options='{own}' ;;"
    return f"'{verb.name}') options=\"{own} $_convoy_run\" older=$_convoy_older ;;"
