"""convoy export: other programs can load the files, and an error writes nothing."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.foreign_weights import tensors
from support.published_keys import LAYOUTS, Keys
from support.run_convoy import TINY, convoy

from convoy.run import import_export

SMALL_LAYOUTS = [
    (model, naming, keys) for model, naming, keys, count in LAYOUTS if count < 4_000_000
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "run"
    assert convoy("train", *TINY, "--output", path).code == 0
    return path


@pytest.mark.parametrize(
    ("model", "naming", "keys"), SMALL_LAYOUTS, ids=lambda value: str(value)[:30]
)
def test_import_and_export_reproduce_the_file_bit_exactly(
    tmp_path: Path, model: str, naming: str, keys: Keys
) -> None:
    imported = tensors(keys)
    torch.save(imported, tmp_path / "in.pth")
    file = tmp_path / "out.safetensors"
    words = (f"--naming={naming}", "--output", file)
    source = [f"--model={model}"]
    if (model, naming) == ("mobilenet-v3-small-published", "timm"):
        source.append("--architecture=mobilenetv3_small_100")
    assert convoy("import", tmp_path / "in.pth", *source, "--output", tmp_path / "run").code == 0
    result = convoy("export", tmp_path / "run", "--format=safetensors", *words)
    exported = load_file(file)

    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[1].startswith(f"read back: bit-identical, {naming} keys of ")
    assert exported.keys() == imported.keys()
    assert all(torch.equal(exported[name], imported[name]) for name in imported)


def test_a_run_exports_its_newest_checkpoint(run: Path, tmp_path: Path) -> None:
    newest = convoy("export", run, "--output", tmp_path / "a.safetensors", "--json")
    first = run / "checkpoints" / "update-6"
    older = convoy("export", first, "--output", tmp_path / "b.safetensors", "--json")

    assert json.loads(newest.out)["checkpoint"] == str(run / "checkpoints" / "update-12")
    assert json.loads(older.out)["checkpoint"] == str(first)
    assert json.loads(newest.out)["naming"] == "convoy"


def test_a_checkpoint_without_its_run_needs_the_model(run: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "copy" / "update-12"
    checkpoint.parent.mkdir()
    (run / "checkpoints" / "update-12").rename(checkpoint)
    try:
        result = convoy(
            "export", checkpoint, "--model=resnet8", "--output", tmp_path / "a.safetensors"
        )
        wrong = convoy(
            "export", checkpoint, "--model=resnet14", "--output", tmp_path / "b.safetensors"
        )
    finally:
        checkpoint.rename(run / "checkpoints" / "update-12")

    assert (result.code, result.err) == (0, "")
    assert wrong.code == 4 and "does not match this model" in wrong.err
    assert not (tmp_path / "b.safetensors").exists()


def test_an_exported_program_accepts_any_batch_size(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.pt2"
    result = convoy(
        "export", run, "--format=torch-export", "--batch-size=dynamic", "--output", file
    )
    program = torch.export.load(file).module()

    assert (result.code, result.err) == (0, "")
    assert [len(program(torch.zeros(count, 3, 12, 12))) for count in (1, 2, 5)] == [1, 2, 5]


def test_a_fixed_batch_size_accepts_no_other(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.pt2"
    assert (
        convoy("export", run, "--format=torch-export", "--batch-size=3", "--output", file).code == 0
    )
    program = torch.export.load(file).module()

    assert program(torch.zeros(3, 3, 12, 12)).shape == (3, 10)
    with pytest.raises(AssertionError):
        program(torch.zeros(4, 3, 12, 12))


@pytest.mark.parametrize("samples", [None, 3])
def test_onnx_outputs_match_the_network(run: Path, tmp_path: Path, samples: int | None) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    file = tmp_path / "a.onnx"
    words = ["--batch-size", "dynamic" if samples is None else str(samples)]
    result = convoy("export", run, "--format=onnx", *words, "--output", file, "--json")
    session = sys.modules["onnxruntime"].InferenceSession(file)
    shape = session.get_inputs()[0].shape

    assert (result.code, result.err) == (0, "")
    assert 0 <= json.loads(result.out)["difference"] <= 1e-4
    assert shape[1:] == [3, 12, 12] and shape[0] == (samples or "batch")


def test_onnx_without_its_packages_is_refused_with_the_name_of_the_extra(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = convoy("export", run, "--format=onnx", "--output", tmp_path / "a.onnx")

    assert result.code == 2
    assert "pip install 'convoy-cnn[onnx]'" in result.err and result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_with_overwrite(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_text("existing")
    refused = convoy("export", run, "--output", file)

    assert refused.code == 2 and f"{file} already exists" in refused.err
    assert file.read_text() == "existing"
    assert convoy("export", run, "--output", file, "--overwrite").code == 0
    assert "fc.bias" in load_file(file)


def test_an_export_with_different_outputs_writes_no_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_export, "run_exported_program", lambda *_: torch.full((2, 10), 9.0))
    result = convoy("export", run, "--format=torch-export", "--output", tmp_path / "a.pt2")

    assert result.code == 5
    assert "of the largest output, more than 0.0001; nothing was written" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = convoy("export", run, "--output", tmp_path / "file" / "a.safetensors")

    assert result.code == 6 and result.err.startswith("convoy: cannot write ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--naming=keras"], "invalid choice: 'keras'"),
        (["--format=coreml"], "invalid choice: 'coreml'"),
        (["--batch-size=0"], "--batch-size must be at least 1"),
        (["--batch-size=some"], "--batch-size expects an integer"),
        (["--config=x"], "--config cannot be combined with a run, which has its own configuration"),
    ],
)
def test_invalid_arguments_are_refused(run: Path, words: list[str], message: str) -> None:
    result = convoy("export", run, *words)

    assert result.code == 2
    assert message in result.err


@pytest.fixture(scope="module")
def trained_resnet18(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one update, of a network that both libraries have."""
    run = tmp_path_factory.mktemp("resnet18") / "run"
    words = [word for word in TINY if not word.startswith(("--model=", "--epoch=", "--image-size"))]
    size = ("--model=resnet18", "--image-size=32", "--updates=1")
    assert convoy("train", *words, *size, "--output", run).code == 0
    return run


