"""Fine-tune torchvision weights from a file, with a new head and frozen first layers.

python examples/fine_tune.py

Any file of torchvision or timm weights works in place of the exported one.
"""

from pathlib import Path

import convoy


def main(folder: str = "runs/fine-tune", **options: object) -> None:
    settings = {"model": "resnet8", "image_size": 16, "epochs": 1, "lr": 0.05, **options}
    first = convoy.train(output=f"{folder}/first", **settings)
    weights = Path(folder) / "resnet8.safetensors"
    convoy.export(first, weights)

    tuned = convoy.train(
        output=f"{folder}/tuned",
        data="generated",
        num_classes=4,  # so the head is newly initialized
        pretrained=weights,
        fine_tune_first_trainable_layer="layer3",
        **settings,
    )
    print(f"fine-tuned for {tuned.summary.updates} updates: {tuned.checkpoints[-1]}")


if __name__ == "__main__":
    main()
