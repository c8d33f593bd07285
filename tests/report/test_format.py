"""Numbers and events are formatted the same everywhere and fit one line."""

import math

import pytest

from convoy.events import (
    Averaged,
    Began,
    Ended,
    Event,
    Noticed,
    Reported,
    Saved,
    Updated,
    Validated,
)
from convoy.report.format import (
    ProgressState,
    event_line,
    format_duration,
    format_loss,
    format_throughput,
    progress_line,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0:00"),
        (0.4, "0:00"),
        (72, "1:12"),
        (3599.6, "1:00:00"),
        (7509, "2:05:09"),
        (273600, "3 d 04:00:00"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_a_duration_is_formatted_like_a_clock(seconds: float, text: str):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("speed", "text"), [(4123.4, "4123"), (412.3, "412"), (41.23, "41.2"), (4.123, "4.12")]
)
def test_a_throughput_has_three_significant_digits(speed: float, text: str):
    assert format_throughput(speed) == f"{text} images/s"


@pytest.mark.parametrize(
    ("loss", "text"), [(0.41234, "0.412"), (123456.0, "1.23e+05"), (math.nan, "nan")]
)
def test_a_large_loss_is_formatted_briefly(loss: float, text: str):
    assert format_loss(loss) == text


def test_the_progress_of_a_run_fits_one_line():
    state = ProgressState(lambda: 0.0)
    state.handle_event(Began(318, 1250, 250, 64))
    state.handle_event(Updated(319, 5.0))
    state.handle_event(Updated(320, 0.0775))
    state.handle_event(Reported(320, 1.28, 0.412, 0.861, 0.0905, 412.0, 50.0))

    assert progress_line(state) == (
        "epoch 2/5  update 320/1250  loss 0.412  accuracy 86.1 %  lr 0.0905  412 images/s  ETA 1:12"
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Began(0, 1250, 250, 64), "starting 1250 updates of 64 images, 250 updates per epoch"),
        (
            Began(320, 1250, 250, 64),
            "resuming after update 320 of 1250 updates of 64 images, 250 updates per epoch",
        ),
        (Updated(7, 0.25), "update 7 in 0.250 s"),
        (
            Reported(320, 1.28, 0.412, 0.861, 0.0905, 412.0, 50.0),
            "update 320  epoch 1.28  loss 0.412  accuracy 86.1 %  lr 0.0905  412 images/s",
        ),
        (
            Reported(320, 1.28, 0.412, 0.861, 0.0905, 412.0, 50.0, 64.0, 3, 2),
            "update 320  epoch 1.28  loss 0.412  accuracy 86.1 %  lr 0.0905  scale 64  "
            "412 images/s  3 skipped  2 micro-batches with a non-finite loss excluded",
        ),
        (
            Validated(250, 1.0, 0.842, 0.99, 0.501, 10000, 12.0, 833.0),
            "validation  update 250  top-1 84.2 %  top-5 99.0 %  loss 0.501  "
            "10000 images in 12.0 s",
        ),
        (
            Validated(250, 1.0, 0.842, 0.99, 0.501, 10000, 12.0, 833.0, 0.85, 0.991, 0.499),
            "validation  update 250  top-1 84.2 %  top-5 99.0 %  loss 0.501  "
            "average  top-1 85.0 %  top-5 99.1 %  loss 0.499  10000 images in 12.0 s",
        ),
        (
            Averaged(250, "averaged/ema-0.9/update-250", "ema", 0, "ab"),
            "average  averaged/ema-0.9/update-250  ema over all updates",
        ),
        (Saved(250, "runs/x/update-250", 0.31), "checkpoint  runs/x/update-250  in 0.3 s"),
        (
            Averaged(250, "averaged/update-250", "mean", 5, "ab", 0.842, 0.99, 0.501),
            "average  averaged/update-250  mean of 5 checkpoints  top-1 84.2 %  top-5 99.0 %  "
            "loss 0.501",
        ),
        (
            Averaged(250, "a\nb", "exponential", 1, "ab"),
            "average  a\\nb  exponential of 1 checkpoint",
        ),
        (
            Noticed("skip", "two\nlines \x1b[31mred", 3),
            "notice  two\\nlines \\x1b[31mred (update 3)",
        ),
        (Ended(9, "preempted"), "stopped after update 9: preempted"),
    ],
)
def test_each_event_is_one_line(event: Event, line: str):
    assert event_line(event) == line
