"""docs/api.md: the public Python API, from its docstrings."""

import inspect
import re
from typing import Any

import convoy
from convoy import events
from convoy.data.preprocessing import ImageTransform
from convoy.errors import ConvoyError
from convoy.report.summary import Summary
from convoy.run.import_export import ExportResult
from convoy.run.prediction import ImageClassifier

# What functions return, besides the classes of `convoy`.
_RETURNED = (ImageClassifier, ImageTransform, Summary, ExportResult)
# Classes that users create themselves.
_CONSTRUCTED = (convoy.DistributedOptimizer, convoy.Infeed, convoy.Outfeed, convoy.Run)

_HEAD = """# Python API

Train, resume, validate and use networks from Python. The options of `convoy train` are keyword
arguments, and an editor completes them.

```console
$ python examples/own_network.py
```

```python
import convoy

run = convoy.train(model="resnet20", epochs=3, lr=0.05)
print(run.summary.top1, run.metrics["loss"])

model = convoy.load(run)  # a torch.nn.Module with .classes and .transform
print(convoy.predict(model, "photo.jpg"))
```

With `replicas` or `shards`, worker processes start from a script or a notebook cell; the guard `if
__name__ == "__main__"` is not needed. Ctrl-C saves the run and raises `KeyboardInterrupt`; a second
one raises it at once, without saving. Under `torchrun`, each process of the run executes the
script. The folder [examples](../examples) contains a notebook, and scripts for photos, your own
network, your own dataset, fine-tuning, observers and your own loops.

## Your own network and data

`model` takes a `torch.nn.Sequential`, a mapping of named layers, any `torch.nn.Module`, or a
function that returns one. The layers of a `Sequential` or a mapping are the places where a stage
can start, and their names are those of `pipeline_splits`, `recompute_checkpoints` and
`fine_tune_first_trainable_layer`. A module is one stage, unless it has a method `pipeline_layers`
that returns a mapping of its layers. Batch norm and dropout are replaced by convoy's layers, so
that results are bit-identical for every layout; other layers with random numbers or state are
rejected with an error that names them.

`data` takes a pair of map-style datasets, or a function that returns one. Items are (image, label).
A float tensor (3, size, size) is used as it is; a PIL image or a uint8 array is cropped and
augmented like a photo. The global random generators are seeded by (seed, epoch, index) before an
item is read, so that random transforms are the same in every layout and after a resume; for that
reason a process reads one item at a time.

On the command line, `--model package.module:function` and `--data package.module:function` import
such functions. `resume` and `load` do not import code that a run folder names, because the folder
may come from another person: pass the option again. From Python, pass the network
again: `convoy.load(run, model=make_network)`, and likewise for `validate`, `average`, `export` and
`resume`. `load` and `export` do not need the dataset.

## Observers

`observers` are called with every event of a run. An event is one of the dataclasses below. An
observer cannot change the run; one that raises is reported once and removed.
"""

_RETURNED_HEAD = """
## Returned objects

`load` returns an `ImageClassifier`, whose `transform` is an `ImageTransform`; the `summary` of a
run is a `Summary`; `export` returns an `ExportResult`, and `average` the event `Averaged`.
"""


_EVENTS = (
    *(events.Began, events.Updated, events.Reported, events.Validated),
    *(events.Saved, events.Averaged, events.Noticed, events.Ended),
)
_NAMES = {
    "Training": ["train", "resume", "Run"],
    "Checkpoints": ["validate", "ValidationScore", "average", "export"],
    "Inference": ["load", "predict", "Prediction"],
    "Plans and data": ["plan", "Plan", "create_loader", "TrainingLoader"],
    "Your own training loops": [
        *("pipeline", "Pipeline", "DistributedOptimizer"),
        *("repeat", "while_loop", "Infeed", "Outfeed"),
    ],
    "Benchmarks of data loading": ["dataset_benchmark", "infeed_benchmark"],
}
# Methods that loops and pipelines call.
_INTERNAL = {
    "Infeed": {"next", "peek", "skip", "assign"},
    "Outfeed": {"put", "connect"},
}


