"""Every error a user can see. Each class has the exit code of the program.

ConvoyError 1
├── ConfigError 2         usage, options, configuration files
├── DataError 3           unusable data
├── CheckpointError 4     no usable checkpoint
├── NumericError 5        a numeric error that ends the run
│   └── NotFiniteError    the state before it is valid
├── StorageError 6        disk full, read-only, permission
├── WorkerLostError 7     a process died
├── HangError 8           a process does not respond
└── BusyError 9           the run folder is in use
"""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    BUG = 1
    CONFIG = 2
    DATA = 3
    CHECKPOINT = 4
    NUMERIC = 5
    STORAGE = 6
    WORKER_LOST = 7
    HANG = 8
    BUSY = 9
    PREEMPTED = 75
    INTERRUPTED = 130


class ConvoyError(Exception):
    """Base class. The message is one or two lines: what is wrong, the values, how to fix it."""

    code = ExitCode.BUG


class ConfigError(ConvoyError):
    code = ExitCode.CONFIG


class DataError(ConvoyError):
    code = ExitCode.DATA


class CheckpointError(ConvoyError):
    code = ExitCode.CHECKPOINT


class NumericError(ConvoyError):
    code = ExitCode.NUMERIC


class NotFiniteError(NumericError):
    """An update has non-finite values; it was detected before any state changed."""


class StorageError(ConvoyError):
    code = ExitCode.STORAGE


class WorkerLostError(ConvoyError):
    code = ExitCode.WORKER_LOST


class HangError(ConvoyError):
    code = ExitCode.HANG


class BusyError(ConvoyError):
    code = ExitCode.BUSY


ERRORS: dict[int, type[ConvoyError]] = {error.code: error for error in ConvoyError.__subclasses__()}