def test_a_network_of_both_libraries_has_the_names_of_torchvision(
    trained_resnet18: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a.safetensors"
    result = convoy("export", trained_resnet18, "--output", file, "--json")
    row = json.loads(result.out)

    assert (row["naming"], row["architecture"]) == ("torchvision", "resnet18")
    assert load_file(file)["bn1.num_batches_tracked"] == 1


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--norm-eps=0.001", "--norm-eps 1e-05, not 0.001"),
        ("--conv-padding=same", "--conv-padding symmetric, not same"),
    ],
)
@pytest.mark.parametrize("naming", ["torchvision", "timm"])
def test_a_network_that_computes_something_else_needs_convoy_names(
    trained_resnet18: Path, tmp_path: Path, option: str, reason: str, naming: str
) -> None:
    """Its weights would load into the library's network, and its outputs would be wrong."""
    checkpoint = tmp_path / "copy" / "update-1"
    shutil.copytree(trained_resnet18 / "checkpoints" / "update-1", checkpoint)
    words = (checkpoint, "--model=resnet18", option, "--output", tmp_path / "a.safetensors")
    refused = convoy("export", *words, f"--naming={naming}")

    assert (refused.code, refused.out) == (2, "")
    assert f"{naming}'s resnet18 is another network: it has {reason}" in refused.err
    assert "use --naming convoy" in refused.err
    assert list(tmp_path.iterdir()) == [tmp_path / "copy"]
    assert "convoy keys" in convoy("export", *words).out


def test_a_network_that_torchvision_does_not_have_needs_convoy_names(
    tmp_path: Path,
) -> None:
    network = ("--model=squeezenet", "--data=generated", "--samples=4", "--micro-batch-size=2")
    run = tmp_path / "run"
    training = ("--image-size=64", "--updates=1", "--validation-mode=none", "--threads=1")
    assert convoy("train", *network, *training, "--progress=none", "--output", run).code == 0
    file = tmp_path / "a.safetensors"
    refused = convoy("export", run, "--naming=torchvision", "--output", file)
    exported = convoy("export", run, "--output", file)

    assert "torchvision has no network with the layers of squeezenet; use --naming" in refused.err
    assert (exported.code, exported.err) == (0, "")


def test_parameters_that_only_convoy_has_need_convoy_names(tmp_path: Path) -> None:
    replaced = ("--model=", "--epoch=", "--image-size=")
    words = [word for word in TINY if not word.startswith(replaced)]
    proxy_norm = ("--model=efficientnet-cifar", "--proxy-norm", "--image-size=32")
    run, file = tmp_path / "run", tmp_path / "a.safetensors"
    assert convoy("train", *words, *proxy_norm, "--updates=1", "--output", run).code == 0
    exported = convoy("export", run, "--naming=convoy", "--output", file)
    refused = convoy("export", run, "--naming=timm", "--output", tmp_path / "b.safetensors")

    assert (exported.code, exported.err) == (0, "")
    assert load_file(file)["blocks.1.0.se.act.proxy"].shape[0] == 2
    assert (refused.code, refused.out) == (2, "")
    assert "timm" in refused.err and "--naming convoy" in refused.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--output=plain",), "--output plain must end in .safetensors for --format safetensors"),
        (("--output=a.onnx",), "--output a.onnx must end in .safetensors for --format safetensors"),
        (
            ("--format=torch-export", "--naming=timm"),
            "--naming applies to --format safetensors only; torch",
        ),
        (("--batch-size=4",), "--batch-size does not apply to --format safetensors"),
        (("--output=checkpoints.safetensors",), "--output checkpoints.safetensors is a folder"),
    ],
)
def test_options_of_another_format_are_refused_before_anything_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints.safetensors").mkdir()
    result = convoy("export", run, *words)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"convoy: {message}") and result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints.safetensors"]
