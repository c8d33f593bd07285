"""`convoy validate --backend`: every backend gives the same scores."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import TINY, convoy

from convoy.errors import ConfigError

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    words = ("--ckpts-per-epoch=1", "--validation-mode=during", "--lr=0.2")
    assert convoy("train", *TINY, *words, "--output", run).code == 0
    return run


def scores(run: Path, *words: str) -> list[dict[str, Any]]:
    result = convoy("validate", run, *words, "--json")
    assert result.code == 0, result.err
    rows: list[dict[str, Any]] = json.loads(result.out)
    return rows


def run_scores(run: Path) -> list[dict[str, Any]]:
    """The scores that the run measured during training, without folded norms."""
    return [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]


def scores_agree(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    """Whether each checkpoint has the same loss, and at most two predictions differ."""
    return [row["update"] for row in first] == [row["update"] for row in second] and all(
        row["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)
        and abs(row["top1"] - expected["top1"]) <= 2 / 2000
        for row, expected in zip(first, second, strict=True)
    )


def test_folded_norms_match_the_scores_of_the_run(run: Path) -> None:
    validated = scores(run)

    assert len(validated) == 2
    assert validated[0]["loss"] != pytest.approx(validated[1]["loss"], rel=100 * TOLERANCE)
    assert scores_agree(validated, run_scores(run))


def test_the_reported_weights_are_not_folded(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())

    assert scores(run)[-1]["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.slow
def test_onnx_runtime_matches_torch_for_every_checkpoint(run: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")

    assert scores_agree(scores(run, "--backend=onnxruntime"), run_scores(run))


@pytest.mark.evidence
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_torch_matches_torch_for_every_checkpoint(run: Path, tmp_path: Path) -> None:
    words = ("--backend=compiled", "--model-cache-path", str(tmp_path / "programs"))

    assert scores_agree(scores(run, *words), run_scores(run))
    assert list((tmp_path / "programs").rglob("*.so"))


def test_an_unknown_backend_is_refused_with_near_names(run: Path) -> None:
    result = convoy("validate", run, "--backend=onnx")

    assert result.code == 2
    assert "--backend cannot be 'onnx'" in result.err
    assert "onnxruntime" in result.err


def test_a_missing_extra_is_reported_with_its_name(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.layers.export.find_spec", lambda _: None)
    result = convoy("validate", run, "--backend=onnxruntime")

    assert (result.code, result.out) == (2, "")
    assert "--backend onnxruntime" in result.err
    assert "onnx, onnxscript, onnxruntime" in result.err
    assert "pip install 'convoy-cnn[onnx]'" in result.err and result.err.count("\n") == 1


def test_compile_selects_the_compiled_backend(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []
    monkeypatch.setattr(
        "convoy.run.validation.check_backend", lambda name, _: requested.append(name)
    )
    monkeypatch.setattr("convoy.run.validation._CheckpointValidator", _stop_before_validation)
    convoy("validate", run, "--compile")
    convoy("validate", run)

    assert requested == ["compiled", "torch"]


def _stop_before_validation(*args: object) -> None:
    raise ConfigError(f"stopped by the test: {len(args)} arguments")


def test_compile_with_another_backend_is_refused(run: Path) -> None:
    result = convoy("validate", run, "--compile", "--backend=onnxruntime")

    assert result.code == 2
    assert "--compile" in result.err and "--backend onnxruntime" in result.err
