"""Memory of a thread's own."""

from threading import Thread

import numpy as np

from convoy.data.images.scratch import MOST_KEPT, Scratch


def test_the_same_memory_is_given_again() -> None:
    scratch = Scratch()
    first = scratch(1000)

    assert len(first) == 1000
    assert np.shares_memory(first, scratch(1000))
    assert np.shares_memory(first, scratch(10))


def test_it_grows_and_stays_grown() -> None:
    scratch = Scratch()
    scratch(10)
    large = scratch(5000)

    assert len(large) == 5000
    assert np.shares_memory(large, scratch(10))


def test_what_is_very_large_is_not_kept() -> None:
    scratch = Scratch()
    scratch(MOST_KEPT)
    huge = scratch(MOST_KEPT + 1)

    assert len(huge) == MOST_KEPT + 1
    assert not np.shares_memory(huge, scratch(10))


def test_every_thread_has_its_own() -> None:
    scratch = Scratch()
    own, others = scratch(100), []
    thread = Thread(target=lambda: others.append(scratch(100)))
    thread.start()
    thread.join()

    assert not np.shares_memory(own, others[0])
