"""Compare two things honestly on a noisy machine: pair by pair, the median ratio, its interval.

And `--smoke`, which every benchmark has: once, as small as it gets, to see that it still runs, as
`tests/benchmarks` does. The figures of that mean nothing.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping


def options_of(parser: ArgumentParser, smallest: Mapping[str, object]) -> Namespace:
    """What was asked for; with `--smoke`, that little."""
    parser.add_argument("--smoke", action="store_true", help="once, as small as it gets: it runs")
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(smallest)
    return options


def ratio_with_interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median of ours / theirs over the pairs, and its 95 % interval by bootstrap."""
    return median_with_interval([a / b for a, b in zip(ours, theirs, strict=True)])


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by bootstrap."""
    from convoy.bench.doctor import (
        bootstrap_interval,  # with torch, which what starts at once must not load
    )

    found = bootstrap_interval(values)
    return found.median, found.low, found.high
