"""Outfeed: results of several replicas, and readers in other threads."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from support.outfeed_targets import dequeue_results
from support.replica_processes import Failed, ReplicaPool, replica_pool, unwrap

from convoy.engine.outfeed import Outfeed

TIMEOUT = 300  # seconds


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaPool]:
    with replica_pool(2, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.mark.processes
def test_all_replicas_get_the_results_by_iteration_and_replica(pool: ReplicaPool) -> None:
    expected = [
        [[0, 1], [10, 11], [20, 21]],
        [[[0, 0], [1, 1]], [[10, 10], [11, 11]], [[20, 20], [21, 21]]],
    ]

    assert unwrap(pool.run(dequeue_results, ("all", 0))) == [expected, expected]


@pytest.mark.processes
def test_the_last_result_has_one_value_per_replica(pool: ReplicaPool) -> None:
    expected = [[20, 21], [[20, 20], [21, 21]]]

    assert unwrap(pool.run(dequeue_results, ("last", 0))) == [expected, expected]


@pytest.mark.processes
def test_replicas_with_different_numbers_of_results_are_refused(pool: ReplicaPool) -> None:
    results = pool.run(dequeue_results, ("all", 1))

    assert all(isinstance(result, Failed) for result in results)
    for result in results:
        assert isinstance(result, Failed) and "[4, 3]" in str(result.args)


def test_iterating_makes_room_for_a_waiting_result() -> None:
    outfeed, enqueued = Outfeed(buffer_depth=1), threading.Event()
    outfeed.enqueue(1)

    def enqueue() -> None:
        outfeed.enqueue(2)
        enqueued.set()

    writer = threading.Thread(target=enqueue, daemon=True)
    writer.start()
    assert not enqueued.wait(0.2)  # the writer has to wait
    assert int(next(iter(outfeed))) == 1
    assert enqueued.wait(TIMEOUT)
    writer.join()

    assert [int(value) for value in outfeed] == [2]


def test_closing_wakes_a_waiting_stream() -> None:
    outfeed, seen = Outfeed(), list[int]()
    first = threading.Event()

    def read() -> None:
        for value in outfeed.stream():
            seen.append(int(value))
            first.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    outfeed.enqueue(1)
    assert first.wait(TIMEOUT)
    reader.join(0.2)  # it waits for another result
    assert reader.is_alive()
    outfeed.close()
    reader.join(TIMEOUT)

    assert not reader.is_alive() and seen == [1]


ABANDONED = """
import threading
import convoy
outfeed = convoy.Outfeed()
threading.Thread(target=lambda: print("read", *map(int, outfeed.stream()))).start()

def body(count):
    if count == 2 or {fails_at_once}:
        raise ValueError("stop")
    outfeed.enqueue(count)
    return count + 1

convoy.repeat(5, body, [0])
outfeed.close()
"""


@pytest.mark.parametrize("fails_at_once", [False, True])
def test_a_program_that_fails_ends_although_a_thread_reads_its_results(
    fails_at_once: bool,
) -> None:
    program = ABANDONED.format(fails_at_once=fails_at_once)

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 1 and "ValueError: stop" in done.stderr
    assert done.stdout.split() == (["read"] if fails_at_once else ["read", "0", "1"])


def test_a_full_outfeed_that_nothing_reads_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.engine.outfeed._WARN_SECONDS", 0.01)
    results = Outfeed(buffer_depth=1)
    results.enqueue(1)

    # warnings are errors in tests, so the wait ends
    with pytest.raises(UserWarning, match=r"full \(1 results\).*buffer_depth"):
        results.enqueue(2)
