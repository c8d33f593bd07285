"""Stages that the user defines: functions or modules from tensors to tensors, for `pipeline`.

The outputs of a stage are the arguments of the next one: a tensor or a tuple as positional
arguments, a dictionary as keyword arguments.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from convoy.batch import Bundle
from convoy.layers.modules import sequential_layers
from convoy.parallel.channels import TensorSpec
from convoy.planning.memory import segment_starts
from convoy.rng import key

StageFunction = Callable[..., Any]


class ArgumentForm(NamedTuple):
    """How a bundle is passed to a function: positional arguments, then keyword arguments."""

    positional: int
    keywords: tuple[str, ...] = ()

    def __add__(self, other: object) -> "ArgumentForm":
        assert isinstance(other, ArgumentForm)
        return ArgumentForm(self.positional + other.positional, self.keywords + other.keywords)

    def call(self, function: StageFunction, bundle: Bundle) -> Any:
        keywords = dict(zip(self.keywords, bundle[self.positional :], strict=True))
        return function(*bundle[: self.positional], **keywords)

    def describe(self, bundle: Bundle) -> str:
        names = [f"{name}=" for name in self.keywords]
        prefixes = [""] * self.positional + names
        specs = [f"{tuple(item.shape)} {str(item.dtype).removeprefix('torch.')}" for item in bundle]
        pairs = zip(prefixes, specs, strict=True)
        return ", ".join(prefix + spec for prefix, spec in pairs) or "nothing"


def flatten(value: Any, where: str) -> tuple[Bundle, ArgumentForm]:
    """The tensors of a value, and how they are passed on."""
    match value:
        case None:
            return (), ArgumentForm(0)
        case Tensor():
            return (value,), ArgumentForm(1)
        case dict():
            bundle, form = tuple(value.values()), ArgumentForm(0, tuple(map(str, value)))
        case tuple() | list():
            bundle, form = tuple(value), ArgumentForm(len(value))
        case _:
            bundle, form = (value,), ArgumentForm(1)
    for item in bundle:
        if not isinstance(item, Tensor):
            raise TypeError(
                f"{where} returns a {type(item).__name__}; a stage returns a tensor, or a tuple or "
                "dictionary of tensors"
            )
    return bundle, form


def unflatten(bundle: Bundle, form: ArgumentForm) -> Any:
    """A value with these tensors."""
    if form.keywords:
        return dict(zip(form.keywords, bundle, strict=True))
    return bundle[0] if form.positional == 1 else bundle


@dataclass(frozen=True)
class StageNode:
    """A stage, or one of several concurrent stages, and the process or device that runs it."""

    index: int  # of the stage; concurrent stages have the same one
    branch: int
    branches: int
    function: StageFunction
    device: int

    @property
    def name(self) -> str:
        letter = chr(ord("a") + self.branch) if self.branches > 1 else ""
        return f"stage {self.index}{letter}"


def modules_of(function: StageFunction) -> list[nn.Module]:
    """The modules that a stage uses: itself, or those that a function or an object refers to."""
    return list(dict.fromkeys(_modules_in(function, set())))


def _modules_in(value: Any, seen: set[int]) -> Iterator[nn.Module]:
    """Follow containers, functions, methods and attributes of callable objects; each one once."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield value
        return
    for item in _referenced(value):
        yield from _modules_in(item, seen)


