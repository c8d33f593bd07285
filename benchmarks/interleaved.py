"""Comparisons on a noisy machine: the median ratio of paired measurements with its interval.

Also `--smoke`, an option of every benchmark: run once in the smallest size, as `tests/benchmarks`
does to check that it still runs. The numbers that it prints are meaningless.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping


def parse_options(parser: ArgumentParser, smallest: Mapping[str, object]) -> Namespace:
    """Parse the command line; `--smoke` replaces options by their smallest values."""
    parser.add_argument("--smoke", action="store_true", help="run once in the smallest size")
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(smallest)
    return options


def ratio_with_interval(
    numerators: list[float], denominators: list[float]
) -> tuple[float, float, float]:
    """The median of numerator / denominator over the pairs, and its 95 % bootstrap interval."""
    return median_with_interval([a / b for a, b in zip(numerators, denominators, strict=True)])


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % bootstrap interval."""
    # Imports torch, which takes seconds: not needed for `--help`.
    from convoy.bench.doctor import bootstrap_interval

    interval = bootstrap_interval(values)
    return interval.median, interval.low, interval.high
