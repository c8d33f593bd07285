"""Options of devices, processes and the pipeline."""

from dataclasses import dataclass

from convoy.config.fields import at_least, one_of, option


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How one copy of the network is spread over devices."""

    shards: int | None = option(
        None, "Pipeline stages; unset follows the splits.", at_least(1, at_most=4096)
    )
    pipeline_splits: tuple[str, ...] = option(
        (), "Layers that begin a new stage; none given: balanced by cost."
    )
    pipeline_schedule: str = option(
        "interleaved",
        "Order of forward and backward work.",
        one_of("grouped", "interleaved", "sequential"),
    )
    device_mapping: tuple[int, ...] = option((), "Device of each stage.", at_least(0), free=True)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where a process computes."""

    device: str = option("auto", "Kind of device.", one_of("auto", "cpu", "cuda", "mps"))
    threads: int = option(
        0,
        "Threads of each process on the CPU; 0 shares the cores. The bits depend on it.",
        at_least(0, at_most=512),
    )
    hosts: int = option(1, "Machines.", at_least(1, at_most=65536), free=True)
    instances: int = option(
        1, "Groups of replicas that share a loader.", at_least(1, at_most=65536), free=True
    )
