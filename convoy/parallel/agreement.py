"""Whether all replicas hold the same weights, from their digests alone. Pure."""

from collections.abc import Sequence

from convoy.errors import NumericError


def check_agreement(digests: Sequence[bytes], ranks: Sequence[int], update: int) -> None:
    """Refuse to go on if some replica's digest differs from what most of them hold."""
    odd = odd_ones(digests)
    if not odd:
        return
    who = "; ".join(f"replica {one} (rank {ranks[one]}): {digests[one].hex()[:12]}…" for one in odd)
    even = next(one for one in range(len(digests)) if one not in odd)
    raise NumericError(
        f"after update {update} the weights are no longer the same everywhere: {who}, but replica "
        f"{even} (rank {ranks[even]}): {digests[even].hex()[:12]}…; nothing was saved since, so "
        "check the memory of that machine and go on from the last checkpoint with `convoy resume`"
    )


def odd_ones(digests: Sequence[bytes]) -> list[int]:
    """Replicas that are not like most; of two equally large camps the one with replica 0 is right.

    Two replicas can only tell that they differ: then the second is named, and the first as well.
    """
    most = max(digests, key=digests.count)  # the first of equals
    return [replica for replica, digest in enumerate(digests) if digest != most]
