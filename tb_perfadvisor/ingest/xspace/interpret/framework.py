"""Determines the framework and the recording options of a profile."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.trace import Framework

# In this order, because programs of the former may import the latter.
_VERSIONS: Final[dict[Framework, str]] = {
    "pytorch": "torch_xla_version",
    "jax": "jax_version",
    "tensorflow": "tf_version",
}
_PYTORCH: Final = (
    *("SyncTensorsGraph", "XLAGraphExecutor", "IrValueTensorToXlaTensor", "torch_xla"),
    *("StepMarker", "XrtComputationClient", "PjRtComputationClient"),
)
_JAX: Final = re.compile(r"PjitFunction\(|ExecuteReplicated\.|jit_\w+[:(]|\$pxla\.py|py_xla_")
_TENSORFLOW: Final = re.compile(
    r"EagerExecute|ExecutorState::|TFE_Py_|tf\.|KernelAndDeviceFunc::|IteratorGetNext"
)
# Longer names are HLO texts, which do not tell the framework.
_MAX_NAME_CHARS: Final = 300


class Recorder(Struct, frozen=True):
    """The recorder of a profile and its options."""

    framework: Framework
    producer: str
    version: str
    has_stacks: bool
    has_memory: bool | None
    """None if nothing was allocated, or by an allocator that records nothing."""


class FrameworkClues:
    """Versions and event names that reveal the framework, collected plane by plane."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}
        self._host_names: set[str] = set()
        self._device_names: set[str] = set()

    def add(self, plane: Plane) -> None:
        """Add the versions or event names of a plane."""
        if plane.name == "/host:metadata":
            self._versions = {
                name: value
                for name, value in plane.stats.items()
                if name.endswith("_version") and isinstance(value, str)
            }
            return
        for prefix, names in (("/host:", self._host_names), ("/device:", self._device_names)):
            if plane.name.startswith(prefix):
                names.update(name for name in plane.metadata.names if len(name) < _MAX_NAME_CHARS)

    def recording(self) -> Recorder:
        """Determine the framework by versions, or else by event names."""
        versions = self._versions
        framework = _framework(versions, self._host_names | self._device_names)
        version = versions.get(_VERSIONS.get(framework, ""), "")
        producer = ", ".join(
            f"{name.removesuffix('_version')} {value}" for name, value in sorted(versions.items())
        )
        return Recorder(
            framework=framework,
            producer=producer,
            version=version,
            has_stacks=any(name.startswith("$") for name in self._host_names),
            has_memory="MemoryAllocation" in self._host_names or None,
        )


def _framework(versions: dict[str, str], names: set[str]) -> Framework:
    for framework, key in _VERSIONS.items():
        if key in versions:
            return framework
    joined = "\n".join(names)
    if any(word in joined for word in _PYTORCH):
        return "pytorch"
    # JAX programs often use tf.data, so check for JAX first.
    if any(_JAX.match(name) for name in names):
        return "jax"
    return "tensorflow" if any(_TENSORFLOW.match(name) for name in names) else "unknown"
