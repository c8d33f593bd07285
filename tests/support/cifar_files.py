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
    """Random pixels under labels that count through the classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, PIXEL_BYTES), np.uint8)
    numbers = np.arange(count)
    labels = [(numbers % limit).astype(np.uint8)[:, None] for limit in layout.label_limits]
    return np.concatenate([*labels, pixels], axis=1)


def write_cifar(layout: CifarFormat, folder: Path, count: int = 20) -> Path:
    """Every file of the data set, `count` records each, in its own folder below `folder`."""
    home = folder / layout.folder
    home.mkdir(parents=True)
    names = [name for files in layout.files.values() for name in files]
    for seed, name in enumerate(names):
        (home / name).write_bytes(records(layout, count, seed).tobytes())
    return home


def write_cifar10(folder: Path, count: int = 20) -> Path:
    return write_cifar(CIFAR10, folder, count)


def write_cifar100(folder: Path, count: int = 20) -> Path:
    return write_cifar(CIFAR100, folder, count)


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    """A header for `tar_gz`; a test may change it before it is packed."""
    header = tarfile.TarInfo(name)
    header.type = kind
    header.size = len(content)
    return header


def tar_gz(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive of headers and contents, written as they are, right or wrong."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for header, content in members:
            tar.addfile(header, io.BytesIO(content))
    return packed.getvalue()


def pack(home: Path) -> bytes:
    """A folder as its official archive would be."""
    contents = {f"{home.name}/{path.name}": path.read_bytes() for path in sorted(home.iterdir())}
    return tar_gz(*((member(name, content), content) for name, content in contents.items()))


def describe(packed: bytes, home: Path, url: str) -> Archive:
    """The right description of such an archive."""
    files = {
        path.name: (path.stat().st_size, hashlib.md5(path.read_bytes()).hexdigest())
        for path in home.iterdir()
    }
    return Archive(url, len(packed), hashlib.md5(packed).hexdigest(), home.name, files)
