"""The report's caption: what was profiled, in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.contract import model

COMPILE_LOG_CAPTION = "PyTorch · log of torch.compile"
"""In place of a caption: the log says nothing of the device or the steps."""
_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}


def framework_name(framework: str) -> str:
    """`PyTorch`, as its users write it."""
    return "unknown framework" if framework == "unknown" else _FRAMEWORKS.get(framework, framework)


def make_caption(
    framework: str,
    workload: model.WorkloadInfo,
    workers: Sequence[model.Worker],
    reference_worker: int,
    world_size: int | None,
    steps: model.StepsInfo,
) -> str:
    """Say what was profiled: `PyTorch, training · DDP · NVIDIA A100 · rank 1 of 2 · 3 steps`.

    Args:
        framework: As in the report.
        workload: As in the report.
        workers: All that were recorded.
        reference_worker: Index of the one whose numbers the report shows.
        world_size: How many ranks the program has; None when unknown.
        steps: Those of the reference worker.
    """
    worker = workers[reference_worker]
    parts = [
        program_name(framework, workload),
        *([" + ".join(workload.parallelism)] if workload.parallelism else []),
        *([_device(worker.device)] if worker.events else []),
    ]
    count = world_size or len(workers)
    if count > 1:
        parts.append(
            f"{count:,} hosts" if worker.rank is None else f"rank {worker.rank} of {count:,}"
        )
    return " · ".join([*parts, _steps(steps)])


def program_name(framework: str, workload: model.WorkloadInfo) -> str:
    """What was run, such as `Lightning (PyTorch), training`."""
    name = framework_name(framework)
    if workload.framework != "unknown":
        name = f"{workload.framework} ({name})"
    return name if workload.mode == "unknown" else f"{name}, {workload.mode}"


def _device(device: model.DeviceInfo | None) -> str:
    if device is None:
        return "CPU"
    if device.used is None:
        return f"no events of the {device.name or 'device'}"
    name = device.name or "unknown device"
    return f"{device.used} × {name}" if device.used > 1 else name


def _steps(steps: model.StepsInfo) -> str:
    if not steps.used:
        return "no steps found"
    count = f"{steps.used:,} step{'' if steps.used == 1 else 's'}"
    return f"{count} ({'inferred from ' if steps.is_inferred else ''}{steps.source})"
