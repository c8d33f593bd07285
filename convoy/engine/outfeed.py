"""Results leave here. The loop does not know who listens."""

from collections.abc import Callable

from convoy.events import Event

Subscriber = Callable[[Event], None]


class Outfeed:
    """Hands each event to every subscriber, in the order they came."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """From now on, tell this one too."""
        self._subscribers.append(subscriber)

    def put(self, event: Event) -> None:
        """Tell everybody."""
        for subscriber in self._subscribers:
            subscriber(event)
