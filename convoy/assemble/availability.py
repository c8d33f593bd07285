"""What a plan may ask for and this version cannot carry out."""

from convoy.config.problems import Problem, refuse
from convoy.plan.plan import RunPlan


def refuse_unavailable(plan: RunPlan) -> None:
    """Say so before anything starts; never pretend."""
    topology = plan.topology
    problems = []
    if topology.stages > 1:
        problems.append(Problem("--shards", _text(f"training in {topology.stages} stages")))
    if topology.replicas > 1:
        problems.append(Problem("--replicas", _text(f"training {topology.replicas} replicas")))
    refuse(problems)


def _text(what: str) -> str:
    return f"{what} is not available in this version; `convoy plan` shows what it would be"
