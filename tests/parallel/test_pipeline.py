"""A pipeline of one stage: order of micro-batches, gradients and results."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from support.networks import CLASSES, build_slice, images_and_labels, single_stage, small_layers
from torch import Tensor

from convoy.parallel.slice import Slice

PipelineInput = tuple[Tensor, Tensor]


def micro_batches(count: int) -> list[PipelineInput]:
    return [images_and_labels(3, 8, seed) for seed in range(count)]


def keep_gradients() -> None:
    """Leave the gradients in place."""


def test_micro_batches_run_forward_and_backward_in_turn():
    network = build_slice(small_layers())
    seen: list[str] = []

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        seen.append("forward")
        return F.cross_entropy(logits, labels)

    pipeline = single_stage(network, loss, lambda: seen.append("backward"), 3)
    pipeline.run(micro_batches(3))

    assert seen == ["forward", "backward"] * 3


def test_gradients_exist_when_after_backward_is_called():
    network = build_slice(small_layers())
    complete: list[bool] = []

    def collect() -> None:
        complete.append(all(weight.grad is not None for weight in network.parameters()))
        network.zero_grad()

    single_stage(network, F.cross_entropy, collect, 2).run(micro_batches(2))

    assert complete == [True, True]


def test_the_gradients_match_the_mean_loss():
    ours, plain = build_slice(small_layers()), build_slice(small_layers())
    ((images, labels),) = batch = micro_batches(1)
    single_stage(ours, F.cross_entropy, keep_gradients, 1).run(batch)
    F.cross_entropy(plain(images)[0], labels).backward()

    for name, weight in ours.named_weights().items():
        assert weight.grad is not None

        assert torch.equal(weight.grad, plain.named_weights()[name].grad), name


def test_each_micro_batch_has_a_loss_and_correct_predictions():
    network, reference = build_slice(small_layers()), build_slice(small_layers())
    batches = micro_batches(3)
    results = single_stage(network, F.cross_entropy, keep_gradients, 3).run(batches)

    for item, (images, labels) in zip(results, batches, strict=True):
        (logits,) = reference(images)

        assert torch.equal(item.loss, F.cross_entropy(logits, labels).detach())
        assert int(item.correct) == sum(logits.argmax(1).eq(labels).tolist())
        assert item.samples == 3


def test_results_do_not_reference_the_graph():
    (item,) = single_stage(build_slice(small_layers()), F.cross_entropy, keep_gradients, 1).run(
        micro_batches(1)
    )

    assert item.loss.grad_fn is None and item.correct.grad_fn is None


def test_correct_predictions_are_counted():
    images, labels = torch.zeros(4, 3, 8, 8), torch.tensor([2, 2, 1, 2])
    network = build_slice(small_layers())
    head = network.named_weights()["fc.bias"]
    with torch.no_grad():
        network.named_weights()["fc.weight"].zero_()
        head.copy_(torch.eye(CLASSES)[2])
    (item,) = single_stage(network, F.cross_entropy, keep_gradients, 1).run([(images, labels)])

    assert int(item.correct) == 3


def test_a_validated_network_is_set_to_training_mode():
    network: Slice = build_slice(small_layers())
    network.eval()
    single_stage(network, F.cross_entropy, keep_gradients, 1).run(micro_batches(1))

    assert all(module.training for module in network.modules())


def test_micro_batches_are_read_one_at_a_time():
    used: list[int] = []
    done: list[int] = []

    def feed() -> Iterator[PipelineInput]:
        for index, batch in enumerate(micro_batches(3)):
            used.append(index)
            yield batch

    def record() -> None:
        done.append(len(used))

    single_stage(build_slice(small_layers()), F.cross_entropy, record, 3).run(feed())

    assert done == [1, 2, 3]
