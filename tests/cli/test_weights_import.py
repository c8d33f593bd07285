"""convoy import: the written folder, which other verbs accept, and the error messages."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from support.foreign_weights import target_for, tensors
from support.published_keys import LAYOUTS
from support.run_convoy import TINY, convoy

from convoy.config.resolve import read_run_settings
from convoy.config.schema import setting_values

MOBILENET_V3_SMALL = next(
    keys
    for model, naming, keys, _ in LAYOUTS
    if (model, naming) == ("mobilenet-v3-small-published", "torchvision")
)


def write_resnet8(path: Path, classes: int = 10) -> Path:
    parameters = target_for("resnet8", num_classes=classes).tensors
    torch.save(
        tensors({name: tuple(parameter.shape) for name, parameter in parameters.items()}), path
    )
    return path


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import")
    file = write_resnet8(folder / "weights.pth")
    result = convoy("import", file, "--model=resnet8", "--output", folder / "run")
    assert (result.code, result.err) == (0, "")
    return folder / "run"


def test_an_import_prints_its_source_and_the_next_command(tmp_path: Path) -> None:
    file, run = write_resnet8(tmp_path / "weights.pth"), tmp_path / "run"
    result = convoy("import", file, "--model=resnet8", "--output", run)
    lines = result.out.splitlines()

    assert lines[0] == f"read {file}: 37 tensors, 75,290 parameters, torchvision keys"
    assert lines[1].startswith(f"{run}  sha256 ")
    assert lines[2] == f"next: convoy validate {run}, or convoy train --init-path {run}"


def test_a_linear_layer_of_torchvision_can_become_a_convolution(tmp_path: Path) -> None:
    torch.save(tensors(MOBILENET_V3_SMALL), tmp_path / "v3.pth")
    words = ("--model=mobilenet-v3-small-published", "--output", tmp_path / "run", "--json")
    row = json.loads(convoy("import", tmp_path / "v3.pth", *words).out)

    assert (row["naming"], row["parameters"]) == ("torchvision", 2_542_856)
    assert row["notes"] == ["--norm-eps 0.001, as in torchvision's mobilenet_v3_small"]


def write_v3_small_of_timm(path: Path) -> Path:
    layout = ("mobilenet-v3-small-published", "timm")
    (keys,) = (keys for model, naming, keys, _ in LAYOUTS if (model, naming) == layout)
    torch.save(tensors(keys), path)
    return path


def imported_options(run: Path) -> tuple[float, str]:
    """The eps of norms, and the padding of convolutions."""
    settings = setting_values(read_run_settings(run / "config.yaml"))
    return settings["norm_eps"], settings["conv_padding"]


V3_SMALL = "--model=mobilenet-v3-small-published"


def test_an_import_has_the_options_of_the_network_that_the_weights_come_from(
    tmp_path: Path,
) -> None:
    torch.save(tensors(MOBILENET_V3_SMALL), tmp_path / "weights.pth")
    file = write_v3_small_of_timm(tmp_path / "tf_mobilenetv3_small_100-37f49e2b.pth")
    torchvision, timm, own = (tmp_path / name for name in ("torchvision", "timm", "own"))
    convoy("import", tmp_path / "weights.pth", V3_SMALL, "--output", torchvision)
    result = convoy("import", file, V3_SMALL, "--output", timm)
    words = ("--norm-eps=0.0001", "--output", own)
    other = convoy("import", tmp_path / "weights.pth", V3_SMALL, *words)

    assert "--norm-eps 0.001 and --conv-padding same, as in timm's tf_mobilenetv3" in result.out
    assert imported_options(torchvision) == (0.001, "symmetric")
    assert imported_options(timm) == (0.001, "same")
    assert imported_options(own) == (0.0001, "symmetric")
    assert "mobilenet_v3_small is another network: it has --norm-eps 0.001, not 0.0001" in other.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--architecture=mobilenetv3_small_100"], (1e-5, "symmetric")),
        (["--architecture=tf_mobilenetv3_small_100"], (1e-3, "same")),
        (["--norm-eps=0.001"], (1e-3, "same")),
        (["--conv-padding=symmetric"], (1e-5, "symmetric")),
    ],
)
def test_names_of_two_networks_need_the_architecture(
    tmp_path: Path, words: list[str], expected: tuple[float, str]
) -> None:
    file = write_v3_small_of_timm(tmp_path / "model.pth")
    refused = convoy("import", file, V3_SMALL, "--output", tmp_path / "run")
    unknown = convoy("import", file, V3_SMALL, "--architecture=x", "--output", tmp_path / "run")
    imported = convoy("import", file, V3_SMALL, *words, "--output", tmp_path / "run")

    assert (refused.code, refused.out) == (2, "")
    assert "mobilenetv3_small_100" in refused.err and "--architecture" in refused.err
    assert "--norm-eps" in refused.err and "--conv-padding" in refused.err
    assert unknown.code == 2 and "tf_mobilenetv3_small_100" in unknown.err
    assert (imported.code, imported_options(tmp_path / "run")) == (0, expected)


def test_a_file_that_convoy_exported_names_its_architecture(tmp_path: Path) -> None:
    file = write_v3_small_of_timm(tmp_path / "model.pth")
    first, again, exported = tmp_path / "first", tmp_path / "again", tmp_path / "a.safetensors"
    words = ("--architecture=tf_mobilenetv3_small_100", "--output", first)
    assert convoy("import", file, V3_SMALL, *words).code == 0
    assert convoy("export", first, "--naming=timm", "--output", exported).code == 0
    result = convoy("import", exported, V3_SMALL, "--output", again)

    assert (result.code, imported_options(again)) == (0, (0.001, "same"))


def test_the_imported_folder_can_be_validated(imported: Path) -> None:
    result = convoy(
        "validate", imported, "--samples=16", "--image-size=12", "--threads=1", "--json"
    )

    assert json.loads(result.out)["update"] == 0


def test_a_run_can_start_from_the_folder(imported: Path, tmp_path: Path) -> None:
    result = convoy("train", *TINY, "--init-path", imported, "--output", tmp_path / "run")

    assert (result.code, result.err) == (0, "")


def test_the_imported_folder_cannot_be_resumed(imported: Path) -> None:
    result = convoy("resume", imported)

    assert result.code == 2
    assert "contains imported weights, not a run" in result.err
    assert f"convoy train --init-path {imported}" in result.err


def test_a_checkpoint_for_other_classes_gets_a_new_head(imported: Path, tmp_path: Path) -> None:
    words = ("--model=resnet8", "--num-classes=3", "--output", tmp_path / "run")
    result = convoy("import", imported, *words)

    assert result.code == 0
    assert "fc is reinitialized: the weights have 10 classes, but the model has 3" in result.out


def test_a_folder_with_a_run_is_not_overwritten(imported: Path, tmp_path: Path) -> None:
    file = write_resnet8(tmp_path / "weights.pth")
    result = convoy("import", file, "--model=resnet8", "--output", imported)

    assert result.code == 2 and "already contains weights or a run" in result.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--model=resnet14"], 4, "does not match resnet14: "),
        (["--model=resnet9"], 2, "--model 'resnet9' is unknown; did you mean"),
        (["--model=resnet8", "--norm-type=group"], 4, "unexpected (bn1.running_mean"),
        (["--model=resnet8", "--lr=x"], 2, "--lr expects a number"),
    ],
)
def test_an_invalid_import_is_reported_in_one_line_and_leaves_no_file(
    tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    file = write_resnet8(tmp_path / "weights.pth")
    result = convoy("import", file, *words, "--output", tmp_path / "run")

    assert result.code == code
    assert message in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil()))
    result = convoy(
        "import", tmp_path / "evil.pth", "--model=resnet8", "--output", tmp_path / "run"
    )

    assert (result.code, result.out) == (4, "")
    assert "save its state_dict() again" in result.err and result.err.count("\n") == 1
    assert "weights_only" not in result.err and "PyTorch" not in result.err


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch it-ran",)
