"""List the messages of convoy with file and line, to review their wording.

    python tools/messages.py            all strings of at least three words
    python tools/messages.py report     those of one package

Docstrings are excluded; f-strings are printed with `{…}` for their values.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "convoy"


def main() -> None:
    package = sys.argv[1] if len(sys.argv) > 1 else ""
    for path in sorted((ROOT / package).rglob("*.py")):
        for line, text in messages(ast.parse(path.read_text())):
            print(f"{path.relative_to(ROOT)}:{line}: {text}")


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line number and text of strings with at least three words."""
    skipped = set(docstrings(tree))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(ast.walk(node))
            text = "".join(format_fstring_value(value) for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        text = re.sub(r"\s+", " ", text).strip()
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and " " in text:
            yield node.lineno, text


def format_fstring_value(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else "{…}"


def docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    owners = ast.Module, ast.ClassDef, ast.FunctionDef
    for node in ast.walk(tree):
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr):
            yield node.body[0].value


if __name__ == "__main__":
    main()
