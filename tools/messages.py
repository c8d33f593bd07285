"""Lists the texts that convoy shows to people, with file and line, for a review of the wording.

    python tools/messages.py            every string that reads like a sentence
    python tools/messages.py report     only those of one package

Docstrings are left out; the parts of an f-string are joined, with `{…}` for a value.
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
    """Strings of at least three words, in the order of the file."""
    skipped = set(docstrings(tree))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(ast.walk(node))
            text = "".join(part_of_text(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        text = re.sub(r"\s+", " ", text).strip()
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and " " in text:
            yield node.lineno, text


def part_of_text(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{…}"


def docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    owners = ast.Module, ast.ClassDef, ast.FunctionDef
    for node in ast.walk(tree):
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr):
            yield node.body[0].value


if __name__ == "__main__":
    main()
