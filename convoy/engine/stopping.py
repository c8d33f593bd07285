"""A wish to stop, which all processes honor together between two updates."""

REASONS = ("limit", "preempted", "interrupted")  # the last that anybody has wins


class StopRequest:
    """Set by a signal handler (so it does nothing but remember), read by the loop."""

    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for the end; a limit was known from the start."""
        return self.reason not in (None, "limit")

    def ask(self, reason: str) -> None:
        """The first reason stays."""
        assert reason in REASONS
        if self.reason is None:
            self.reason = reason
