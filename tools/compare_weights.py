"""Train the same short runs in two checkouts and compare their `weights_sha256`.

    python tools/compare_weights.py ../before .                     every run in both
    python tools/compare_weights.py ../before . --only resume       runs whose name contains a word

For changes that must not change arithmetic. Both checkouts run with this Python and its packages.
Some of the runs need `../shared` (photos, CIFAR-10); without it they are skipped.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

SHARED = Path(__file__).parents[2] / "shared"
SMALL = """--model resnet8 --data shapes --image-size 12 --micro-batch-size 4
    --gradient-accumulation 8 --epoch 1.5 --lr 0.02 --threads 1 --progress none"""
SAMPLES = "--samples 256"  # for generated data
PIPELINE = "--shards 2 --pipeline-schedule"
PHOTOS = "--data imagenet --model resnet18 --image-size 64 --epoch 1"
HALF = "--precision 16.16 --loss-scaling 128"
# Options of a run, in addition to SMALL; the later of two equal options wins.
RUNS = {
    "small": "",
    "grouped": f"{PIPELINE} grouped",
    "interleaved": f"{PIPELINE} interleaved",
    "sequential": f"{PIPELINE} sequential",
    "zero-bubble": f"{PIPELINE} zero-bubble",
    "looped": "--shards 4 --pipeline-schedule looped --stages-per-device 2",
    "recompute": f"{PIPELINE} interleaved --enable-recompute",
    "two replicas": "--replicas 2 --gradient-accumulation 4",
    "fast reduction": "--replicas 2 --gradient-accumulation 4 --reduction fast",
    "sharded state": "--replicas 2 --gradient-accumulation 4 --enable-optimizer-rts",
    "offloaded state": "--offload-optimizer",
    "batch norm over replicas": "--replicas 2 --gradient-accumulation 4 --bn-span 2",
    "stages and replicas": "--shards 2 --replicas 2 --gradient-accumulation 4",
    "sgd_combined": f"--optimizer sgd_combined {HALF}",
    "adamw": "--optimizer adamw --lr 0.001",
    "rmsprop": "--optimizer rmsprop --lr 0.001",
    "rmsprop_tf": "--optimizer rmsprop_tf --lr 0.001",
    "lars": "--optimizer lars --lr 1",
    "16.16": HALF,
    "16.32": "--precision 16.32 --loss-scaling 128",
    "bfloat16": f"{HALF} --half-type bfloat16",
    "stochastic rounding": f"{HALF} --enable-stochastic-rounding",
    "automatic loss scale": f"{HALF} --auto-loss-scaling --enable-stochastic-rounding",
    "loss scale ladder": "--precision 16.32 --initial-loss-scaling 4 --loss-scaling 128",
    "16-bit state": f"{HALF} --optimizer-state-dtype float16",
    "float64 accumulator": "--accumulator-dtype float64",
    "running mean": "--gradient-reduction running-mean",
    "compile": "--compile",
    "half resolution": """--half-res-training --image-size 16 --epoch 2 --fine-tune-epoch 1
        --fine-tune-micro-batch-size 4
        --fine-tune-first-trainable-layer layer2/0 --weight-avg-strategy mean --weight-avg-n 2""",
    "mixup": "--mixup-alpha 0.2",
    "cutmix": "--cutmix-lambda-low 0.2 --cutmix-lambda-high 0.8",
    "ema": "--ema-decay 0.9",
    "weight average": "--epoch 3 --weight-avg-strategy exponential --weight-avg-n 2",
    "label smoothing": "--label-smoothing 0.1 --label-smoothing-over others",
    "cosine": "--lr-schedule cosine --warmup-epoch 0.5",
    "polynomial": "--lr-schedule polynomial",
    "group norm": "--norm-type group --norm-num-groups 4",
    "efficientnet": "--model efficientnet-b0 --image-size 32 --samples 32 --epoch 1",
    "mobilenet": "--model mobilenet-v3-small --image-size 32 --samples 32 --epoch 1",
    "squeezenet": "--model squeezenet --image-size 64 --samples 32 --epoch 1",
    "resnext": "--model resnext50 --image-size 32 --samples 32 --epoch 1",
    "frozen": "--fine-tune-first-trainable-layer layer2/0",
    "generated": "--data generated --num-classes 10",
    "synthetic": "--data synthetic --num-classes 10",
    "loader threads": "--dataloader-worker 2",
    "cifar10": "--data cifar10 --data-dir {cifar} --image-size 32 --dataset-percentage-to-use 1",
    "photos": f"{PHOTOS} --data-dir {{photos}}",
    "photos in processes": f"""{PHOTOS} --data-dir {{photos}} --dataloader-worker 2
        --dataloader-kind processes""",
    "tfrecord": f"{PHOTOS} --data-dir {{tfrecord}}",
    "webdataset": f"{PHOTOS} --data-dir {{webdataset}}",
    "resume after a kill": "--epoch 40 --ckpts-per-epoch 1",
    "resume stages after a kill": f"{PIPELINE} grouped --epoch 40 --ckpts-per-epoch 1",
    "resume 16 bits after a kill": f"{HALF} --auto-loss-scaling --epoch 40 --ckpts-per-epoch 1",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", metavar="WORD", help="runs whose name contains this")
    args = parser.parse_args()
    different = 0
    with TemporaryDirectory(prefix="convoy-compare-") as scratch:
        data = prepare_data(args.after, Path(scratch))
        for number, name in enumerate(name for name in RUNS if args.only in name):
            options = RUNS[name]
            if any("{" + missing + "}" in options for missing in PREPARED - data.keys()):
                print(f"{name:28} skipped: no ../shared", flush=True)
                continue
            samples = "" if "--data-dir" in options else SAMPLES
            words = f"{SMALL} {samples} {options}".format(**data).split()
            folders = [Path(scratch) / f"{number}-{side}" for side in ("before", "after")]
            results = [
                weights_sha256(tree, words, folder, kill="kill" in name)
                for tree, folder in zip((args.before, args.after), folders, strict=True)
            ]
            different += results[0] != results[1]
            result = "equal" if results[0] == results[1] else f"DIFFERENT {results[1]}"
            print(f"{name:28} {results[0][:16]} {result}", flush=True)
    print(f"{different} different")
    return int(different > 0)


PREPARED = {"cifar", "photos", "tfrecord", "webdataset"}


def prepare_data(tree: Path, scratch: Path) -> dict[str, str]:
    """Prepare the datasets of `../shared` in each format."""
    if not SHARED.is_dir():
        return {}
    folders = {name: str(scratch / name) for name in PREPARED}
    script = [sys.executable, str(SHARED / "tools" / "get-cifar10"), folders["cifar"]]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(SHARED / "data" / "photos.tar") as archive:
        archive.extractall(scratch / "photos", filter="data")
    folders["photos"] = str(next((scratch / "photos").rglob("train")).parent)
    for shard_format in ("tfrecord", "webdataset"):
        target = folders[shard_format]
        convoy(tree, "data", "convert", folders["photos"], target, "--to", shard_format)
    return folders


def weights_sha256(tree: Path, words: list[str], folder: Path, kill: bool) -> str:
    """Train without interruption, or kill after the second checkpoint and resume."""
    if kill:
        kill_after_checkpoint(tree, words, folder)
        convoy(tree, "resume", str(folder))
    else:
        convoy(tree, "train", *words, "--checkpoint-output-path", str(folder))
    summaries = sorted(folder.rglob("summary.json"))
    return " ".join(json.loads(path.read_text())["weights_sha256"] for path in summaries)


def kill_after_checkpoint(tree: Path, words: list[str], folder: Path) -> None:
    words = ["train", *words, "--checkpoint-output-path", str(folder)]
    with subprocess.Popen(
        command(words), cwd=tree, env=environment(), stdout=subprocess.DEVNULL, process_group=0
    ) as process:
        while len(list(folder.glob("checkpoints/update-*"))) < 2:
            assert process.poll() is None, "the run ended before it was killed"
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)


def convoy(tree: Path, *words: str) -> None:
    result = subprocess.run(
        command(list(words)), cwd=tree, env=environment(), capture_output=True, text=True
    )
    if result.returncode:
        sys.exit(f"convoy {' '.join(words)} in {tree}:\n{result.stderr}")


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "convoy", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(main())
