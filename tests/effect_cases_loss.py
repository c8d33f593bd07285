"""Options of loss scaling and of non-finite values that are given in vain."""

from typing import Any

LOSS_IN_VAIN: list[tuple[dict[str, Any], str, str]] = [
    (
        {"initial_loss_scaling": 16.0, "auto_loss_scaling": True, "precision": "16.32"},
        "--initial-loss-scaling",
        "with --auto-loss-scaling: it begins with --loss-scaling",
    ),
    (
        {"auto_loss_scaling": True},
        "--auto-loss-scaling",
        "with --precision 32.32: no gradient has 16 bits",
    ),
    (
        {"on_nonfinite": "skip", "enable_fp_exceptions": True},
        "--on-nonfinite",
        "with --enable-fp-exceptions",
    ),
    ({"max_skipped": 3}, "--max-skipped", "with --on-nonfinite stop"),
]
