"""Many texts in one block: a million names must not become a million objects."""

from array import array
from collections.abc import Iterable, Iterator

_HALVES = "surrogatepass"  # names of files may hold bytes that are no text


class Names:
    """Texts by number."""

    def __init__(self, texts: Iterable[str]) -> None:
        block, self._ends = bytearray(), array("q", [0])
        for text in texts:
            block += text.encode("utf-8", _HALVES)
            self._ends.append(len(block))
        self._block = bytes(block)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        start, end = self._ends[number], self._ends[number + 1]
        return self._block[start:end].decode("utf-8", _HALVES)

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))
