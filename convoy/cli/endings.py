"""How a run ended → what the program returns to the shell."""

from convoy.errors import ExitCode

EXIT_CODES = {
    "done": ExitCode.DONE,
    "preempted": ExitCode.PREEMPTED,
    "limit": ExitCode.PREEMPTED,
    "interrupted": ExitCode.INTERRUPTED,
}
