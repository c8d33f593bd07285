"""convoy/completions/_convoy: as for bash, with a description of each word."""

from collections.abc import Iterable

from pages.bash import fill, positional_cases, value_cases
from pages.command_words import VerbCompletion, all_verbs, run_options

_SCRIPT = """\
#compdef convoy
# Completes convoy in zsh. Written by tools/write_docs.py.

typeset -ga _convoy_verbs _convoy_run _convoy_older
_convoy_verbs=(
@verbs@
)
_convoy_run=(
@run@
)
_convoy_older=( # offered if nothing else matches
@older@
)

_convoy_options() { # verb → options, older
    options=() older=()
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

_convoy_offer() { # offered words
    case $1 in
    /files) _files ;;
    /directories) _files -/ ;;
    ?*) compadd -- ${=1} ;;
    esac
}

_convoy() {
    local verb=$words[2] current=$words[CURRENT] option= takes= offered=
    local -a options older
    local -i index=0 first=3 i
    if (( CURRENT == 2 )); then
        [[ $current == -* ]] && { compadd -- --help --version; return }
        _describe -t verbs verb _convoy_verbs
        return
    fi
    if [[ $verb == data ]] && (( CURRENT > 3 )); then # its actions have their own options
        verb="data $words[3]" first=4
    fi
    for (( i = first; i < CURRENT; i++ )); do
        case $words[i] in
        --) _files; return ;;
        --*=*) option= ;;
        -[^0-9.]*)
            option=$words[i]
            _convoy_value $verb $option
            [[ $takes == none ]] && option=
            ;;
        *)
            [[ -z $option ]] && (( index++ ))
            [[ $takes == many ]] || option=
            ;;
        esac
    done
    if [[ $current == --*=* ]]; then
        _convoy_value $verb ${current%%=*}
        compset -P '*='
        _convoy_offer $offered
        return
    fi
    if [[ -n $option && $current != -* ]]; then
        _convoy_value $verb $option
        _convoy_offer $offered && return
        [[ $takes == many ]] || return
    elif [[ $current != -* ]]; then
        _convoy_positional $verb $index
        [[ -n $offered ]] && { _convoy_offer $offered; return }
    fi
    _convoy_options $verb
    _describe -o option options || _describe -o 'older spelling' older
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _convoy "$@"
else
    compdef _convoy convoy
fi
"""


def zsh_script() -> str:
    """The complete script."""
    run = [option for option in run_options() if not option.alias_of]
    older = [option for option in run_options() if option.alias_of]
    return fill(
        _SCRIPT,
        {
            "verbs": _described(
                (verb.name, verb.description) for verb in all_verbs() if " " not in verb.name
            ),
            "run": _described((option.text, option.description) for option in run),
            "older": _described((option.text, f"same as {option.alias_of}") for option in older),
            "options": [_options(verb) for verb in all_verbs()],
            "values": [*value_cases("offered")],
            "positionals": [*positional_cases("offered")],
        },
    )


def _described(words: Iterable[tuple[str, str]]) -> list[str]:
    return [
        "'" + f"{word}:{description}".replace("'", "'\\''") + "'" for word, description in words
    ]


def _options(verb: VerbCompletion) -> str:
    options = " ".join(_described((option.text, option.description) for option in verb.options))
    if not verb.takes_run_options:
        return f"'{verb.name}') options=({options}) ;;"
    return f"'{verb.name}') options=({options} $_convoy_run) older=($_convoy_older) ;;"
