"""Images that are no ordinary JPEG, by Pillow: PNG, GIF, BMP, WebP, and JPEG of four inks.

What becomes of them, always rows of RGB bytes:

    16-bit grey or color   the high byte of each value
    palette                the colors it names; of an animation the first frame
    transparency           dropped: the colors beneath it stay, nothing is blended
    CMYK                   RGB by Pillow's plain formula, inverted where Adobe wrote it so
    rotation in EXIF       not applied, as in the reference pipelines
"""

import numpy as np
import numpy.typing as npt

from convoy.data.images.gate import Encoded, Kind, opened

_DEEP = "I;16"  # Pillow's word for 16-bit grey; all else it reads as bytes


def convert(encoded: Encoded, kind: Kind) -> npt.NDArray[np.uint8]:
    """All pixels, (height, width, 3)."""
    with opened(encoded, kind) as image:
        if image.mode == _DEEP:
            # Pillow's own conversion would turn all that is above 255 into white.
            high = (np.asarray(image) >> 8).astype(np.uint8)
            return np.repeat(high[:, :, None], 3, axis=2)
        return np.array(image.convert("RGB"))
