"""Joins of the TensorFlow program for stages, memory, checkpoints and logs."""

from typing import Any

from convoy.config.dialects.speech import MEASURES_DATA, Join, Speech
from convoy.config.layers import Setting
from convoy.config.values import WrongType

_ONE_AVERAGE = "a run makes one average; `convoy average` makes others of its checkpoints"


def _pipeline(speech: Speech) -> None:
    """Stages need `--pipeline`. On one device they take turns, and mark what to compute again."""
    asked = speech.take("pipeline")
    splits = speech.value("pipeline_splits", ())
    shards = speech.value("shards", 1)
    was = _under(speech, "shards", 1) > 1 or bool(_under(speech, "pipeline_splits", ()))
    if not was and not (asked and asked.value):
        if shards > 1:
            raise WrongType(f"--shards {shards} needs --pipeline")
        if len(splits) > 1:
            raise WrongType(f"--pipeline-splits {' '.join(splits)} needs --pipeline")
    like = speech.said.get("shards") or asked or speech.said.get("pipeline_splits")
    if asked is not None and shards > 1:
        speech.note(asked, "its stages work at the same time")
    elif asked is not None and not splits:
        speech.drop(asked.source, "there is one stage")
    elif asked is not None:
        speech.note(asked, "its stages take turns")
    if shards == 1 and splits and like is not None:
        _fold(speech, like)


def _fold(speech: Speech, like: Setting) -> None:
    """All stages on one device."""
    order = speech.said.get("pipeline_schedule")
    if order is not None and order.value != "sequential":
        speech.drop(order.source, "stages on one device take turns")
    speech.put("shards", 1, like)
    speech.put("pipeline_schedule", "sequential", like)


def _under(speech: Speech, name: str, default: Any) -> Any:
    """What the named configuration alone says."""
    under = speech.under.get(name)
    return default if under is None or under.value is None else under.value


def shards_become_replicas(speech: Speech) -> None:
    """Validation runs no pipeline: each device holds a whole copy."""
    shards = speech.value("shards", 1)
    like = speech.said.get("shards") or speech.under.get("shards")
    if shards > 1 and like is not None:
        if "replicas" not in speech.launched:
            each = speech.said.get("replicas")
            speech.put("replicas", speech.value("replicas", 1) * shards, like, each)
        speech.put("shards", 1, like)
    for name in ("pipeline", "pipeline_splits", "pipeline_schedule"):
        if (said := speech.take(name)) is not None:
            speech.drop(said.source, "validation runs no pipeline")
    if "pipeline_splits" in speech.under:
        speech.put("pipeline_splits", (), speech.under["pipeline_splits"])
    _one_proportion(speech)


def _one_proportion(speech: Speech) -> None:
    """Of many that were meant for stages, the first."""
    of_stages = speech.under.get("available_memory_proportion")
    if "proportions" not in speech.said and of_stages is not None and len(of_stages.value) > 1:
        speech.put("available_memory_proportion", of_stages.value[:1], of_stages)
    elif "proportions" in speech.said:
        said = speech.said["proportions"]
        speech.said["proportions"] = Setting(said.value[:1], said.source)


def _proportions(speech: Speech) -> None:
    """One for all, or two a stage: of convolutions, which is the one that counts here, and
    of products."""
    found = speech.take("proportions")
    if found is None:
        return
    shards, given = speech.value("shards", 1), len(found.value)
    if given not in (1, 2 * shards):
        raise WrongType(
            f"--available-memory-proportion takes 1 value, or 2 for each of {shards} "
            f"shards ({2 * shards}), got {given}"
        )
    speech.put("available_memory_proportion", found.value[::2], found)


def _averages(speech: Speech) -> None:
    """There N are epochs back from the end; here the checkpoints from then on, both ends too."""
    mean, decay = speech.take("mean_of"), speech.take("average_decay")
    discard = speech.take("discard_last")
    if discard is not None and discard.value:
        raise WrongType("--discard-last is not available in this version; leave it out")
    if discard is not None:
        speech.note(discard, "no checkpoint is left out")
    if decay is not None:
        speech.put("weight_avg_strategy", "exponential", decay)
        speech.put("weight_avg_exp_decay", decay.value[0], decay)
    elif mean is not None:
        speech.put("weight_avg_strategy", "mean", mean)
        speech.put("weight_avg_n", _checkpoints_back(speech, mean.value[0]) + 1, mean)
    for word, rest in (
        ("--weight-avg-exp", decay.value[1:] if decay else ()),
        ("--weight-avg-N", (mean.value if decay else mean.value[1:]) if mean else ()),
    ):
        if rest:
            speech.drop(" ".join([word, *map(str, rest)]), _ONE_AVERAGE)


def _checkpoints_back(speech: Speech, epochs: int) -> int:
    every = speech.value("epochs_per_ckpt", 0)
    per_epoch: int = speech.value("ckpts_per_epoch", 1)
    return epochs // every if every else epochs * per_epoch


def _validation(speech: Speech) -> None:
    on = speech.take("validates")
    if on is not None:
        speech.put("validation_mode", "after" if on.value else "none", on)


def _profile(speech: Speech) -> None:
    level = speech.take("profile_level")
    if level is not None and "profile" in speech.said:
        speech.drop(level.source, "--profile says it")
    elif level is not None:
        speech.put("profile", level.value != "NO_PROFILE", level)


def _workers(speech: Speech) -> None:
    """The workers of TF_CONFIG are instances, and `--replicas` are those of each."""
    many = speech.take("distributed")
    if many is not None and "instances" in speech.said:
        speech.note(many, "its workers are instances")
    elif many is not None:
        speech.drop("--distributed", "there is no TF_CONFIG with other workers")


def _benchmark(speech: Speech) -> None:
    """Another verb comes of it, which only a command line can choose."""
    asked = speech.take("dataset_benchmark")
    if asked is None or not asked.value:
        return
    if not asked.source.startswith("--"):
        raise WrongType("--dataset-benchmark belongs on the command line, not into a file")
    speech.note(asked, MEASURES_DATA)


JOINS: tuple[Join, ...] = (
    _workers,
    _pipeline,
    _proportions,
    _averages,
    _validation,
    _profile,
    _benchmark,
)
