"""Encoded photos (class folders, TFRecord or tar shards) as a source, and their view.

A record that cannot be used ends the run, or another of its class stands in and it is recorded
in the ledger.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from convoy.config.sections.data import DataConfig
from convoy.data.feeds import workers_of
from convoy.data.records.ledger import BadRecord, BadRecordError, Ledger
from convoy.data.records.record import UNKNOWN, Records, StandIns
from convoy.data.source import (
    Ids,
    Labels,
    Normalization,
    OnStep,
    Pixels,
    Source,
    Split,
    Unread,
    View,
    no_steps,
)
from convoy.data.sources.photo_readers import (
    LoaderJob,
    PhotoOptions,
    PhotoReader,
    ProcessReader,
    make_reader,
)
from convoy.errors import DataError

IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Of applications that only subtract the mean, which they knew in another rounding.
IMAGENET_MEAN = Normalization((123.68 / 255, 116.78 / 255, 103.94 / 255), (1 / 255,) * 3)


class Photos(Source):
    normalization = IMAGENET
    mean_only = IMAGENET_MEAN

    def __init__(self, records: Records, split: Split, cropped: int | None = None) -> None:
        """`cropped` is the size of photos that were stored as their centres."""
        self.records = records
        self.cropped = cropped
        self.split = split
        self.class_names = records.class_names
        self.stand_ins = StandIns(records.labels)

    def __len__(self) -> int:
        return len(self.records)

    def labels(self, ids: Ids) -> Labels:
        return self.stand_ins.labels.take(ids)

    def content(self, ids: Ids) -> bytes:
        encoded = hashlib.sha256()
        for number in ids.tolist():
            with suppress(BadRecordError):  # whether it may be bad is decided where it is used
                encoded.update(self.records.read(number).encoded)
        return encoded.digest()

    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        rule = config.crop_rule.upper() if config.augment else None
        return self._view(
            config, PhotoOptions(size, config.seed, rule, config.use_bbox_info), ledger
        )

    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        return self._view(config, PhotoOptions(size), ledger)

    def _view(self, config: DataConfig, options: PhotoOptions, ledger: Ledger | None) -> View:
        self.report_known_bad(ledger)
        workers = workers_of(config)
        reader: PhotoReader = make_reader(self.records, options, self.cropped)
        if config.dataloader_kind == "processes" and workers:
            job = LoaderJob(str(config.data_dir), self.split, options)
            reader = ProcessReader(self.records, job, workers)
        return PhotoView(self, options.size, reader, ledger)

    def report_known_bad(self, ledger: Ledger | None) -> None:
        """Records that are known to be bad before the first one is used."""
        known = np.flatnonzero(self.records.labels == UNKNOWN).tolist()
        for number in known:
            try:
                self.records.read(number)
            except BadRecordError as error:
                if ledger is None:
                    raise DataError(
                        f"{error}; {len(known)} bad in the {self.split} split: `convoy data "
                        "verify` lists them, --bad-records skip does without"
                    ) from error
                ledger.add(BadRecord.of(error, self.split))


@dataclass(frozen=True)
class PhotoView:
    """Photos of one size. Without a ledger, a bad one ends the run."""

    photos: Photos
    size: int
    reader: PhotoReader
    ledger: Ledger | None = None

    def __len__(self) -> int:
        return len(self.photos)

    def labels(self, ids: Ids) -> Labels:
        return self.photos.labels(ids)

    def __call__(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> Unread:
        failed = self.reader.fill(ids, epoch, out, on_step)
        if not failed:
            return ()
        unread = tuple(
            position
            for position in failed
            if not self._read_or_substitute(int(ids[position]), epoch, out[position])
        )
        on_step("substitute")
        return unread

    def _read_or_substitute(self, sample: int, epoch: int, out: Pixels) -> bool:
        """Whether the sample could be read after all; if not, another of its class is there."""
        try:
            self.reader.fill_one(sample, sample, epoch, out)
            return True
        except BadRecordError as error:
            if self.ledger is None:
                raise
            self.ledger.add(BadRecord.of(error, self.photos.split))
        photos = self.photos
        for candidate in photos.stand_ins.after(sample):
            with suppress(BadRecordError):  # it is reported when its own turn comes
                self.reader.fill_one(candidate, sample, epoch, out)
                return False
        label = photos.class_names[photos.stand_ins.labels[sample]]
        raise DataError(
            f"{photos.records.location(sample)}: bad, and so are all others of its class {label}"
        )
