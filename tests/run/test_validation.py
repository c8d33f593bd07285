"""The latency of a batch."""

import pytest

from convoy.run.validation import Latency


@pytest.mark.parametrize(
    ("seconds", "mean", "p99"),
    [
        ([0.002], 2, 2),
        ([0.003, 0.001], 2, 3),
        ([0.001] * 99 + [0.101], 2, 1),
        ([0.001] * 98 + [0.051] * 2, 2, 51),
    ],
)
def test_latency_is_the_mean_and_the_99th_percentile(
    seconds: list[float], mean: float, p99: float
) -> None:
    latency = Latency.of(seconds)

    assert (latency.mean, latency.p99) == pytest.approx((mean, p99))
