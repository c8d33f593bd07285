"""What a layer computes: its figures, before any tensor exists."""

from dataclasses import dataclass

from convoy.plan.first_weights import First
from convoy.plan.steps import Saves, Shape, Step, group_norm, padding

INDEX = 2  # a position is a 64-bit number: the room of two elements


@dataclass(frozen=True)
class Operation:
    """What all operations have. Each says where it differs."""

    saves = Saves.GIVEN
    in_place = False  # writes its result over what it was given
    is_product = False  # of weights and what it was given
    saves_first = False  # before it begins; products always do

    def shape(self, given: Shape) -> Shape:
        """What it makes."""
        return given

    @property
    def parameters(self) -> int:
        return 0

    def macs(self, given: Shape) -> int:
        """Multiply-adds."""
        del given
        return 0

    def aside(self, made: Shape) -> int:
        """Elements it keeps for its backward pass beside what it was given or made."""
        del made
        return 0

    def work(self, given: Shape) -> int:
        """Elements that its backward pass needs beside the gradient it makes."""
        del given
        return 0

    def steps(self, given: Shape) -> tuple[Step, ...]:
        """What it is to torch; the last step makes what the operation makes."""
        made, first = self.shape(given), self.is_product or self.saves_first
        aside, work = self.aside(made), self.work(given)
        step = Step(made, self.saves, self.in_place, self.is_product, first, aside, work)
        return (step,)

    def problem(self, given: Shape) -> str | None:
        """Why it cannot work on this, if so."""
        if self.every > 1 and given.size == 1:
            return "would shrink an image of 1 × 1 pixels"
        return None

    @property
    def every(self) -> int:
        """Of so many pixels in a row it takes one."""
        return 1


