"""ImageNet samples with the fields of the reference: writing, reading, and errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.tfrecord_files import example, sample

from convoy.data.records.record import BadContentError, Boxes, Sample
from convoy.data.records.tfrecord import read_annotations, read_image, write_sample
from convoy.data.records.tfrecord_format import Features, bytes_list, float_list, int64_list


def error_message(record: bytes) -> str:
    with pytest.raises(BadContentError) as caught:
        read_annotations(record)
    return str(caught.value)


@pytest.mark.parametrize("number", range(4))
def test_a_sample_is_read_back_as_written(number: int) -> None:
    written = sample(number)
    record = write_sample(written)
    label, boxes, synset = read_annotations(record)

    assert bytes(read_image(record)) == written.encoded
    assert (label, synset) == (written.label, written.synset)
    assert np.array_equal(boxes, written.boxes)


def test_all_fields_of_the_reference_are_written() -> None:
    record = write_sample(sample(5))  # label 1, two boxes
    integers = {
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
    features = Features(record, {*integers, *texts})
    spans = {name: features.bytes_list(name) for name in texts}

    assert {name: features.int64_list(name) for name in integers} == integers
    assert {name: record[a:b] for name, [(a, b)] in spans.items()} == texts


def test_a_png_is_marked_as_png() -> None:
    record = write_sample(Sample(b"\x89PNG", 0, "n", "a.png", 1, 1, image_format="png"))
    [(start, end)] = Features(record, {"image/format"}).bytes_list("image/format")

    assert record[start:end] == b"PNG"


def test_a_file_name_of_any_bytes_is_written() -> None:
    record = write_sample(Sample(b"x", 0, "n", "caf\udce9.JPEG", 1, 1))
    [(start, end)] = Features(record, {"image/filename"}).bytes_list("image/filename")

    assert record[start:end] == b"caf\xe9.JPEG"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (example(encoded=None), "the field image/encoded has 0 values, not one"),
        (example(encoded=bytes_list(b"a", b"b")), "the field image/encoded has 2 values"),
        (example(encoded=bytes_list(b"")), "the field image/encoded is empty"),
        (example(encoded=int64_list(1)), "the field image/encoded contains integers"),
        (example(label=None), "the field image/class/label has 0 values, not one"),
        (example(label=int64_list(1, 2)), "the field image/class/label has 2 values, not one"),
        (example(label=int64_list(0)), "the field image/class/label is 0, but labels start at 1"),
        (example(label=int64_list(-3)), "the field image/class/label is -3"),
        (example(label=int64_list(2**40)), f"the field image/class/label is {2**40}"),
        (example(label=bytes_list(b"1")), "the field image/class/label contains byte strings"),
        (example(xmin=float_list(0.5)), "differ in length: xmin 1, ymin 0, xmax 0, ymax 0"),
        (
            example(
                xmin=float_list(0.5), xmax=float_list(0.4), ymin=float_list(0), ymax=float_list(1)
            ),
            "image/object/bbox/… contain an invalid box",
        ),
        (
            example(
                xmin=float_list(float("nan")),
                xmax=float_list(1),
                ymin=float_list(0),
                ymax=float_list(1),
            ),
            "image/object/bbox/… contain an invalid box",
        ),
        (b"\xff\xff\xff", "not a tf.train.Example"),
    ],
)
def test_an_invalid_record_is_refused_with_its_field(record: bytes, reason: str) -> None:
    assert reason in error_message(record)


def test_the_largest_label_fits_into_an_index() -> None:
    assert read_annotations(example(label=int64_list(2**17)))[0] == 2**17 - 1
    assert "is 131073" in error_message(example(label=int64_list(2**17 + 1)))


def test_boxes_are_clipped_and_boxes_outside_are_dropped() -> None:
    record = example(
        xmin=float_list(-0.5, 1.2),
        ymin=float_list(0.25, 0),
        xmax=float_list(0.5, 1.5),
        ymax=float_list(2, 1),
    )

    assert read_annotations(record)[1].tolist() == [[0, 0.25, 0.5, 1]]


@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(0, 1, width=32)))
def test_boxes_are_preserved_bit_exactly(corners: Boxes) -> None:
    low = np.minimum(corners[:, :2], corners[:, 2:])
    high = np.maximum(corners[:, :2], corners[:, 2:])
    boxes = np.concatenate([low, high], axis=1)
    found = read_annotations(write_sample(Sample(b"x", 0, "n", "a", 1, 1, boxes=boxes)))[1]
    has_area = (low < high).all(axis=1)

    assert found.dtype == np.float32
    assert np.array_equal(found, boxes[has_area])


def test_control_characters_in_a_class_name_are_escaped() -> None:
    record = write_sample(Sample(b"x", 0, "n\x1b[2J", "a", 1, 1))

    assert read_annotations(record)[2] == repr("n\x1b[2J")
