"""Train on your own map-style dataset, with random transforms.

python examples/own_dataset.py

Items are (image, label). A float tensor is used as it is; a PIL image or a uint8 array is
cropped and augmented by convoy. The random numbers of an item depend only on the seed, the epoch
and its index, so a resumed or distributed run sees the same images.
"""

import torch
from torch import Tensor

import convoy


class Stripes(torch.utils.data.Dataset):
    """Horizontal and vertical stripes with noise."""

    classes = ("horizontal", "vertical")

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.targets = [index % 2 for index in range(samples)]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        stripes = (torch.arange(16) // 2 % 2).float().expand(16, 16)
        image = stripes if index % 2 else stripes.T
        return image.expand(3, 16, 16) + 0.5 * torch.randn(3, 16, 16), index % 2


def main(output: str = "runs/own-dataset", **options: object) -> None:
    settings = {"model": "resnet8", "epochs": 1, "micro_batch_size": 16, "lr": 0.05, **options}
    run = convoy.train(data=(Stripes(1024), Stripes(256)), output=output, **settings)
    print(f"top-1 {run.summary.top1:.1%}")
    model = convoy.load(run)
    image, label = Stripes(2)[1]
    predicted = model.classes[model(image[None]).argmax()]
    print(f"{Stripes.classes[label]}: predicted {predicted}")


if __name__ == "__main__":
    main()
