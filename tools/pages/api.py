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

Several processes start from a script or a notebook cell alike; `if __name__ == "__main__"` is not
needed. Ctrl-C saves the run and raises `KeyboardInterrupt`; a second one raises it at once, without
saving. Under `torchrun`, the same script is one process of the run. The folder
[examples](../examples) has a script for photos, your own network, your own dataset, fine-tuning and
an observer.

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
such functions. A run does not import them by itself when it is resumed or loaded, because its
folder may come from somebody else: give the option again. From Python, give the network again:
`convoy.load(run, model=make_network)`, and likewise for `validate`, `average`, `export` and
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


def api_page() -> str:
    sections = [_HEAD, _events(), "\n## Functions and classes\n"]
    names = [name for name in convoy.__all__ if name != "__version__"]
    sections += [_entry(name, getattr(convoy, name)) for name in names if name != "ConvoyError"]
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
        text = "**options" if parameter.kind is parameter.VAR_KEYWORD else str(parameter)
        lines.append(f"    {text},")
    returns = inspect.formatannotation(signature.return_annotation).strip("'")
    end = f") -> {returns}" if not inspect.isclass(function) else ")"
    text = "\n".join([f"{name}(", *lines, end])
    return re.sub(r"convoy\.[a-z_.]*\.|os\.", "", text)


def _docstring(value: Any) -> str:
    """The docstring, with its sections of arguments as lists."""
    lines = []
    is_list = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line in ("Args:", "Returns:", "Raises:"):
            is_list = True
            lines += [f"**{line.removesuffix(':').replace('Args', 'Arguments')}**", ""]
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
    for name, member in vars(value).items():
        text = inspect.getdoc(member) if not name.startswith("_") else None
        if text and name not in fields:
            call = "()" if inspect.isfunction(member) else ""
            rows.append(f"\n- `{name}{call}`: {text.splitlines()[0]}")
    return [*rows, "\n"] if rows else []


def _events() -> str:
    classes = [events.Began, events.Updated, events.Reported, events.Validated, events.Saved]
    classes += [events.Averaged, events.Noticed, events.Ended]
    rows = [
        f"| `{event.__name__}` | {(event.__doc__ or '').splitlines()[0]} | "
        + ", ".join(f"`{name}`" for name in inspect.get_annotations(event))
        + " |\n"
        for event in classes
    ]
    return "\n| event of `convoy.events` | when | fields |\n|---|---|---|\n" + "".join(rows)


def _errors() -> str:
    rows = [
        f"| `{error.__name__}` | {error.code.value} |\n" for error in ConvoyError.__subclasses__()
    ]
    head = "\n## Errors\n\nAll errors are subclasses of `convoy.ConvoyError`, in `convoy.errors`. "
    tail = "The code is the exit code of the command line.\n\n| error | code |\n|---|---|\n"
    return head + tail + "".join(rows)
