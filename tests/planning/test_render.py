"""The text output of `convoy plan`: one complete example, and single lines."""

from typing import Any

from convoy.config.resolve import InactiveOption, unavailable_values
from convoy.config.schema import Setting, build_config
from convoy.planning.plan import plan_run
from convoy.planning.render import (
    inactive_as_text,
    plan_as_text,
    sources_as_text,
    unavailable_as_text,
)


def rendered(width: int = 100, **options: Any) -> str:
    return "\n".join(plan_as_text(plan_run(build_config({"model": "resnet8", **options})), width))


def test_the_plan_of_two_stages_as_text():
    assert rendered(shards=2, gradient_accumulation=4, warmup_epoch=1) == (
        """\
network        resnet8, 75,290 parameters, 12.2 M multiply-adds per 32 × 32 image
data           shapes, 8,000 samples, 10 classes
batch          micro-batch size 32 × gradient accumulation 4 × 1 replica = 128 samples per update
length         5 epochs × 62 updates = 310 updates, 39,680 images
precision      32.32, optimizer sgd
learning rate  cosine, starts at 0, peak 0.09045, ends at 2.568e-06
parallelism    1 host, 1 instance, 1 replica × 2 stages = 2 processes
stages         balanced by cost: layer2/0/bn1
recompute      on: a stage stores its input

stage  device  first layer          parameters       cost
    0       0  conv1                     9,744     51.9 %
    1       1  layer2/0/bn1             65,546     48.1 %

memory   weights  gradients  optimizer  activations      total  stash
stage 0  39.0 kB   116.9 kB    39.0 kB      27.0 MB    27.2 MB  7.1 MB for 2 micro-batches
stage 1 262.2 kB   786.6 kB   262.2 kB      16.3 MB    17.6 MB  3.1 MB for 1 micro-batch

0.09045 │          ▃▅▇██▇▇▆▅▅▄▃▂▂▁
        │      ▁▃▆█████████████████▇▆▅▅▄▃▂▁
        │    ▃▆█████████████████████████████▇▆▆▅▄▃▂▁▁
        │ ▃▆██████████████████████████████████████████▇▇▆▅▅▄▄▃▃▂▂▂▁▁▁▁▁▁▁
      0 └────────────────────────────────────────────────────────────────
         epoch 0                                                        5

update    epoch         lr
     0        0          0
    62        1    0.09045
    77  1.24194    0.08553
   154  2.48387    0.05051
   231  3.72581    0.01519
   309  4.98387  2.568e-06

interleaved, 4 micro-batches through 2 stages: 10 half-steps, \
bubble 20.0 % if all stages take equally long
half-step  0   1   2   3   4   5   6   7   8   9
stage 0    F0  –   F1  B0  F2  B1  F3  B2  –   B3
stage 1    –   F0  B0  F1  B1  F2  B2  F3  B3  –"""
    )


def test_the_plan_of_one_device_as_text():
    lines = rendered().splitlines()

    assert "parallelism    1 host, 1 instance, 1 replica × 1 stage = 1 process" in lines
    assert lines[-2:] == ["half-step  0   1", "stage 0    F0  B0"]


def line(label: str, **options: Any) -> str:
    (found,) = [text for text in rendered(**options).splitlines() if text.startswith(label)]
    return found


def test_configured_splits_are_shown():
    text = line("stages", pipeline_splits=("layer2", "fc"), gradient_accumulation=3)

    assert text == "stages         set by --pipeline-splits: layer2/0/conv1 fc"


def test_the_recompute_line_names_the_checkpoints():
    assert (
        line("recompute")
        == "recompute      off: all activations that the backward pass needs are stored"
    )
    assert line("recompute", enable_recompute=True, recompute_checkpoints=("layer1",)) == (
        "recompute      on: a stage stores its input and the outputs of layer1/0/relu"
    )


def test_folded_stages_become_recompute_checkpoints():
    options = {"pipeline_splits": ("layer2",), "shards": 1, "pipeline_schedule": "sequential"}
    folded = "2 stages run as one process on device 0"

    assert line("recompute", **options) == (
        f"recompute      on: {folded}; checkpoints are the outputs of layer1/0/relu"
    )
    assert line("recompute", enable_recompute=False, **options) == (
        f"recompute      off: {folded}, so their boundaries have no effect"
    )


def test_the_replicas_line_shows_reduction_and_shared_statistics():
    assert line("replicas", replicas=4, bn_span=2, norm_type="batch") == (
        "replicas       exact gradient reduction, batch norm synchronized over 2 replicas"
    )
    assert line("replicas", replicas=4, reduction="fast", norm_type="none") == (
        "replicas       fast gradient reduction"
    )
    assert "replicas   " not in rendered()


def test_sharded_and_offloaded_optimizer_state_is_shown():
    lines = rendered(replicas=2, enable_optimizer_rts=True, offload_optimizer=True).splitlines()

    assert "         optimizer state sharded over 2 replicas" in lines
    assert "         optimizer state offloaded between updates: up to 150.6 kB" in lines


def test_a_long_timetable_fits_the_width():
    lines = rendered(width=60, shards=2, gradient_accumulation=64).splitlines()

    assert all(len(line) <= 60 for line in lines[-3:])
    assert "columns" in lines[-3]


def test_a_fraction_of_an_epoch_is_shown():
    assert line("length", epoch=0.5).endswith(
        " 0.5 epochs × 250 updates = 125 updates, 4,000 images"
    )


def test_options_that_were_set_are_listed_before_defaults():
    settings = {
        "lr": Setting(0.1, "default"),
        "updates": Setting(None, "default"),
        "model": Setting("resnet8", "command line"),
        "lr_epoch_decay": Setting((1.0, 2.5), "config tiny"),
        "augment": Setting(True, "default"),
    }
    lines = [line.split(maxsplit=1) for line in sources_as_text(settings)]

    assert [[flag, *rest[0].split("  ")][:2] for flag, *rest in lines] == [
        ["--model", "resnet8"],
        ["--lr-epoch-decay", "1 2.5"],
        ["--lr", "0.1"],
        ["--updates", "–"],
        ["--augment", "true"],
    ]
    assert [rest.split()[-2:] for _, rest in lines[:2]] == [["command", "line"], ["config", "tiny"]]


def test_options_without_effect_are_listed():
    options = [
        InactiveOption("augment", "--augment", "with --data shapes"),
        InactiveOption("reduction", "--reduction", "with one replica"),
    ]

    assert inactive_as_text([]) == []
    assert inactive_as_text(options) == [
        "",
        "no effect      --augment with --data shapes",
        "               --reduction with one replica",
    ]


def test_unavailable_values_are_listed():
    settings = {
        "wandb": Setting(True, "command line"),
        "profile": Setting(True, "config old, line 3"),
        "lr": Setting(0.1, "command line"),
    }

    assert unavailable_as_text([]) == []
    assert unavailable_as_text(unavailable_values(settings)) == [
        "",
        "not available  --wandb true is not available in this version; use --no-wandb",
        "               --profile true is not available in this version (config old, line 3); "
        "use --no-profile",
    ]
