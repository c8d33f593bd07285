"""Keys and shapes of published state dicts, written from the layouts of their libraries.

They are independent of the names and tables of convoy.
"""

from collections.abc import Iterator

Keys = dict[str, tuple[int, ...]]
Key = tuple[str, tuple[int, ...]]

# kernel, expanded, out, squeezed; the stride has no effect on shapes
V3_LARGE = [
    [(3, 16, 16, False)],
    [(3, 64, 24, False), (3, 72, 24, False)],
    [(5, 72, 40, True), (5, 120, 40, True), (5, 120, 40, True)],
    [(3, 240, 80, False), (3, 200, 80, False), (3, 184, 80, False), (3, 184, 80, False)],
    [(3, 480, 112, True), (3, 672, 112, True)],
    [(5, 672, 160, True), (5, 960, 160, True), (5, 960, 160, True)],
]
V3_SMALL = [
    [(3, 16, 16, True)],
    [(3, 72, 24, False), (3, 88, 24, False)],
    [(5, 96, 40, True), (5, 240, 40, True), (5, 240, 40, True)],
    [(5, 120, 48, True), (5, 144, 48, True)],
    [(5, 288, 96, True), (5, 576, 96, True), (5, 576, 96, True)],
]
# kernel, expansion, out, repeats of EfficientNet-B0
B0 = [
    (3, 1, 16, 1),
    (3, 6, 24, 2),
    (5, 6, 40, 2),
    (3, 6, 80, 3),
    (5, 6, 112, 3),
    (5, 6, 192, 4),
    (3, 6, 320, 1),
]
# expansion, out, repeats of MobileNet v2
V2 = [(1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)]


def conv(name: str, inputs: int, outputs: int, kernel: int, bias: bool = False) -> Iterator[Key]:
    yield f"{name}.weight", (outputs, inputs, kernel, kernel)
    if bias:
        yield f"{name}.bias", (outputs,)


def linear(name: str, inputs: int, outputs: int) -> Iterator[Key]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def norm(name: str, channels: int) -> Iterator[Key]:
    for word in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.{word}", (channels,)
    yield f"{name}.num_batches_tracked", ()


