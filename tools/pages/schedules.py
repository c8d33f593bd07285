"""docs/images/schedules.svg: timelines of pipeline schedules, as `convoy plan` computes them."""

from collections.abc import Iterator

from convoy.planning.schedules import SCHEDULES
from convoy.planning.timetable import Timetable, make_timetable

STAGES, MICRO_BATCHES = 4, 8
TITLES = {
    "interleaved": "interleaved (1F1B): forward and backward passes alternate",
    "zero-bubble": "zero-bubble: weight gradients fill the gaps",
}
# Forward, backward, backward for inputs, backward for weights.
FILLS = {"F": "#4c78a8", "B": "#d9772b", "I": "#d9772b", "W": "#8c6bb1"}
LEGEND = "F forward    B backward    I input gradients    W weight gradients"
# Pixels of a column: the passes of a micro-batch are two half-steps or three third-steps.
COLUMN = {"half-step": 42, "third-step": 28}
LEFT, ROW, GAP = 60, 22, 16


def schedules_image() -> str:
    """One drawing per schedule, below each other."""
    shapes: list[str] = []
    top = 18
    width = LEFT
    for name, title in TITLES.items():
        timetable = make_timetable(SCHEDULES[name], STAGES, MICRO_BATCHES)
        shapes.append(_text(0, top, f"{title}, {STAGES} stages, {MICRO_BATCHES} micro-batches"))
        shapes += _rows(timetable, top + 8)
        top += 8 + ROW * len(timetable.rows) + GAP
        width = max(width, LEFT + COLUMN[timetable.column_unit] * timetable.columns)
    shapes.append(_text(LEFT, top, LEGEND))
    return _svg(width, top + 8, shapes)


def _rows(timetable: Timetable, top: int) -> Iterator[str]:
    """Idle time is light gray."""
    width = COLUMN[timetable.column_unit]
    for stage, row in enumerate(timetable.rows):
        y = top + ROW * stage
        yield _text(0, y + 15, f"stage {stage}")
        yield _rectangle(LEFT, y, width * timetable.columns, "#ececec")
        for column, cell in enumerate(row):
            for action in map(str, cell):
                x = LEFT + width * column
                yield _rectangle(x, y, width - 1, FILLS[action[0]])
                yield _text(x + width // 2, y + 14, action, 'text-anchor="middle" fill="#ffffff"')


def _svg(width: int, height: int, shapes: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    )
    background = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, background, *shapes, "</svg>", ""])


def _rectangle(x: int, y: int, width: int, fill: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{ROW - 2}" rx="2" fill="{fill}"/>'


def _text(x: int, y: int, text: str, style: str = 'fill="#222222"') -> str:
    return f'<text x="{x}" y="{y}" {style} xml:space="preserve">{text}</text>'
