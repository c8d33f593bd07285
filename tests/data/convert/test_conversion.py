"""Images from any form into any other: nothing is lost, nothing is moved, nothing is half."""

import json
from itertools import permutations
from pathlib import Path

import pytest
from small_photos import contents, converted, jpeg, tree, write_photos

from convoy.data.convert.conversion import convert
from convoy.data.convert.plan import ConversionRequest, Sharding
from convoy.data.progress import ProgressCallbacks, ignore
from convoy.data.records.folder import FILE_NAME
from convoy.data.records.manifest import JOURNAL, NAME
from convoy.data.records.open import open_records
from convoy.data.records.record import Form
from convoy.errors import ConfigError, DataError

FORMS: tuple[Form, ...] = ("folder", "tfrecord", "webdataset")


@pytest.fixture
def photos_of_three_classes(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def request(source: Path, target: Path, form: Form, **others: object) -> ConversionRequest:
    return ConversionRequest(source, target, form, **others)  # type: ignore[arg-type]  # as the tests give them


@pytest.mark.parametrize("way", list(permutations(FORMS)), ids=" ".join)
def test_any_way_round_all_forms_keeps_every_record(
    way: tuple[Form, ...], photos_of_three_classes: Path, tmp_path: Path
) -> None:
    source = here = photos_of_three_classes
    for form in way:
        here = converted(here, tmp_path / form, form)
        for split in ("train", "validation"):
            assert contents(here, split) == contents(source, split)


def test_the_way_back_to_folders_ends_in_the_same_files(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    records = converted(photos_of_three_classes, tmp_path / "a", "tfrecord")
    tars = converted(records, tmp_path / "b", "webdataset")
    back = tree(converted(tars, tmp_path / "c", "folder"))
    back.pop(NAME)

    assert back == tree(photos_of_three_classes)


def test_shards_are_named_as_others_name_them(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    records = converted(photos_of_three_classes, tmp_path / "a", "tfrecord", shard_records=5)
    tars = converted(photos_of_three_classes, tmp_path / "b", "webdataset", shard_records=5)

    assert [name for name in tree(records) if "-of-" in name] == [
        *(f"train-{number:05}-of-00003" for number in range(3)),
        "validation-00000-of-00001",
    ]
    assert [name for name in tree(tars) if name.endswith(".tar")] == [
        *(f"train-{number:06}.tar" for number in range(3)),
        "validation-000000.tar",
    ]


def test_the_metadata_of_tar_shards_has_what_the_reference_looks_for(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    tars = converted(photos_of_three_classes, tmp_path / "tars", "webdataset")
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


@pytest.mark.parametrize("form", ["tfrecord", "webdataset"])
def test_more_shards_than_records_are_as_many_as_records(
    form: Form, photos_of_three_classes: Path, tmp_path: Path
) -> None:
    target = tmp_path / "many"
    many = Sharding(counts=(100, 2))
    result = convert(
        request(photos_of_three_classes, target, form, sharding=many), ProgressCallbacks()
    )

    assert result.parts == 12 + 2
    assert contents(target, "train") == contents(photos_of_three_classes, "train")


@pytest.mark.parametrize("form", FORMS)
def test_a_single_record_and_no_validation_split_are_enough(form: Form, tmp_path: Path) -> None:
    source = write_photos(tmp_path / "one", {"a": 1, "b": 0}, validation=0)
    target = converted(source, tmp_path / "to", form)

    assert contents(target, "train") == contents(source, "train")
    assert open_records(target, "train", ignore, ignore).class_names == ("a", "b")
    assert not any("validation" in name for name in tree(target))


@pytest.mark.parametrize("form", FORMS)
def test_classes_without_a_record_keep_their_numbers(form: Form, tmp_path: Path) -> None:
    source = write_photos(tmp_path / "gaps", {"a": 0, "b": 2, "c": 0, "d": 1, "e": 0})
    tars = converted(source, tmp_path / "tars", "webdataset")
    target = converted(tars, tmp_path / "to", form)
    records = open_records(target, "train", ignore, ignore)

    assert records.class_names == tuple("abcde")
    assert records.labels.tolist() == [1, 1, 3]


def test_one_split_alone_is_converted_on_request(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    wanted = request(photos_of_three_classes, tmp_path / "v", "tfrecord", split="validation")

    assert convert(wanted, ProgressCallbacks()).records == {"validation": 3}


def test_a_shuffled_conversion_has_the_same_records_in_an_order_of_its_seed(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    orders = []
    for target, seed in (("a", 1), ("b", 1), ("c", 2)):
        wanted = request(photos_of_three_classes, tmp_path / target, "tfrecord", shuffle=seed)
        convert(wanted, ProgressCallbacks())
        orders.append(contents(tmp_path / target, "train"))
    plain = contents(photos_of_three_classes, "train")

    assert orders[0] == orders[1] != orders[2]
    assert plain not in orders
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(plain)
    assert json.loads((tmp_path / "c" / NAME).read_text())["conversion"]["shuffle"] == 2


def test_folders_from_a_mixed_order_keep_the_order_within_classes_and_say_so(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    convert(
        request(photos_of_three_classes, tmp_path / "a", "tfrecord", shuffle=1), ProgressCallbacks()
    )
    told: list[str] = []
    convert(request(tmp_path / "a", tmp_path / "b", "folder"), ProgressCallbacks(told.append))
    images = [one[0] for one in contents(tmp_path / "b", "train")]
    mixed = contents(tmp_path / "a", "train")

    assert images == [one[0] for one in sorted(mixed, key=lambda one: one[1])]
    assert any("only within each class its order stays" in line for line in told)
    assert any("numbers for names" in line for line in told)


def test_the_classes_in_words_go_along(photos_of_three_classes: Path, tmp_path: Path) -> None:
    words = "n01 a bird, a finch\nn02 a toad\nn03 a snake\n"
    (photos_of_three_classes / "LOC_synset_mapping.txt").write_text(words)
    records = converted(photos_of_three_classes, tmp_path / "a", "tfrecord")

    assert (records / "LOC_synset_mapping.txt").read_text() == words
    assert b"a bird, a finch" in (records / "train-00000-of-00004").read_bytes()


def test_the_classes_in_words_that_only_records_have_stay_in_records(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    (photos_of_three_classes / "LOC_synset_mapping.txt").write_text("n01 a bird\n")
    first = converted(photos_of_three_classes, tmp_path / "a", "tfrecord")
    (first / "LOC_synset_mapping.txt").unlink()
    again = converted(first, tmp_path / "b", "tfrecord")

    assert tree(again)["train-00000-of-00004"] == tree(first)["train-00000-of-00004"]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_finished_is_found_finished(
    form: Form, photos_of_three_classes: Path, tmp_path: Path
) -> None:
    target = converted(photos_of_three_classes, tmp_path / "to", form)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*.JPEG")}
    shards = {path: path.stat().st_mtime_ns for path in target.glob("train-*")}
    whole = tree(target)
    converted(photos_of_three_classes, target, form)

    assert tree(target) == whole
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    assert before or shards


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_part_is_written_again_and_no_other(
    form: Form, photos_of_three_classes: Path, tmp_path: Path
) -> None:
    target = converted(photos_of_three_classes, tmp_path / "to", form)
    whole = tree(target)
    damaged, *others = [path for path in map(target.joinpath, whole) if "train" in str(path)]
    untouched = {path: path.stat().st_mtime_ns for path in others if path.parent != damaged.parent}
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    converted(photos_of_three_classes, target, form)

    assert tree(target) == whole
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched


def test_a_target_inside_the_source_is_refused(photos_of_three_classes: Path) -> None:
    before = tree(photos_of_three_classes)
    for target in (photos_of_three_classes / "new", photos_of_three_classes):
        with pytest.raises(ConfigError, match=r"lies inside .*; name a folder outside of it"):
            convert(request(photos_of_three_classes, target, "tfrecord"), ProgressCallbacks())

    assert tree(photos_of_three_classes) == before


def test_a_target_that_is_not_empty_is_refused_and_left_alone(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"not empty, 'thesis.txt' is in it"):
        convert(request(photos_of_three_classes, target, "tfrecord"), ProgressCallbacks())

    assert tree(target) == {"thesis.txt": b"precious"}


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"form": "webdataset"}, "into another form"),
        ({"shuffle": 3}, "in another order"),
        ({"sharding": Sharding(records=7)}, "with other splits or shards"),
        ({"split": "train"}, "with other splits or shards"),
    ],
    ids=str,
)
def test_another_conversion_into_the_same_folder_is_refused(
    others: dict[str, object], reason: str, photos_of_three_classes: Path, tmp_path: Path
) -> None:
    target = converted(photos_of_three_classes, tmp_path / "to", "tfrecord")
    before = tree(target)
    wanted: dict[str, object] = {"form": "tfrecord", "sharding": Sharding(records=3), **others}
    with pytest.raises(ConfigError, match=f"holds another conversion, .*{reason}"):
        convert(request(photos_of_three_classes, target, **wanted), ProgressCallbacks())  # type: ignore[arg-type]

    assert tree(target) == before


def test_a_source_that_has_changed_is_another_source(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    target = converted(photos_of_three_classes, tmp_path / "to", "tfrecord")
    first = next((photos_of_three_classes / "train").rglob("*.JPEG"))
    first.write_bytes(jpeg(99))

    with pytest.raises(ConfigError, match="the data has changed since"):
        converted(photos_of_three_classes, target, "tfrecord")


def spoil(folder: Path, name: str = "n02_train_1.JPEG") -> Path:
    """A photo whose header nobody can read."""
    (path,) = folder.rglob(name)
    path.write_bytes(b"no photo at all")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_record_is_an_error_that_names_all_of_them(
    form: Form, photos_of_three_classes: Path, tmp_path: Path
) -> None:
    spoiled = [spoil(photos_of_three_classes), spoil(photos_of_three_classes, "n03_train_2.JPEG")]
    with pytest.raises(DataError) as caught:
        converted(photos_of_three_classes, tmp_path / "to", form)
    said = str(caught.value)

    assert said.startswith("2 bad records in the source; --bad-records skip leaves them out:\n")
    assert [str(path) in said for path in spoiled] == [True, True]
    assert NAME not in tree(tmp_path / "to")
    with pytest.raises(DataError, match="has not finished here"):
        open_records(tmp_path / "to", "train", ignore, ignore)


@pytest.mark.parametrize("form", FORMS)
def test_bad_records_are_left_out_on_request_and_told(
    form: Form, photos_of_three_classes: Path, tmp_path: Path
) -> None:
    good = [
        one
        for one in contents(photos_of_three_classes, "train")
        if one[4] not in ("n02_train_1.JPEG", "n03_train_2.JPEG")
    ]
    spoil(photos_of_three_classes)
    spoil(photos_of_three_classes, "n03_train_2.JPEG")
    with pytest.raises(DataError):
        converted(photos_of_three_classes, tmp_path / "to", form)
    sharding = Sharding(records=3)
    wanted = request(photos_of_three_classes, tmp_path / "to", form, most_bad=2, sharding=sharding)
    result = convert(wanted, ProgressCallbacks())
    again = convert(wanted, ProgressCallbacks())

    assert contents(tmp_path / "to", "train") == good
    assert [line.rpartition("/")[2].partition(":")[0] for line in result.left_out] == [
        "n02_train_1.JPEG",
        "n03_train_2.JPEG",
    ]
    assert again == result
    if form == "folder":
        assert b"n03_train_2" not in (tmp_path / "to" / FILE_NAME).read_bytes()


def test_one_bad_record_more_than_allowed_ends_it(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    spoil(photos_of_three_classes)
    spoil(photos_of_three_classes, "n03_train_2.JPEG")
    wanted = request(photos_of_three_classes, tmp_path / "to", "tfrecord", most_bad=1)

    with pytest.raises(DataError, match="2 bad records, --max-bad-records allows 1"):
        convert(wanted, ProgressCallbacks())


def test_records_that_indexing_found_bad_are_told_before_anything_is_written(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    records = converted(photos_of_three_classes, tmp_path / "a", "tfrecord")
    whole = contents(records, "train")
    shard = records / "train-00001-of-00004"
    raw = bytearray(shard.read_bytes())
    raw[200] ^= 1
    shard.write_bytes(raw)
    (records / NAME).unlink()
    with pytest.raises(DataError, match=r"1 bad record in the source.*\n.*checksum of its bytes"):
        converted(records, tmp_path / "b", "webdataset")

    assert not (tmp_path / "b").exists()

    convert(request(records, tmp_path / "b", "webdataset", most_bad=1), ProgressCallbacks())

    assert contents(tmp_path / "b", "train") == [*whole[:3], *whole[4:]]


def test_a_shard_of_bad_records_alone_is_refused(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    spoil(photos_of_three_classes)
    sharding = Sharding(records=1)
    with pytest.raises(DataError, match="1 bad record in the source"):
        converted(photos_of_three_classes, tmp_path / "to", "tfrecord", shard_records=1)
    wanted = request(
        photos_of_three_classes, tmp_path / "to", "tfrecord", most_bad=5, sharding=sharding
    )

    with pytest.raises(DataError, match="would be empty: all of its 1 records are bad"):
        convert(wanted, ProgressCallbacks())


def test_an_unfinished_conversion_is_no_source(
    photos_of_three_classes: Path, tmp_path: Path
) -> None:
    half = converted(photos_of_three_classes, tmp_path / "half", "webdataset")
    (half / NAME).rename(half / JOURNAL)

    with pytest.raises(DataError, match="has not finished here; run the same command again"):
        converted(half, tmp_path / "to", "folder")
