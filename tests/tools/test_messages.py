"""The list of messages contains every text that users can read."""

import ast

import pytest
from messages import messages


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("raise ValueError('empty')", ["empty"]),
        ("print('done')", ["done"]),
        ("raise ValueError(f'{name}: {count} bytes')", ["{…}: {…} bytes"]),
        ("text = f'{name} is unknown; {f\"see {page}\"}'", ["see {…}", "{…} is unknown; {…}"]),
        ("hint = 'use one'", ["use one"]),
        ("key = 'name'", []),
        ("async def run():\n    '''Not a message.'''\n    raise OSError('no space')", ["no space"]),
        (
            "class Data:\n    '''Not a message.'''\n    size: 'int | None'\n    '''Its size.'''",
            [],
        ),
    ],
)
def test_messages_are_found_and_docstrings_and_types_are_not(source: str, texts: list[str]) -> None:
    assert sorted(text for _, text in messages(ast.parse(source))) == texts


def test_the_docstrings_of_the_option_sections_are_titles_in_the_help() -> None:
    tree = ast.parse("'''A module.'''\nclass DataConfig:\n    '''Data loading.'''\n    x = 1")

    assert messages(tree) == []
    assert messages(tree, with_class_docstrings=True) == [(3, "Data loading.")]
