"""Numbers and counts for people, in a few characters."""

UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def short(number: float) -> str:
    """`172.5 k`, `4.1 G`: three or four digits and a unit."""
    for size, unit in UNITS:
        if number >= 0.99995 * size:  # 999,999 is 1.0 M, not 1000.0 k
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} "


def counted(count: int, word: str) -> str:
    """`1 stage`, `2 stages`, `2 micro-batches`."""
    ending = "es" if word.endswith(("s", "ch")) else "s"
    return f"{count} {word}{ending * (count != 1)}"
