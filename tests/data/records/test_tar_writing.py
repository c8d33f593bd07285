"""Written tar shards, read by webdataset and by Python's tarfile."""

import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.data.records.record import NO_BOXES, Boxes, Sample, drop_empty_boxes
from convoy.data.records.tar import write_shard
from convoy.data.records.tar_reader import scan_shard

BOX: Boxes = np.array([[0.1, 0.2, 0.5, 0.75]], np.float32)


def make_sample(
    encoded: bytes, label: int = 0, boxes: Boxes = NO_BOXES, image_format: str = "jpeg"
) -> Sample:
    return Sample(
        encoded, label, "n00000000", "a.JPEG", 1, 1, boxes=boxes, image_format=image_format
    )


SAMPLES = [
    make_sample(b"\xff\xd8 one", 3),
    make_sample(b"\x89PNG two", 0, BOX, "png"),
    make_sample(b"\xff\xd8 three", 999, np.concatenate((BOX, BOX / 2))),
]


def test_members_are_numbered_and_independent_of_the_machine(tmp_path: Path) -> None:
    count = write_shard(tmp_path / "train-000007.tar", SAMPLES, first=7168)
    with tarfile.open(tmp_path / "train-000007.tar", "r:") as tar:
        members = tar.getmembers()

    assert count == 3
    assert [member.name for member in members] == [
        *("000007168.cls", "000007168.jpg", "000007168.json"),
        *("000007169.cls", "000007169.json", "000007169.png"),
        *("000007170.cls", "000007170.jpg", "000007170.json"),
    ]
    assert {
        (member.mtime, member.uid, member.gid, member.uname, member.gname) for member in members
    } == {(0, 0, 0, "", "")}


def test_the_same_samples_always_give_the_same_bytes(tmp_path: Path) -> None:
    """The digest is fixed, because manifests of earlier versions must stay valid."""
    write_shard(tmp_path / "a.tar", SAMPLES, first=0)
    digest = hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest()

    assert digest == "88dd724b36f26927895b48762e9f015898b8ff10e1d98d8006b83d286525b997"


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # by webdataset
def test_webdataset_reads_our_shards(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    write_shard(path, SAMPLES, first=0)
    read = list(webdataset.WebDataset(str(path), shardshuffle=False))

    assert [sample["__key__"] for sample in read] == ["000000000", "000000001", "000000002"]
    assert [sample.get("jpg", sample.get("png")) for sample in read] == [
        sample.encoded for sample in SAMPLES
    ]
    assert [int(sample["cls"]) for sample in read] == [3, 0, 999]
    assert [json.loads(sample["json"])["bbox"] for sample in read] == [
        None,
        BOX[0].tolist(),
        [BOX[0].tolist(), (BOX / 2)[0].tolist()],
    ]


@pytest.mark.parametrize(
    ("image_format", "suffix"), [("jpeg", "jpg"), ("png", "png"), ("webp", "webp"), ("gif", "gif")]
)
def test_the_suffix_is_that_of_the_image_format(
    image_format: str, suffix: str, tmp_path: Path
) -> None:
    write_shard(tmp_path / "a.tar", [make_sample(b"?", image_format=image_format)], first=0)
    with tarfile.open(tmp_path / "a.tar") as tar:
        names = tar.getnames()

    assert f"000000000.{suffix}" in names


FRACTIONS = st.floats(min_value=0, max_value=1, width=32)
CORNERS = st.lists(st.tuples(FRACTIONS, FRACTIONS, FRACTIONS, FRACTIONS), max_size=3)
IMAGES = st.binary(min_size=1, max_size=1500)


@settings(max_examples=50)
@given(st.lists(st.tuples(IMAGES, st.integers(0, 2**17 - 1), CORNERS), max_size=6))
def test_written_samples_are_scanned_bit_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    samples: list[tuple[bytes, int, list[tuple[float, float, float, float]]]],
) -> None:
    path = tmp_path_factory.mktemp("written") / "train-000000.tar"
    corners = [np.array(rows, np.float32).reshape(-1, 2, 2) for _, _, rows in samples]
    boxes = [drop_empty_boxes(np.sort(rows, axis=1).reshape(-1, 4)) for rows in corners]
    write_shard(
        path,
        (
            make_sample(image, label, rows)
            for (image, label, _), rows in zip(samples, boxes, strict=True)
        ),
        first=0,
    )
    found, data = scan_shard(path), path.read_bytes()
    spans = zip(found.offset.tolist(), found.size.tolist(), strict=True)

    assert found.faults == []
    assert [data[start : start + size] for start, size in spans] == [
        image for image, _, _ in samples
    ]
    assert found.label.tolist() == [label for _, label, _ in samples]
    assert found.boxes.tobytes() == b"".join(rows.tobytes() for rows in boxes)


def test_a_shard_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    path.write_bytes(b"previous")

    with pytest.raises(ZeroDivisionError):
        write_shard(path, (make_sample(bytes(1 // n)) for n in (1, 0)), first=0)
    assert path.read_bytes() == b"previous"
    assert list(tmp_path.iterdir()) == [path]
