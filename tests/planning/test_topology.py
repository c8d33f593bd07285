"""Ranks and coordinates of all small layouts, and layouts that are refused."""

from itertools import product

import pytest
from support.sweeps import sweep

from convoy.errors import ConfigError
from convoy.planning.topology import Coordinates, TopologyPlan

LAYOUTS = [
    TopologyPlan(hosts, hosts * per_host, hosts * per_host * per_instance, stages)
    for hosts, per_host, per_instance, stages in product((1, 2, 3), (1, 2), (1, 2, 3), (1, 2, 4))
]


def test_ranks_map_to_replicas_and_stages():
    plan = TopologyPlan(hosts=2, instances=2, replicas=4, stages=2)

    assert [plan.coordinates(rank) for rank in range(plan.processes)] == [
        Coordinates(replica=0, stage=0),
        Coordinates(replica=0, stage=1),
        Coordinates(replica=1, stage=0),
        Coordinates(replica=1, stage=1),
        Coordinates(replica=2, stage=0),
        Coordinates(replica=2, stage=1),
        Coordinates(replica=3, stage=0),
        Coordinates(replica=3, stage=1),
    ]


@sweep("plan", LAYOUTS)
def test_coordinates_are_the_inverse_of_ranks(plan: TopologyPlan):
    coordinates = [plan.coordinates(rank) for rank in range(plan.processes)]

    assert plan.processes == plan.replicas * plan.stages
    assert len(set(coordinates)) == plan.processes
    assert [plan.stage_ranks(item.replica)[item.stage] for item in coordinates] == list(
        range(plan.processes)
    )


@sweep("plan", LAYOUTS)
def test_every_process_is_in_one_pipeline_and_one_data_parallel_group(plan: TopologyPlan):
    pipelines = [plan.stage_ranks(replica) for replica in range(plan.replicas)]
    groups = [plan.replica_ranks(stage) for stage in range(plan.stages)]

    assert sorted(rank for pipeline in pipelines for rank in pipeline) == list(
        range(plan.processes)
    )
    assert sorted(rank for group in groups for rank in group) == list(range(plan.processes))
    assert all(len(set(pipeline) & set(group)) == 1 for pipeline in pipelines for group in groups)


def test_ranks_of_groups_are_in_order():
    plan = TopologyPlan(hosts=1, instances=1, replicas=3, stages=2)

    assert plan.stage_ranks(1) == (2, 3)
    assert plan.replica_ranks(1) == (1, 3, 5)


def test_replicas_that_instances_do_not_divide_are_refused_with_a_fix():
    with pytest.raises(ConfigError) as refused:
        TopologyPlan(hosts=1, instances=4, replicas=6, stages=1)

    assert str(refused.value) == (
        "--instances 4 does not divide --replicas 6; use --instances 3 or 6"
    )


def test_all_uneven_counts_are_reported_together():
    with pytest.raises(ConfigError) as refused:
        TopologyPlan(hosts=2, instances=3, replicas=4, stages=1)

    assert str(refused.value).splitlines() == [
        "--instances 3 does not divide --replicas 4; use --instances 2 or 4",
        "--hosts 2 does not divide --instances 3; use --hosts 1 or 3",
    ]


def test_more_instances_than_replicas_are_refused():
    with pytest.raises(ConfigError, match="--instances 4 does not divide --replicas 2"):
        TopologyPlan(hosts=1, instances=4, replicas=2, stages=1)


def test_each_stage_has_one_device_by_default():
    plan = TopologyPlan(hosts=1, instances=1, replicas=1, stages=4)

    assert plan.device_map() == (0, 1, 2, 3)
    assert plan.device_map((0, 1, 3, 2)) == (0, 1, 3, 2)
    assert plan.device_map((0, 0, 1, 1)) == (0, 0, 1, 1)


def test_a_device_map_of_the_wrong_length_is_refused():
    plan = TopologyPlan(hosts=1, instances=1, replicas=1, stages=4)

    with pytest.raises(ConfigError) as refused:
        plan.device_map((0, 1, 2))

    assert "--device-mapping lists 3 devices for 4 stages" in str(refused.value)


def test_one_stage_has_one_device():
    plan = TopologyPlan(hosts=1, instances=1, replicas=1, stages=1)

    with pytest.raises(ConfigError, match="lists 2 devices for 1 stage; list one"):
        plan.device_map((0, 1))
