"""How the records of a split are cut into parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.convert.plan import Sharding, class_parts, shard_parts, usable
from convoy.data.records.record import Form
from convoy.data.source import Ids
from convoy.errors import ConfigError

FORMS: tuple[Form, ...] = ("tfrecord", "webdataset")


def some(records: int) -> Ids:
    return np.arange(records) + 100


@given(st.integers(1, 200), st.integers(1, 50), st.booleans())
def test_every_record_is_in_one_part_and_in_order(records: int, size: int, counted: bool) -> None:
    sharding = Sharding((size,)) if counted else Sharding(records=size)
    for form in FORMS:
        parts = list(shard_parts("train", some(records), sharding, form))
        sizes = [len(part.numbers) for part in parts]

        assert np.concatenate([part.numbers for part in parts]).tolist() == some(records).tolist()
        assert [part.first for part in parts] == np.cumsum([0, *sizes[:-1]]).tolist()
        assert min(sizes) > 0
        assert len({part.name for part in parts}) == len(parts)
        if counted:
            assert len(parts) == min(size, records) and max(sizes) - min(sizes) <= 1
        else:
            assert set(sizes[:-1]) <= {size}


def test_each_split_has_its_own_number_of_shards() -> None:
    sharding = Sharding((5, 2))

    assert len(list(shard_parts("train", some(20), sharding, "webdataset"))) == 5
    assert len(list(shard_parts("validation", some(20), sharding, "webdataset"))) == 2
    assert len(list(shard_parts("validation", some(20), Sharding((5,)), "webdataset"))) == 5


def test_more_shards_than_names_have_room_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="50,001 shards for 50,001 records"):
        list(shard_parts("train", some(50_001), Sharding(records=1), "tfrecord"))


def test_class_folders_are_there_for_classes_without_a_record_too() -> None:
    labels = np.array([1, 1, 3])
    parts = list(class_parts("train", np.arange(3), labels, ["a", "b", "c", "d", "e"]))

    assert [(part.name, part.numbers.tolist(), part.first) for part in parts] == [
        ("train/a", [], 0),
        ("train/b", [0, 1], 0),
        ("train/c", [], 2),
        ("train/d", [2], 2),
        ("train/e", [], 3),
    ]


def test_records_known_to_be_bad_are_no_part_of_it() -> None:
    labels = np.array([0, -1, 2, -1, 1])

    assert usable(labels, None).tolist() == [0, 2, 4]
    assert sorted(usable(labels, 7).tolist()) == [0, 2, 4]
