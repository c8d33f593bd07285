"""Conversion between all formats: records are preserved, and no part stays incomplete."""

import json
from itertools import permutations
from pathlib import Path

import pytest
from support.small_photos import contents, converted, jpeg, tree, write_photos

from convoy.data.convert.conversion import convert
from convoy.data.convert.plan import ConversionRequest, Sharding
from convoy.data.progress import ProgressCallbacks
from convoy.data.records.folder import BOX_FILE_NAME
from convoy.data.records.manifest import JOURNAL_NAME, MANIFEST_NAME
from convoy.data.records.open import open_records
from convoy.data.records.record import DataFormat
from convoy.errors import ConfigError, DataError

FORMATS: tuple[DataFormat, ...] = ("folder", "tfrecord", "webdataset")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def request(
    source: Path, target: Path, data_format: DataFormat, **options: object
) -> ConversionRequest:
    return ConversionRequest(source, target, data_format, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("formats", list(permutations(FORMATS)), ids=" ".join)
def test_converting_through_all_formats_keeps_every_record(
    formats: tuple[DataFormat, ...], photos: Path, tmp_path: Path
) -> None:
    folder = photos
    for data_format in formats:
        folder = converted(folder, tmp_path / data_format, data_format)
        for split in ("train", "validation"):
            assert contents(folder, split) == contents(photos, split)


def test_converting_back_to_folders_gives_the_same_files(photos: Path, tmp_path: Path) -> None:
    records = converted(photos, tmp_path / "a", "tfrecord")
    tars = converted(records, tmp_path / "b", "webdataset")
    files = tree(converted(tars, tmp_path / "c", "folder"))
    files.pop(MANIFEST_NAME)

    assert files == tree(photos)


def test_shards_have_the_usual_names(photos: Path, tmp_path: Path) -> None:
    records = converted(photos, tmp_path / "a", "tfrecord", shard_records=5)
    tars = converted(photos, tmp_path / "b", "webdataset", shard_records=5)

    assert [name for name in tree(records) if "-of-" in name] == [
        *(f"train-{number:05}-of-00003" for number in range(3)),
        "validation-00000-of-00001",
    ]
    assert [name for name in tree(tars) if name.endswith(".tar")] == [
        *(f"train-{number:06}.tar" for number in range(3)),
        "validation-000000.tar",
    ]


def test_the_metadata_of_tar_shards_has_the_fields_of_the_reference(
    photos: Path, tmp_path: Path
) -> None:
    tars = converted(photos, tmp_path / "tars", "webdataset")
    table = json.loads((tars / "metadata.json").read_text())

    assert len(table.pop("checksum")) == 64
    assert table == {
        "train_length": 12,
        "validation_length": 3,
        "format": "img",
        "shuffle": False,
        "train_transform_pipeline": [],
        "validation_transform_pipeline": [],
        "seed": None,
        "image_quality": None,
        "class_names": ["n01", "n02", "n03"],
    }


@pytest.mark.parametrize("data_format", ["tfrecord", "webdataset"])
def test_there_are_never_more_shards_than_records(
    data_format: DataFormat, photos: Path, tmp_path: Path
) -> None:
    target = tmp_path / "many"
    many = Sharding(counts=(100, 2))
    result = convert(request(photos, target, data_format, sharding=many), ProgressCallbacks())

    assert result.parts == 12 + 2
    assert contents(target, "train") == contents(photos, "train")


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_single_record_without_a_validation_split_is_converted(
    data_format: DataFormat, tmp_path: Path
) -> None:
    source = write_photos(tmp_path / "one", {"a": 1, "b": 0}, validation=0)
    target = converted(source, tmp_path / "to", data_format)

    assert contents(target, "train") == contents(source, "train")
    assert open_records(target, "train").class_names == ("a", "b")
    assert not any("validation" in name for name in tree(target))


@pytest.mark.parametrize("data_format", FORMATS)
def test_classes_without_a_record_keep_their_labels(
    data_format: DataFormat, tmp_path: Path
) -> None:
    source = write_photos(tmp_path / "gaps", {"a": 0, "b": 2, "c": 0, "d": 1, "e": 0})
    tars = converted(source, tmp_path / "tars", "webdataset")
    target = converted(tars, tmp_path / "to", data_format)
    records = open_records(target, "train")

    assert records.class_names == tuple("abcde")
    assert records.labels.tolist() == [1, 1, 3]


def test_a_single_split_can_be_converted(photos: Path, tmp_path: Path) -> None:
    conversion = request(photos, tmp_path / "v", "tfrecord", split="validation")

    assert convert(conversion, ProgressCallbacks()).records == {"validation": 3}


def test_a_shuffled_conversion_has_the_same_records_in_the_order_of_the_seed(
    photos: Path, tmp_path: Path
) -> None:
    orders = []
    for target, seed in (("a", 1), ("b", 1), ("c", 2)):
        conversion = request(photos, tmp_path / target, "tfrecord", shuffle=seed)
        convert(conversion, ProgressCallbacks())
        orders.append(contents(tmp_path / target, "train"))
    plain = contents(photos, "train")

    assert orders[0] == orders[1] != orders[2]
    assert plain not in orders
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(plain)
    assert json.loads((tmp_path / "c" / MANIFEST_NAME).read_text())["conversion"]["shuffle"] == 2


def test_folders_keep_the_order_only_within_classes_and_print_a_notice(
    photos: Path, tmp_path: Path
) -> None:
    convert(request(photos, tmp_path / "a", "tfrecord", shuffle=1), ProgressCallbacks())
    notices: list[str] = []
    convert(request(tmp_path / "a", tmp_path / "b", "folder"), ProgressCallbacks(notices.append))
    images = [record[0] for record in contents(tmp_path / "b", "train")]
    shuffled = contents(tmp_path / "a", "train")

    assert images == [record[0] for record in sorted(shuffled, key=lambda record: record[1])]
    assert any("its order is kept only within each class" in line for line in notices)
    assert any("renamed to numbers" in line for line in notices)


def test_class_descriptions_are_converted(photos: Path, tmp_path: Path) -> None:
    descriptions = "n01 a bird, a finch\nn02 a toad\nn03 a snake\n"
    (photos / "LOC_synset_mapping.txt").write_text(descriptions)
    records = converted(photos, tmp_path / "a", "tfrecord")

    assert (records / "LOC_synset_mapping.txt").read_text() == descriptions
    assert b"a bird, a finch" in (records / "train-00000-of-00004").read_bytes()


def test_class_descriptions_stored_in_records_are_kept(photos: Path, tmp_path: Path) -> None:
    (photos / "LOC_synset_mapping.txt").write_text("n01 a bird\n")
    first = converted(photos, tmp_path / "a", "tfrecord")
    (first / "LOC_synset_mapping.txt").unlink()
    again = converted(first, tmp_path / "b", "tfrecord")

    assert tree(again)["train-00000-of-00004"] == tree(first)["train-00000-of-00004"]


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_finished_conversion_is_not_repeated(
    data_format: DataFormat, photos: Path, tmp_path: Path
) -> None:
    target = converted(photos, tmp_path / "to", data_format)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*.JPEG")}
    shards = {path: path.stat().st_mtime_ns for path in target.glob("train-*")}
    complete = tree(target)
    converted(photos, target, data_format)

    assert tree(target) == complete
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    assert before or shards


@pytest.mark.parametrize("data_format", FORMATS)
def test_only_a_damaged_part_is_written_again(
    data_format: DataFormat, photos: Path, tmp_path: Path
) -> None:
    target = converted(photos, tmp_path / "to", data_format)
    complete = tree(target)
    damaged, *others = [path for path in map(target.joinpath, complete) if "train" in str(path)]
    untouched = {path: path.stat().st_mtime_ns for path in others if path.parent != damaged.parent}
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    converted(photos, target, data_format)

    assert tree(target) == complete
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched


def test_a_target_inside_the_source_is_refused(photos: Path) -> None:
    before = tree(photos)
    for target in (photos / "new", photos):
        with pytest.raises(ConfigError, match=r"inside the source .*; choose a folder outside"):
            convert(request(photos, target, "tfrecord"), ProgressCallbacks())

    assert tree(photos) == before


def test_a_target_that_is_not_empty_is_refused_and_unchanged(photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"not empty, it contains 'thesis.txt'"):
        convert(request(photos, target, "tfrecord"), ProgressCallbacks())

    assert tree(target) == {"thesis.txt": b"precious"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_format": "webdataset"}, "into a different format"),
        ({"shuffle": 3}, "in a different order"),
        ({"sharding": Sharding(records=7)}, "with different splits or shards"),
        ({"split": "train"}, "with different splits or shards"),
    ],
    ids=str,
)
def test_another_conversion_into_the_same_folder_is_refused(
    changes: dict[str, object], reason: str, photos: Path, tmp_path: Path
) -> None:
    target = converted(photos, tmp_path / "to", "tfrecord")
    before = tree(target)
    options: dict[str, object] = {
        "data_format": "tfrecord",
        "sharding": Sharding(records=3),
        **changes,
    }
    with pytest.raises(ConfigError, match=f"contains a different conversion, .*{reason}"):
        convert(request(photos, target, **options), ProgressCallbacks())  # type: ignore[arg-type]

    assert tree(target) == before


