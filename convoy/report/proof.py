"""Results of `convoy prove`: one row per layout, as a table or JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from convoy.planning.topology import Layout
from convoy.report.summary import Summary

TABLE_HEADER = (
    "replicas × stages         schedule     recompute  offload  sharded  workers  weights sha256"
    "   seconds  peak MB per stage    equal"
)


@dataclass(frozen=True)
class Proof:
    """One layout, its result, and its difference from the first layout."""

    layout: Layout
    summary: Summary
    equal: bool
    difference: float  # maximum over all weights
    resumed_from: Layout | None = None  # layout of the checkpoint it resumed

    @property
    def name(self) -> str:
        layouts = (self.resumed_from, self.layout)
        return " → ".join(_shape(layout) for layout in layouts if layout is not None)

    @property
    def is_as_expected(self) -> bool:
        return self.equal or not self.layout.is_bit_exact

    @property
    def result_text(self) -> str:
        if self.equal:
            return "yes"
        word = "no" if self.layout.is_bit_exact else "no (expected with fast reduction)"
        return f"{word}: differs by {self.difference:.1e}"


def format_row(proof: Proof) -> str:
    layout, summary = proof.layout, proof.summary
    schedule = layout.schedule if layout.stages > 1 else "–"
    peaks = " ".join(f"{peak / 1e6:.0f}" for peak in summary.peak_bytes)
    fast = "" if layout.reduction == "exact" else f" {layout.reduction}"
    return (
        f"{proof.name + fast:<26}{schedule:<13}{_yes_or_dash(layout.recompute):<11}"
        f"{_yes_or_dash(layout.offload):<9}{_yes_or_dash(layout.sharding):<9}{layout.workers:<9}"
        f"{(summary.weights_sha256 or '–')[:12]}…  {summary.seconds:>9.1f}  {peaks:<20} "
        f"{proof.result_text}"
    )


def summary_line(proofs: Sequence[Proof]) -> str:
    exact = [proof for proof in proofs if proof.layout.is_bit_exact]
    equal = sum(proof.equal for proof in exact)
    runs = "runs with exact reduction"
    sha = proofs[0].summary.weights_sha256 or "–"
    if equal == len(exact):
        return f"{equal} of {equal} {runs} have bit-identical weights: sha256 {sha}"
    return f"{len(exact) - equal} of {len(exact)} {runs} differ from the first"


def as_json(proofs: Sequence[Proof]) -> dict[str, Any]:
    return {
        "layouts": [_record(proof) for proof in proofs],
        "equal": all(proof.is_as_expected for proof in proofs),
    }


def _record(proof: Proof) -> dict[str, Any]:
    layout, summary = proof.layout, proof.summary
    return {
        "layout": proof.name,
        **asdict(layout),
        "schedule": layout.schedule if layout.stages > 1 else None,
        "resumed_from": None if proof.resumed_from is None else _shape(proof.resumed_from),
        "weights_sha256": summary.weights_sha256,
        "seconds": summary.seconds,
        "peak_bytes": summary.peak_bytes,
        "peak_stash": summary.peak_stash,
        "exact": layout.is_bit_exact,
        "equal": proof.equal,
        "difference": proof.difference,
    }


def _shape(layout: Layout) -> str:
    return f"{layout.replicas} × {layout.stages}"


def _yes_or_dash(chosen: bool) -> str:
    return "yes" if chosen else "–"
