"""Train on a folder of photos, one folder per class, and predict.

python examples/photos.py PHOTOS          PHOTOS contains `train` and `validation`
"""

import sys
from pathlib import Path

import convoy


def main(photos: Path, output: str = "runs/photos", **options: object) -> None:
    settings = {"model": "resnet18", "image_size": 128, "epochs": 2, "lr": 0.02, **options}
    run = convoy.train(data="imagenet", data_dir=photos, output=output, **settings)
    print(f"top-1 {run.summary.top1:.1%} after {run.summary.updates} updates")

    model = convoy.load(run)  # a torch.nn.Module, with its class names and preprocessing
    files = sorted((photos / "validation").rglob("*.*"))[:5]
    for prediction in convoy.predict(model, files, top_k=2):
        likely = zip(prediction.classes, prediction.probabilities, strict=True)
        described = ", ".join(f"{name} {probability:.0%}" for name, probability in likely)
        print(f"{Path(prediction.image).name}: {described}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
