"""convoy launch"""

from argparse import REMAINDER
from pathlib import Path

from convoy.cli.args import make_parser, parse_command, too_small_problems
from convoy.cli.output import print_note
from convoy.config.command_line import ConfigArgumentParser
from convoy.config.schema import raise_problems

DESCRIPTION = """\
Run a Python script in several processes of this machine, with the environment variables
that torchrun sets. If a process fails, the others are stopped; signals are forwarded. A script that
uses `convoy.pipeline` or `convoy.DistributedOptimizer` also runs unchanged without a launcher, and
under torchrun."""
EXAMPLES = """examples:
  convoy launch --replicas 2 --shards 2 script.py
  convoy launch --replicas 4 script.py --lr 0.1
"""


def main(argv: list[str]) -> int:
    options, words = _split_words(argv)
    args = parse_command(_make_parser(), [*options, *words[:1]])
    raise_problems([*too_small_problems(args, "replicas", "shards", "threads")])
    # Imported after the help is printed, because it imports torch.
    from convoy.run.launch_script import launch_script

    threads = args.threads or 0
    result = launch_script(Path(args.script), words[1:], args.replicas, args.shards, threads)
    for line in result.describe():
        print_note(line)
    return result.code


def _split_words(argv: list[str]) -> tuple[list[str], list[str]]:
    """The options, and the script with its arguments, which may look like options."""
    position = 0
    while position < len(argv) and argv[position].startswith("-"):
        has_value = "=" not in argv[position] and argv[position] not in ("-h", "--help")
        position += 2 if has_value else 1
    return argv[:position], argv[position:]


def _make_parser() -> ConfigArgumentParser:
    usage = "convoy launch [options] SCRIPT [ARGUMENT…]"
    parser = make_parser("launch", DESCRIPTION, usage)
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--replicas", type=int, default=1, metavar="N", help="number of data-parallel replicas [1]")
    shards_help = "number of processes per replica, one per pipeline device [1]"
    add("--shards", type=int, default=1, metavar="N", help=shards_help)
    add("--threads", type=int, metavar="N", help="CPU threads per process [cores / processes]")
    add("script", metavar="SCRIPT", help="the Python file to run")
    rest = add("arguments", nargs=REMAINDER, metavar="ARGUMENT", help="arguments of the script")
    rest.required = False  # in the error for a missing script
    return parser
