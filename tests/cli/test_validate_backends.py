"""`convoy validate --backend`: the same answers, whoever computes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import TINY, convoy

from convoy.errors import ConfigError

CLOSE = 1e-4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    words = ("--ckpts-per-epoch=1", "--validation-mode=during", "--lr=0.2")
    assert convoy("train", *TINY, *words, "--output", run).code == 0
    return run


def scores(run: Path, *words: str) -> list[dict[str, Any]]:
    said = convoy("validate", run, *words, "--json")
    assert said.code == 0, said.err
    rows: list[dict[str, Any]] = json.loads(said.out)
    return rows


def told(run: Path) -> list[dict[str, Any]]:
    """What the run itself measured, with its norms where they are."""
    return [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]


def agree(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    """Of each checkpoint: the same loss, and an answer or two between them at most."""
    return [row["update"] for row in ours] == [row["update"] for row in theirs] and all(
        one["loss"] == pytest.approx(other["loss"], rel=CLOSE)
        and abs(one["top1"] - other["top1"]) <= 2 / 2000
        for one, other in zip(ours, theirs, strict=True)
    )


def test_folded_norms_answer_as_the_run_itself_did(run: Path) -> None:
    ours = scores(run)

    assert len(ours) == 2
    assert ours[0]["loss"] != pytest.approx(ours[1]["loss"], rel=100 * CLOSE)
    assert agree(ours, told(run))


def test_the_weights_told_are_those_of_the_checkpoint_not_the_folded_ones(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())

    assert scores(run)[-1]["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.slow
def test_onnx_runtime_answers_for_every_checkpoint_as_torch_does(run: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")

    assert agree(scores(run, "--backend=onnxruntime"), told(run))


@pytest.mark.evidence
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_torch_answers_for_every_checkpoint_as_torch_does(
    run: Path, tmp_path: Path
) -> None:
    words = ("--backend=compiled", "--model-cache-path", str(tmp_path / "programs"))

    assert agree(scores(run, *words), told(run))
    assert list((tmp_path / "programs").rglob("*.so"))


def test_an_unknown_backend_is_answered_with_near_names(run: Path) -> None:
    said = convoy("validate", run, "--backend=onnx")

    assert said.code == 2
    assert "--backend cannot be 'onnx'" in said.err
    assert "onnxruntime" in said.err


def test_without_the_extra_one_line_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.layers.export.find_spec", lambda _: None)
    said = convoy("validate", run, "--backend=onnxruntime")

    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "convoy: --backend onnxruntime needs onnx, onnxscript, onnxruntime; "
        "install with: pip install 'convoy-cnn[onnx]'\n"
    )


def test_compile_asks_for_compiled_answers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("convoy.run.validation.refuse_backend", lambda name, _: asked.append(name))
    monkeypatch.setattr("convoy.run.validation._Bench", _no_bench)
    convoy("validate", run, "--compile")
    convoy("validate", run)

    assert asked == ["compiled", "torch"]


def _no_bench(*words: object) -> None:
    raise ConfigError(f"nothing is measured here: {len(words)}")


def test_compile_beside_another_backend_is_refused(run: Path) -> None:
    said = convoy("validate", run, "--compile", "--backend=onnxruntime")

    assert said.code == 2
    assert "--compile and --backend onnxruntime are two ways; give one" in said.err
