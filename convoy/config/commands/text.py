"""What was typed behind `convoy run --` → words. No shell is ever started with it."""

import re
import shlex
from collections.abc import Mapping, Sequence

from convoy.config.user_text import shown
from convoy.errors import ConfigError

EXAMPLE = "convoy run -- python3 train.py --config NAME"

_SHELL_SIGNS = "|&;<>"
_SHELL_WORD = re.compile(r"\d?[|&;<>]+[\d-]?")  # `|`, `&&`, `>>`, `2>&1`
_CONTINUED = re.compile(r"\\\r?\n")  # a backslash at the end of a line
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_AT_HOME = re.compile(r"^((?:[\w-]+=)?)~(?=/|$)", re.ASCII)  # `~/data`, `--data-dir=~/data`


def words_of(typed: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words of one command: as the shell split them, or out of one quoted text."""
    is_text = len(typed) == 1 and len(typed[0].split()) > 1
    words = _split(typed[0], environment) if is_text else [word for word in typed if word.strip()]
    for word in words:
        if _SHELL_WORD.fullmatch(word):
            raise _for_a_shell(word)
    if not words:
        raise ConfigError(f"there is no command to run; write it behind --, as in `{EXAMPLE}`")
    home = environment.get("HOME", "~")
    return [_AT_HOME.sub(lambda found: found[1] + home, word) for word in words]


def _split(text: str, environment: Mapping[str, str]) -> list[str]:
    """As a shell would, with quotes, continued lines and variables, but nothing is carried out."""
    lexer = shlex.shlex(_CONTINUED.sub("", text), posix=True, punctuation_chars=_SHELL_SIGNS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        reason = str(error).lower()
        raise ConfigError(f"the quoted command cannot be split: {reason}; close it") from None
    for word in words:
        if "$(" in word or "${" in _VARIABLE.sub("", word) or "`" in word:
            raise _for_a_shell(word)
    return [_VARIABLE.sub(lambda found: _value(found, environment), word) for word in words]


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name = found[1] or found[2]
    if name not in environment:
        raise ConfigError(f"${name} in the quoted command is not set; set it, or write its value")
    return environment[name]


def _for_a_shell(word: str) -> ConfigError:
    return ConfigError(
        f"{shown(word)} is for a shell, and none is started; give one command, and write pipes and "
        "redirections outside its quotes, as in `convoy run -- COMMAND | tee log.txt`"
    )
