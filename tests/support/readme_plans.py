"""The expected plan of each line of `support/readme_commands.py`, in the same order.

They are computed by hand from the documented defaults and formulas of the three applications:
TensorFlow: batch = micro × accumulated × replicas of all instances; rate = 2^N × batch, where N is
-8 for SGD and -11 for momentum (EfficientNet: -7 for SGD, -14 for RMSprop; CIFAR: -6). ImageNet has
micro-batches of 4 and 100 epochs (ResNeXt 1, EfficientNet 4 and 350), CIFAR of 32.
PyTorch: rate = --lr, 0.01; micro-batches of 1, 10 epochs.
PopART: batch = --batch-size × accumulated; rate = 2^N × --batch-size, N is -6; 30 epochs.
"""

from typing import NamedTuple


class Figures(NamedTuple):
    """The main numbers of a run."""

    model: str
    data: str
    batch: int  # samples per update
    stages: int
    replicas: int
    rate: float  # without warm-up
    epochs: float


PLANS: list[Figures | None] = [
    Figures("resnet18", "imagenet", 4, 1, 1, 2**-6, 100),  # 2^-8 × 4
    None,  # restore.py uses the options of the run
    Figures("resnet50", "imagenet", 8, 1, 1, 2**-5, 100),  # 2^-8 × 8
    Figures("resnet50", "imagenet", 1024, 2, 4, 4, 100),  # 2 × 128 × 4; SGD: 2^-8 × 1024
    Figures("resnet50", "imagenet", 1024, 1, 16, 0.5, 65),  # 8 × 8 × 16; 2^-11 × 1024
    Figures("resnet50", "imagenet", 1, 1, 1, 2**-8, 100),  # 2^-8 × 1
    Figures("resnet50", "imagenet", 1024, 4, 4, 0.5, 65),  # 4 × 64 × 4; 2^-11 × 1024
    Figures("resnext101", "imagenet", 768, 2, 8, 0.375, 120),  # 6 × 16 × 8; 2^-11 × 768
    Figures("efficientnet-b0", "imagenet", 512, 4, 1, 2**-5, 350),  # 4 × 128; 2^-14 × 512
    Figures("efficientnet-b0", "imagenet", 512, 4, 1, 2**-5, 350),  # 8 × 64; 2^-14 × 512
    Figures("efficientnet-b0", "generated", 8, 1, 1, 2**-4, 350),  # SGD: 2^-7 × 8
    None,  # my_config is defined by the user
    None,
    Figures("resnet50", "imagenet", 1024, 1, 16, 0.5, 65),  # 8 × 8 × 16; 2^-11 × 1024
    Figures("resnet50", "imagenet", 1024, 1, 16, 0.5, 65),  # the same without a run
    None,  # an option without its value
    # Each of 16 replicas has one stage: 16 × 256 × 16; 2^-13 × 65536.
    Figures("resnet50", "imagenet", 65536, 1, 16, 8, 100),
    Figures("resnet50", "imagenet", 16384, 4, 16, 2, 100),  # 16 × 64 × 16; 2^-13 × 16384
    # All stages are on one device: 16 × 64 × 64; 2^-13 × 65536.
    Figures("resnet50", "imagenet", 65536, 1, 64, 8, 100),
    None,  # Python without a program
    Figures("resnet50", "imagenet", 1024, 4, 4, 0.5, 100),  # 4 × 64 × 4; 2^-11 × 1024
    Figures("resnet8", "cifar10", 32, 1, 1, 0.5, 10),  # 2^-6 × 32
    None,  # help
    Figures("resnet18", "imagenet", 1, 1, 1, 0.01, 10),
    None,  # benchmarks.yml
    None,
    Figures("resnet50", "imagenet", 16416, 1, 16, 2, 100),  # 18 × 57 × 16
    Figures("resnet50", "imagenet", 16416, 1, 16, 2, 100),
    None,  # restore.py, validate.py and weight_avg.py use the options of the run
    None,
    None,
    Figures("resnet50", "imagenet", 16384, 4, 1, 8, 1),  # 16 × 1024; 2^-11 × 16384
    Figures("resnet50", "imagenet", 16384, 4, 4, 8, 1),  # 16 × 256 × 4; 2^-11 × 16384
    Figures("resnext101", "imagenet", 768, 2, 2, 0.375, 2),  # 6 × 64 × 2; 2^-11 × 768
    Figures("resnext101", "imagenet", 768, 2, 8, 0.375, 2),  # 6 × 16 × 8; 2^-11 × 768
    Figures("efficientnet-b4", "imagenet", 200, 4, 1, 200 / 16384, 2),  # 5 × 40; 2^-14 × 200
    Figures("efficientnet-b4", "imagenet", 800, 4, 4, 800 / 16384, 1),  # 5 × 40 × 4; 2^-14 × 800
    Figures("resnet50", "synthetic", 1, 1, 1, 2**-8, 100),
    Figures("resnext101", "synthetic", 1, 1, 1, 2**-8, 100),
    Figures("efficientnet-b0", "synthetic", 1, 1, 1, 2**-7, 350),
    Figures("resnet50", "generated", 4, 1, 4, 2**-6, 100),  # 1 × 4; 2^-8 × 4
    Figures("resnext101", "generated", 8, 1, 4, 2**-5, 100),  # 2 × 4; 2^-8 × 8
    Figures("efficientnet-b0", "generated", 32, 1, 4, 0.25, 350),  # 8 × 4; 2^-7 × 32
    Figures("resnet20", "cifar10", 32, 1, 1, 0.5, 30),  # 2^-6 × 32
    Figures("resnet50", "imagenet", 8, 1, 2, 2**-8, 100),  # 4 × 2 workers; 2^-11 × 8
    Figures("resnet8", "cifar10", 32, 1, 1, 0.5, 10),  # 2^-6 × 32
    Figures("resnet50", "imagenet", 16128, 1, 64, 2, 100),  # 18 × 14 × 64
    Figures("efficientnet-b0", "imagenet", 800, 2, 8, 0.05, 350),  # 20 × 5 × 8
    Figures("efficientnet-b4", "imagenet", 2048, 2, 8, 0.1, 350),  # 4 × 64 × 8
    Figures("mobilenet-v3-small", "imagenet", 1024, 1, 4, 0.52, 360),  # 32 × 8 × 4
    Figures("mobilenet-v3-large", "imagenet", 1024, 4, 4, 0.52, 360),  # 32 × 8 × 4
    Figures("resnet50", "imagenet", 16416, 1, 16, 2, 100),  # 18 × 57 × 16
    # 8 on each of 2 replicas × 8; 4 devices are 2 stages each; 2^-9 × 16, without accumulation.
    Figures("resnext50", "imagenet", 128, 2, 2, 2**-5, 30),
    Figures("resnet50", "cifar10", 8, 1, 1, 0.125, 30),  # 2^-6 × 8
]
