"""Facts of drawn traces, and of runs without a trace."""

from __future__ import annotations

from typing import Any

import msgspec

from tb_perfadvisor.comparison.run_facts import (
    FindingFacts,
    OperationTime,
    OperationTimes,
    RunFacts,
    SavingFacts,
    Setup,
    make_facts,
)
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import Trace

SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |....KKKKKK|....KKKKKK|....KKKKKK|
"""
# The batch is ready: each step launches at once, and its kernel takes a millisecond longer.
FIXED = """
    cell 1ms
    step   |.......|.......|.......|.......|
    main   |oo.....|oo.....|oo.....|oo.....|
    worker |DDDD...|DDDD...|DDDD...|DDDD...|
    gpu 7  |KKKKKKK|KKKKKKK|KKKKKKK|KKKKKKK|
"""


def facts_of(*traces: Trace, config: Config | None = None, name: str = "drawn") -> RunFacts:
    config = config or Config()
    analysis = analyze_run(run_of(*traces, name=name), config)
    return make_facts(analysis, build_report(analysis, config))


def facts(*step_ns: int, causes: dict[str, int] | None = None, **fields: Any) -> RunFacts:
    """A run of some steps, by default with only compute."""
    causes = causes or {"compute-32": sum(step_ns)}
    plain = RunFacts(
        id="x",
        name="x",
        session="",
        is_synthetic=False,
        is_truncated=False,
        setup=setup(),
        step_source="ProfilerStep",
        step_ns=list(step_ns),
        window_ns=sum(causes.values()),
        causes=causes,
        device_compute_share=None,
        device_busy_share=None,
        sixteen_bit_share=None,
        input_wait_share=None,
        exposed_communication_share=None,
        between_steps_share=None,
        mfu=None,
        tokens_per_s=None,
        samples_per_s=None,
        peak_allocated_bytes=None,
        findings=[],
        outcomes={},
        kernels=None,
        operators=None,
        shapes=[],
    )
    return msgspec.structs.replace(plain, **fields)


def setup(**fields: Any) -> Setup:
    plain = Setup(
        framework="pytorch",
        version="",
        device="NVIDIA H100 80GB HBM3",
        devices_used=1,
        world_size=None,
        workers=1,
        batch=None,
        parallelism=[],
        precision=None,
        has_shapes=None,
        has_stacks=None,
        has_memory=None,
    )
    return msgspec.structs.replace(plain, **fields)


def times(
    *rows: tuple[str, int] | tuple[str, int, int], device: bool = True, family: str | None = None
) -> OperationTimes:
    """Names with their total time and count, the costliest first; kernels have a family."""
    return OperationTimes(
        is_device_time=device,
        rows=[
            OperationTime(
                name=name,
                total_ns=total,
                count=count[0] if count else 1,
                family=family,
            )
            for name, total, *count in sorted(rows, key=lambda row: -row[1])
        ],
    )


def finding(
    rule_id: str,
    low: int,
    expected: int,
    high: int,
    claims: dict[str, int],
    severity: str = "high",
    refines: str | None = None,
) -> FindingFacts:
    return FindingFacts(
        rule_id=rule_id,
        title=rule_id.capitalize(),
        severity=severity,  # type: ignore[arg-type]
        saving=SavingFacts(
            low_ns=low,
            expected_ns=expected,
            high_ns=high,
            basis="measured",
            claims=claims,
        ),
        refines=refines,
    )
