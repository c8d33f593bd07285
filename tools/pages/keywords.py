"""Write `convoy/api/keywords.py`: the options of a run as a TypedDict, for editors and mypy."""

from textwrap import wrap

from convoy.config.option import Option
from convoy.config.schema import option_table

HEAD = '''"""The options of a run as keyword arguments.

Written by tools/write_docs.py from the option table. `None` unsets an option, and
`convoy options NAME` describes one in full.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict


class RunOptions(TypedDict, total=False):
    """Keyword arguments of `convoy.train` and other functions."""

'''
TAIL = '''

class NamedOptions(RunOptions, total=False):
    """The same, with a network and a dataset by name."""

    model: str
    """Network; `convoy models` lists them, and `package.module:function` selects your own."""
    data: str
    """Dataset; `package.module:function` selects your own."""
'''
WIDTH = 100
PARAMETERS = ("model", "data")  # parameters of the functions, because they may be objects


def keywords_module() -> str:
    table = option_table()
    keys = [key for row in table.values() if row.name not in PARAMETERS for key in _keys(row)]
    return HEAD + "".join(keys) + TAIL


def _keys(row: Option) -> list[str]:
    """The option and its other names."""
    sentence = row.help.partition(". ")[0].rstrip(".") + "."
    lines = wrap(sentence, WIDTH - len('    """ …"""'), break_on_hyphens=False)
    text = lines[0] if len(lines) == 1 else f"{lines[0].rstrip(' ,;:')} …"
    described = f'{_field(row.name, _annotation(row))}    """{text}"""\n'
    aliases = [alias.removeprefix("--").replace("-", "_") for alias in row.aliases]
    return [described, *(_field(alias, _annotation(row)) for alias in aliases)]


def _field(name: str, annotation: str) -> str:
    """A field as ruff formats it."""
    line = f"    {name}: {annotation}\n"
    if len(line) <= WIDTH + 1:
        return line
    start, _, inner = annotation.partition("[")
    choices, _, end = inner.rpartition("]")
    one_line = f"        {choices}\n"
    if len(one_line) > WIDTH + 1:
        one_line = "".join(f"        {choice},\n" for choice in choices.split(", "))
    return f"    {name}: {start}[\n{one_line}    ]{end}\n"


def _annotation(row: Option) -> str:
    value = row.value_type
    text = value.base.__name__
    if row.limit.choices:
        text = f"Literal[{', '.join(map(_quote, row.limit.choices))}]"
    elif row.name.endswith(("_path", "_dir")) or row.name == "pretrained":
        text = "str | PathLike[str]"
    if value.is_list:
        text = f"Sequence[{text}]"
    return f"{text} | None" if value.optional else text


def _quote(choice: str) -> str:
    return f'"{choice}"'
