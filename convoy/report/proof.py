"""What `convoy prove` found: one row a layout, for people and for programs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from convoy.plan.topology import Layout
from convoy.report.summary import Summary

HEAD = (
    "layout                    schedule     recompute  offload  sharded  workers  weights sha256"
    "   seconds  peak MB per stage    equal"
)


@dataclass(frozen=True)
class Proof:
    """One layout, what it came to, and how far that is from the first one."""

    layout: Layout
    summary: Summary
    equal: bool
    difference: float  # largest one of any weight
    before: Layout | None = None  # the layout that made the checkpoint it went on from

    @property
    def name(self) -> str:
        shape = _shape(self.layout)
        return shape if self.before is None else f"{_shape(self.before)} → {shape}"

    @property
    def holds(self) -> bool:
        return self.equal or not self.layout.exact

    @property
    def verdict(self) -> str:
        if self.equal:
            return "yes"
        word = "no" if self.layout.exact else "no, as documented"
        return f"{word}: differs by {self.difference:.1e}"


def row(proof: Proof) -> str:
    layout, summary = proof.layout, proof.summary
    schedule = layout.schedule if layout.stages > 1 else "–"
    peaks = " ".join(f"{peak / 1e6:.0f}" for peak in summary.peak_bytes)
    fast = "" if layout.reduction == "exact" else f" {layout.reduction}"
    return (
        f"{proof.name + fast:<26}{schedule:<13}{_mark(layout.recompute):<11}"
        f"{_mark(layout.offload):<9}{_mark(layout.sharding):<9}{layout.workers:<9}"
        f"{(summary.weights_sha256 or '–')[:12]}…  {summary.seconds:>9.1f}  {peaks:<20} "
        f"{proof.verdict}"
    )


def closing(proofs: Iterable[Proof]) -> str:
    """All of them in one sentence."""
    every = list(proofs)
    exact = [one for one in every if one.layout.exact]
    equal = sum(one.equal for one in exact)
    sha = every[0].summary.weights_sha256 or "–"
    if equal == len(exact):
        return f"{equal} of {equal} exact layouts have the same weights: sha256 {sha}"
    return f"{len(exact) - equal} of {len(exact)} exact layouts have other weights than the first"


def as_json(proofs: Iterable[Proof]) -> dict[str, Any]:
    every = list(proofs)
    return {"layouts": [_record(one) for one in every], "equal": all(one.holds for one in every)}


def _record(proof: Proof) -> dict[str, Any]:
    layout, summary = proof.layout, proof.summary
    return {
        "layout": proof.name,
        **asdict(layout),
        "schedule": layout.schedule if layout.stages > 1 else None,
        "resumed_from": None if proof.before is None else _shape(proof.before),
        "weights_sha256": summary.weights_sha256,
        "seconds": summary.seconds,
        "peak_bytes": summary.peak_bytes,
        "peak_stash": summary.peak_stash,
        "exact": layout.exact,
        "equal": proof.equal,
        "difference": proof.difference,
    }


def _shape(layout: Layout) -> str:
    return f"{layout.replicas} × {layout.stages}"


def _mark(chosen: bool) -> str:
    return "yes" if chosen else "–"
