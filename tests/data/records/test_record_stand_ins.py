"""Who stands in for a record that cannot be read."""

import numpy as np
import pytest

from convoy.data.records.record import StandIns
from convoy.errors import DataError


def stand_ins(*labels: int) -> StandIns:
    return StandIns(np.array(labels, np.int64))


def test_the_next_records_of_the_class_stand_in_going_around():
    known = stand_ins(0, 1, 0, 1, 0)

    assert list(known.after(0)) == [2, 4]
    assert list(known.after(2)) == [4, 0]
    assert list(known.after(4)) == [0, 2]
    assert list(known.after(3)) == [1]


def test_a_record_without_a_label_takes_that_of_the_next_one():
    known = stand_ins(-1, -1, 1, 0, -1, 0, -1)

    assert known.labels.tolist() == [1, 1, 1, 0, 0, 0, 1]
    assert list(known.after(0)) == [2]
    assert list(known.after(4)) == [5, 3]
    assert list(known.after(6)) == [2]  # around the end


def test_nobody_stands_in_for_the_last_of_its_class():
    assert list(stand_ins(0, 1, 0).after(1)) == []


def test_records_that_are_all_bad_are_no_data():
    with pytest.raises(DataError, match="none of the records can be used"):
        stand_ins(-1, -1)
