"""Bytes come in pieces, whole lines go out."""


class Lines:
    """Keeps what has no line end yet; a line that grows beyond the limit is cut there."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        self._open += data
        *whole, rest = bytes(self._open).split(b"\n")
        lines = [piece for line in whole for piece in self._cut(line)]
        *cut, last = self._cut(rest)
        self._open = bytearray(last)
        return lines + cut

    def rest(self) -> list[bytes]:
        """What is left when nothing follows any more."""
        left, self._open = bytes(self._open), bytearray()
        return [left] if left else []

    def _cut(self, line: bytes) -> list[bytes]:
        begins = range(0, max(len(line), 1), self.limit)
        return [line[begin : begin + self.limit] for begin in begins]
