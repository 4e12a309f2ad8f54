"""A trace as an XSpace, as TensorFlow's and JAX's profilers write it.

Left out: operators' shapes, types and autograd numbers, sizes of a GPU's collectives, and what a
GPU's kernels compute (readers derive it from their names). Names are replaced as for Kineto.
"""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tb_perfadvisor.trace import Trace
from tests.support.writers.xplane.gpu import GpuPlane
from tests.support.writers.xplane.host import host_plane
from tests.support.writers.xplane.planes import Facts, Plane, is_tpu
from tests.support.writers.xplane.tpu import TpuPlane

_VERSIONS = {"jax": "jax_version", "tensorflow": "tf_version", "pytorch": "torch_xla_version"}


def write_xplane(trace: Trace) -> bytes:
    """The trace as the bytes of a `*.xplane.pb`, the same for equal traces."""
    space = WRITING.XSpace()
    facts = Facts.of(trace)
    devices = {device.index: device for device in trace.devices}
    tracks = trace.tracks
    used = sorted({int(index) for index in tracks.device.tolist() if index >= 0} | set(devices))
    for index in used:
        device = devices.get(index)
        if is_tpu(trace, device, index):
            TpuPlane(facts, space.planes.add(), index, device).write()
        else:
            GpuPlane(facts, space.planes.add(), index, device).write()
    host_plane(facts, space.planes.add())
    _metadata_plane(trace, space.planes.add())
    _environment_plane(trace, space.planes.add())
    if trace.source.host:
        space.hostnames.append(trace.source.host)
    written: bytes = space.SerializeToString(deterministic=True)
    return written


def _metadata_plane(trace: Trace, message: Any) -> None:
    plane = Plane(message)
    message.name = "/host:metadata"
    name = _VERSIONS.get(trace.source.framework)
    if name is not None:
        plane.stat(message, name, trace.source.version or "0")


def _environment_plane(trace: Trace, message: Any) -> None:
    plane = Plane(message)
    message.name = "Task Environment"
    if trace.source.origin_unix_ns is not None:
        plane.stat(message, "profile_start_time", trace.source.origin_unix_ns)
    if trace.source.is_synthetic:
        plane.stat(message, "perfadvisor_synthetic", 1)
