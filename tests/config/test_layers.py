"""Later layers win, and every value keeps the name of its source."""

from convoy.config.layers import Setting, from_source, layer


def test_a_layer_names_its_source_on_every_value() -> None:
    assert from_source("default", {"lr": 0.1, "seed": 0}) == {
        "lr": Setting(0.1, "default"),
        "seed": Setting(0, "default"),
    }


def test_a_later_layer_wins_and_the_rest_stays() -> None:
    low = from_source("default", {"lr": 0.1, "seed": 0})
    high = from_source("command line", {"lr": 0.2})

    assert layer(low, high) == {"lr": Setting(0.2, "command line"), "seed": Setting(0, "default")}
    assert layer(high, low)["lr"] == Setting(0.1, "default")


def test_the_order_of_names_is_that_of_the_first_layer() -> None:
    low = from_source("default", {"a": 1, "b": 2, "c": 3})

    assert list(layer(low, from_source("x", {"c": 4, "a": 5}))) == ["a", "b", "c"]


def test_no_layers_are_an_empty_layer() -> None:
    assert layer() == {}
