"""A wish to stop, which the loop honors between two updates."""


class StopRequest:
    """Set by a signal handler (so it does nothing but remember), read by the loop."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def ask(self, reason: str) -> None:
        """The first reason stays."""
        if self.reason is None:
            self.reason = reason
