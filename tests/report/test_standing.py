"""Where a run stands follows from its events."""

import pytest

from convoy.events import Began, Ended, Reported, Updated, Validated
from convoy.report.standing import Standing


@pytest.mark.parametrize(
    ("update", "epoch"), [(0, 1), (1, 1), (250, 1), (251, 2), (1249, 5), (1250, 5)]
)
def test_the_epoch_changes_with_the_first_update_of_the_next(update: int, epoch: int):
    standing = Standing()
    standing.take(Began(update, 1250, 250, 64))

    assert (standing.epoch, standing.epochs) == (epoch, 5)


def test_a_last_epoch_that_ends_early_counts():
    standing = Standing()
    standing.take(Began(0, 251, 250, 64))

    assert standing.epochs == 2


def test_epochs_before_the_run_are_counted():
    standing = Standing()
    standing.take(Began(251, 500, 250, 64, first_epoch=3))

    assert (standing.epoch, standing.epochs) == (5, 5)


def test_nothing_is_known_before_the_run_begins():
    standing = Standing()

    assert (standing.epoch, standing.epochs, standing.update) == (1, 1, 0)
    assert standing.images_per_second is None
    assert standing.seconds_left is None


def test_speed_is_seen_first_and_reported_later():
    standing = Standing()
    standing.take(Began(0, 10, 5, 64))
    standing.take(Updated(1, 9.0))
    standing.take(Updated(2, 0.5))
    seen = standing.images_per_second
    standing.take(Reported(2, 0.4, 2.0, 0.1, 0.1, 77.0, 9.5))

    assert (seen, standing.images_per_second) == (128, 77)


def test_the_newest_of_each_kind_is_kept():
    standing = Standing()
    validated = Validated(5, 1.0, 0.5, 0.9, 1.2, 100, 1.0, 100.0)
    standing.take(Validated(4, 0.8, 0.4, 0.8, 1.3, 100, 1.0, 100.0))
    standing.take(validated)
    standing.take(Ended(6, "done"))

    assert standing.validated == validated
    assert standing.update == 6
