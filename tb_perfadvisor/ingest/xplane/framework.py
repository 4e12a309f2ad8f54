"""Which framework wrote a profile, and what it was asked to record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tb_perfadvisor.ingest.xplane.reading import Plane
from tb_perfadvisor.trace import Framework

_PYTORCH: Final = re.compile(
    r"SyncTensorsGraph|XLAGraphExecutor|IrValueTensorToXlaTensor|torch_xla|StepMarker"
    r"|XrtComputationClient|PjRtComputationClient"
)
_JAX: Final = re.compile(r"PjitFunction\(|ExecuteReplicated\.|jit_\w+[:(]|\$pxla\.py|py_xla_")
_TENSORFLOW: Final = re.compile(
    r"EagerExecute|ExecutorState::|TFE_Py_|tf\.|KernelAndDeviceFunc::|IteratorGetNext"
)


@dataclass(frozen=True, slots=True)
class Recording:
    """Who recorded, and what."""

    framework: Framework
    producer: str
    version: str
    has_stacks: bool
    has_memory: bool | None
    """None: nothing was allocated, or by an allocator that records nothing."""


def recognise(planes: list[Plane]) -> Recording:
    """Tell the framework from versions in `/host:metadata`, else from the names of events."""
    versions: dict[str, str] = {}
    for plane in planes:
        if plane.name == "/host:metadata":
            versions = {
                name: str(value)
                for name, value in plane.stats.items()
                if name.endswith("_version") and isinstance(value, str)
            }
    hosts = [plane for plane in planes if plane.name.startswith("/host:")]
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    hosts_names = [name for plane in hosts for name in _short_names(plane)]
    device_names = [name for plane in devices for name in _short_names(plane)]
    framework = _framework(versions, hosts_names + device_names)
    key = {"jax": "jax_version", "tensorflow": "tf_version", "pytorch": "torch_xla_version"}
    version = versions.get(key.get(framework, ""), "")
    producer = ", ".join(
        f"{name.removesuffix('_version')} {value}" for name, value in sorted(versions.items())
    )
    return Recording(
        framework=framework,
        producer=producer,
        version=version,
        has_stacks=any(name.startswith("$") for name in hosts_names),
        has_memory="MemoryAllocation" in hosts_names or None,
    )


def _framework(versions: dict[str, str], names: list[str]) -> Framework:
    if "torch_xla_version" in versions or any(_PYTORCH.search(name) for name in names):
        return "pytorch"
    # JAX programs often read their data through tf.data, so JAX's own marks come first.
    if "jax_version" in versions or any(_JAX.match(name) for name in names):
        return "jax"
    if "tf_version" in versions or any(_TENSORFLOW.match(name) for name in names):
        return "tensorflow"
    return "unknown"


def _short_names(plane: Plane) -> list[str]:
    return [name for name in plane.metadata.names if len(name) < 300]
