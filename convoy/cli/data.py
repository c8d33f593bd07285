"""convoy data"""

from importlib import import_module

from convoy.cli.arguments import read_plain
from convoy.config.command_line import Parser

ACTIONS = {
    "convert": "class folders, TFRecord and WebDataset shards into each other",
    "verify": "read everything, and list every record that is bad",
    "fetch": "download a data set from its official address, with its checksums",
    "bench": "how fast the images of a run come; with --doctor, what limits it",
    "show": "a picture of samples as training sees them",
}
SAYS = "\n".join(
    [
        "What can be done with data:",
        *(f"  {name:<8} {says}" for name, says in ACTIONS.items()),
        "`convoy data ACTION --help` tells more.",
    ]
)


def main(words: list[str]) -> int:
    """One file an action."""
    own = read_plain("data", words[:1], SAYS, _add_own)
    return int(import_module(f"convoy.cli.data_{own.action}").main(words[1:]))


def _add_own(parser: Parser) -> None:
    parser.add_argument("action", choices=list(ACTIONS))
