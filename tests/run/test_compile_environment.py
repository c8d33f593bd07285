"""torch's compiler: refused where it cannot work, and its folder."""

import os
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from convoy.config.sections.parallel import CompilerConfig
from convoy.errors import ConfigError
from convoy.run.compile import CACHE_DIR_VARIABLE, compile_environment

CPU = torch.device("cpu")
# torch warns of its own words while it loads its compiler.
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


def test_compiled_code_is_stored_in_the_given_folder(tmp_path: Path) -> None:
    wish = CompilerConfig(compile=True, model_cache_path=str(tmp_path / "some" / "where"))
    before = os.environ.get(CACHE_DIR_VARIABLE)
    with compile_environment(wish, CPU):
        inside = os.environ[CACHE_DIR_VARIABLE]

    assert inside == str(tmp_path / "some" / "where")
    assert Path(inside).is_dir()
    assert os.environ.get(CACHE_DIR_VARIABLE) == before


def test_without_a_folder_it_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, "as-it-was")
    with compile_environment(CompilerConfig(compile=True), CPU):
        inside = os.environ[CACHE_DIR_VARIABLE]

    assert inside == os.environ[CACHE_DIR_VARIABLE] == "as-it-was"


def test_what_is_for_this_run_alone_is_gone_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "older").write_text("stays")
    wish = CompilerConfig(compile=True, model_cache_path=str(tmp_path), tmp_execs=True)
    with compile_environment(wish, CPU):
        own = Path(os.environ[CACHE_DIR_VARIABLE])
        (own / "program").write_text("made")

        assert own.parent == tmp_path

    assert [one.name for one in tmp_path.iterdir()] == ["older"]


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wish = CompilerConfig(compile=True, model_cache_path=str(tmp_path / "file"))
    refused = pytest.raises(ConfigError, match=r"--model-cache-path .*file cannot be used: File")
    with refused, compile_environment(wish, CPU):
        pass


@pytest.mark.parametrize("anew", [False, True])
def test_force_recompile_ignores_the_cache(anew: bool) -> None:
    with compile_environment(CompilerConfig(compile=True, force_recompile=anew), CPU):
        inside = inductor.force_disable_caches

    assert inside is anew
    assert inductor.force_disable_caches is False