def test_a_changed_source_is_refused(photos: Path, tmp_path: Path) -> None:
    target = converted(photos, tmp_path / "to", "tfrecord")
    first = next((photos / "train").rglob("*.JPEG"))
    first.write_bytes(jpeg(99))

    with pytest.raises(ConfigError, match="the data has changed"):
        converted(photos, target, "tfrecord")


def corrupt(folder: Path, name: str = "n02_train_1.JPEG") -> Path:
    """Overwrite a photo so that its header is invalid."""
    (path,) = folder.rglob(name)
    path.write_bytes(b"not a photo")
    return path


@pytest.mark.parametrize("data_format", FORMATS)
def test_the_error_for_bad_records_lists_all_of_them(
    data_format: DataFormat, photos: Path, tmp_path: Path
) -> None:
    corrupted = [corrupt(photos), corrupt(photos, "n03_train_2.JPEG")]
    with pytest.raises(DataError) as caught:
        converted(photos, tmp_path / "to", data_format)
    message = str(caught.value)

    assert message.startswith("2 bad records in the source; use --bad-records skip")
    assert [str(path) in message for path in corrupted] == [True, True]
    assert MANIFEST_NAME not in tree(tmp_path / "to")
    with pytest.raises(DataError, match="has not finished here"):
        open_records(tmp_path / "to", "train")


