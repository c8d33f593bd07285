"""convoy completion"""

from pathlib import Path

from convoy.cli.args import read_plain
from convoy.config.command_line import Parser
from convoy.errors import ExitCode

SAYS = """Print a script that completes verbs, options and their values in a shell. Turn it on with
  bash   convoy completion bash > ~/.local/share/bash-completion/completions/convoy
  zsh    convoy completion zsh > ~/.zfunc/_convoy
  fish   convoy completion fish > ~/.config/fish/completions/convoy.fish
and begin a new shell. In zsh, ~/.zfunc must be in $fpath before compinit is called."""

SCRIPTS = Path(__file__).parent.parent / "completions"
FILES = {"bash": "convoy.bash", "zsh": "_convoy", "fish": "convoy.fish"}


def main(words: list[str]) -> int:
    """The script as it was shipped: it holds every word, and starts no Python."""
    own = read_plain("completion", words, SAYS, _add_own)
    print((SCRIPTS / FILES[own.shell]).read_text(encoding="utf-8"), end="")
    return ExitCode.DONE


def _add_own(parser: Parser) -> None:
    parser.add_argument("shell", choices=list(FILES))
