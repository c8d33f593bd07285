"""convoy export: what others load, and what is written when something is wrong: nothing."""

import json
import sys
from pathlib import Path

import pytest
import torch
from foreign_files import tensors
from published_keys import LAYOUTS, Keys
from running import TINY, convoy
from safetensors.torch import load_file

from convoy.run import foreign_weights as exporting

SMALL = [(model, naming, keys) for model, naming, keys, count in LAYOUTS if count < 4_000_000]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "run"
    assert convoy("train", *TINY, "--output", path).code == 0
    return path


@pytest.mark.parametrize(("model", "naming", "keys"), SMALL, ids=lambda one: str(one)[:30])
def test_import_and_export_give_the_file_back_bit_for_bit(
    tmp_path: Path, model: str, naming: str, keys: Keys
) -> None:
    theirs = tensors(keys)
    torch.save(theirs, tmp_path / "in.pth")
    file = tmp_path / "out.safetensors"
    words = (f"--naming={naming}", "--output", file)
    assert (
        convoy("import", tmp_path / "in.pth", f"--model={model}", "--output", tmp_path / "run").code
        == 0
    )
    said = convoy("export", tmp_path / "run", "--format=safetensors", *words)
    ours = load_file(file)

    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[1] == "read back: every bit is there"
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_gives_its_newest_checkpoint_and_a_checkpoint_itself(
    run: Path, tmp_path: Path
) -> None:
    newest = convoy("export", run, "--output", tmp_path / "a.safetensors", "--json")
    first = run / "checkpoints" / "update-6"
    older = convoy("export", first, "--output", tmp_path / "b.safetensors", "--json")

    assert json.loads(newest.out)["checkpoint"] == str(run / "checkpoints" / "update-12")
    assert json.loads(older.out)["checkpoint"] == str(first)
    assert load_file(tmp_path / "a.safetensors")["bn1.num_batches_tracked"] == 12


