"""How the records of a split are divided into parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.convert.plan import Sharding, class_parts, shard_parts
from convoy.data.records.record import DataFormat
from convoy.data.source import Ids
from convoy.errors import ConfigError

FORMATS: tuple[DataFormat, ...] = ("tfrecord", "webdataset")


def make_record_ids(records: int) -> Ids:
    return np.arange(records) + 100


@given(st.integers(1, 200), st.integers(1, 50), st.booleans())
def test_every_record_is_in_one_part_and_in_order(records: int, size: int, by_count: bool) -> None:
    sharding = Sharding((size,)) if by_count else Sharding(records=size)
    for data_format in FORMATS:
        parts = list(shard_parts("train", make_record_ids(records), sharding, data_format))
        sizes = [len(part.record_ids) for part in parts]

        assert (
            np.concatenate([part.record_ids for part in parts]).tolist()
            == make_record_ids(records).tolist()
        )
        assert [part.first_position for part in parts] == np.cumsum([0, *sizes[:-1]]).tolist()
        assert min(sizes) > 0
        assert len({part.name for part in parts}) == len(parts)
        if by_count:
            assert len(parts) == min(size, records) and max(sizes) - min(sizes) <= 1
        else:
            assert set(sizes[:-1]) <= {size}


def test_each_split_can_have_a_different_number_of_shards() -> None:
    sharding = Sharding((5, 2))

    assert len(list(shard_parts("train", make_record_ids(20), sharding, "webdataset"))) == 5
    assert len(list(shard_parts("validation", make_record_ids(20), sharding, "webdataset"))) == 2
    assert (
        len(list(shard_parts("validation", make_record_ids(20), Sharding((5,)), "webdataset"))) == 5
    )


def test_shards_are_named_as_in_the_reference() -> None:
    names = {
        data_format: [
            part.name
            for part in shard_parts("validation", make_record_ids(3), Sharding((3,)), data_format)
        ]
        for data_format in FORMATS
    }

    assert names["tfrecord"][2] == "validation-00002-of-00003"
    assert names["webdataset"][2] == "validation-000002.tar"


def test_too_many_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="50,001 shards for 50,001 records"):
        list(shard_parts("train", make_record_ids(50_001), Sharding(records=1), "tfrecord"))


def test_classes_without_a_record_get_a_folder_too() -> None:
    labels = np.array([1, 1, 3])
    parts = list(class_parts("train", np.arange(3), labels, ["a", "b", "c", "d", "e"]))

    assert [(part.name, part.record_ids.tolist(), part.first_position) for part in parts] == [
        ("train/a", [], 0),
        ("train/b", [0, 1], 0),
        ("train/c", [], 2),
        ("train/d", [2], 2),
        ("train/e", [], 3),
    ]
