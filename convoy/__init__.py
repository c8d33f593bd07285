"""convoy: image classifiers trained as a convoy of pipeline stages and replicas."""

__version__ = "0.1.0"
