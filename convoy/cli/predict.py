"""convoy predict"""

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.cli.args import TARGET_HELP, make_parser, parse_command, too_small_problems
from convoy.cli.output import print_exception
from convoy.config.command_line import ConfigArgumentParser
from convoy.config.schema import option_table, raise_problems
from convoy.errors import ConfigError, DataError, ExitCode
from convoy.report.format import format_percent
from convoy.report.progress import make_bar
from convoy.text import one_line

if TYPE_CHECKING:
    from convoy.api.inference import Prediction

DESCRIPTION = """\
Predict the classes of images with the newest valid checkpoint of a run, or with a checkpoint.
IMAGE is a file, a folder (all images in it, at any depth), a pattern such as 'photos/*.jpg', or -
to read paths from stdin, one per line. An image that cannot be read is reported, and the exit code
is then 3."""

SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"}
_MIN_FOR_PROGRESS = 100  # images
_MAX_NAME = 48  # characters of a path in the table


def main(argv: list[str]) -> int:
    """Print one line for each image, or all of them as JSON or CSV."""
    args = parse_command(_make_parser(), argv)
    raise_problems(too_small_problems(args, "top_k", "batch_size"))
    if args.json and args.csv:
        raise ConfigError("--json and --csv are mutually exclusive; use one")
    paths = [path for word in args.images for path in find_images(word)]
    if not paths:
        raise ConfigError("no images; specify files or folders, or - to read paths from stdin")
    if args.sheet is not None:
        from convoy.files import check_output

        check_output(Path(args.sheet), args.overwrite)
    from convoy.api.inference import load, predict_batches

    model = load(args.source, model=args.model, device=args.device)
    predictions: list[Prediction] = []
    with closing(make_bar(sys.stderr, "predicting", "images")) as progress:
        results = predict_batches(model, paths, args.top_k, args.batch_size)
        for done, result in enumerate(results, start=1):
            if isinstance(result, DataError):
                print_exception(result)
            else:
                predictions.append(result)
            if len(paths) >= _MIN_FOR_PROGRESS:
                progress(done, len(paths))
    _print_predictions(predictions, args.json, args.csv)
    if args.sheet is not None and model.transform is not None:
        from convoy.run.contact_sheet import write_predictions

        captions = [f"{100 * row.probabilities[0]:.0f} % {row.label}" for row in predictions]
        pixels = [model.transform.pixels(row.image) for row in predictions]
        write_predictions(Path(args.sheet), pixels, captions)
    return ExitCode.DONE if len(predictions) == len(paths) else ExitCode.DATA


def find_images(word: str) -> Iterator[str]:
    """The paths that an argument names; raise ConfigError if there are none."""
    if word == "-":
        yield from (line for line in map(str.rstrip, sys.stdin) if line)
        return
    path = Path(word)
    if path.is_dir():
        images = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        if not images:
            raise ConfigError(f"{path} contains no image ({', '.join(sorted(SUFFIXES))})")
        yield from map(str, images)
    elif has_magic(word) and not path.exists():
        matches = sorted(glob(word, recursive=True))  # noqa: PTH207 - may be absolute
        if not matches:
            raise ConfigError(f"no file matches {word}")
        yield from matches
    else:
        yield word  # a missing file is reported like a damaged one


def _print_predictions(predictions: "list[Prediction]", as_json: bool, as_csv: bool) -> None:
    if as_json:
        print(json.dumps([_to_json(row) for row in predictions], indent=1))
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(["image", "rank", "class", "probability"])
        for row in predictions:
            pairs = zip(row.classes, row.probabilities, strict=True)
            for rank, (name, probability) in enumerate(pairs, start=1):
                writer.writerow([row.image, rank, name, f"{probability:.6f}"])
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        column = max((min(len(row.image), _MAX_NAME) for row in predictions), default=0)
        for row in predictions:
            print(_format_row(row, column, width))


def _to_json(row: "Prediction") -> dict[str, Any]:
    pairs = zip(row.classes, row.probabilities, strict=True)
    return {
        "image": row.image,
        "classes": [{"name": name, "probability": probability} for name, probability in pairs],
    }


def _format_row(row: "Prediction", column: int, width: int) -> str:
    """The image and as many of its classes as fit; the first one always does."""
    name = one_line(row.image)
    line = (name if len(name) <= column else f"…{name[1 - column :]}").ljust(column)
    for index, (label, probability) in enumerate(zip(row.classes, row.probabilities, strict=True)):
        cell = f"  {one_line(label)} {format_percent(probability)}"
        if index and len(line) + len(cell) > width:
            break
        line += cell
    return line


def _make_parser() -> ConfigArgumentParser:
    usage = "convoy predict RUN-or-checkpoint IMAGE… [options]"
    parser = make_parser("predict", DESCRIPTION, usage)
    add = parser.add_argument
    add("source", metavar="RUN-or-checkpoint", help=TARGET_HELP)
    add("images", metavar="IMAGE", nargs="*", help="file, folder, pattern or -")
    add("--top-k", type=int, default=5, metavar="N", help="number of classes to print [5]")
    add("--batch-size", type=int, default=32, metavar="N", help="images per batch [32]")
    add("--model", metavar="MODULE:FUNCTION", help="your own network, if the run has one")
    devices = option_table()["device"].limit.choices
    add("--device", choices=devices, default="cpu", help="device to run on [cpu]")
    add("--json", action="store_true", help="print the predictions as JSON")
    add("--csv", action="store_true", help="print one line per image and class")
    add("--sheet", metavar="FILE", help="write all images and predictions to a PNG file")
    add("--overwrite", "--override", action="store_true", help="overwrite an existing file")
    return parser
