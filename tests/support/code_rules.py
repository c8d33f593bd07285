"""Code rules that need only one file: each is a function from a module to its violations."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LONGEST_FILE, LONGEST_FUNCTION, MOST_ARGUMENTS = 500, 40, 6

# Allowed attribute access by name, with the reason.
ALLOWED_TRICKS = {
    "hasattr(os, 'sched_getaffinity')": "not available on all systems",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A source file by its dotted name."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    @property
    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))


Rule = Callable[[Module], Iterator[str]]


def read_modules(root: Path, folder: str) -> list[Module]:
    """All modules below a folder of the project."""
    return [
        Module(
            dotted(path.relative_to(root)),
            path.read_text(encoding="utf-8"),
            path.name == "__init__.py",
        )
        for path in sorted((root / folder).rglob("*.py"))
    ]


def dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def violations(rule: Rule, modules: list[Module]) -> list[str]:
    return [f"{module.name}: {offence}" for module in modules for offence in rule(module)]


def repeated_classes(modules: list[Module]) -> list[str]:
    """Class names that are defined in more than one module."""
    modules_by_class: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                modules_by_class.setdefault(node.name, []).append(module.name)
    return [
        f"{name}: {', '.join(found)}" for name, found in modules_by_class.items() if len(found) > 1
    ]


def file_is_short(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > LONGEST_FILE:
        yield f"{lines} lines, the limit is {LONGEST_FILE}"


def functions_are_short(module: Module) -> Iterator[str]:
    """In the public API, signature and docstring do not count: they document every argument."""
    is_public = module.name.startswith("convoy.api.")
    for function in module.functions:
        body = function.body[ast.get_docstring(function) is not None :] or function.body
        first = body[0] if is_public else function
        assert function.end_lineno is not None
        lines = function.end_lineno - first.lineno + 1
        if lines > LONGEST_FUNCTION:
            yield f"{function.name} has {lines} lines"


def arguments_are_few(module: Module) -> Iterator[str]:
    """Keyword-only arguments of the public API do not count."""
    is_public = module.name.startswith("convoy.api.")
    for function in module.functions:
        keywords = len(function.args.kwonlyargs) if is_public else 0
        count = len(arguments_of(function)) - keywords
        if count > MOST_ARGUMENTS:
            yield f"{function.name} takes {count} arguments"


def arguments_of(function: Function) -> list[ast.arg]:
    """All arguments except self and cls."""
    values = function.args
    listed = [*values.posonlyargs, *values.args]
    parameters = listed[1:] if listed and listed[0].arg in ("self", "cls") else listed
    starred = [item for item in (values.vararg, values.kwarg) if item is not None]
    return [*parameters, *values.kwonlyargs, *starred]


def signatures_are_annotated(module: Module) -> Iterator[str]:
    for function in module.functions:
        bare = [item.arg for item in arguments_of(function) if item.annotation is None]
        if function.returns is None:
            bare.append("return")
        if bare:
            yield f"{function.name} lacks the types of {', '.join(bare)}"


def module_has_docstring(module: Module) -> Iterator[str]:
    """Every non-empty module has a docstring."""
    if module.text.strip() and not (ast.get_docstring(module.tree) or "").strip():
        yield "no docstring"


def no_todo_comments(module: Module) -> Iterator[str]:
    for number, line in enumerate(module.text.splitlines(), start=1):
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            yield f"line {number}: {line.strip()}"


# Modules that inspect objects of the user, or import public names lazily.
INSPECTS_USER_OBJECTS = {
    "convoy",
    "convoy.api.requests",
    "convoy.data.preprocessing",
    "convoy.data.sources.user_dataset",
    "convoy.engine.custom_stages",
    "convoy.layers.user_network",
}


def attributes_have_fixed_names(module: Module) -> Iterator[str]:
    if module.name in INSPECTS_USER_OBJECTS:
        return
    for call in module.calls:
        tricks = {"getattr", "hasattr", "setattr", "delattr", "object.__setattr__"}
        if ast.unparse(call.func) in tricks and ast.unparse(call) not in ALLOWED_TRICKS:
            yield f"line {call.lineno}: {ast.unparse(call)}"


def keywords_are_not_passed_through(module: Module) -> Iterator[str]:
    for function in module.functions:
        used = function.args.kwarg
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            passed = [
                ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None
            ]
            if used is not None and used.arg in passed:
                yield f"{function.name} passes **{used.arg} on"


_DANGEROUS_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
_DANGEROUS_CALLS = {"eval", "exec", "torch.load", "os.system", "os.popen", "yaml.load"}


def no_unsafe_loading(module: Module) -> Iterator[str]:
    """Data cannot execute code: no pickle, no eval, no shell.

    `run/user_code.py` sends the user's objects to the workers that this process starts.
    """
    if module.name == "convoy.run.user_code":
        return
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                imported = [name.name for name in names]
            case ast.ImportFrom(module=str(origin), names=names):
                imported = [origin, *(f"{origin}.{name.name}" for name in names)]
            case _:
                continue
        if bad := {item for item in imported if item.split(".")[0] in _DANGEROUS_MODULES}:
            yield f"line {node.lineno}: imports {', '.join(sorted(bad))}"
        if bad := set(imported) & _DANGEROUS_CALLS:
            yield f"line {node.lineno}: imports {', '.join(sorted(bad))}"
    for call in module.calls:
        if ast.unparse(call.func) in _DANGEROUS_CALLS and not _loads_weights_only(call):
            yield f"line {call.lineno}: {ast.unparse(call.func)}(…)"
        for keyword in call.keywords:
            risky = keyword.arg in ("shell", "allow_pickle")
            if risky and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                yield f"line {call.lineno}: {keyword.arg}={ast.unparse(keyword.value)}"


def _loads_weights_only(call: ast.Call) -> bool:
    """Whether a call is `torch.load` with `weights_only=True`."""
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return ast.unparse(call.func) == "torch.load" and keywords.get("weights_only") == "True"


_EMPTY_WORDS = {
    "manager",
    "helper",
    "helpers",
    "handler",
    "base",
    "util",
    "utils",
    "misc",
    "common",
}


def names_are_meaningful(module: Module) -> Iterator[str]:
    """Names of files, classes and functions contain no empty words."""
    defined = [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef | Function)]
    for name in [module.name.rpartition(".")[2], *(node.name for node in defined)]:
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
        if _EMPTY_WORDS & {word.lower() for word in words}:
            yield f"the name {name}"


def names_of_tests_are_sentences(module: Module) -> Iterator[str]:
    for function in module.functions:
        if function.name.startswith("test") and len(function.name.split("_")) < 4:
            yield f"{function.name} is not a sentence"
