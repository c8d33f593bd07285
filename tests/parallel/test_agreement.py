"""Replicas that differ are identified by the digests of their weights."""

import re

import pytest

from convoy.errors import NumericError
from convoy.parallel.replicas import check_replicas_equal

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


@pytest.mark.parametrize(
    ("digests", "odd"),
    [
        ([A, A, B], [2]),
        ([B, A, A], [0]),
        ([A, B, A, C], [1, 3]),
        ([A, B], [1]),
    ],
)
def test_replicas_that_differ_from_the_majority_are_named(
    digests: list[bytes], odd: list[int]
) -> None:
    with pytest.raises(NumericError) as caught:
        check_replicas_equal(digests, range(len(digests)), update=7)

    differing = str(caught.value).partition(", but replica ")[0]
    assert [int(item) for item in re.findall(r"replica (\d+)", differing)] == odd


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_equal_digests_are_accepted(replicas: int) -> None:
    check_replicas_equal([A] * replicas, range(replicas), update=7)


def test_the_error_names_replica_rank_and_update() -> None:
    with pytest.raises(NumericError) as caught:
        check_replicas_equal([A, A, B], ranks=[1, 3, 5], update=700)

    text = str(caught.value)
    assert "after update 700" in text
    assert "replica 2 (rank 5): 626262" in text and "replica 0 (rank 1): 616161" in text
    assert "convoy resume" in text