def test_a_checkpoint_without_its_run_needs_the_model(run: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone" / "update-12"
    lone.parent.mkdir()
    (run / "checkpoints" / "update-12").rename(lone)
    try:
        said = convoy("export", lone, "--model=resnet8", "--output", tmp_path / "a.safetensors")
        wrong = convoy("export", lone, "--model=resnet14", "--output", tmp_path / "b.safetensors")
    finally:
        lone.rename(run / "checkpoints" / "update-12")

    assert (said.code, said.err) == (0, "")
    assert wrong.code == 4 and "does not fit this model" in wrong.err
    assert not (tmp_path / "b.safetensors").exists()


def test_a_program_answers_for_any_number_of_images(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.pt2"
    said = convoy("export", run, "--format=torch-export", "--batch-size=dynamic", "--output", file)
    program = torch.export.load(file).module()

    assert (said.code, said.err) == (0, "")
    assert [len(program(torch.zeros(count, 3, 12, 12))) for count in (1, 2, 5)] == [1, 2, 5]


def test_a_program_for_a_fixed_number_takes_no_other(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.pt2"
    assert (
        convoy("export", run, "--format=torch-export", "--batch-size=3", "--output", file).code == 0
    )
    program = torch.export.load(file).module()

    assert program(torch.zeros(3, 3, 12, 12)).shape == (3, 10)
    with pytest.raises(AssertionError):
        program(torch.zeros(4, 3, 12, 12))


@pytest.mark.parametrize("samples", [None, 3])
def test_onnx_answers_as_the_network_does(run: Path, tmp_path: Path, samples: int | None) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    file = tmp_path / "a.onnx"
    words = ["--batch-size", "dynamic" if samples is None else str(samples)]
    said = convoy("export", run, "--format=onnx", *words, "--output", file, "--json")
    session = sys.modules["onnxruntime"].InferenceSession(file)
    shape = session.get_inputs()[0].shape

    assert (said.code, said.err) == (0, "")
    assert 0 <= json.loads(said.out)["difference"] <= 1e-4
    assert shape[1:] == [3, 12, 12] and shape[0] == (samples or "batch")


def test_without_its_packages_onnx_names_the_extra(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    said = convoy("export", run, "--format=onnx", "--output", tmp_path / "a.onnx")

    assert said.code == 2
    assert "pip install 'convoy-cnn[onnx]'" in said.err and said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_stays_unless_it_is_meant(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_text("mine")
    refused = convoy("export", run, "--output", file)

    assert refused.code == 2 and "exists already" in refused.err
    assert file.read_text() == "mine"
    assert convoy("export", run, "--output", file, "--override").code == 0
    assert "fc.bias" in load_file(file)


def test_answers_that_differ_leave_no_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "answers_of_program", lambda *_: torch.full((2, 10), 9.0))
    said = convoy("export", run, "--format=torch-export", "--output", tmp_path / "a.pt2")

    assert said.code == 5
    assert "of the largest answer, more than 0.0001; nothing was written" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    said = convoy("export", run, "--output", tmp_path / "file" / "a.safetensors")

    assert said.code == 6 and said.err.startswith("convoy: cannot write ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--naming=keras"], "invalid choice: 'keras'"),
        (["--format=coreml"], "invalid choice: 'coreml'"),
        (["--batch-size=0"], "--batch-size must be at least 1"),
        (["--batch-size=some"], "--batch-size expects a whole number"),
        (["--config=x"], "--config cannot be given: a run has its own configuration"),
    ],
)
def test_wrong_words_are_refused(run: Path, words: list[str], why: str) -> None:
    said = convoy("export", run, *words)

    assert said.code == 2
    assert why in said.err


def test_a_network_that_others_do_not_have_is_refused_with_the_naming_that_is_left(
    tmp_path: Path,
) -> None:
    words = ("--model=squeezenet", "--data=generated", "--samples=4", "--micro-batch-size=2")
    run = tmp_path / "run"
    more = ("--image-size=64", "--updates=1", "--validation-mode=none", "--threads=1")
    assert convoy("train", *words, *more, "--progress=none", "--output", run).code == 0
    refused = convoy("export", run, "--output", tmp_path / "a.safetensors")
    ours = convoy("export", run, "--naming=convoy", "--output", tmp_path / "a.safetensors")

    assert "torchvision has no such network; use --naming convoy" in refused.err
    assert (ours.code, ours.err) == (0, "")


def test_what_only_we_have_goes_out_under_our_names(tmp_path: Path) -> None:
    other = ("--model=", "--epoch=", "--image-size=")
    words = [word for word in TINY if not word.startswith(other)]
    proxied = ("--model=efficientnet-cifar", "--proxy-norm", "--image-size=32")
    run, file = tmp_path / "run", tmp_path / "a.safetensors"
    assert convoy("train", *words, *proxied, "--updates=1", "--output", run).code == 0
    ours = convoy("export", run, "--naming=convoy", "--output", file)
    theirs = convoy("export", run, "--naming=timm", "--output", tmp_path / "b.safetensors")

    assert (ours.code, ours.err) == (0, "")
    assert load_file(file)["blocks.1.0.se.act.proxy"].shape[0] == 2
    assert (theirs.code, theirs.out) == (2, "")
    assert theirs.err == "convoy: timm has no such network; use --naming convoy\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--output=plain",), "--output plain is no name for --format safetensors; one that ends"),
        (("--output=a.onnx",), "--output a.onnx is no name for --format safetensors; one that"),
        (("--format=torch-export", "--naming=timm"), "--naming is for --format safetensors; torch"),
        (("--batch-size=4",), "--batch-size is for programs; --format safetensors holds weights"),
        (("--output=checkpoints.safetensors",), "--output checkpoints.safetensors is a folder"),
    ],
)
def test_what_does_not_go_with_the_format_is_refused_before_anything_is_done(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints.safetensors").mkdir()
    said = convoy("export", run, *words)

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"convoy: {told}") and said.err.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoints.safetensors"]