def api_page() -> str:
    missing = {*convoy.__all__} - {name for names in _NAMES.values() for name in names}
    assert missing == {"__version__", "ConvoyError"}, f"add to a section: {missing}"
    sections = [_HEAD, _events()]
    for title, names in _NAMES.items():
        sections += [f"\n## {title}\n", *(_entry(name, getattr(convoy, name)) for name in names)]
    sections.append(_RETURNED_HEAD)
    sections += [_class(value.__name__, value) for value in _RETURNED]
    return "".join([*sections, _errors()])


def _entry(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return _class(f"convoy.{name}", value)
    text = f"\n### convoy.{name}\n\n"
    return text + f"```text\n{_signature(name, value)}\n```\n\n" + _docstring(value)


def _class(name: str, value: type) -> str:
    call = ""
    if value in _CONSTRUCTED:
        call = f"```text\n{_signature(value.__name__, value)}\n```\n\n"
    return f"\n### {name}\n\n" + call + _docstring(value) + "".join(_members(value))


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    lines, has_star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            lines.append("    *,")
            has_star = True
        has_star |= parameter.kind is parameter.VAR_POSITIONAL
        is_keywords = parameter.kind is parameter.VAR_KEYWORD
        text = f"**{parameter.name}" if is_keywords else str(parameter)
        lines.append(f"    {text},")
    returns = inspect.formatannotation(signature.return_annotation).strip("'")
    end = ")" if inspect.isclass(function) else f") -> {returns}"
    return _shorten("\n".join([f"{name}(", *lines, end]))


def _shorten(signature: str) -> str:
    """Names without their modules, annotations without quotes, and `Event` for all events."""
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", signature)
    text = re.sub(r"(?<=: )'([^']*\|[^']*)'", r"\1", text)
    text = re.sub(r"Optional\[(Literal\[[^]]*\])\]", r"\1 | None", text)
    return text.replace(" | ".join(event.__name__ for event in _EVENTS), "Event")


def _docstring(value: Any) -> str:
    """The docstring, with its sections of arguments as lists."""
    lines: list[str] = []
    is_list = is_paragraph = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line in ("Args:", "Returns:", "Raises:"):
            is_list, is_paragraph = line != "Returns:", line == "Returns:"
            lines += [f"**{line.removesuffix(':').replace('Args', 'Arguments')}**", ""]
        elif is_paragraph:
            lines.append(line.strip())
        elif is_list and line.startswith("        "):
            lines[-1] += f" {line.strip()}"
        elif is_list and line.startswith("    "):
            name, colon, text = line.strip().partition(": ")
            lines.append(f"- `{name}`: {text}" if colon else f"- {name}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _members(value: type) -> list[str]:
    """Properties and methods with a docstring, and the fields of a dataclass."""
    rows = []
    fields = inspect.get_annotations(value) if hasattr(value, "__dataclass_fields__") else {}
    if fields:
        rows.append("\nFields: " + ", ".join(f"`{name}`" for name in fields) + ".\n")
    for name, member in _attributes(value).items():
        is_public = not name.startswith("_") and name not in _INTERNAL.get(value.__name__, ())
        text = inspect.getdoc(member) if is_public else None
        if text and name not in fields:
            call = "()" if inspect.isfunction(member) else ""
            summary = " ".join(text.partition("\n\n")[0].split())
            rows.append(f"\n- `{name}{call}`: {summary}")
    return [*rows, "\n"] if rows else []


def _attributes(value: type) -> dict[str, Any]:
    """Those of the class, and what it inherits from other classes of convoy."""
    classes = [cls for cls in value.__mro__ if cls.__module__.startswith("convoy")]
    return {name: member for cls in reversed(classes) for name, member in vars(cls).items()}


def _events() -> str:
    rows = [
        f"| `{event.__name__}` | {(event.__doc__ or '').splitlines()[0]} | "
        + ", ".join(f"`{name}`" for name in inspect.get_annotations(event))
        + " |\n"
        for event in _EVENTS
    ]
    return "\n| event of `convoy.events` | when | fields |\n|---|---|---|\n" + "".join(rows)


def _errors() -> str:
    rows = [
        f"| `{error.__name__}` | {error.code.value} |\n" for error in ConvoyError.__subclasses__()
    ]
    head = "\n## Errors\n\nAll errors are subclasses of `convoy.ConvoyError`, in `convoy.errors`. "
    tail = "The code is the exit code of the command line.\n\n| error | code |\n|---|---|\n"
    return head + tail + "".join(rows)