@dataclass(frozen=True)
class Conv(Operation):
    """A convolution whose padding keeps the size: `same` puts the odd pixel at the far end."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    bias: bool = False
    groups: int = 1
    padding: str = "symmetric"
    first: First = First.HE
    is_product = True

    def shape(self, given: Shape) -> Shape:
        return Shape(self.outputs, (given.size - 1) // self.stride + 1)

    @property
    def parameters(self) -> int:
        weights = self.inputs // self.groups * self.outputs * self.kernel**2
        return weights + (self.outputs if self.bias else 0)

    def macs(self, given: Shape) -> int:
        return self.inputs // self.groups * self.kernel**2 * self.shape(given).elements

    def steps(self, given: Shape) -> tuple[Step, ...]:
        whole = super().steps(given)
        pads = self.padding == "same" and self.kernel > 1 and self.stride > 1
        return (padding(given, self.kernel, self.stride), *whole) if pads else whole

    @property
    def every(self) -> int:
        return self.stride


@dataclass(frozen=True)
class Norm(Operation):
    """Normalization with a scale and an offset per channel. `zero` starts the scale at 0."""

    channels: int
    kind: str  # "batch" or "group"
    groups: int
    eps: float
    momentum: float
    zero: bool = False
    scale: bool = True
    offset: bool = True
    strided: bool = False  # channel c belongs to group c mod G
    two_passes: bool = True  # the mean first, then the variance around it
    first_variance: float = 1.0  # of the running statistics

    @property
    def parameters(self) -> int:
        return (self.scale + self.offset) * self.channels

    def macs(self, given: Shape) -> int:
        return given.elements

    def steps(self, given: Shape) -> tuple[Step, ...]:
        if self.kind == "batch":
            return super().steps(given)
        return (*group_norm(given, self.two_passes, self.strided),)


@dataclass(frozen=True)
class Activation(Operation):
    """A function of each element. A rectifier works in place, so it needs no memory of its own."""

    kind: str  # relu, relu6, swish, hard_swish, sigmoid, hard_sigmoid

    @property
    def saves(self) -> Saves:  # type: ignore[override]  # of the kind, not of the class
        return Saves.MADE if self.in_place or self.kind == "sigmoid" else Saves.GIVEN

    @property
    def saves_first(self) -> bool:  # type: ignore[override]  # of the kind, not of the class
        return self.saves is Saves.GIVEN

    @property
    def in_place(self) -> bool:  # type: ignore[override]  # of the kind, not of the class
        return self.kind == "relu"


@dataclass(frozen=True)
class Add(Operation):
    """The main road and the side road meet."""

    saves = Saves.NOTHING


@dataclass(frozen=True)
class Multiply(Operation):
    """The main road, one number a channel, scales the side road."""

    saves = Saves.BOTH
    saves_first = True

    def work(self, given: Shape) -> int:
        return given.elements  # a product that is about to be summed


@dataclass(frozen=True)
class Concat(Operation):
    """The channels of the side road behind those of the main road."""

    added: int
    saves = Saves.NOTHING

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels + self.added, given.size)


@dataclass(frozen=True)
class MaxPool(Operation):
    """3 × 3 windows, stride 2. Padding: symmetric, same, or none."""

    padding: str = "symmetric"

    def shape(self, given: Shape) -> Shape:
        covered = given.size - 3 if self.padding == "none" else given.size - 1
        return Shape(given.channels, covered // 2 + 1)

    def aside(self, made: Shape) -> int:
        return INDEX * made.elements

    def steps(self, given: Shape) -> tuple[Step, ...]:
        whole = super().steps(given)
        return (padding(given, 3, 2), *whole) if self.padding == "same" else whole

    @property
    def every(self) -> int:
        return 2

    def problem(self, given: Shape) -> str | None:
        if self.padding == "none" and given.size < 3:
            return f"needs 3 × 3 pixels and would get {given.size} × {given.size}"
        return super().problem(given)


@dataclass(frozen=True)
class Squeeze(Operation):
    """The mean over the image, which stays an image of one pixel."""

    saves = Saves.NOTHING

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels, 1)


@dataclass(frozen=True)
class GlobalPool(Operation):
    """The mean over the image; what is left is a vector."""

    saves = Saves.NOTHING

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels, 1)


@dataclass(frozen=True)
class Flatten(Operation):
    """An image of one pixel, seen as a vector: the same memory."""

    saves = Saves.NOTHING
    in_place = True


@dataclass(frozen=True)
class PadChannels(Operation):
    """Every `stride`-th pixel, and channels of zeros behind the given ones."""

    stride: int
    added: int
    saves = Saves.NOTHING

    def shape(self, given: Shape) -> Shape:
        return Shape(given.channels + self.added, (given.size - 1) // self.stride + 1)

    def work(self, given: Shape) -> int:
        """Between the two dimensions, whose strides are undone one after the other."""
        between = given.channels * given.size * self.shape(given).size
        return between if self.stride > 1 else 0

    @property
    def every(self) -> int:
        return self.stride


@dataclass(frozen=True)
class Dropout(Operation):
    """Some elements become 0 in training, the others grow by as much."""

    rate: float
    saves = Saves.NOTHING
    saves_first = True

    def aside(self, made: Shape) -> int:
        return made.elements if self.rate else 0


@dataclass(frozen=True)
class DropPath(Operation):
    """Stochastic depth: in training some samples lose this branch, the others' grows by as much."""

    rate: float
    saves = Saves.NOTHING
    saves_first = True

    def aside(self, made: Shape) -> int:
        del made
        return 1 if self.rate else 0


@dataclass(frozen=True)
class Linear(Operation):
    """A fully connected layer with a bias."""

    inputs: int
    outputs: int
    first: First = First.TORCH
    is_product = True

    def shape(self, given: Shape) -> Shape:
        del given
        return Shape(self.outputs, 1)

    @property
    def parameters(self) -> int:
        return (self.inputs + 1) * self.outputs

    def macs(self, given: Shape) -> int:
        del given
        return self.inputs * self.outputs