def make_divisible(channels: float) -> int:
    """The nearest multiple of eight that is at least 90 % of `channels`."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def bottlenecks(blocks: tuple[int, ...], groups: int, width: int) -> Keys:
    """ResNets with bottlenecks in torchvision and timm; `width` is the width per group."""
    return dict(_bottlenecks(blocks, groups, width))


def _bottlenecks(blocks: tuple[int, ...], groups: int, width: int) -> Iterator[Key]:
    yield from (*conv("conv1", 3, 64, 7), *norm("bn1", 64))
    inputs = 64
    for stage, count in enumerate(blocks):
        inner, outputs = 64 * 2**stage * width // 64 * groups, 256 * 2**stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            yield from (*conv(f"{name}.conv1", inputs, inner, 1), *norm(f"{name}.bn1", inner))
            yield from conv(f"{name}.conv2", inner // groups, inner, 3)
            yield from norm(f"{name}.bn2", inner)
            yield from (*conv(f"{name}.conv3", inner, outputs, 1), *norm(f"{name}.bn3", outputs))
            if block == 0:
                yield from conv(f"{name}.downsample.0", inputs, outputs, 1)
                yield from norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    yield from linear("fc", inputs, 1000)


def mobilenet_v2_torchvision() -> Keys:
    return dict(_v2_torchvision())


def _v2_torchvision() -> Iterator[Key]:
    yield from (*conv("features.0.0", 3, 32, 3), *norm("features.0.1", 32))
    inputs, number = 32, 1
    for expansion, outputs, repeats in V2:
        for _ in range(repeats):
            name, inner, part = f"features.{number}.conv", inputs * expansion, 0
            if expansion > 1:
                yield from (*conv(f"{name}.0.0", inputs, inner, 1), *norm(f"{name}.0.1", inner))
                part = 1
            yield from (*conv(f"{name}.{part}.0", 1, inner, 3), *norm(f"{name}.{part}.1", inner))
            yield from conv(f"{name}.{part + 1}", inner, outputs, 1)
            yield from norm(f"{name}.{part + 2}", outputs)
            inputs, number = outputs, number + 1
    yield from (*conv("features.18.0", 320, 1280, 1), *norm("features.18.1", 1280))
    yield from linear("classifier.1", 1280, 1000)


def mobilenet_v2_timm() -> Keys:
    return dict(_v2_timm())


def _v2_timm() -> Iterator[Key]:
    yield from (*conv("conv_stem", 3, 32, 3), *norm("bn1", 32))
    inputs = 32
    for stage, (expansion, outputs, repeats) in enumerate(V2):
        for block in range(repeats):
            name, inner = f"blocks.{stage}.{block}", inputs * expansion
            yield from _timm_block(name, (inputs, inner, outputs, 3, 0))
            inputs = outputs
    yield from (*conv("conv_head", 320, 1280, 1), *norm("bn2", 1280))
    yield from linear("classifier", 1280, 1000)


def _timm_block(name: str, sizes: tuple[int, int, int, int, int]) -> Iterator[Key]:
    """inputs, inner, outputs, kernel, squeezed (0: none)."""
    inputs, inner, outputs, kernel, squeezed = sizes
    expands = inner != inputs
    if expands:
        yield from (*conv(f"{name}.conv_pw", inputs, inner, 1), *norm(f"{name}.bn1", inner))
    yield from conv(f"{name}.conv_dw", 1, inner, kernel)
    yield from norm(f"{name}.bn{2 if expands else 1}", inner)
    if squeezed:
        yield from conv(f"{name}.se.conv_reduce", inner, squeezed, 1, bias=True)
        yield from conv(f"{name}.se.conv_expand", squeezed, inner, 1, bias=True)
    yield from conv(f"{name}.{'conv_pwl' if expands else 'conv_pw'}", inner, outputs, 1)
    yield from norm(f"{name}.bn{3 if expands else 2}", outputs)


def _torchvision_block(name: str, sizes: tuple[int, int, int, int, int]) -> Iterator[Key]:
    inputs, inner, outputs, kernel, squeezed = sizes
    part = 0
    if inner != inputs:
        yield from (*conv(f"{name}.0.0", inputs, inner, 1), *norm(f"{name}.0.1", inner))
        part = 1
    yield from (*conv(f"{name}.{part}.0", 1, inner, kernel), *norm(f"{name}.{part}.1", inner))
    if squeezed:
        part += 1
        yield from conv(f"{name}.{part}.fc1", inner, squeezed, 1, bias=True)
        yield from conv(f"{name}.{part}.fc2", squeezed, inner, 1, bias=True)
    part += 1
    yield from (*conv(f"{name}.{part}.0", inner, outputs, 1), *norm(f"{name}.{part}.1", outputs))


def efficientnet_b0(timm: bool) -> Keys:
    return dict(_efficientnet_b0(timm))


def _efficientnet_b0(timm: bool) -> Iterator[Key]:
    stem, after = ("conv_stem", "bn1") if timm else ("features.0.0", "features.0.1")
    yield from (*conv(stem, 3, 32, 3), *norm(after, 32))
    inputs = 32
    for stage, (kernel, expansion, outputs, repeats) in enumerate(B0):
        for block in range(repeats):
            sizes = (inputs, inputs * expansion, outputs, kernel, inputs // 4)
            if timm:
                yield from _timm_block(f"blocks.{stage}.{block}", sizes)
            else:
                yield from _torchvision_block(f"features.{stage + 1}.{block}.block", sizes)
            inputs = outputs
    head, after = ("conv_head", "bn2") if timm else ("features.8.0", "features.8.1")
    yield from (*conv(head, 320, 1280, 1), *norm(after, 1280))
    yield from linear("classifier" if timm else "classifier.1", 1280, 1000)


def mobilenet_v3(
    stages: list[list[tuple[int, int, int, bool]]], last: tuple[int, int], timm: bool
) -> Keys:
    """`last` are the widths of the last convolution and of the layer before the classifier."""
    return dict(_mobilenet_v3(stages, last, timm))


def _mobilenet_v3(
    stages: list[list[tuple[int, int, int, bool]]], last: tuple[int, int], timm: bool
) -> Iterator[Key]:
    stem, after = ("conv_stem", "bn1") if timm else ("features.0.0", "features.0.1")
    yield from (*conv(stem, 3, 16, 3), *norm(after, 16))
    inputs, number = 16, 1
    for stage, blocks in enumerate(stages):
        for block, (kernel, inner, outputs, squeezes) in enumerate(blocks):
            sizes = (inputs, inner, outputs, kernel, make_divisible(inner / 4) if squeezes else 0)
            if timm:
                yield from _timm_block(f"blocks.{stage}.{block}", sizes)
            else:
                yield from _torchvision_block(f"features.{number}.block", sizes)
            inputs, number = outputs, number + 1
    width, top = last
    if timm:
        yield from conv(f"blocks.{len(stages)}.0.conv", inputs, width, 1)
        yield from norm(f"blocks.{len(stages)}.0.bn1", width)
        yield from (*conv("conv_head", width, top, 1, bias=True), *linear("classifier", top, 1000))
    else:
        yield from conv(f"features.{number}.0", inputs, width, 1)
        yield from norm(f"features.{number}.1", width)
        yield from (*linear("classifier.0", width, top), *linear("classifier.3", top, 1000))


# The model, the library, its keys, and the published number of parameters.
LAYOUTS: list[tuple[str, str, Keys, int]] = [
    ("resnet50", "torchvision", bottlenecks((3, 4, 6, 3), 1, 64), 25_557_032),
    ("resnext50", "torchvision", bottlenecks((3, 4, 6, 3), 32, 4), 25_028_904),
    ("resnext50", "timm", bottlenecks((3, 4, 6, 3), 32, 4), 25_028_904),
    ("mobilenet", "torchvision", mobilenet_v2_torchvision(), 3_504_872),
    ("mobilenet", "timm", mobilenet_v2_timm(), 3_504_872),
    ("efficientnet-b0", "torchvision", efficientnet_b0(timm=False), 5_288_548),
    ("efficientnet-b0", "timm", efficientnet_b0(timm=True), 5_288_548),
    (
        "mobilenet-v3-large-published",
        "torchvision",
        mobilenet_v3(V3_LARGE, (960, 1280), timm=False),
        5_483_032,
    ),
    (
        "mobilenet-v3-large-published",
        "timm",
        mobilenet_v3(V3_LARGE, (960, 1280), timm=True),
        5_483_032,
    ),
    (
        "mobilenet-v3-small-published",
        "torchvision",
        mobilenet_v3(V3_SMALL, (576, 1024), timm=False),
        2_542_856,
    ),
    (
        "mobilenet-v3-small-published",
        "timm",
        mobilenet_v3(V3_SMALL, (576, 1024), timm=True),
        2_542_856,
    ),
]
