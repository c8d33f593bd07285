"""Limits say what is wrong with a value, and a section becomes rows of the option table."""

from dataclasses import dataclass

import pretended
import pytest

from convoy.config.option import Limit, Support, ValueType, WrongType, option, options_of


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A section as the schema has them."""

    pulling_power: float = option(5, "Pull.", at_least=0, also=("--pull",), env="PULL")
    wheels: tuple[int, ...] = option((), "Wheels.", at_least=1, free=True)
    driver: str | None = option(None, "Who drives.", choices=("ann", "bob"))


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [
        (Limit(at_least=1), 0, "must be at least 1, got 0"),
        (Limit(at_least=1), 1, None),
        (Limit(at_least=0.5, at_most=2), 2.5, "must be at most 2, got 2.5"),
        (Limit(at_least=0.5, at_most=2), 2, None),
        (Limit(at_least=10**7), 1234567, "must be at least 1e+07, got 1234567"),
        (Limit(above=10), 0.123456789, "must be above 10, got 0.123456789"),
        (Limit(above=0), 0.0, "must be above 0, got 0"),
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


def test_limits_print_as_a_reader_would_write_them() -> None:
    assert str(Limit(at_least=1, at_most=9)) == "≥ 1, ≤ 9"
    assert str(Limit(above=0)) == "> 0"
    assert str(Limit(choices=("a", "b"))) == "a or b"
    assert str(Limit()) == ""


def test_a_section_becomes_rows_with_flag_type_and_declaration() -> None:
    power, wheels, driver = options_of("engine", Engine)

    assert (power.flag, power.section, power.kind) == (
        "--pulling-power",
        "engine",
        ValueType(float),
    )
    assert (power.declared.also, power.declared.env) == (("--pull",), "PULL")
    assert (wheels.kind, wheels.declared.free) == (ValueType(int, many=True), True)
    assert driver.kind == ValueType(str, optional=True)


def test_a_default_is_of_the_options_own_type() -> None:
    power = options_of("engine", Engine)[0]

    assert type(power.default) is float


def test_a_default_of_the_wrong_type_cannot_be_declared() -> None:
    @dataclass(frozen=True)
    class Wrong:
        speed: int = option("fast", "Speed.")

    with pytest.raises(WrongType):
        options_of("wrong", Wrong)


def test_every_item_of_a_list_keeps_the_limit_and_unset_is_no_problem() -> None:
    _, wheels, driver = options_of("engine", Engine)

    assert wheels.problem((4, 0, 2)) == "must be at least 1, got 0"
    assert wheels.problem((4, 2)) is None
    assert driver.problem(None) is None


KINDS = pretended.pretended_rows()


@pytest.mark.parametrize(
    ("name", "ready", "missing"),
    [
        ("plain", [1, 2, -9], []),
        ("shape", ["round"], ["flat", "odd"]),
        ("switch", [False], [True]),
        ("length", [None, 5], [4, 0]),
        ("splits", [()], [("a",), ("a", "b")]),
        ("ready", ["a", "b"], []),
    ],
)
def test_what_is_not_yet_built_is_ready_in_some_values(
    name: str, ready: list[object], missing: list[object]
) -> None:
    row = KINDS[name]

    assert row.pending is (row.declared.ready is not None)
    assert [one for one in (*ready, *missing) if row.is_ready(one)] == ready


@pytest.mark.parametrize(
    ("name", "device", "why"),
    [
        ("plain", "cpu", None),
        ("shape", "cpu", None),
        ("graphs", "cuda", None),
        ("graphs", "cpu", "with --device cpu; on CUDA it replays kernels in one go"),
        ("graphs", "mps", "with --device mps; on CUDA it replays kernels in one go"),
        ("graphs", "auto", "unless the device is CUDA; on CUDA it replays kernels in one go"),
        ("tiles", "cuda", "off the IPU: no device here has tiles."),
        ("tiles", "auto", "off the IPU: no device here has tiles."),
    ],
)
def test_an_option_without_support_says_why_on_which_device(
    name: str, device: str, why: str | None
) -> None:
    assert KINDS[name].unsupported(device) == why


def test_an_option_does_something_if_it_is_supported_and_another_value_is_built() -> None:
    idle = [name for name, row in KINDS.items() if not row.does_something]

    assert idle == ["graphs", "tiles", "shape", "switch", "splits"]


def test_support_is_what_was_declared() -> None:
    graphs, tiles = KINDS["graphs"], KINDS["tiles"]

    assert (graphs.default, graphs.declared.help) == (False, "Record once.")
    assert (graphs.declared.support, tiles.declared.support) == (Support.CUDA, Support.NOWHERE)
    assert (tiles.default, tiles.declared.why) == (6, "no device here has tiles.")
