"""A training script for folders of images, with the options of timm's train.py.

python examples/train.py photos --model resnet18 --epochs 10 --batch-size 32 --lr 0.05
"""

import argparse

import convoy


def main(argv: list[str] | None = None, **options: object) -> convoy.Run:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", help="contains `train` and `validation`")
    parser.add_argument("--model", default="resnet50")
    for name, default in {"epochs": 10, "batch_size": 32, "lr": 0.05, "mixup": 0.0}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    values = vars(parser.parse_args(argv))
    values["micro_batch_size"] = values.pop("batch_size")
    values["mixup_alpha"] = values.pop("mixup")
    run = convoy.train(data="imagenet", **{**values, **options})
    print(f"top-1 {run.summary.top1:.1%}: {run.checkpoints[-1]}")
    return run


if __name__ == "__main__":
    main()