def _referenced(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return [*value.values()]
        case list() | tuple():
            return value
        case partial():
            return [value.func, value.args, value.keywords]
    if inspect.ismethod(value):
        return [value.__self__, *_attributes(value.__self__), value.__func__]
    if inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        return [*variables.nonlocals.values(), *_own_values(variables.globals)]
    return _attributes(value) if callable(value) and not isinstance(value, type) else []


def _attributes(value: Any) -> list[Any]:
    if inspect.isbuiltin(value) or inspect.ismodule(value):
        return []
    try:
        return [*vars(value).values()]
    except TypeError:  # an object without a dictionary
        return []


def _own_values(variables: Mapping[str, Any]) -> list[Any]:
    """Values of global variables, without the functions of torch."""
    return [
        value
        for value in variables.values()
        if not (inspect.isfunction(value) and value.__module__.startswith("torch."))
    ]


@dataclass(frozen=True)
class StageTrace:
    """What one micro-batch shows of a stage, all its branches together."""

    inputs: tuple[TensorSpec, ...]
    inputs_with_gradients: tuple[int, ...]
    form: ArgumentForm  # of its arguments
    outputs: tuple[tuple[TensorSpec, ...], ...]  # of each branch
    used: tuple[tuple[Tensor, ...], ...]  # parameters and buffers that each branch uses


@dataclass(frozen=True)
class PipelineTrace:
    stages: tuple[StageTrace, ...]
    output_form: ArgumentForm
    last_outputs: Bundle


class StageModule(nn.Module):
    """Runs a stage in a pipeline: random numbers depend only on the update and the micro-batch."""

    def __init__(self, node: StageNode, trace: StageTrace, segments: Sequence[range]) -> None:
        """`segments` divides a sequential module into parts that are recomputed one at a time;
        without segments, nothing is recomputed."""
        super().__init__()
        self.node = node
        self.form = trace.form
        self.output_specs = trace.outputs[node.branch]
        used = set(trace.used[node.branch])
        parents = nn.ModuleList(modules_of(node.function))
        self.used = nn.ModuleList(
            module for module in parents.modules() if not used.isdisjoint(_direct_tensors(module))
        )
        self.segments = segments
        self.seed = torch.initial_seed()
        self.context: Callable[[], AbstractContextManager[None]] = nullcontext  # of forward passes
        self.update, self.micro = 0, 0

    def train(self, mode: bool = True) -> "StageModule":
        """The user decides on the mode of the modules."""
        del mode
        return self

    def start_update(self, update: int, first_micro: int) -> None:
        self.update, self.micro = update, first_micro

    def forward(self, *bundle: Tensor) -> Bundle:
        torch.manual_seed(key(self.seed % 2**63, self.update, self.micro, self.node.name) % 2**63)
        self.micro += 1
        with self.context():
            if not (self.segments and torch.is_grad_enabled()):
                return self._outputs(self.form.call(self.node.function, bundle))
            value: Any = bundle
            for part in self.segments:
                value = self._recompute(part, value)
            return self._outputs(value)

    def _outputs(self, value: Any) -> Bundle:
        outputs = flatten(value, self.node.name)[0]
        specs = tuple(map(_spec, outputs))
        if specs != self.output_specs:
            given, first = _describe_specs(specs), _describe_specs(self.output_specs)
            raise ValueError(
                f"{self.node.name} returned {given}, but {first} for the first micro-batch; all "
                "micro-batches need the same shapes and dtypes"
            )
        return outputs

    def _recompute(self, part: range, value: Any) -> Any:
        """Run a segment whose activations are computed again in the backward pass."""
        arguments = value if part.start == 0 else (value,)
        return checkpoint(
            partial(self._run_segment, part),
            *arguments,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _preserved_buffers(self.used)),
        )

    def _run_segment(self, part: range, *arguments: Tensor) -> Any:
        function = self.node.function
        if not (isinstance(function, nn.Sequential) and len(function)):
            return self.form.call(function, arguments)
        value: Any = self.form.call(function[part.start], arguments)
        for layer in list(function)[part.start + 1 : part.stop]:
            value = layer(value)
        return value


@contextmanager
def _preserved_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore buffers, such as running statistics: a trace or a recomputation must not count."""
    before = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:  # torch stops a recomputation early by an exception
        with torch.no_grad():
            for module, name, buffer, values in before:
                setattr(module, name, buffer.copy_(values))  # a module may have replaced it


def _direct_tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def recomputed_segments(function: StageFunction, checkpoints: Sequence[str]) -> list[range]:
    """The parts of a stage that are recomputed separately: a new one after each checkpoint."""
    if not (isinstance(function, nn.Sequential) and len(function)):
        return [range(1)]
    names = [name for name, _ in sequential_layers(function)]
    return [
        range(*bounds) for bounds in pairwise([*segment_starts(names, checkpoints), len(names)])
    ]


@torch.enable_grad()
def trace_stages(
    stages: Sequence[Sequence[StageNode]],
    arguments: tuple[Bundle, ArgumentForm],
    trained: Iterable[nn.Parameter],
) -> PipelineTrace:
    """Run the forward pass of one micro-batch, and check the rules for stages."""
    parameters = set(trained)
    bundle, form = arguments
    traces: list[StageTrace] = []
    for nodes in stages:
        inputs = tuple(_as_leaf(tensor) for tensor in bundle)
        runs = [_run_branch(node, inputs, form, parameters) for node in nodes]
        with_gradients = tuple(i for i, tensor in enumerate(inputs) if tensor.requires_grad)
        outputs = tuple(tuple(map(_spec, run.outputs)) for run in runs)
        used = tuple(run.used for run in runs)
        specs = tuple(map(_spec, inputs))
        traces.append(StageTrace(specs, with_gradients, form, outputs, used))
        bundle = tuple(tensor for run in runs for tensor in run.outputs)
        form = sum((run.form for run in runs[1:]), runs[0].form)
        if form.positional and form.keywords:
            raise TypeError(
                f"the branches of stage {nodes[0].index} return tuples and dictionaries"
            )
        _check_keywords(nodes[0].index, form)
    return PipelineTrace(tuple(traces), form, bundle)


def _check_keywords(index: int, form: ArgumentForm) -> None:
    names = form.keywords
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(
            f"several branches of stage {index} return {', '.join(sorted(repeated))}; the keys "
            "of the branches must be different"
        )


def _as_leaf(tensor: Tensor) -> Tensor:
    """A stage gets its inputs without their graph."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _describe_specs(specs: Iterable[TensorSpec]) -> str:
    described = (f"{spec.shape} {str(spec.dtype).removeprefix('torch.')}" for spec in specs)
    return ", ".join(described) or "nothing"


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype)


