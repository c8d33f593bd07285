"""torch's compiler: refused where it cannot work, and its folder."""

import os
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from convoy.config.sections.device import CompilerConfig
from convoy.errors import ConfigError
from convoy.run.compile import FOLDER, compiler_for

CPU = torch.device("cpu")
# torch warns of its own words while it loads its compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@inductor.patch({"cpp.cxx": ("no-such-compiler",)})
def test_without_a_cpp_compiler_one_line_says_so() -> None:
    with pytest.raises(ConfigError) as told, compiler_for(CompilerConfig(compile=True), CPU):
        pass

    assert str(told.value) == (
        "compiling needs a C++ compiler, and there is none on this machine; install g++, "
        "name another one by the variable CXX, or go on without"
    )


def test_programs_lie_in_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    wish = CompilerConfig(compile=True, model_cache_path=str(tmp_path / "some" / "where"))
    before = os.environ.get(FOLDER)
    with compiler_for(wish, CPU):
        inside = os.environ[FOLDER]

    assert inside == str(tmp_path / "some" / "where")
    assert Path(inside).is_dir()
    assert os.environ.get(FOLDER) == before


def test_without_a_folder_it_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "as-it-was")
    with compiler_for(CompilerConfig(compile=True), CPU):
        inside = os.environ[FOLDER]

    assert inside == os.environ[FOLDER] == "as-it-was"


def test_what_is_for_this_run_alone_is_gone_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "older").write_text("stays")
    wish = CompilerConfig(compile=True, model_cache_path=str(tmp_path), tmp_execs=True)
    with compiler_for(wish, CPU):
        own = Path(os.environ[FOLDER])
        (own / "program").write_text("made")

        assert own.parent == tmp_path

    assert [one.name for one in tmp_path.iterdir()] == ["older"]


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wish = CompilerConfig(compile=True, model_cache_path=str(tmp_path / "file"))
    refused = pytest.raises(ConfigError, match=r"--model-cache-path .*file cannot be used: File")
    with refused, compiler_for(wish, CPU):
        pass


@pytest.mark.parametrize("anew", [False, True])
def test_compiling_anew_looks_for_nothing(anew: bool) -> None:
    with compiler_for(CompilerConfig(compile=True, force_recompile=anew), CPU):
        inside = inductor.force_disable_caches

    assert inside is anew
    assert inductor.force_disable_caches is False
