"""What `convoy plan` prints: one example drawn in full, and small words."""

from typing import Any

from convoy.config.schema import build_config
from convoy.config.settings import Setting
from convoy.config.support import InactiveOption, unavailable
from convoy.plan.plan import plan_run
from convoy.plan.printed import (
    effectless_as_text,
    plan_as_text,
    sources_as_text,
    unavailable_as_text,
)


def printed(width: int = 100, **asked: Any) -> str:
    return "\n".join(plan_as_text(plan_run(build_config({"model": "resnet8", **asked})), width))


def test_two_stages_are_printed_as_drawn():
    assert printed(shards=2, gradient_accumulation=4, warmup_epoch=1) == (
        """\
network   resnet8, 75,290 parameters, 12.3 M multiply-adds per 32 × 32 image
data      shapes, 8,000 samples of 10 classes
batch     32 micro × 4 accumulated × 1 replica = 128 samples per update
length    5 epochs × 62 updates = 310 updates, 39,680 images
numbers   32.32; sgd
rate      cosine: 0 at first, 0.09045 at most, 2.568e-06 at last
layout    1 host, 1 instance, 1 replica × 2 stages = 2 processes
stages    balanced by cost: layer2/0/bn1
recompute on: a stage keeps what comes in

stage  device  first layer          parameters       work
    0       0  conv1                     9,744     51.9 %
    1       1  layer2/0/bn1             65,546     48.1 %

memory   weights  gradients  optimizer  activations      total  activations waiting
stage 0  39.0 kB   116.9 kB    39.0 kB      27.0 MB    27.2 MB  7.1 MB in 2 sets
stage 1 262.2 kB   786.6 kB   262.2 kB      16.3 MB    17.6 MB  3.1 MB in 1 set

0.09045 │          ▃▅▇██▇▇▆▅▅▄▃▂▂▁
        │      ▁▃▆█████████████████▇▆▅▅▄▃▂▁
        │    ▃▆█████████████████████████████▇▆▆▅▄▃▂▁▁
        │ ▃▆██████████████████████████████████████████▇▇▆▅▅▄▄▃▃▂▂▂▁▁▁▁▁▁▁
      0 └────────────────────────────────────────────────────────────────
         epoch 0                                                        5

update    epoch       rate
     0        0          0
    62        1    0.09045
    77  1.24194    0.08553
   154  2.48387    0.05051
   231  3.72581    0.01519
   309  4.98387  2.568e-06

interleaved, 4 micro-batches through 2 stages: 10 half-steps, \
20.0 % of the time idle if all stages take equally long
half-step  0   1   2   3   4   5   6   7   8   9
stage 0    F0  –   F1  B0  F2  B1  F3  B2  –   B3
stage 1    –   F0  B0  F1  B1  F2  B2  F3  B3  –"""
    )


def test_one_device_is_printed_by_the_same_words():
    lines = printed().splitlines()

    assert "layout    1 host, 1 instance, 1 replica × 1 stage = 1 process" in lines
    assert lines[-2:] == ["half-step  0   1", "stage 0    F0  B0"]


def line(word: str, **asked: Any) -> str:
    (found,) = [one for one in printed(**asked).splitlines() if one.startswith(word)]
    return found


def test_given_splits_are_told_as_given():
    told = line("stages", pipeline_splits=("layer2", "fc"), gradient_accumulation=3)

    assert told == "stages    as given: layer2/0/conv1 fc"


def test_recomputation_is_told_with_what_it_keeps():
    assert line("recompute") == "recompute off: all that the backward pass needs is kept"
    assert line("recompute", enable_recompute=True, recompute_checkpoints=("layer1",)) == (
        "recompute on: a stage keeps what comes in and the results of layer1/0/relu"
    )


def test_folded_stages_are_told_with_their_recompute_points():
    asked = {"pipeline_splits": ("layer2",), "shards": 1, "pipeline_schedule": "sequential"}
    as_one = "2 stages run as one process on device 0"

    assert line("recompute", **asked) == (
        f"recompute on: {as_one}; recompute points are the results of layer1/0/relu"
    )
    assert line("recompute", enable_recompute=False, **asked) == (
        f"recompute off: {as_one}, and their borders mean nothing"
    )


def test_replicas_are_told_with_their_sum_and_their_statistics():
    assert line("replicas", replicas=4, bn_span=2, norm_type="batch") == (
        "replicas  exact sum of the gradients, batch statistics over 2 replicas"
    )
    assert line("replicas", replicas=4, reduction="fast", norm_type="none") == (
        "replicas  fast sum of the gradients"
    )
    assert "replicas  " not in printed()


def test_where_optimizer_state_lies_is_told():
    lines = printed(replicas=2, enable_optimizer_rts=True, offload_optimizer=True).splitlines()

    assert "         optimizer state divided over 2 replicas" in lines
    assert "         optimizer state off the device between updates: 150.6 kB at most" in lines


def test_a_long_schedule_is_drawn_within_the_width():
    lines = printed(width=60, shards=2, gradient_accumulation=64).splitlines()

    assert all(len(line) <= 60 for line in lines[-3:])
    assert "columns" in lines[-3]


def test_part_of_an_epoch_is_printed():
    assert "length    0.5 epochs × 250 updates = 125 updates, 4,000 images" in printed(epoch=0.5)


def test_sources_begin_with_what_somebody_chose():
    settings = {
        "lr": Setting(0.1, "default"),
        "updates": Setting(None, "default"),
        "model": Setting("resnet8", "command line"),
        "lr_epoch_decay": Setting((1.0, 2.5), "config tiny"),
        "augment": Setting(True, "default"),
    }
    lines = [line.split(maxsplit=1) for line in sources_as_text(settings)]

    assert [[word, *rest[0].split("  ")][:2] for word, *rest in lines] == [
        ["--model", "resnet8"],
        ["--lr-epoch-decay", "1 2.5"],
        ["--lr", "0.1"],
        ["--updates", "–"],
        ["--augment", "true"],
    ]
    assert [rest.split()[-2:] for _, rest in lines[:2]] == [["command", "line"], ["config", "tiny"]]


def test_options_without_effect_stand_in_a_block_of_their_own():
    options = [
        InactiveOption("augment", "with --data shapes"),
        InactiveOption("reduction", "with one replica"),
    ]

    assert effectless_as_text([]) == []
    assert effectless_as_text(options) == [
        "",
        "no effect --augment with --data shapes",
        "          --reduction with one replica",
    ]


def test_values_that_a_run_would_refuse_stand_in_a_block_of_their_own():
    given = {
        "wandb": Setting(True, "command line"),
        "profile": Setting(True, "config old, line 3"),
        "lr": Setting(0.1, "command line"),
    }

    assert unavailable_as_text([]) == []
    assert unavailable_as_text(unavailable(given)) == [
        "",
        "not yet   --wandb true is not available in this version; use --no-wandb",
        "          --profile true is not available in this version (config old, line 3); "
        "use --no-profile",
    ]
