"""What is asked for is what is built: no option stops at the plan."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.assemble import passage
from convoy.assemble.judging import make_judge
from convoy.assemble.passage import make_replicas
from convoy.assemble.post import Post, posted
from convoy.assemble.start import Start
from convoy.assemble.state import _record
from convoy.assemble.training import Material, TrainingRun
from convoy.config.schema import build_config
from convoy.data.generated import Generated
from convoy.engine.meter import Totals
from convoy.engine.outfeed import Outfeed
from convoy.engine.update import Holding
from convoy.engine.verdict import Policy, Record
from convoy.errors import CheckpointError
from convoy.launch.world import World
from convoy.numerics.kinds import Kind
from convoy.numerics.loss_scale import Tally
from convoy.numerics.types import FLOAT16, NumberType
from convoy.optim.homes import Resident
from convoy.parallel.exact import ExactReplicas
from convoy.parallel.group import Group
from convoy.parallel.optimizer_state import MappedFile, gatherer
from convoy.parallel.recompute import Recomputing
from convoy.parallel.replicas import FastReplicas, Meeting, Together
from convoy.plan.loss_scale import LossScalePlan
from convoy.plan.plan import plan_run


def post_of(**values: Any) -> Post:
    asked = {"model": "resnet8", "data": "generated", "image_size": 12, "threads": 1}
    with posted(World.alone(), plan_run(build_config(asked | values))) as post:
        return post


def run_of(folder: Path, **values: Any) -> TrainingRun:
    material = Material(Generated(64, 12, 10, 0), None, {})
    return TrainingRun(post_of(**values), material, Outfeed(), folder)


def test_a_plain_run_has_nothing_special(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (holding,) = run.holdings

    assert isinstance(holding.optimizer.home, Resident)
    assert run.network.runs == run.network.slices


def test_given_weights_are_all_that_a_run_takes_over(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    given = {name: torch.full_like(one, 0.25) for name, one in run.network.tensors().items()}
    run.begin_at(Start(0, str(tmp_path), weights=given))
    found = run.network.tensors()
    state = run.holdings[0].optimizer.named_state(gatherer(run.replicas, 0))

    assert any(name.endswith(".running_var") for name in given)
    assert all(torch.equal(found[name], one) for name, one in given.items())
    assert not any(bool(one.any()) for one in state.values())
    assert (run.trainer.meter.totals(), run.validated) == (Totals(), None)


def test_offloaded_state_lies_in_a_file(tmp_path: Path) -> None:
    (holding,) = run_of(tmp_path, offload_optimizer=True).holdings

    assert isinstance(holding.optimizer.home, MappedFile)
    assert holding.optimizer.home.folder == tmp_path


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
def test_gradients_are_summed_in_the_type_that_was_asked_for(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, accumulator_dtype=name)
    gradients = run.holdings[0].gradients
    for weight in run.network.slice.parameters():
        weight.grad = torch.ones_like(weight)
    gradients.collect()

    assert {str(node.vector.dtype) for node in gradients.nodes()} == {f"torch.{name}"}


def test_recomputation_keeps_the_points_that_were_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, enable_recompute=True, recompute_checkpoints=(r"layer\d/0",))
    (frugal,) = run.network.runs

    assert isinstance(frugal, Recomputing)
    assert len(frugal.segments) == 4


@pytest.mark.parametrize(
    ("values", "kind", "meeting"),
    [
        ({}, ExactReplicas, Meeting(False, 10 * 2**20, False)),
        ({"reduction": "fast"}, FastReplicas, Meeting(False, 10 * 2**20, False)),
        ({"enable_optimizer_rts": True}, ExactReplicas, Meeting(True, 10 * 2**20, False)),
        ({"overlap_reduction": True}, ExactReplicas, Meeting(False, 10 * 2**20, True)),
        (
            {"max_cross_replica_buffer_size": 4096},
            ExactReplicas,
            Meeting(False, 4096, False),
        ),
    ],
)
def test_replicas_meet_as_they_were_asked_to(
    values: dict[str, Any],
    kind: type[Together],
    meeting: Meeting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passage, "Peers", lambda group: group)
    post = post_of(**values)
    siblings = Group((0, 1), 0, object())  # type: ignore[arg-type]  # nobody is spoken to here
    made = make_replicas(replace(post, groups=replace(post.groups, siblings=siblings)))

    assert type(made) is kind
    assert made.meeting == meeting


RECORD = {
    "followed": 64.0,
    "before": 32.0,
    "skipped": 3,
    "ceiling": 128.0,
    "calm": 7,
    "in_a_row": 1,
}


def test_a_checkpoint_without_a_loss_scale_is_of_an_older_run() -> None:
    assert _record(None) == Record()


@pytest.mark.parametrize(
    "saved",
    [[], {}, RECORD | {"followed": "64"}, RECORD | {"before": -1.0}, RECORD | {"skipped": 0.5}],
)
def test_a_checkpoint_with_a_broken_loss_scale_is_refused(saved: Any) -> None:
    assert _record(RECORD) == Record(64.0, 32.0, 3, 128.0, 7, 1)
    with pytest.raises(CheckpointError, match=r"no loss scale and skipped updates \(judge\)"):
        _record(saved)


def test_what_is_asked_of_non_finite_values_is_what_rules(tmp_path: Path) -> None:
    plain = run_of(tmp_path).judge
    other = run_of(tmp_path, on_nonfinite="skip", max_skipped=3, loss_scaling=8.0).judge
    watched = run_of(tmp_path, enable_fp_exceptions=True).judge

    assert plain.policy == Policy(skips=False, most=10, watches=False)
    assert (other.policy, other.step(0, float).scale) == (Policy(skips=True, most=3), 8.0)
    assert watched.policy.watches
    assert plain.traps is not None and len(plain.traps.layers) == len(plain.traps.names)


def test_gradients_of_16_bits_are_counted_or_clipped_only_when_asked(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (holding,) = run.holdings
    config = run.plan.config
    clips = replace(config, precision=replace(config.precision, saturate_on_overflow=True))
    follows = replace(run.plan.loop, loss_scale=LossScalePlan(automatic=True))

    make_judge(replace(run.post, plan=replace(run.plan, config=clips)), run.network, [holding])
    assert holding.gradients.on_leaf is None  # of 32 bits
    holding.optimizer.kind = Kind(used=FLOAT16)
    make_judge(run.post, run.network, [holding])
    assert holding.gradients.on_leaf is None
    make_judge(replace(run.post, plan=replace(run.plan, config=clips)), run.network, [holding])
    assert _wishes(holding) == (FLOAT16, False, True)
    make_judge(replace(run.post, plan=replace(run.plan, loop=follows)), run.network, [holding])
    assert _wishes(holding) == (FLOAT16, True, False)


def _wishes(holding: Holding) -> tuple[NumberType, bool, bool]:
    tally = holding.gradients.on_leaf
    assert isinstance(tally, Tally)
    return tally.of, tally.counts, tally.saturates
