"""Limits report invalid values; the fields of a section become options."""

from dataclasses import dataclass

import pytest
from support import unavailable_options

from convoy.config.option import Limit, OptionTypeError, Support, ValueType, option, section_options


@dataclass(frozen=True, kw_only=True)
class ExampleSection:
    """A section like those of the schema."""

    base_rate: float = option(5, "Rate.", at_least=0, aliases=("--rate",), env_var="RATE")
    sizes: tuple[int, ...] = option((), "Sizes.", at_least=1, changeable_on_resume=True)
    optimizer: str | None = option(None, "Optimizer.", choices=("sgd", "adamw"))


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [
        (Limit(at_least=1), 0, "must be at least 1, got 0"),
        (Limit(at_least=1), 1, None),
        (Limit(at_least=0.5, at_most=2), 2.5, "must be at most 2, got 2.5"),
        (Limit(at_least=0.5, at_most=2), 2, None),
        (Limit(at_least=10**7), 1234567, "must be at least 1e+07, got 1234567"),
        (Limit(above=10), 0.123456789, "must be greater than 10, got 0.123456789"),
        (Limit(above=0), 0.0, "must be greater than 0, got 0"),
        (Limit(above=0), 1e-300, None),
        (Limit(above=0, at_most=1), 1.0000001, "must be at most 1, got 1.0000001"),
        (Limit(at_least=8, at_most=1024), 1234567, "must be at most 1024, got 1234567"),
        (Limit(choices=("sgd", "adamw")), "adam", "cannot be 'adam'; did you mean adamw?"),
        (Limit(choices=("sgd", "adamw")), "sgd", None),
        (Limit(), -1e300, None),
    ],
)
def test_a_limit_names_the_bound_and_the_value(limit: Limit, value: object, text: str) -> None:
    assert limit.problem(value) == text


def test_limits_are_printed_as_bounds_or_choices() -> None:
    assert str(Limit(at_least=1, at_most=9)) == "≥ 1, ≤ 9"
    assert str(Limit(above=0)) == "> 0"
    assert str(Limit(choices=("a", "b"))) == "a or b"
    assert str(Limit()) == ""


def test_the_options_of_a_section_have_flag_type_and_metadata() -> None:
    rate, sizes, optimizer = section_options("example", ExampleSection)

    assert (rate.flag, rate.section, rate.value_type) == (
        "--base-rate",
        "example",
        ValueType(float),
    )
    assert (rate.aliases, rate.env_var) == (("--rate",), "RATE")
    assert (sizes.value_type, sizes.changeable_on_resume) == (ValueType(int, is_list=True), True)
    assert optimizer.value_type == ValueType(str, optional=True)


def test_a_default_is_converted_to_the_type_of_the_option() -> None:
    rate = section_options("example", ExampleSection)[0]

    assert type(rate.default) is float


def test_a_default_of_the_wrong_type_cannot_be_declared() -> None:
    @dataclass(frozen=True)
    class Wrong:
        speed: int = option("fast", "Speed.")

    with pytest.raises(OptionTypeError):
        section_options("wrong", Wrong)


def test_limits_apply_to_every_item_of_a_list_and_not_to_none() -> None:
    _, sizes, optimizer = section_options("example", ExampleSection)

    assert sizes.problem((4, 0, 2)) == "must be at least 1, got 0"
    assert sizes.problem((4, 2)) is None
    assert optimizer.problem(None) is None


OPTIONS = unavailable_options.example_options()


@pytest.mark.parametrize(
    ("name", "available", "missing"),
    [
        ("plain", [1, 2, -9], []),
        ("shape", ["round"], ["flat", "odd"]),
        ("switch", [False], [True]),
        ("length", [None, 5], [4, 0]),
        ("splits", [()], [("a",), ("a", "b")]),
        ("ready", ["a", "b"], []),
    ],
)
def test_only_some_values_may_be_available(
    name: str, available: list[object], missing: list[object]
) -> None:
    row = OPTIONS[name]

    assert [value for value in (*available, *missing) if row.is_available(value)] == available


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("plain", "cpu", None),
        ("shape", "cpu", None),
        ("graphs", "cuda", None),
        ("graphs", "cpu", "with --device cpu; on CUDA it replays kernels in one go"),
        ("graphs", "mps", "with --device mps; on CUDA it replays kernels in one go"),
        ("graphs", "auto", "unless the device is CUDA; on CUDA it replays kernels in one go"),
        ("tiles", "cuda", "without an IPU: no device here has tiles."),
        ("tiles", "auto", "without an IPU: no device here has tiles."),
    ],
)
def test_an_unsupported_option_gives_the_reason_for_the_device(
    name: str, device: str, reason: str | None
) -> None:
    assert OPTIONS[name].unsupported_reason(device) == reason


def test_an_option_has_an_effect_if_it_is_supported_and_has_a_choice() -> None:
    inactive = [name for name, row in OPTIONS.items() if not row.has_effect]

    assert inactive == ["graphs", "tiles", "shape", "switch", "splits"]


def test_support_follows_from_the_declaration() -> None:
    graphs, tiles = OPTIONS["graphs"], OPTIONS["tiles"]

    assert (graphs.default, graphs.help) == (False, "Record once.")
    assert (graphs.support, tiles.support) == (Support.CUDA_ONLY, Support.UNSUPPORTED)
    assert (tiles.default, tiles.no_counterpart) == (6, "no device here has tiles.")
