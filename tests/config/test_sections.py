"""The registries of models and datasets agree with the option table."""

from typing import Any

import pytest
from support.sweeps import sweep

from convoy.config.schema import option_table
from convoy.config.sections.data import DATA
from convoy.config.sections.network import MODELS

ENTRY_DEFAULTS = [
    *((f"model {name}", MODELS[name].defaults) for name in MODELS),
    *((f"data {name}", DATA[name].defaults) for name in DATA),
]


@sweep(("entry", "defaults"), ENTRY_DEFAULTS)
def test_the_defaults_of_an_entry_are_valid_options(entry: str, defaults: dict[str, Any]) -> None:
    rows = option_table()
    checked = {name: rows[name].value_type.check(value) for name, value in defaults.items()}

    assert checked == defaults, entry
    assert all(type(checked[name]) is type(value) for name, value in defaults.items())
    assert [rows[name].problem(value) for name, value in defaults.items()] == [None] * len(defaults)


def test_the_choices_of_the_data_option_are_all_datasets() -> None:
    assert option_table()["data"].limit.choices == tuple(DATA)


def test_the_default_model_and_dataset_exist() -> None:
    assert option_table()["model"].default in MODELS
    assert option_table()["data"].default in DATA


def test_small_networks_have_small_images_and_ten_classes() -> None:
    small = [MODELS[name] for name in MODELS if MODELS[name].is_small]
    large = [MODELS[name] for name in MODELS if not MODELS[name].is_small]

    assert {(model.image_size, model.classes) for model in small} == {(32, 10)}
    assert {model.image_size for model in large if model.family != "efficientnet"} == {224}
    assert {model.classes for model in large} == {1000}


def test_datasets_on_disk_have_known_numbers_of_classes_and_samples() -> None:
    on_disk = [DATA[name] for name in DATA if DATA[name].on_disk]

    assert all(data.classes and data.train and data.validation for data in on_disk)


def test_imagenet_has_no_fixed_image_size() -> None:
    imagenet = DATA["imagenet"]

    assert (imagenet.image_size, imagenet.fixed_size) == (None, False)
    assert (imagenet.train, imagenet.validation) == (1_281_167, 50_000)
    assert imagenet.defaults == {}


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (
            "resnet",
            "resnet8 resnet14 resnet20 resnet32 resnet44 resnet56 resnet110 resnet11 resnet29 "
            "resnet38 resnet47 resnet65 resnet56-bottleneck resnet10 resnet18 resnet34 "
            "resnet14-large resnet26 resnet50 resnet101 resnet152",
        ),
        (
            "resnext",
            "resnext11 resnext29 resnext38 resnext47 resnext56 resnext65 resnext14 resnext26 "
            "resnext50 resnext101 resnext152",
        ),
        (
            "efficientnet",
            "efficientnet-cifar efficientnet-b0 efficientnet-b1 efficientnet-b2 efficientnet-b3 "
            "efficientnet-b4 efficientnet-b5 efficientnet-b6 efficientnet-b7",
        ),
        (
            "mobilenet",
            "mobilenet mobilenet-v3-small mobilenet-v3-large mobilenet-v3-small-published "
            "mobilenet-v3-large-published",
        ),
        ("squeezenet", "squeezenet"),
    ],
)
def test_every_family_has_its_networks(family: str, names: str) -> None:
    assert [name for name in MODELS if MODELS[name].family == family] == names.split()


def test_no_two_networks_of_a_family_are_the_same() -> None:
    entries = [MODELS[name] for name in MODELS if MODELS[name].family != "mobilenet"]
    shapes = [(model.family, model.depth, model.is_small, model.bottleneck) for model in entries]

    assert len(set(shapes)) == len(shapes)


def test_larger_efficientnets_have_larger_images() -> None:
    sizes = [MODELS[f"efficientnet-b{number}"].image_size for number in range(8)]

    assert sizes == [224, 240, 260, 300, 380, 456, 528, 600]
    assert MODELS["efficientnet-cifar"].image_size == 32


@pytest.mark.parametrize(
    ("name", "groups"),
    [("resnet29", 16), ("resnext101", 32), ("mobilenet", 4), ("efficientnet-b4", 4)],
)
def test_the_default_number_of_groups_depends_on_the_family(name: str, groups: int) -> None:
    assert MODELS[name].defaults == {"norm_num_groups": groups}
