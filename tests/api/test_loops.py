"""repeat, while_loop, Infeed, Outfeed and the dataset benchmark."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import convoy
from convoy.data.infeed import InfeedExhaustedError


def test_a_loop_returns_its_carried_values_and_fills_the_outfeed() -> None:
    """The first example of the guide: sums and differences of two equal vectors."""
    infeed = convoy.Infeed((np.ones((10, 4), np.float32), np.ones((10, 4), np.float32)))
    outfeed = convoy.Outfeed()

    def body(counter: Tensor, left: Tensor, right: Tensor) -> Tensor:
        outfeed.enqueue({"sum": left + right, "difference": left - right})
        return counter + 1

    counter = convoy.repeat(10, body, [0], infeed)

    results = outfeed.dequeue()
    assert counter == 10
    assert results["sum"].shape == results["difference"].shape == (10, 4)
    assert (results["sum"] == 2).all() and not results["difference"].any()


def test_a_dictionary_is_passed_as_keywords() -> None:
    infeed = convoy.Infeed({"x": torch.arange(5), "y": torch.arange(5)})

    total = convoy.repeat(5, lambda total, *, x, y: total + x * y, [0], infeed)

    assert total == 30


def test_several_values_are_carried() -> None:
    assert convoy.repeat(10, lambda a, b: (b, a + b), [0, 1]) == (55, 89)


def test_no_carried_values_give_none() -> None:
    seen = []

    assert convoy.repeat(3, lambda: seen.append(1)) is None
    assert len(seen) == 3


def test_a_while_loop_stops_at_its_condition_or_its_limit() -> None:
    def double(value: Tensor) -> Tensor:
        return value * 2

    assert convoy.while_loop(lambda value: value < 100, double, [1]) == 128
    assert convoy.while_loop(lambda _: True, double, [1], maximum_iterations=3) == 8
    assert convoy.while_loop(lambda value: value < 4, double, [1], maximum_iterations=0) == 1
    assert convoy.while_loop(lambda _: False, double, [1]) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it compiles
def test_a_compiled_body_gives_the_same_values() -> None:
    def step(value: Tensor) -> Tensor:
        return value * 0.5 + 1

    start = torch.linspace(0, 1, 7)
    compiled = convoy.repeat(4, step, [start], compile=True)

    torch.testing.assert_close(compiled, convoy.repeat(4, step, [start]))


TWO = (torch.zeros(4, 2), torch.zeros(4, 2))
RULES: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "wrong number of arguments": (
        lambda: convoy.repeat(1, lambda a: a, [1, 2]),
        TypeError,
        ["body", "2 carried"],
    ),
    "an element the body cannot take": (
        lambda: convoy.repeat(1, lambda a, _: a, [1], convoy.Infeed(TWO)),
        TypeError,
        ["body", "[(2,) float32, (2,) float32]"],
    ),
    "an unused infeed": (
        lambda: convoy.repeat(1, lambda a: a, [1], convoy.Infeed(TWO)),
        ValueError,
        ["infeed"],
    ),
    "a condition with too few arguments": (
        lambda: convoy.while_loop(lambda: True, lambda a: a, [1]),
        TypeError,
        ["condition"],
    ),
    "too few returned values": (
        lambda: convoy.repeat(1, lambda a, _: a, [1, 2]),
        ValueError,
        ["1 values", "carries 2"],
    ),
    "a returned value of another dtype": (
        lambda: convoy.repeat(1, lambda a: a * 1.5, [1]),
        TypeError,
        ["float32", "int64"],
    ),
    "a returned value of another shape": (
        lambda: convoy.repeat(1, lambda a: torch.stack([a, a]), [torch.zeros(2)]),
        TypeError,
        ["(2, 2)", "(2,)"],
    ),
    "an infeed of another type": (
        lambda: convoy.repeat(1, lambda a: a, [1], TWO),  # type: ignore[arg-type]
        TypeError,
        ["Infeed", "tuple"],
    ),
    "a returned value that is no tensor": (
        lambda: convoy.repeat(1, lambda _: "a", [1]),
        TypeError,
        ["'a'"],
    ),
    "a returned value without carried ones": (
        lambda: convoy.repeat(1, lambda: 3),
        ValueError,
        ["1 values", "carries 0"],
    ),
    "too many returned values": (
        lambda: convoy.repeat(1, lambda a: (a, a), [1]),
        ValueError,
        ["2 values", "carries 1"],
    ),
    "keywords the body cannot take": (
        lambda: convoy.repeat(1, lambda a, *, x: a + x, [1], convoy.Infeed({"y": [1]})),
        TypeError,
        ["body", "y: () int64"],
    ),
    "a condition that takes an element": (
        lambda: convoy.while_loop(lambda _a, _b: True, lambda a, _: a, [1], convoy.Infeed([1])),
        TypeError,
        ["condition", "1 carried"],
    ),
    "an unused infeed of a while loop": (
        lambda: convoy.while_loop(lambda _: True, lambda a: a, [1], convoy.Infeed([1])),
        ValueError,
        ["infeed"],
    ),
    "a negative maximum of iterations": (
        lambda: convoy.while_loop(lambda _: True, lambda a: a, [1], maximum_iterations=-2),
        ValueError,
        ["maximum_iterations", "-2"],
    ),
    "a number of iterations that is no integer": (
        lambda: convoy.repeat(1.5, lambda: None),  # type: ignore[arg-type]
        ValueError,
        ["iterations", "1.5"],
    ),
    "a negative number of iterations": (
        lambda: convoy.repeat(-1, lambda: None),
        ValueError,
        ["-1"],
    ),
    "no prefetch": (lambda: convoy.Infeed(TWO, prefetch_depth=0), ValueError, ["255", "0"]),
    "too much prefetch": (lambda: convoy.Infeed(TWO, prefetch_depth=256), ValueError, ["256"]),
    "a replica that does not exist": (
        lambda: convoy.Infeed(TWO, replica=2, replicas=2),
        ValueError,
        ["2"],
    ),
    "a replica without the number of replicas": (
        lambda: convoy.Infeed(TWO, replica=0),
        ValueError,
        ["replica", "replicas"],
    ),
    "elements of different dtypes": (
        lambda: take(convoy.Infeed([torch.zeros(2), torch.zeros(2).double()]), 2),
        ValueError,
        ["element 1", "float64", "float32"],
    ),
    "elements of different structure": (
        lambda: take(convoy.Infeed([{"a": 1}, {"b": 1}]), 2),
        ValueError,
        ["element 1", "{b: () int64}", "{a: () int64}"],
    ),
    "elements with lists of different lengths": (
        lambda: take(convoy.Infeed([([1, 2], 3), ([1], 3)]), 2),
        ValueError,
        ["element 1", "[[() int64], () int64]"],
    ),
    "arrays of different lengths": (
        lambda: convoy.Infeed((torch.zeros(3), torch.zeros(4))).next(),
        ValueError,
        ["[3, 4]"],
    ),
    "elements of different shapes": (
        lambda: take(convoy.Infeed([torch.zeros(2), torch.zeros(3)]), 2),
        ValueError,
        ["element 1", "(3,)", "(2,)"],
    ),
    "something that is no dataset": (lambda: convoy.Infeed(3).next(), TypeError, ["int"]),
    "an element that is no tensor": (lambda: convoy.Infeed(["a"]).next(), TypeError, ["'a'"]),
    "a dataset that is too short": (
        lambda: take(convoy.Infeed([1, 2]), 3),
        InfeedExhaustedError,
        ["2 elements"],
    ),
    "an empty buffer": (lambda: convoy.Outfeed(buffer_depth=0), ValueError, ["0"]),
    "an unknown mode": (lambda: convoy.Outfeed("first"), ValueError, ["first"]),  # type: ignore
    "a dequeue before an enqueue": (lambda: convoy.Outfeed().dequeue(), ValueError, ["enqueued"]),
    "two results in one iteration": (
        lambda: convoy.repeat(1, enqueue_twice(convoy.Outfeed())),
        ValueError,
        ["twice"],
    ),
    "results of different structure": (
        lambda: enqueue_all(convoy.Outfeed(), [torch.zeros(1), (torch.zeros(1),)]),
        ValueError,
        ["(1,) float32"],
    ),
    "results of different shapes": (
        lambda: enqueue_all(convoy.Outfeed(), [torch.zeros(1), torch.zeros(2)]),
        ValueError,
        ["(2,) float32", "(1,) float32"],
    ),
    "a result that is no tensor": (
        lambda: convoy.Outfeed().enqueue("a"),
        TypeError,
        ["'a'"],
    ),
    "a second dequeue of the last result": (
        lambda: dequeue_twice(convoy.Outfeed("last")),
        ValueError,
        ["no result"],
    ),
    "streaming the last result": (
        lambda: next(convoy.Outfeed("last").stream()),
        RuntimeError,
        ["all"],
    ),
    "iterating over the last result": (
        lambda: list(convoy.Outfeed("last")),
        RuntimeError,
        ["all"],
    ),
    "a benchmark without epochs": (
        lambda: convoy.dataset_benchmark(TWO, 0, 1),
        ValueError,
        ["epochs", "0"],
    ),
    "a benchmark without elements": (
        lambda: convoy.dataset_benchmark(TWO, 1, 0),
        ValueError,
        ["elements_per_epoch", "0"],
    ),
    "a benchmark of something else": (
        lambda: convoy.infeed_benchmark(TWO, 1, 1),  # type: ignore[arg-type]
        TypeError,
        ["tuple"],
    ),
}


def take(infeed: convoy.Infeed, count: int) -> list[Any]:
    return [infeed.next() for _ in range(count)]


def dequeue_twice(outfeed: convoy.Outfeed) -> None:
    outfeed.enqueue(1)
    outfeed.dequeue()
    outfeed.dequeue()


def enqueue_twice(outfeed: convoy.Outfeed) -> Callable[[], None]:
    return lambda: enqueue_all(outfeed, [1, 2])


def enqueue_all(outfeed: convoy.Outfeed, values: list[Any]) -> None:
    for value in values:
        outfeed.enqueue(value)


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_raises_its_error(rule: str) -> None:
    action, error, facts = RULES[rule]

    with pytest.raises(error) as raised:
        action()

    assert all(fact in str(raised.value) for fact in facts), str(raised.value)


@pytest.mark.parametrize(
    "dataset",
    [
        torch.arange(6),
        np.arange(6),
        torch.utils.data.TensorDataset(torch.arange(6)),
        torch.utils.data.DataLoader(range(6), batch_size=None),
        (index for index in range(6)),
    ],
    ids=["tensor", "array", "dataset", "loader", "generator"],
)
def test_an_infeed_reads_any_kind_of_dataset(dataset: Any) -> None:
    elements = take(convoy.Infeed(dataset, prefetch_depth=3), 6)

    values = [element[0] if isinstance(element, tuple) else element for element in elements]
    assert [int(value) for value in values] == list(range(6))


def test_replicas_receive_different_elements() -> None:
    feeds = [convoy.Infeed(torch.arange(9), replica=index, replicas=3) for index in range(3)]

    assert [[int(value) for value in take(feed, 3)] for feed in feeds] == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5, 8],
    ]


def test_a_restored_infeed_continues_with_the_next_element() -> None:
    first = convoy.Infeed(torch.arange(9), replica=1, replicas=2, prefetch_depth=2)
    take(first, 2)
    second = convoy.Infeed(torch.arange(9), replica=1, replicas=2)
    second.load_state_dict(first.state_dict())

    assert int(second.next()) == int(first.next()) == 5


def test_an_infeed_prepares_no_more_than_its_depth() -> None:
    produced = [threading.Event() for _ in range(100)]

    def elements() -> Iterator[int]:
        for index, event in enumerate(produced):
            event.set()
            yield index

    infeed = convoy.Infeed(elements(), prefetch_depth=2)
    infeed.next()

    assert produced[2].wait(60)  # one used, two waiting
    assert not produced[3].wait(0.5)
    infeed.close()


def test_an_error_of_the_dataset_is_raised_in_the_loop() -> None:
    def elements() -> Iterator[int]:
        yield 1
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        convoy.repeat(2, lambda total, value: total + value, [0], convoy.Infeed(elements()))


def test_the_last_result_replaces_earlier_ones() -> None:
    outfeed = convoy.Outfeed("last")

    enqueue_all(outfeed, [(1, 2), (3, 4)])

    assert outfeed.dequeue() == (3, 4)


def test_the_last_result_never_fills_the_buffer() -> None:
    outfeed = convoy.Outfeed("last", buffer_depth=1)
    writer = threading.Thread(target=enqueue_all, args=(outfeed, [1, 2, 3]), daemon=True)
    writer.start()
    writer.join(60)

    assert not writer.is_alive()
    assert outfeed.dequeue() == 3


def test_one_outfeed_takes_the_results_of_several_loops() -> None:
    outfeed = convoy.Outfeed()
    for start in (0, 10):
        convoy.repeat(1, lambda value: outfeed.enqueue(value) or value, [start])

    assert outfeed.dequeue().tolist() == [0, 10]


def test_a_dequeue_empties_the_outfeed() -> None:
    outfeed = convoy.Outfeed()
    enqueue_all(outfeed, [torch.zeros(3)] * 2)

    assert outfeed.dequeue().shape == (2, 3)
    assert outfeed.dequeue().shape == (0, 3)


def test_results_are_read_in_another_thread_while_the_loop_runs() -> None:
    """With a buffer of one result, the loop cannot end before the first results are read."""
    outfeed, seen = convoy.Outfeed(buffer_depth=1), list[float]()
    reader = threading.Thread(target=lambda: seen.extend(map(float, outfeed.stream())))
    reader.start()

    def body(value: Tensor) -> Tensor:
        outfeed.enqueue(value)
        return value + 1

    convoy.repeat(50, body, [0.0])
    outfeed.close()
    reader.join(60)

    assert seen == list(range(50))


def test_iterating_yields_what_is_available() -> None:
    outfeed = convoy.Outfeed()
    enqueue_all(outfeed, [1, 2, 3])

    assert [int(value) for value in outfeed] == [1, 2, 3]
    assert list(outfeed) == []


def test_a_result_is_a_copy() -> None:
    outfeed, value = convoy.Outfeed(), torch.zeros(2)
    outfeed.enqueue(value)
    value += 1

    assert not outfeed.dequeue().any()


def test_a_benchmark_reports_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    data = (torch.zeros(20, 3, 8, 8), torch.zeros(20, dtype=torch.int64))

    result = convoy.dataset_benchmark(data, 2, 10)

    rows = json.loads(json.dumps(result))["epochs"]
    assert len(rows) == 2 and capsys.readouterr().out.count("epoch") == 2
    for row in rows:
        assert row["elements_processed"] == 10.0
        assert row["total_bytes_processed"] == 10 * (3 * 8 * 8 * 4 + 8)
        assert row["elements_per_second"] == 10 / row["time_elapsed"]
        assert row["bandwidth"] == row["total_bytes_processed"] / (1e9 * row["time_elapsed"])


@pytest.mark.parametrize("value", [None, "no", torch.zeros(2), torch.zeros(0), [True]])
def test_a_condition_that_is_no_bool_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="condition must return"):
        convoy.while_loop(lambda _: value, lambda count: count, [0], maximum_iterations=2)


@pytest.mark.parametrize("value", [np.bool_(False), np.zeros(1), torch.zeros(1, 1), 0])
def test_a_condition_may_be_one_value_of_any_kind(value: Any) -> None:
    assert convoy.while_loop(lambda _: value, lambda count: count + 1, [5]) == 5


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: convoy.repeat(1, None), "body"),  # type: ignore[arg-type]
        (lambda: convoy.while_loop(lambda: True, 5), "body"),  # type: ignore[arg-type]
        (lambda: convoy.while_loop(None, lambda: None), "condition"),  # type: ignore[arg-type]
        (
            lambda: convoy.while_loop(bool, bool, maximum_iterations=1.5),  # type: ignore[arg-type]
            "maximum_iterations",
        ),
        (lambda: convoy.Outfeed(buffer_depth=1.5), "buffer_depth"),  # type: ignore[arg-type]
        (lambda: convoy.dataset_benchmark([1], 1.5, 1), "epochs"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(call: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        call()
