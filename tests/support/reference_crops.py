"""A simple reference implementation of random crops, for one image at a time."""

from math import exp, floor, log, sqrt

from convoy.data.records.record import Boxes
from convoy.rng import key, uniform

Corners = tuple[float, float, float, float]
Window = tuple[int, int, int, int]  # left, top, width, height


class Draws:
    """The uniform random numbers of one sample, by attempt and purpose."""

    def __init__(self, sample: int, seed: int, epoch: int) -> None:
        self.stream, self.sample = key(seed, "crop", epoch), sample

    def __call__(self, attempt: int, purpose: int) -> float:
        return float(uniform(self.stream, self.sample, attempt, purpose))

    @property
    def mirrored(self) -> bool:
        return self(0, 4) < 0.5


def shared_area(window: Window, box: Corners) -> float:
    left, top, width, height = window
    across = min(left + width, box[2]) - max(left, box[0])
    down = min(top + height, box[3]) - max(top, box[1])
    return max(across, 0.0) * max(down, 0.0)


def in_pixels(boxes: Boxes, height: int, width: int) -> list[Corners]:
    return [(x1 * width, y1 * height, x2 * width, y2 * height) for x1, y1, x2, y2 in boxes.tolist()]


def place(draws: Draws, attempt: int, image: tuple[int, int], shape: tuple[int, int]) -> Window:
    (height, width), (tall, wide) = image, shape
    left = floor(draws(attempt, 2) * (width - wide + 1))
    return left, floor(draws(attempt, 3) * (height - tall + 1)), wide, tall


def pytorch_window(draws: Draws, height: int, width: int, boxes: Boxes) -> Window:
    values = in_pixels(boxes, height, width)
    output = sample_window(draws, 0, height, width)
    if not values:
        return output
    lows, highs = zip(*((box[:2], box[2:]) for box in values), strict=True)
    around = (*map(min, zip(*lows, strict=True)), *map(max, zip(*highs, strict=True)))
    for number in range(9):
        output = sample_window(draws, number, height, width)
        if shared_area(output, around) >= 0.1 * (output[2] * output[3]):
            break
    return output


def sample_window(draws: Draws, number: int, height: int, width: int) -> Window:
    for attempt in range(10 * number, 10 * number + 10):
        area = (0.08 + 0.92 * draws(attempt, 0)) * (height * width)
        ratio = exp(log(3 / 4) + draws(attempt, 1) * (log(4 / 3) - log(3 / 4)))
        wide, tall = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            return place(draws, attempt, (height, width), (tall, wide))
    wide = min(width, round(height * 4 / 3))
    tall = min(height, round(width / (3 / 4)))
    return (width - wide) // 2, (height - tall) // 2, wide, tall


def tensorflow_window(draws: Draws, height: int, width: int, boxes: Boxes) -> Window:
    values = in_pixels(boxes, height, width) or [(0, 0, width, height)]
    for attempt in range(100):
        ratio = 0.75 + draws(attempt, 1) * (1.33 - 0.75)
        allowed = [tall for tall in range(1, height + 1) if fits(tall, ratio, height, width)]
        if not allowed:
            continue
        tall = allowed[floor(draws(attempt, 0) * len(allowed))]
        output = place(draws, attempt, (height, width), (tall, round(tall * ratio)))
        if any(
            shared_area(output, box) >= 0.1 * ((box[2] - box[0]) * (box[3] - box[1]))
            for box in values
        ):
            return output
    return 0, 0, width, height


def fits(tall: int, ratio: float, height: int, width: int) -> bool:
    wide = round(tall * ratio)
    return 1 <= wide <= width and 0.05 * (height * width) <= wide * tall <= height * width
