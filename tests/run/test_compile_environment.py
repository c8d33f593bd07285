"""The environment of torch.compile: the C++ compiler and the cache folder."""

import os
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from convoy.config.sections.parallel import CompilerConfig
from convoy.errors import ConfigError
from convoy.run.compile import CACHE_DIR_VARIABLE, compile_environment

CPU = torch.device("cpu")
# torch emits deprecation warnings while it loads its compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@inductor.patch({"cpp.cxx": ("no-such-compiler",)})
def test_a_missing_cpp_compiler_is_refused() -> None:
    with (
        pytest.raises(ConfigError) as error,
        compile_environment(CompilerConfig(compile=True), CPU),
    ):
        pass

    message = str(error.value)
    assert "needs a C++ compiler" in message and "install g++" in message and "CXX" in message


def test_compiled_code_is_stored_in_the_configured_folder(tmp_path: Path) -> None:
    config = CompilerConfig(compile=True, model_cache_path=str(tmp_path / "some" / "where"))
    before = os.environ.get(CACHE_DIR_VARIABLE)
    with compile_environment(config, CPU):
        inside = os.environ[CACHE_DIR_VARIABLE]

    assert inside == str(tmp_path / "some" / "where")
    assert Path(inside).is_dir()
    assert os.environ.get(CACHE_DIR_VARIABLE) == before


def test_torch_chooses_the_cache_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, "default")
    with compile_environment(CompilerConfig(compile=True), CPU):
        inside = os.environ[CACHE_DIR_VARIABLE]

    assert inside == os.environ[CACHE_DIR_VARIABLE] == "default"


def test_a_temporary_cache_is_removed_at_the_end_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "older").write_text("")
    config = CompilerConfig(compile=True, model_cache_path=str(tmp_path), tmp_execs=True)
    with compile_environment(config, CPU):
        cache = Path(os.environ[CACHE_DIR_VARIABLE])
        (cache / "program").write_text("")

        assert cache.parent == tmp_path

    assert [path.name for path in tmp_path.iterdir()] == ["older"]


def test_an_invalid_cache_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = CompilerConfig(compile=True, model_cache_path=str(tmp_path / "file"))
    refused = pytest.raises(ConfigError, match=r"--model-cache-path .*file cannot be used: File")
    with refused, compile_environment(config, CPU):
        pass


@pytest.mark.parametrize("forced", [False, True])
def test_force_recompile_ignores_the_cache(forced: bool) -> None:
    with compile_environment(CompilerConfig(compile=True, force_recompile=forced), CPU):
        inside = inductor.force_disable_caches

    assert inside is forced
    assert inductor.force_disable_caches is False
