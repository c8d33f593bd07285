"""The door: argv in, exit code out. Verbs import what they need only when they are called."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name

from convoy import __version__
from convoy.cli.output import say_error
from convoy.errors import ConfigError, ConvoyError, ExitCode
from convoy.machine import keep_freed_memory, limit_openmp_spinning
from convoy.registry import suggest

VERBS = {
    "train": "train a network; with no option at all, on the built-in shapes",
    "resume": "go on with a run from its newest sound checkpoint, to the bit",
    "validate": "top-1, top-5 and loss of checkpoints, every sample once",
    "average": "one checkpoint out of many",
    "plan": "what a run would be: batches, stages, schedule, memory, rates",
    "run": "a command line of the IPU applications, as it is written",
    "prove": "the same training under many layouts: are the weights the same to the bit?",
    "data": "fetch, convert and verify data sets, see how fast they come, look at them",
    "import": "weights of torchvision, timm and others as a checkpoint",
    "export": "a checkpoint as weights of torchvision or timm, a program, or ONNX",
    "models": "the networks there are",
    "configs": "the named configurations there are",
    "options": "every option with its meaning",
    "completion": "a script that completes commands in bash, zsh or fish",
}
# The others are `main` of the file of their name.
_FUNCTIONS = {
    "resume": "train:run_resume",
    "average": "weights:run_average",
    "import": "weights:run_import",
    "export": "weights:run_export",
    "completion": "options:run_completion",
}


def run() -> None:
    """The console script."""
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - it stays open as long as we live
    sys.stdout = sys.stdout or nowhere  # None when whoever started us had closed it
    sys.stderr = sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or – still gets its line
    sys.exit(main(sys.argv[1:]))


def main(words: list[str]) -> int:
    """Carry out one command; errors of the user are told in plain lines."""
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; the rest has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except (ConvoyError, OSError) as error:
        if debug:
            import traceback

            traceback.print_exc()
        say_error(error)
        return error.code if isinstance(error, ConvoyError) else ExitCode.STORAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return ExitCode.DONE
    if words[0] == "--version":
        print(f"convoy {__version__}")
        return ExitCode.DONE
    limit_openmp_spinning()
    keep_freed_memory()
    try:
        return call_verb(words[0], words[1:])
    except SystemExit as leaving:  # argparse leaves so after it has printed the help
        return leaving.code if isinstance(leaving.code, int) else ExitCode.DONE


def call_verb(name: str, words: list[str]) -> int:
    """Its file is imported only now."""
    if name not in VERBS:
        raise ConfigError(f"unknown verb {name!r}; {suggest(name, VERBS)}")
    code: int = resolve_name(f"convoy.cli.{_FUNCTIONS.get(name, f'{name}:main')}")(words)
    return code


def help_text() -> str:
    verbs = "\n".join(f"  {name:<10} {says}" for name, says in VERBS.items())
    return (
        "convoy trains image classifiers as a convoy: pipeline stages in a line, "
        "replicas side by side.\n\n"
        f"  convoy VERB [options]      `convoy VERB --help` tells more\n\n{verbs}\n\n"
        "  --debug    show where in the code an error arose\n"
        "  --version  print the version"
    )
