"""A sample of ImageNet in the reference's fields: there and back, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tfrecord_files import example, sample

from convoy.data.records.record import BadContentError, Boxes, Sample
from convoy.data.records.tfrecord import read_facts, read_image, write_sample
from convoy.data.records.tfrecord_format import Features, byte_strings, floats, integers


def complaint(record: bytes) -> str:
    with pytest.raises(BadContentError) as caught:
        read_facts(record)
    return str(caught.value)


@pytest.mark.parametrize("number", range(4))
def test_a_sample_comes_back_as_it_was(number: int) -> None:
    given_one = sample(number)
    record = write_sample(given_one)
    facts = read_facts(record)

    assert bytes(read_image(record)) == given_one.encoded
    assert (facts.label, facts.synset) == (given_one.label, given_one.synset)
    assert np.array_equal(facts.boxes, given_one.boxes)


def test_all_fields_of_the_reference_are_written() -> None:
    record = write_sample(sample(5))  # label 1, two boxes
    numbers = {
        "image/class/label": [2],
        "image/channels": [3],
        "image/height": [6],
        "image/width": [8],
        "image/object/bbox/label": [2, 2],
    }
    texts = {
        "image/class/synset": b"n00000001",
        "image/class/text": b"a thing, an object",
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
        "image/filename": b"n00000001_5.JPEG",
    }
    features = Features(record, {*numbers, *texts})
    spans = {name: features.byte_strings(name) for name in texts}

    assert {name: features.integers(name) for name in numbers} == numbers
    assert {name: record[a:b] for name, [(a, b)] in spans.items()} == texts


def test_a_png_is_written_as_one() -> None:
    record = write_sample(Sample(b"\x89PNG\r\n\x1a\nrest", 0, "n", "a.png", 1, 1))
    [(start, end)] = Features(record, {"image/format"}).byte_strings("image/format")

    assert record[start:end] == b"PNG"


def test_a_file_name_of_any_bytes_is_written() -> None:
    record = write_sample(Sample(b"x", 0, "n", "caf\udce9.JPEG", 1, 1))
    [(start, end)] = Features(record, {"image/filename"}).byte_strings("image/filename")

    assert record[start:end] == b"caf\xe9.JPEG"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (example(encoded=None), "the field image/encoded has 0 values, not one"),
        (example(encoded=byte_strings(b"a", b"b")), "the field image/encoded has 2 values"),
        (example(encoded=byte_strings(b"")), "the field image/encoded is empty"),
        (example(encoded=integers(1)), "the field image/encoded holds integers"),
        (example(label=None), "the field image/class/label has 0 values, not one"),
        (example(label=integers(1, 2)), "the field image/class/label has 2 values, not one"),
        (example(label=integers(0)), "the field image/class/label is 0, labels count from 1"),
        (example(label=integers(-3)), "the field image/class/label is -3"),
        (example(label=integers(2**40)), f"the field image/class/label is {2**40}"),
        (example(label=byte_strings(b"1")), "the field image/class/label holds byte strings"),
        (example(xmin=floats(0.5)), "differ in length: xmin 1, ymin 0, xmax 0, ymax 0"),
        (
            example(xmin=floats(0.5), xmax=floats(0.4), ymin=floats(0), ymax=floats(1)),
            "image/object/bbox/… contain an invalid box",
        ),
        (
            example(xmin=floats(float("nan")), xmax=floats(1), ymin=floats(0), ymax=floats(1)),
            "image/object/bbox/… contain an invalid box",
        ),
        (b"\xff\xff\xff", "not a tf.train.Example"),
    ],
)
def test_a_wrong_record_is_refused_with_the_field(record: bytes, reason: str) -> None:
    assert reason in complaint(record)


def test_the_largest_label_is_one_that_an_index_can_hold() -> None:
    assert read_facts(example(label=integers(2**17))).label == 2**17 - 1
    assert "is 131073" in complaint(example(label=integers(2**17 + 1)))


def test_boxes_are_clipped_and_those_outside_left_out() -> None:
    record = example(
        xmin=floats(-0.5, 1.2), ymin=floats(0.25, 0), xmax=floats(0.5, 1.5), ymax=floats(2, 1)
    )

    assert read_facts(record).boxes.tolist() == [[0, 0.25, 0.5, 1]]


@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(0, 1, width=32)))
def test_boxes_keep_every_bit(corners: Boxes) -> None:
    low = np.minimum(corners[:, :2], corners[:, 2:])
    high = np.maximum(corners[:, :2], corners[:, 2:])
    boxes = np.concatenate([low, high], axis=1)
    found = read_facts(write_sample(Sample(b"x", 0, "n", "a", 1, 1, boxes=boxes))).boxes
    wide = (low < high).all(axis=1)

    assert found.dtype == np.float32
    assert np.array_equal(found, boxes[wide])


def test_a_class_name_cannot_drive_a_terminal() -> None:
    record = write_sample(Sample(b"x", 0, "n\x1b[2J", "a", 1, 1))

    assert read_facts(record).synset == repr("n\x1b[2J")
