"""Source of encoded photos: class folders, TFRecord or tar shards.

A bad record is an error, or it is recorded in the ledger and replaced by another of its class.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from convoy.config.sections.data import DataConfig
from convoy.data.feeds import num_workers
from convoy.data.images.crop import center_rule
from convoy.data.progress import no_op
from convoy.data.records.ledger import BadRecord, BadRecordError, Ledger
from convoy.data.records.record import UNKNOWN_LABEL, Records, ReplacementSampler
from convoy.data.source import Ids, Labels, Normalization, Pixels, Source, Split, StepCallback, View
from convoy.data.sources.photo_readers import (
    PhotoOptions,
    PhotoReader,
    ProcessReader,
    ReaderJob,
    make_reader,
)
from convoy.errors import DataError

IMAGENET_NORMALIZATION = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# For applications that only subtract the mean, with their rounding of it.
IMAGENET_MEAN_ONLY = Normalization((123.68 / 255, 116.78 / 255, 103.94 / 255), (1 / 255,) * 3)


class PhotoSource(Source):
    normalization = IMAGENET_NORMALIZATION
    mean_normalization = IMAGENET_MEAN_ONLY

    def __init__(self, records: Records, split: Split, stored_size: int | None = None) -> None:
        self.records = records
        self.stored_size = stored_size  # if they were stored as center crops
        self.split = split
        self.class_names = records.class_names
        self.replacements = ReplacementSampler(records.labels)

    def __len__(self) -> int:
        return len(self.records)

    def labels(self, ids: Ids) -> Labels:
        return self.replacements.labels.take(ids)

    def content(self, ids: Ids) -> bytes:
        digest = hashlib.sha256()
        for index in ids.tolist():
            with suppress(BadRecordError):  # bad records are handled when they are read
                digest.update(self.records.read(index).encoded)
        return digest.digest()

    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        rule = config.crop_rule if config.augment else None
        # Without augmentation, center crops, as fast as random ones.
        options = PhotoOptions(
            size, config.seed, rule, config.use_bbox_info, "center-floor", reduced=True
        )
        return self._make_view(config, options, ledger)

    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        return self._make_view(
            config, PhotoOptions(size, center=center_rule(config.crop_rule)), ledger
        )

    def _make_view(self, config: DataConfig, options: PhotoOptions, ledger: Ledger | None) -> View:
        self.report_known_bad(ledger)
        workers = num_workers(config)
        reader = make_reader(self.records, options, self.stored_size)
        if config.dataloader_kind == "processes" and workers:
            job = ReaderJob(str(config.data_dir), self.split, options, config.validation_share)
            reader = ProcessReader(self.records, job, workers)
        return PhotoView(self, options.size, reader, ledger)

    def report_known_bad(self, ledger: Ledger | None) -> None:
        """Report the records that are known to be bad before any is used."""
        known = np.flatnonzero(self.records.labels == UNKNOWN_LABEL).tolist()
        for number in known:
            try:
                self.records.read(number)
            except BadRecordError as error:
                if ledger is None:
                    raise DataError(
                        f"{error}; {len(known)} bad records in the {self.split} split: list them "
                        "with `convoy data verify`, or skip them with --bad-records skip"
                    ) from error
                ledger.add(BadRecord.from_error(error, self.split))


@dataclass(frozen=True)
class PhotoView:
    """Photos resized to one size. Without a ledger, a bad record is an error."""

    source: PhotoSource
    size: int
    reader: PhotoReader
    ledger: Ledger | None = None

    def __call__(
        self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback = no_op
    ) -> tuple[int, ...]:
        failed = self.reader.read_batch(ids, epoch, out, on_step)
        if not failed:
            return ()
        unreadable = tuple(
            position
            for position in failed
            if not self._read_or_substitute(int(ids[position]), epoch, out[position])
        )
        on_step("substitute")
        return unreadable

    def _read_or_substitute(self, sample: int, epoch: int, out: Pixels) -> bool:
        """Read a sample again; if it is bad, write another of its class and return False."""
        try:
            self.reader.read_one(sample, sample, epoch, out)
            return True
        except BadRecordError as error:
            if self.ledger is None:
                raise
            self.ledger.add(BadRecord.from_error(error, self.source.split))
        photos = self.source
        for candidate in photos.replacements.candidates(sample):
            with suppress(BadRecordError):  # reported when it is used as a sample
                self.reader.read_one(candidate, sample, epoch, out)
                return False
        label = photos.class_names[photos.replacements.labels[sample]]
        raise DataError(
            f"{photos.records.location(sample)}: bad, and so are all other records of its class "
            f"{label}"
        )
