"""convoy/completions/_convoy: the same walk as in bash, and what each word means beside it."""

from collections.abc import Iterable

from pages.bash import fill, place_cases, value_cases
from pages.command_words import VerbWords, all_verbs, run_options

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
_convoy_older=( # offered if nothing else begins so
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

_convoy_place() { # verb, words before without an option → offered
    offered=
    case "$1 $2" in
@places@
    esac
}

_convoy_offer() { # what can be typed
    case $1 in
    /files) _files ;;
    /directories) _files -/ ;;
    ?*) compadd -- ${=1} ;;
    esac
}

_convoy() {
    local verb=$words[2] current=$words[CURRENT] option= takes= offered=
    local -a options older
    local -i place=0 first=3 i
    if (( CURRENT == 2 )); then
        [[ $current == -* ]] && { compadd -- --help --version; return }
        _describe -t verbs verb _convoy_verbs
        return
    fi
    if [[ $verb == data ]] && (( CURRENT > 3 )); then # its actions have options of their own
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
            [[ -z $option ]] && (( place++ ))
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
        _convoy_place $verb $place
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
    """The script whole."""
    run = [one for one in run_options() if not one.stands_for]
    older = [one for one in run_options() if one.stands_for]
    return fill(
        _SCRIPT,
        {
            "verbs": _described(
                (verb.name, verb.says) for verb in all_verbs() if " " not in verb.name
            ),
            "run": _described((one.text, one.says) for one in run),
            "older": _described((one.text, f"same as {one.stands_for}") for one in older),
            "options": [_options(verb) for verb in all_verbs()],
            "values": [*value_cases("offered")],
            "places": [*place_cases("offered")],
        },
    )


def _described(words: Iterable[tuple[str, str]]) -> list[str]:
    return ["'" + f"{word}:{says}".replace("'", "'\\''") + "'" for word, says in words]


def _options(verb: VerbWords) -> str:
    own = " ".join(_described((one.text, one.says) for one in verb.own))
    if not verb.of_a_run:
        return f"'{verb.name}') options=({own}) ;;"
    return f"'{verb.name}') options=({own} $_convoy_run) older=($_convoy_older) ;;"
