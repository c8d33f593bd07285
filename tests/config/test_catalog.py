"""The catalog and the option table agree with each other."""

from typing import Any

import pytest

from convoy.config.catalog import DATA, MODELS
from convoy.config.schema import option_table

BROUGHT = [
    *((f"model {name}", MODELS[name].defaults) for name in MODELS),
    *((f"data {name}", DATA[name].defaults) for name in DATA),
]


@pytest.mark.parametrize(("who", "defaults"), BROUGHT, ids=lambda one: str(one)[:20])
def test_what_an_entry_brings_are_options_within_limits(who: str, defaults: dict[str, Any]) -> None:
    rows = option_table()
    checked = {name: rows[name].kind.check(value) for name, value in defaults.items()}

    assert checked == defaults, who
    assert all(type(checked[name]) is type(value) for name, value in defaults.items())
    assert [rows[name].problem(value) for name, value in defaults.items()] == [None] * len(defaults)


def test_the_data_sets_of_the_catalog_are_the_choices_of_the_option() -> None:
    assert option_table()["data"].declared.limit.choices == tuple(DATA)


def test_the_default_model_and_data_set_are_in_the_catalog() -> None:
    assert option_table()["model"].default in MODELS
    assert option_table()["data"].default in DATA


def test_small_networks_are_made_for_small_images() -> None:
    small = [MODELS[name] for name in MODELS if MODELS[name].small]
    large = [MODELS[name] for name in MODELS if not MODELS[name].small]

    assert {(one.image_size, one.classes) for one in small} == {(32, 10)}
    assert {one.image_size for one in large if one.family != "efficientnet"} == {224}
    assert {one.classes for one in large} == {1000}


def test_files_on_disk_decide_how_many_samples_of_which_classes_there_are() -> None:
    on_disk = [DATA[name] for name in DATA if DATA[name].on_disk]

    assert all(one.classes and one.train and one.validation for one in on_disk)


def test_photographs_are_cut_to_the_size_that_the_model_wants() -> None:
    photographs = DATA["imagenet"]

    assert (photographs.image_size, photographs.fixed_size) == (None, False)
    assert (photographs.train, photographs.validation) == (1_281_167, 50_000)
    assert photographs.defaults == {}


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
def test_every_network_of_a_family_is_known_by_name(family: str, names: str) -> None:
    assert [name for name in MODELS if MODELS[name].family == family] == names.split()


def test_no_two_networks_of_a_family_are_the_same() -> None:
    entries = [MODELS[name] for name in MODELS if MODELS[name].family != "mobilenet"]
    told = [(one.family, one.depth, one.small, one.bottleneck) for one in entries]

    assert len(set(told)) == len(told)


def test_a_large_efficientnet_sees_larger_images() -> None:
    sizes = [MODELS[f"efficientnet-b{number}"].image_size for number in range(8)]

    assert sizes == [224, 240, 260, 300, 380, 456, 528, 600]
    assert MODELS["efficientnet-cifar"].image_size == 32


@pytest.mark.parametrize(
    ("name", "groups"),
    [("resnet29", 16), ("resnext101", 32), ("mobilenet", 4), ("efficientnet-b4", 4)],
)
def test_group_norm_has_the_groups_of_the_family(name: str, groups: int) -> None:
    assert MODELS[name].defaults == {"norm_num_groups": groups}
