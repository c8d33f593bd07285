"""Every option of the plan reaches the training objects."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.config.schema import build_config
from convoy.data.sources.pixel_source import GeneratedSource
from convoy.engine.metrics import Totals
from convoy.engine.step_guard import NonFinitePolicy
from convoy.engine.update import ParameterGroup
from convoy.events import Observers, StopRequest
from convoy.launch.world import World
from convoy.numerics.loss_scale import GradientRangeCounter
from convoy.numerics.precision import FLOAT16, DtypePolicy, FloatFormat
from convoy.optim.optimizer import MmapStorage, StateStorage
from convoy.parallel.process_groups import RankGroup
from convoy.parallel.replicas import (
    ExactReplicas,
    FastReplicas,
    ReduceOptions,
    ReplicaGroup,
)
from convoy.parallel.slice import RecomputedSlice
from convoy.planning.loop import LossScalePlan
from convoy.planning.plan import plan_run
from convoy.run import build as build_module
from convoy.run.build import TrainingParts, build, make_guard, make_replicas
from convoy.run.lifecycle import Lifecycle
from convoy.run.process import ProcessContext, join_run
from convoy.run.starting_point import StartingPoint
from convoy.run.writer import NullWriter


def context_of(**values: Any) -> ProcessContext:
    options = {"model": "resnet8", "data": "generated", "image_size": 12, "threads": 1}
    with join_run(World.single_process(), plan_run(build_config(options | values))) as context:
        return context


def parts_of(folder: Path, **values: Any) -> TrainingParts:
    return build(context_of(**values), GeneratedSource(64, 12, 10, 0), None, folder)


def test_a_run_with_default_options_stores_state_in_memory_and_does_not_recompute(
    tmp_path: Path,
) -> None:
    run = parts_of(tmp_path)
    (group,) = run.groups

    assert type(group.optimizer.storage) is StateStorage
    assert run.network.stage_modules == run.network.slices


def test_a_new_run_loads_nothing_but_the_initial_weights(tmp_path: Path) -> None:
    run = parts_of(tmp_path)
    initial = {
        name: torch.full_like(tensor, 0.25) for name, tensor in run.network.tensors().items()
    }
    lifecycle = Lifecycle(run, {}, NullWriter(), Observers(), StopRequest())
    lifecycle.load(StartingPoint(0, str(tmp_path), weights=initial))
    found = run.network.tensors()
    state = run.groups[0].optimizer.named_state()

    assert any(name.endswith(".running_var") for name in initial)
    assert all(torch.equal(found[name], tensor) for name, tensor in initial.items())
    assert not any(bool(tensor.any()) for tensor in state.values())
    assert (run.trainer.meter.totals(), lifecycle.validated) == (Totals(), None)


def test_offloaded_state_is_stored_in_a_file(tmp_path: Path) -> None:
    (group,) = parts_of(tmp_path, offload_optimizer=True).groups

    assert isinstance(group.optimizer.storage, MmapStorage)
    assert group.optimizer.storage.folder == tmp_path


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
def test_gradients_are_summed_in_the_configured_dtype(tmp_path: Path, name: str) -> None:
    run = parts_of(tmp_path, accumulator_dtype=name)
    gradients = run.groups[0].gradients
    for weight in run.network.slice.parameters():
        weight.grad = torch.ones_like(weight)
    gradients.collect()

    assert {str(node.vector.dtype) for node in gradients.nodes()} == {f"torch.{name}"}


def test_recomputation_stores_the_configured_checkpoints(tmp_path: Path) -> None:
    run = parts_of(tmp_path, enable_recompute=True, recompute_checkpoints=(r"layer\d/0",))
    (module,) = run.network.stage_modules

    assert isinstance(module, RecomputedSlice)
    assert len(module.segments) == 4


@pytest.mark.parametrize(
    ("values", "kind", "reduce_options"),
    [
        ({}, ExactReplicas, ReduceOptions(False, 10 * 2**20, False)),
        ({"reduction": "fast"}, FastReplicas, ReduceOptions(False, 10 * 2**20, False)),
        ({"enable_optimizer_rts": True}, ExactReplicas, ReduceOptions(True, 10 * 2**20, False)),
        ({"overlap_reduction": True}, ExactReplicas, ReduceOptions(False, 10 * 2**20, True)),
        (
            {"max_cross_replica_buffer_size": 4096},
            ExactReplicas,
            ReduceOptions(False, 4096, False),
        ),
    ],
)
def test_replicas_reduce_as_configured(
    values: dict[str, Any],
    kind: type[ReplicaGroup],
    reduce_options: ReduceOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build_module, "PeerGroup", lambda group: group)
    context = context_of(**values)
    peers = RankGroup((0, 1), 0, object())  # type: ignore[arg-type]  # never used
    replicas = make_replicas(replace(context, groups=replace(context.groups, data_parallel=peers)))

    assert type(replicas) is kind
    assert replicas.options == reduce_options


def test_the_non_finite_policy_is_the_configured_one(tmp_path: Path) -> None:
    plain = parts_of(tmp_path).trainer.update_step.guard
    other = parts_of(
        tmp_path, on_nonfinite="skip", max_skipped=3, loss_scaling=8.0
    ).trainer.update_step.guard
    watched = parts_of(tmp_path, enable_fp_exceptions=True).trainer.update_step.guard

    assert plain.policy == NonFinitePolicy(skip=False, max_consecutive_skips=10, watch_layers=False)
    assert (other.policy, other.step_context(0, float).loss_scale) == (
        NonFinitePolicy(skip=True, max_consecutive_skips=3),
        8.0,
    )
    assert watched.policy.watch_layers
    assert plain.traps is not None and len(plain.traps.layers) == len(plain.traps.names)


def test_gradients_of_16_bits_are_counted_or_clipped_only_when_enabled(tmp_path: Path) -> None:
    run = parts_of(tmp_path)
    (group,) = run.groups
    config = run.context.plan.config
    saturating = replace(config, precision=replace(config.precision, saturate_on_overflow=True))
    automatic = replace(run.context.plan.loop, loss_scale=LossScalePlan(automatic=True))

    make_guard(
        replace(run.context, plan=replace(run.context.plan, config=saturating)),
        run.network,
        [group],
    )
    assert group.gradients.gradient_hook is None  # 32-bit gradients
    group.optimizer.policy = DtypePolicy(compute=FLOAT16)
    make_guard(run.context, run.network, [group])
    assert group.gradients.gradient_hook is None
    make_guard(
        replace(run.context, plan=replace(run.context.plan, config=saturating)),
        run.network,
        [group],
    )
    assert _counter_settings(group) == (FLOAT16, False, True)
    make_guard(
        replace(run.context, plan=replace(run.context.plan, loop=automatic)), run.network, [group]
    )
    assert _counter_settings(group) == (FLOAT16, True, False)


def _counter_settings(group: ParameterGroup) -> tuple[FloatFormat, bool, bool]:
    counter = group.gradients.gradient_hook
    assert isinstance(counter, GradientRangeCounter)
    return counter.number_format, counter.count_ranges, counter.saturates
