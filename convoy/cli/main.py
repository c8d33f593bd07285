"""The entry point: argv in, exit code out. A verb's module is imported only when it is called."""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import NoReturn

from convoy import __version__
from convoy.cli.output import print_exception
from convoy.errors import ConfigError, ConvoyError, ExitCode
from convoy.launch.world import has_launcher
from convoy.machine import keep_freed_memory, limit_openmp_spinning
from convoy.registry import suggest

VERB_GROUPS = {
    "train and use": {
        "train": "train a network; without options, a small ResNet on built-in data",
        "resume": "resume a run from its newest valid checkpoint, bit-exactly",
        "validate": "compute the top-1 and top-5 accuracy and loss of checkpoints",
        "predict": "predict the classes of images",
        "average": "average checkpoints into one",
        "launch": "run a Python script in several processes",
        "run": "run a command of Graphcore's IPU examples unchanged",
    },
    "plan and verify": {
        "plan": "show batch, stages, schedule, memory and learning rate without training",
        "prove": "train with different numbers of stages and replicas and compare the weights",
    },
    "data": {
        "data": "fetch, convert, verify, benchmark and show datasets",
    },
    "weights": {
        "import": "import weights of torchvision, timm and others as a checkpoint",
        "export": "export a checkpoint to torchvision, timm, torch.export or ONNX",
    },
    "reference": {
        "models": "list the models",
        "configs": "list the named configurations",
        "options": "list and search the options",
        "completion": "print a completion script for bash, zsh or fish",
    },
}
VERBS = {name: text for group in VERB_GROUPS.values() for name, text in group.items()}
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
    devnull = Path(os.devnull).open("w")  # noqa: SIM115 - stays open until exit
    sys.stdout = sys.stdout or devnull  # None if the parent process closed it
    sys.stderr = sys.stderr or devnull
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals without × or –
    code = main(sys.argv[1:])
    if has_launcher(os.environ):
        _exit_without_finalizing(code)
    sys.exit(code)


def _exit_without_finalizing(code: int) -> NoReturn:
    """Exit as a worker process does: a gloo thread may still be freeing the tensors of the last
    collective, and aborts the process if it needs the GIL while the interpreter finalizes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(argv: list[str]) -> int:
    """Run one command; user errors are printed as plain lines, without a traceback."""
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output has exited, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except (ConvoyError, OSError) as error:
        if debug:
            import traceback

            traceback.print_exc()
        print_exception(error)
        return error.code if isinstance(error, ConvoyError) else ExitCode.STORAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(help_text())
        return ExitCode.DONE
    if argv[0] == "--version":
        print(f"convoy {__version__}")
        return ExitCode.DONE
    limit_openmp_spinning()
    keep_freed_memory()
    try:
        return call_verb(argv[0], argv[1:])
    except SystemExit as exit_request:  # argparse raises it after printing help
        return exit_request.code if isinstance(exit_request.code, int) else ExitCode.DONE


def call_verb(name: str, argv: list[str]) -> int:
    """Import the module of a verb and call it."""
    if name not in VERBS:
        raise ConfigError(f"unknown command {name!r}; {suggest(name, VERBS)}")
    code: int = resolve_name(f"convoy.cli.{_FUNCTIONS.get(name, f'{name}:main')}")(argv)
    return code


def help_text() -> str:
    groups = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<11} {text}" for name, text in verbs.items())])
        for title, verbs in VERB_GROUPS.items()
    )
    return (
        "usage: convoy COMMAND [options]\n\n"
        "Train image classifiers with pipeline and data parallelism.\n\n"
        f"{groups}\n\n"
        "options:\n"
        "  -h, --help  show this help message and exit\n"
        "  --debug     print the traceback of an error\n"
        "  --version   print the version\n\n"
        "`convoy COMMAND --help` describes a command."
    )
