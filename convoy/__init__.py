"""convoy trains image classifiers, distributed over pipeline stages and replicas.

The public Python API. Every name is imported on first use, so `import convoy` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convoy.api.checkpoints import ValidationScore as ValidationScore
    from convoy.api.checkpoints import average as average
    from convoy.api.checkpoints import export as export
    from convoy.api.checkpoints import validate as validate
    from convoy.api.custom_loops import DistributedOptimizer as DistributedOptimizer
    from convoy.api.custom_loops import pipeline as pipeline
    from convoy.api.data_benchmark import dataset_benchmark as dataset_benchmark
    from convoy.api.data_benchmark import infeed_benchmark as infeed_benchmark
    from convoy.api.inference import Prediction as Prediction
    from convoy.api.inference import load as load
    from convoy.api.inference import predict as predict
    from convoy.api.loaders import TrainingLoader as TrainingLoader
    from convoy.api.loaders import create_loader as create_loader
    from convoy.api.plans import Plan as Plan
    from convoy.api.plans import plan as plan
    from convoy.api.runs import Run as Run
    from convoy.api.runs import resume as resume
    from convoy.api.runs import train as train
    from convoy.data.infeed import Infeed as Infeed
    from convoy.engine.loops import repeat as repeat
    from convoy.engine.loops import while_loop as while_loop
    from convoy.engine.outfeed import Outfeed as Outfeed
    from convoy.engine.pipeline import Pipeline as Pipeline
    from convoy.errors import ConvoyError as ConvoyError

__version__ = "0.1.0"

_MODULES = {
    "ValidationScore": "convoy.api.checkpoints",
    "average": "convoy.api.checkpoints",
    "export": "convoy.api.checkpoints",
    "validate": "convoy.api.checkpoints",
    "DistributedOptimizer": "convoy.api.custom_loops",
    "pipeline": "convoy.api.custom_loops",
    "dataset_benchmark": "convoy.api.data_benchmark",
    "infeed_benchmark": "convoy.api.data_benchmark",
    "Prediction": "convoy.api.inference",
    "load": "convoy.api.inference",
    "predict": "convoy.api.inference",
    "TrainingLoader": "convoy.api.loaders",
    "create_loader": "convoy.api.loaders",
    "Plan": "convoy.api.plans",
    "plan": "convoy.api.plans",
    "Run": "convoy.api.runs",
    "resume": "convoy.api.runs",
    "train": "convoy.api.runs",
    "Infeed": "convoy.data.infeed",
    "repeat": "convoy.engine.loops",
    "while_loop": "convoy.engine.loops",
    "Outfeed": "convoy.engine.outfeed",
    "Pipeline": "convoy.engine.pipeline",
    "ConvoyError": "convoy.errors",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'convoy' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