@pytest.mark.parametrize("data_format", FORMATS)
def test_bad_records_are_skipped_on_request_and_reported(
    data_format: DataFormat, photos: Path, tmp_path: Path
) -> None:
    good = [
        record
        for record in contents(photos, "train")
        if record[4] not in ("n02_train_1.JPEG", "n03_train_2.JPEG")
    ]
    corrupt(photos)
    corrupt(photos, "n03_train_2.JPEG")
    with pytest.raises(DataError):
        converted(photos, tmp_path / "to", data_format)
    sharding = Sharding(records=3)
    conversion = request(photos, tmp_path / "to", data_format, max_bad_records=2, sharding=sharding)
    result = convert(conversion, ProgressCallbacks())
    again = convert(conversion, ProgressCallbacks())

    assert contents(tmp_path / "to", "train") == good
    assert [line.rpartition("/")[2].partition(":")[0] for line in result.skipped] == [
        "n02_train_1.JPEG",
        "n03_train_2.JPEG",
    ]
    assert again == result
    if data_format == "folder":
        assert b"n03_train_2" not in (tmp_path / "to" / BOX_FILE_NAME).read_bytes()


def test_exceeding_the_limit_of_bad_records_is_an_error(photos: Path, tmp_path: Path) -> None:
    corrupt(photos)
    corrupt(photos, "n03_train_2.JPEG")
    conversion = request(photos, tmp_path / "to", "tfrecord", max_bad_records=1)

    with pytest.raises(DataError, match="2 bad records, --max-bad-records allows 1"):
        convert(conversion, ProgressCallbacks())


def test_bad_records_found_by_indexing_are_reported_before_anything_is_written(
    photos: Path, tmp_path: Path
) -> None:
    records = converted(photos, tmp_path / "a", "tfrecord")
    before = contents(records, "train")
    shard = records / "train-00001-of-00004"
    raw = bytearray(shard.read_bytes())
    raw[200] ^= 1
    shard.write_bytes(raw)
    (records / MANIFEST_NAME).unlink()
    with pytest.raises(DataError, match=r"1 bad record in the source.*\n.*checksum of its bytes"):
        converted(records, tmp_path / "b", "webdataset")

    assert not (tmp_path / "b").exists()

    convert(request(records, tmp_path / "b", "webdataset", max_bad_records=1), ProgressCallbacks())

    assert contents(tmp_path / "b", "train") == [*before[:3], *before[4:]]


def test_a_shard_with_only_bad_records_is_refused(photos: Path, tmp_path: Path) -> None:
    corrupt(photos)
    sharding = Sharding(records=1)
    with pytest.raises(DataError, match="1 bad record in the source"):
        converted(photos, tmp_path / "to", "tfrecord", shard_records=1)
    conversion = request(photos, tmp_path / "to", "tfrecord", max_bad_records=5, sharding=sharding)

    with pytest.raises(DataError, match="would be empty: 1 record, all of them bad"):
        convert(conversion, ProgressCallbacks())


def test_an_unfinished_conversion_is_refused_as_a_source(photos: Path, tmp_path: Path) -> None:
    unfinished = converted(photos, tmp_path / "half", "webdataset")
    (unfinished / MANIFEST_NAME).rename(unfinished / JOURNAL_NAME)

    with pytest.raises(DataError, match="has not finished here; run the same command again"):
        converted(unfinished, tmp_path / "to", "folder")
