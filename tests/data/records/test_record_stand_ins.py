"""Candidates that replace a record that cannot be read."""

import numpy as np
import pytest

from convoy.data.records.record import ReplacementSampler
from convoy.errors import DataError


def replacements(*labels: int) -> ReplacementSampler:
    return ReplacementSampler(np.array(labels, np.int64))


def test_candidates_are_the_next_records_of_the_class_cyclically():
    sampler = replacements(0, 1, 0, 1, 0)

    assert list(sampler.candidates(0)) == [2, 4]
    assert list(sampler.candidates(2)) == [4, 0]
    assert list(sampler.candidates(4)) == [0, 2]
    assert list(sampler.candidates(3)) == [1]


def test_a_record_without_a_label_gets_the_label_of_the_next_good_record():
    sampler = replacements(-1, -1, 1, 0, -1, 0, -1)

    assert sampler.labels.tolist() == [1, 1, 1, 0, 0, 0, 1]
    assert list(sampler.candidates(0)) == [2]
    assert list(sampler.candidates(4)) == [5, 3]
    assert list(sampler.candidates(6)) == [2]  # continues at the start


def test_a_class_with_a_single_record_has_no_candidates():
    assert list(replacements(0, 1, 0).candidates(1)) == []


def test_a_split_with_only_bad_records_is_refused():
    with pytest.raises(DataError, match="no usable records"):
        replacements(-1, -1)
