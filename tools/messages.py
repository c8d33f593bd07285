"""List the messages and help texts of convoy with file and line, to review their wording.

    python tools/messages.py            all of them
    python tools/messages.py report     those of one package

A text is a string with a space, or any string inside a `raise` or a call of `print`. The docstrings
of the option sections are listed as well, because help uses them as titles. f-strings are printed
with `{…}` for their values.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "convoy"
_GENERATED = ("api/keywords.py",)  # repeats the help texts
_WORD = re.compile(r"[A-Za-z]{2,}")
_OWNERS = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def main() -> None:
    package = sys.argv[1] if len(sys.argv) > 1 else ""
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in _GENERATED:
            is_section = name.startswith("config/sections/")
            for line, text in messages(ast.parse(path.read_text()), is_section):
                print(f"{name}:{line}: {text}")


def messages(tree: ast.AST, with_class_docstrings: bool = False) -> list[tuple[int, str]]:
    """Line number and text of each message, in the order of the file."""
    skipped = {*_docstrings(tree, with_class_docstrings), *_annotations(tree)}
    found = set(_texts(tree, skipped, is_message=False))
    for node in ast.walk(tree):
        if _is_output(node):
            found.update(_texts(node, skipped, is_message=True))
    return sorted(found)


def _texts(root: ast.AST, skipped: set[ast.AST], is_message: bool) -> Iterator[tuple[int, str]]:
    """The strings below a node: those with a space and a word, or with a word in a message."""
    inner = set(skipped)
    for node in ast.walk(root):
        if node in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            inner.update(value for value in node.values if isinstance(value, ast.Constant))
            text = "".join(_format_part(value) for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        text = re.sub(r"\s+", " ", text)
        if _WORD.search(text.replace("{…}", "")) and (is_message or " " in text.strip()):
            yield node.lineno, text.strip()


def _format_part(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else "{…}"


def _is_output(node: ast.AST) -> bool:
    """Whether everything in this node is a message: a raised exception, or a call of print."""
    if isinstance(node, ast.Raise):
        return True
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "print"


def _docstrings(tree: ast.AST, except_classes: bool) -> Iterator[ast.AST]:
    """Docstrings, and the strings after attributes that document them."""
    for node in ast.walk(tree):
        if isinstance(node, _OWNERS):
            is_title = except_classes and isinstance(node, ast.ClassDef)
            expressions = [item.value for item in node.body if isinstance(item, ast.Expr)]
            strings = [value for value in expressions if isinstance(value, ast.Constant)]
            yield from strings[1 if is_title else 0 :]


def _annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Type annotations written as strings."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(annotation := getattr(node, name, None), ast.AST):
                yield from ast.walk(annotation)


if __name__ == "__main__":
    main()
