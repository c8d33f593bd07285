"""Speech: what was said in a dialect, on its way to the canonical options.

Each spelling leaves a canonical value or a part; the joins of the dialect put the parts together.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convoy.config.layers import Setting
from convoy.config.problems import Dropped, Problem
from convoy.config.values import WrongType

Given = dict[str, Setting]

TARGET = "target"  # the run or checkpoint that a verb works on; no option of a run
MEASURES_DATA = "`convoy data bench`: no training, its data alone"  # what came of such a word


@dataclass(frozen=True)
class Became:
    """A word, and what came of it."""

    word: str
    what: str


@dataclass
class Speech:
    """What has been said so far, above what a named configuration says.

    The source of what was typed is the words themselves, until all is put together.
    """

    said: Given
    under: Mapping[str, Setting] = field(default_factory=dict)
    launched: frozenset[str] = frozenset()  # options that a launcher has decided
    became: list[Became] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def take(self, *names: str) -> Setting | None:
        """The last of these parts that was said; all of them are spent."""
        found = [one for name in names if (one := self.said.pop(name, None)) is not None]
        return found[-1] if found else None

    def put(self, name: str, value: Any, *like: Setting | None) -> None:
        """Set a canonical option because of something that was said."""
        sources = [one.source for one in like if one is not None]
        assert sources, f"nobody has asked for {name}"
        for source in sources:
            self.became.append(Became(source, name))
        self.said[name] = Setting(value, sources[0])

    def fill(self, name: str, value: Any, *like: Setting | None) -> None:
        """The same, unless the option itself was said."""
        if name not in self.said:
            self.put(name, value, *like)

    def note(self, like: Setting, text: str) -> None:
        """Say what a word did that sets no option by itself."""
        self.became.append(Became(like.source, text))

    def value(self, name: str, default: Any = None) -> Any:
        """What an option will be, as far as anybody has said."""
        for layer in (self.said, self.under):
            if name in layer and layer[name].value is not None:
                return layer[name].value
        return default

    def refuse(self, spelling: str, text: str) -> None:
        self.problems.append(Problem(spelling, text))

    def drop(self, word: str, reason: str) -> None:
        self.dropped.append(Dropped(word, reason))


Join = Callable[[Speech], None]  # may raise WrongType, in the words of its dialect


def _copies_of_instances(speech: Speech) -> None:
    """A launcher that starts instances alone gives each of them the replicas that were said."""
    instances = speech.said.get("instances")
    if instances is not None and {"instances"} == speech.launched & {"instances", "replicas"}:
        each = speech.said.get("replicas")
        speech.put("replicas", speech.value("replicas", 1) * instances.value, instances, each)


def put_together(speech: Speech, joins: Iterable[Join], options: Container[str]) -> Given:
    """The canonical settings that come of it; problems and a target are kept in the speech."""
    for join in (_copies_of_instances, *joins):
        try:
            join(speech)
        except WrongType as wrong:
            speech.problems.append(Problem("", str(wrong)))
    settings = {name: one for name, one in speech.said.items() if name in options}
    left = [name for name in speech.said if name not in settings and name != TARGET]
    assert speech.problems or not left, f"no join has taken {left}"
    return settings
