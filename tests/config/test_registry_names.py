"""An unknown name is refused with similar names, or with the list of all names."""

import pytest

from convoy.errors import ConfigError
from convoy.registry import Registry, near_names, suggest

MODELS = {"resnet18": 18, "resnet50": 50, "efficientnet-b0": 0, "mobilenet-v3-small": 3}


@pytest.fixture
def models() -> Registry[int]:
    return Registry("model", MODELS)


def test_a_known_name_returns_its_entry(models: Registry[int]) -> None:
    assert models["resnet50"] == 50


def test_an_unknown_name_is_refused_with_similar_names(models: Registry[int]) -> None:
    with pytest.raises(ConfigError) as error:
        models["resnet5"]

    assert str(error.value) == "unknown model 'resnet5'; did you mean resnet50, resnet18?"


def test_a_name_without_similar_ones_is_refused_with_all_names(models: Registry[int]) -> None:
    with pytest.raises(ConfigError) as error:
        models["zzz"]

    assert str(error.value) == (
        "unknown model 'zzz'; choose from efficientnet-b0, mobilenet-v3-small, resnet18, resnet50"
    )


def test_a_long_list_is_truncated_after_twenty_names() -> None:
    text = suggest("zzz", (f"name{number:02}" for number in range(21)))

    assert text.endswith("name18, name19, …")
    assert suggest("zzz", (f"name{number:02}" for number in range(20))).endswith("name19")


def test_near_names_are_sorted_by_similarity_and_limited() -> None:
    known = ["replicas", "replica-size", "repeat", "epoch"]

    assert near_names("replica", known) == ["replicas", "replica-size", "repeat"]
    assert near_names("replica", known, max_names=1) == ["replicas"]


def test_case_does_not_hide_a_near_name() -> None:
    assert near_names("BN_SPAN", ["BN_span", "seed"]) == ["BN_span"]


def test_a_registry_lists_its_names_in_the_given_order(models: Registry[int]) -> None:
    assert list(models) == list(MODELS)
    assert len(models) == 4


def test_membership_needs_the_exact_name(models: Registry[int]) -> None:
    assert "resnet50" in models
    assert "ResNet50" not in models
    assert 50 not in models
