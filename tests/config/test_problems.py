"""All problems become one error, each of them once."""

import pytest

from convoy.config.problems import Problem, refuse
from convoy.errors import ConfigError


def test_every_problem_is_a_line_of_one_error() -> None:
    with pytest.raises(ConfigError) as error:
        refuse([Problem("--lr", "is odd"), Problem("", "so is this"), Problem("--lr", "is odd")])

    assert str(error.value) == "--lr is odd\nso is this"


def test_no_problem_passes() -> None:
    refuse([])
