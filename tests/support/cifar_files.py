"""Small valid CIFAR files and archives of them, for tests."""

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.data.download import Archive
from convoy.data.sources.cifar import CIFAR10, CIFAR100, PIXEL_BYTES, CifarFormat

Records = npt.NDArray[np.uint8]  # (records, record bytes)


def records(layout: CifarFormat, count: int, seed: int = 0) -> Records:
    """Random pixels with labels that cycle through the classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, PIXEL_BYTES), np.uint8)
    indices = np.arange(count)
    labels = [(indices % limit).astype(np.uint8)[:, None] for limit in layout.label_limits]
    return np.concatenate([*labels, pixels], axis=1)


def write_cifar(layout: CifarFormat, folder: Path, count: int = 20) -> Path:
    """Write every file of the dataset with `count` records each, in a folder below `folder`."""
    dataset = folder / layout.folder
    dataset.mkdir(parents=True)
    names = [name for files in layout.files.values() for name in files]
    for seed, name in enumerate(names):
        (dataset / name).write_bytes(records(layout, count, seed).tobytes())
    return dataset


def write_cifar10(folder: Path, count: int = 20) -> Path:
    return write_cifar(CIFAR10, folder, count)


def write_cifar100(folder: Path, count: int = 20) -> Path:
    return write_cifar(CIFAR100, folder, count)


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    """A header for `tar_gz`; tests may change it before it is packed."""
    header = tarfile.TarInfo(name)
    header.type = kind
    header.size = len(content)
    return header


def tar_gz(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive of headers and contents, written unchanged even if invalid."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for header, content in members:
            tar.addfile(header, io.BytesIO(content))
    return packed.getvalue()


def pack(folder: Path) -> bytes:
    """An archive of a folder, structured like the official one."""
    paths = sorted(folder.iterdir())
    contents = {f"{folder.name}/{path.name}": path.read_bytes() for path in paths}
    return tar_gz(*((member(name, content), content) for name, content in contents.items()))


def describe(packed: bytes, folder: Path, url: str) -> Archive:
    """The correct description of such an archive."""
    files = {
        path.name: (path.stat().st_size, hashlib.md5(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }
    return Archive(url, len(packed), hashlib.md5(packed).hexdigest(), folder.name, files)
