"""convoy import: a folder that every other verb takes, and what is said on the way."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from foreign_files import tensors, wanted
from published_keys import LAYOUTS
from running import TINY, convoy

V3_SMALL = next(
    keys
    for model, naming, keys, _ in LAYOUTS
    if (model, naming) == ("mobilenet-v3-small-published", "torchvision")
)


def resnet8(path: Path, classes: int = 10) -> Path:
    forms = wanted("resnet8", num_classes=classes).tensors
    torch.save(tensors({name: tuple(form.shape) for name, form in forms.items()}), path)
    return path


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import")
    file = resnet8(folder / "weights.pth")
    said = convoy("import", file, "--model=resnet8", "--output", folder / "run")
    assert (said.code, said.err) == (0, "")
    return folder / "run"


def test_it_says_what_was_read_under_which_names_and_how_to_go_on(tmp_path: Path) -> None:
    file, run = resnet8(tmp_path / "weights.pth"), tmp_path / "run"
    said = convoy("import", file, "--model=resnet8", "--output", run)
    lines = said.out.splitlines()

    assert lines[0] == f"read {file}: 37 tensors, 75,290 parameters, names of torchvision"
    assert lines[1].startswith(f"{run}  sha256 ")
    assert lines[2] == f"go on: convoy validate {run}, or convoy train --init-path {run}"


def test_the_linear_layer_of_torchvision_becomes_a_convolution(tmp_path: Path) -> None:
    torch.save(tensors(V3_SMALL), tmp_path / "v3.pth")
    words = ("--model=mobilenet-v3-small-published", "--output", tmp_path / "run", "--json")
    row = json.loads(convoy("import", tmp_path / "v3.pth", *words).out)

    assert (row["naming"], row["parameters"], row["notes"]) == ("torchvision", 2_542_856, [])


def test_validation_takes_the_folder(imported: Path) -> None:
    said = convoy("validate", imported, "--samples=16", "--image-size=12", "--threads=1", "--json")

    assert json.loads(said.out)["update"] == 0


def test_a_run_begins_with_the_folder(imported: Path, tmp_path: Path) -> None:
    said = convoy("train", *TINY, "--init-path", imported, "--output", tmp_path / "run")

    assert (said.code, said.err) == (0, "")


def test_the_folder_is_no_run_that_could_go_on(imported: Path) -> None:
    said = convoy("resume", imported)

    assert said.code == 2
    assert "holds imported weights, which no run of ours has trained" in said.err
    assert f"convoy train --init-path {imported}" in said.err


def test_a_checkpoint_of_ours_for_other_classes_gets_a_new_head(
    imported: Path, tmp_path: Path
) -> None:
    words = ("--model=resnet8", "--num-classes=3", "--output", tmp_path / "run")
    said = convoy("import", imported, *words)

    assert said.code == 0
    assert "fc begins anew: the weights know 10 classes, 3 are wanted" in said.out


def test_a_folder_with_a_run_is_not_written_over(imported: Path, tmp_path: Path) -> None:
    file = resnet8(tmp_path / "weights.pth")
    said = convoy("import", file, "--model=resnet8", "--output", imported)

    assert said.code == 2 and "holds weights or a run already" in said.err


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--model=resnet14"], 4, "does not fit resnet14: "),
        (["--model=resnet9"], 2, "--model 'resnet9' is unknown; did you mean"),
        (["--model=resnet8", "--norm-type=group"], 4, "left over (bn1.running_mean"),
        (["--model=resnet8", "--lr=x"], 2, "--lr expects a number"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_and_nothing_is_left(
    tmp_path: Path, words: list[str], code: int, why: str
) -> None:
    file = resnet8(tmp_path / "weights.pth")
    said = convoy("import", file, *words, "--output", tmp_path / "run")

    assert said.code == code
    assert why in said.err and said.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_plain_pickle_is_refused_without_the_advice_to_trust_it(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil()))
    said = convoy("import", tmp_path / "evil.pth", "--model=resnet8", "--output", tmp_path / "run")

    assert (said.code, said.out) == (4, "")
    assert "save its state_dict() anew" in said.err and said.err.count("\n") == 1
    assert "weights_only" not in said.err and "PyTorch" not in said.err


class Evil:
    """Would run a command when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch it-ran",)
