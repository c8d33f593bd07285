"""One image as bytes, decoded to its last pixel."""

from convoy.data.images.decode import decode
from convoy.data.images.gate import Encoded, ImageError, look


def fault_of(encoded: Encoded, *, decoded: bool) -> str | None:
    """Why an image cannot be used, if so; without decoding only its header is judged."""
    try:
        header = look(encoded)
        if decoded:
            decode(encoded, header)
    except ImageError as error:
        return str(error)
    return None