class _BranchRun(NamedTuple):
    outputs: Bundle
    form: ArgumentForm
    used: tuple[Tensor, ...]


def _run_branch(
    node: StageNode, inputs: Bundle, form: ArgumentForm, trained: set[nn.Parameter]
) -> _BranchRun:
    """Run a branch without lasting effects, and record the parameters it uses."""
    _check_arguments(node, inputs, form)
    modules = nn.ModuleList(modules_of(node.function))
    weights = [*modules.parameters(), *trained]
    watch = _TensorWatch(node.name, inputs, weights, [*modules.buffers()])
    try:
        with _preserved_buffers(modules.modules()), torch.random.fork_rng(), watch:
            value = form.call(node.function, inputs)
    except RuntimeError as error:
        if "leaf Variable" not in str(error):
            raise
        # Autograd refuses to change a tensor that requires a gradient before the operation starts.
        raise ValueError(f"{node.name} modifies a parameter or an argument in place") from error
    outputs, output_form = flatten(value, node.name)
    return _BranchRun(outputs, output_form, tuple(watch.used))


def _check_arguments(node: StageNode, inputs: Bundle, form: ArgumentForm) -> None:
    function = node.function.forward if isinstance(node.function, nn.Module) else node.function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*[None] * form.positional, **dict.fromkeys(form.keywords))
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        text = f"{node.name} takes ({takes}), but got {form.describe(inputs)}: {error}"
        raise TypeError(text) from error


class _TensorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Records which parameters and buffers operations use.

    It refuses tensors of unknown origin, and changes of parameters and arguments. Tensors are
    recognized by their memory, because autograd replaces tensor objects. No public API of torch
    shows the inputs of all operations.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[Tensor],
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        owned = [*parameters, *buffers]
        self._name = name
        self._known = {_storage(tensor): tensor for tensor in [*arguments, *owned]}  # kept alive
        self._owned = {(_storage(tensor), tensor.storage_offset()): tensor for tensor in owned}
        self._constants = dict.fromkeys(map(_storage, arguments), "an argument")
        self._constants |= dict.fromkeys(map(_storage, parameters), "a parameter")
        for tensor in buffers:
            self._constants.pop(_storage(tensor), None)
        self.used: dict[Tensor, None] = {}

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        keywords = dict(kwargs or {})
        for tensor in _tensors((args, keywords)):
            self._check_origin(function, tensor)
            used = self._owned.get((_storage(tensor), tensor.storage_offset()))
            if used is not None:
                self.used[used] = None
        for tensor in _written_tensors(function, args, keywords):
            if what := self._constants.get(_storage(tensor)):
                raise ValueError(
                    f"{self._name} modifies {what} of shape {tuple(tensor.shape)}; only the "
                    "optimizer may change parameters, after the micro-batches"
                )
        result = function(*args, **keywords)
        for tensor in _tensors(result):
            self._known.setdefault(_storage(tensor), tensor)
        return result

    def _check_origin(self, function: Callable[..., Any], tensor: Tensor) -> None:
        is_new = function is torch.ops.aten.lift_fresh.default  # called by torch.tensor
        if not is_new and _storage(tensor) not in self._known:
            raise ValueError(
                f"{self._name} uses a tensor of shape {tuple(tensor.shape)} that is neither an "
                "argument nor a parameter or buffer of a module; pass it through the inputs or "
                "the infeed"
            )


def _written_tensors(
    function: Any, args: Sequence[Any], keywords: Mapping[str, Any]
) -> Iterator[Tensor]:
    """The tensors that an operation modifies in place, according to its schema."""
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[index] if index < len(args) else keywords.get(argument.name))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value
        case dict():
            for item in value.values():
                yield from _tensors(item)
        case tuple() | list():
            for item in value:
                yield from _tensors(item)
