"""The door: argv in, exit code out. Verbs import what they need only when they are called."""

import sys
from dataclasses import dataclass
from importlib import import_module

from convoy import __version__
from convoy.errors import ConfigError, ConvoyError, ExitCode
from convoy.registry import suggest


@dataclass(frozen=True)
class Verb:
    """A word of the command line and the file that carries it out."""

    name: str
    says: str


VERBS = (
    Verb("train", "train a network; with no option at all, on the built-in shapes"),
    Verb("resume", "go on with a run from its newest sound checkpoint, to the bit"),
    Verb("validate", "top-1, top-5 and loss of checkpoints, every sample once"),
    Verb("average", "one checkpoint out of many"),
    Verb("plan", "what a run would be: batches, stages, schedule, memory, rates"),
    Verb("data", "fetch data sets"),
    Verb("models", "the networks there are"),
    Verb("configs", "the named configurations there are"),
    Verb("options", "every option with its meaning"),
)


def run() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(words: list[str]) -> int:
    """Carry out one command; errors of the user are told in plain lines."""
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return _dispatch(words)
    except ConvoyError as error:
        if debug:
            raise
        for line in str(error).splitlines():
            print(f"convoy: {line}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; nothing is left to tell.
        sys.stderr.close()
        return ExitCode.DONE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(help_text())
        return ExitCode.DONE
    if words[0] == "--version":
        print(f"convoy {__version__}")
        return ExitCode.DONE
    names = [verb.name for verb in VERBS]
    if words[0] not in names:
        raise ConfigError(f"unknown verb {words[0]!r}; {suggest(words[0], names)}")
    code: int = import_module(f"convoy.cli.{words[0]}").main(words[1:])
    return code


def help_text() -> str:
    """What `convoy --help` prints."""
    verbs = "\n".join(f"  {verb.name:<10} {verb.says}" for verb in VERBS)
    return (
        "convoy trains image classifiers as a convoy: pipeline stages in a line, "
        "replicas side by side.\n\n"
        f"  convoy VERB [options]      `convoy VERB --help` tells more\n\n{verbs}\n\n"
        "  --debug    show where in the code an error arose\n"
        "  --version  print the version"
    )
