"""torch's compiler as a run needs it: a C++ compiler, and a folder for what it makes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from convoy.config.sections.device import CompilerConfig
from convoy.errors import ConfigError

FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # read by torch whenever it looks for something


@contextmanager
def compiler_for(config: CompilerConfig, device: torch.device) -> Iterator[None]:
    """Refuse what cannot be compiled; then let everything that is made lie where it is wanted."""
    if device.type == "cpu":
        _refuse_without_compiler()
    before = os.environ.get(FOLDER)
    with _folder(config) as folder, _caching(not config.force_recompile):
        if folder is not None:
            os.environ[FOLDER] = folder
        try:
            yield
        finally:
            _put_back(before)


def _refuse_without_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        named = os.environ.get("CXX")
        where = f"CXX={named} is none" if named else "there is none on this machine"
        raise ConfigError(
            f"compiling needs a C++ compiler, and {where}; install g++, name another one by the "
            "variable CXX, or go on without"
        ) from error


@contextmanager
def _folder(config: CompilerConfig) -> Iterator[str | None]:
    """Where programs lie; None leaves it to torch."""
    if config.model_cache_path is None:
        yield None
        return
    path = Path(config.model_cache_path).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        own = TemporaryDirectory(prefix="run-", dir=path) if config.tmp_execs else None
    except OSError as error:
        raise ConfigError(f"--model-cache-path {path} cannot be used: {error.strerror}") from error
    with own or nullcontext(str(path)) as folder:
        yield folder


@contextmanager
def _caching(enabled: bool) -> Iterator[None]:
    """Without it torch looks for nothing and keeps nothing; equal C++ is still equal."""
    from torch._inductor import config

    before = config.force_disable_caches
    config.force_disable_caches = before or not enabled
    try:
        yield
    finally:
        config.force_disable_caches = before


def _put_back(before: str | None) -> None:
    os.environ.pop(FOLDER, None)
    if before is not None:
        os.environ[FOLDER] = before
