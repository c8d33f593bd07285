"""What a worker tells its supervisor: one JSON object a line, of limited size, never pickle."""

import json
from dataclasses import asdict, dataclass

LONGEST_LINE = 262_144  # bytes; room for the longest texts with every character escaped
_LONGEST_TEXT = 8_000
_LONGEST_TRACEBACK = 16_000


@dataclass(frozen=True)
class Started:
    """The worker is ready to begin."""

    pid: int


@dataclass(frozen=True)
class Ended:
    """The work is over, and this is the exit code it chose."""

    code: int


@dataclass(frozen=True)
class Failed:
    """An error ended the work."""

    kind: str  # name of the exception's class
    text: str
    traceback: str
    code: int
    at: float  # seconds of the monotonic clock, which all processes of a host share


Message = Started | Ended | Failed
_WORDS: dict[type[Message], str] = {Started: "started", Ended: "ended", Failed: "failed"}


def encode(message: Message) -> bytes:
    """One line; the ends of long texts are kept, for that is where tracebacks say what is wrong."""
    fields = {"message": _WORDS[type(message)], **asdict(message)}
    if isinstance(message, Failed):
        fields["text"] = message.text[:_LONGEST_TEXT]
        fields["traceback"] = message.traceback[-_LONGEST_TRACEBACK:]
        fields["kind"] = message.kind[:200]
    line = json.dumps(fields, ensure_ascii=False).encode(errors="replace") + b"\n"
    assert len(line) <= LONGEST_LINE
    return line


def decode(line: bytes) -> Message:
    """ValueError for anything that `encode` would not have written."""
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message nested too deep") from error
    match fields:
        case {"message": "started", "pid": int(pid)}:
            return Started(pid)
        case {"message": "ended", "code": int(code)}:
            return Ended(code)
        case {
            "message": "failed",
            "kind": str(kind),
            "text": str(text),
            "traceback": str(traceback),
            "code": int(code),
            "at": float(at),
        }:
            return Failed(kind, text, traceback, code, at)
    raise ValueError(f"not a message: {line[:80]!r}")
