"""The protobuf messages of tool results, built at run time in a separate descriptor pool.

Field numbers are those of `tensorflow/core/profiler/protobuf/{overview_page,input_pipeline,
tpu_input_pipeline,tf_stats,kernel_stats}.proto`; unused fields are not declared, so parsing
skips them. Every varint is an int64. Text is bytes, so that a broken character does not lose a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels
from tb_perfadvisor.ingest.protobuf_messages import (
    INT64,
    TEXT,
    MessageTable,
    build_messages,
    expect_message,
)
from tb_perfadvisor.ingest.tf_tools.contents import (
    Contents,
    Figure,
    StepPart,
    StepSums,
    device_count,
    make_step,
    share,
    whole_ns,
)
from tb_perfadvisor.trace import Aspect, KernelFamily, KernelTotal, OperatorTotal, Precision
from tb_perfadvisor.units import NS_PER_MS, NS_PER_US

_DOUBLE: Final = descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE
_BYTES: Final = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES


def _doubles(**numbers: int) -> tuple[tuple[str, int, Any, bool], ...]:
    return tuple((name, number, _DOUBLE, False) for name, number in numbers.items())


_MESSAGES: Final[MessageTable] = {
    "Any": (("type_url", 1, TEXT, False), ("value", 2, _BYTES, False)),
    "StepSummary": _doubles(average=1),
    "PerGenericStepDetails": (
        ("step_number", 1, INT64, False),
        *_doubles(
            step_time_ms=2,
            unknown_time_ms=3,
            output_ms=5,
            device_compute_ms=6,
            device_to_device_ms=7,
            host_compute_ms=8,
            host_prepare_ms=9,
            host_compile_ms=10,
            host_wait_input_ms=11,
            host_to_device_ms=12,
            device_collectives_ms=13,
        ),
    ),
    "PerTpuStepDetails": (
        ("step_number", 1, INT64, False),
        *_doubles(
            tc_infeed_time_ms=3,
            all_reduce_compute_time_ms=11,
            all_reduce_sync_time_ms=12,
            tc_compute_time_ms=13,
            tc_idle_time_ms=14,
            tc_outfeed_time_ms=15,
            scv0_compute_time_ms=16,
            scv0_infeed_time_ms=17,
        ),
    ),
    # Only profilers that list collectives separately write this.
    "GenericStepTimeBreakdown": (("device_collectives_ms_summary", 12, "StepSummary", False),),
    "InputOpDetails": (
        ("op_name", 1, TEXT, False),
        ("count", 2, INT64, False),
        *_doubles(time_in_ms=3, self_time_in_ms=5),
        ("category", 7, TEXT, False),
    ),
    "Diagnostics": (("warnings", 2, TEXT, True), ("errors", 3, TEXT, True)),
    "InputPipelineAnalysisResult": (
        ("step_time_summary", 2, "StepSummary", False),
        ("step_details", 4, "Any", True),
        ("input_op_details", 6, "InputOpDetails", True),
        ("step_time_breakdown", 8, "Any", False),
        ("hardware_type", 9, TEXT, False),
        ("diagnostics", 12, "Diagnostics", False),
    ),
    "OverviewPageAnalysis": _doubles(
        mxu_utilization_percent=1,
        device_idle_time_percent=2,
        host_idle_time_percent=3,
        flop_rate_utilization_relative_to_roofline_percent=7,
        memory_bw_utilization_relative_to_hw_limit_percent=8,
        device_compute_16bit_percent=9,
        device_compute_32bit_percent=10,
        device_tf_op_percent=12,
    ),
    "OverviewPageRunEnvironment": (
        ("host_count", 1, INT64, False),
        ("device_type", 4, TEXT, False),
        ("device_core_count", 5, INT64, False),
    ),
    "OverviewPage": (
        ("input_analysis", 2, "InputPipelineAnalysisResult", False),
        ("analysis", 3, "OverviewPageAnalysis", False),
        ("run_environment", 6, "OverviewPageRunEnvironment", False),
        ("diagnostics", 8, "Diagnostics", False),
    ),
    "TfStatsRecord": (
        ("host_or_device", 2, TEXT, False),
        ("op_type", 3, TEXT, False),
        ("op_name", 4, TEXT, False),
        ("occurrences", 5, INT64, False),
        *_doubles(total_time_in_us=6, total_self_time_in_us=8),
    ),
    "TfStatsTable": (("tf_stats_record", 1, "TfStatsRecord", True),),
    "TfStatsDatabase": (
        ("with_idle", 4, "TfStatsTable", False),
        ("without_idle", 5, "TfStatsTable", False),
    ),
    "KernelReport": (
        ("name", 1, TEXT, False),
        ("total_duration_ns", 7, INT64, False),
        ("occurrences", 13, INT64, False),
    ),
    "KernelStatsDb": (("reports", 1, "KernelReport", True),),
}

MESSAGES: Final[dict[str, Any]] = build_messages("tb_perfadvisor.tf_tools", _MESSAGES, is_raw=True)


_GENERIC: Final = {
    StepPart.INPUT: "host_wait_input_ms",
    StepPart.COMPILE: "host_compile_ms",
    StepPart.LAUNCH: "host_prepare_ms",
    StepPart.HOST_COMPUTE: "host_compute_ms",
    StepPart.TO_DEVICE: "host_to_device_ms",
    StepPart.COMPUTE: "device_compute_ms",
    StepPart.COLLECTIVES: "device_collectives_ms",
    StepPart.DEVICE_TO_DEVICE: "device_to_device_ms",
    StepPart.OUTPUT: "output_ms",
}
# TensorFlow's own sum of a TPU step excludes host transfers, and so does this table.
_TPU: Final = {
    StepPart.INPUT: ("tc_infeed_time_ms", "scv0_infeed_time_ms"),
    StepPart.COMPUTE: ("tc_compute_time_ms", "scv0_compute_time_ms"),
    StepPart.COLLECTIVES: ("all_reduce_compute_time_ms",),
    StepPart.WAITING: ("all_reduce_sync_time_ms",),
    StepPart.OUTPUT: ("tc_outfeed_time_ms",),
}
OPERATORS_ON_DEVICE: Final = "of operators on the device, including those of the input pipeline"
_ITEMS_OF_ROW: Final = 8
"""A step, a kernel or an operator with its numbers."""
_IDLE_OPERATOR: Final = "IDLE"
_PIPELINE_OPERATOR: Final = "Dataset"


def read_proto(tool: str, data: bytes, *, where: str) -> Contents:
    """Decode a `.pb` result.

    `tool` is the one in the file's name.
    """
    message_name, read = _READERS.get(tool, ("", None))
    if read is None:
        raise UnreadableProfileError("this tool does not write .pb files.", where=where)
    try:
        budget = Budget(where, len(data))
        expect_message(data, MESSAGES[message_name].DESCRIPTOR, budget)
        message = MESSAGES[message_name].FromString(data)
        budget.keep(_ITEMS_OF_ROW * _rows(message))
        contents = read(message)
    except DecodeError:
        contents = None
    if contents is None:
        raise UnreadableProfileError(
            f"this is not a result of the {tool} tool, or it is damaged.",
            where=where,
            hint="Copy it again from where it was written.",
        )
    return contents


def _rows(message: Any) -> int:
    """How many rows the tables of a message have."""
    rows = 0
    for _, value in message.ListFields():
        if hasattr(value, "ListFields"):
            rows += _rows(value)
        elif not isinstance(value, (bytes, str, int, float)):
            rows += len(value)
    return rows


def _read_overview(message: Any) -> Contents | None:
    if not any(map(message.HasField, ("input_analysis", "analysis", "run_environment"))):
        return None
    analysis, environment = message.analysis, message.run_environment
    pipeline = message.input_analysis
    figures = (
        ("device idle", analysis.device_idle_time_percent),
        ("host idle", analysis.host_idle_time_percent),
        (
            "of the roofline's FLOP rate",
            analysis.flop_rate_utilization_relative_to_roofline_percent,
        ),
        ("of the memory's bandwidth", analysis.memory_bw_utilization_relative_to_hw_limit_percent),
        (OPERATORS_ON_DEVICE, analysis.device_tf_op_percent),
    )
    count = environment.device_core_count
    # A single device does not communicate.
    is_alone = environment.host_count <= 1 and count == 1
    return Contents(
        steps=_steps(pipeline),
        stated_mean_ms=pipeline.step_time_summary.average or None,
        shows=_shown(pipeline) | ({Aspect.COMMUNICATION} if is_alone else set()),
        device_type=_text(environment.device_type) or _text(pipeline.hardware_type),
        device_count=device_count(count),
        precision=make_precision(
            share(analysis.device_compute_16bit_percent),
            share(analysis.device_compute_32bit_percent),
        ),
        # These messages also write 0 if the value was not measured.
        matrix_unit_share=share(analysis.mxu_utilization_percent) or None,
        figures=tuple(Figure(label, part) for label, value in figures if (part := share(value))),
        input_stages=_stages(pipeline),
        messages=_messages(message.diagnostics),
    )


def make_precision(share_16: float | None, share_32: float | None) -> dict[Precision, float] | None:
    """Share of each precision in device compute time; None if both are missing."""
    if not share_16 and not share_32:
        return None
    return {Precision.BITS_16: share_16 or 0.0, Precision.BITS_32: share_32 or 0.0}


def _read_input_pipeline(message: Any) -> Contents | None:
    if not (message.hardware_type or message.step_details or message.HasField("step_time_summary")):
        return None
    return Contents(
        steps=_steps(message),
        stated_mean_ms=message.step_time_summary.average or None,
        shows=_shown(message),
        device_type=_text(message.hardware_type),
        input_stages=_stages(message),
        messages=_messages(message.diagnostics),
    )


def _steps(pipeline: Any) -> tuple[StepSums, ...]:
    steps = [
        _tpu_step(MESSAGES["PerTpuStepDetails"].FromString(details.value))
        if _is_tpu(details)
        else _generic_step(MESSAGES["PerGenericStepDetails"].FromString(details.value))
        for details in pipeline.step_details
    ]
    return tuple(step for step in steps if step is not None)


def _is_tpu(wrapped: Any) -> bool:
    return bool(wrapped.type_url.endswith(b".PerTpuStepDetails"))


def _generic_step(details: Any) -> StepSums | None:
    return make_step(
        details.step_number,
        {part: getattr(details, name) for part, name in _GENERIC.items()},
        idle_ms=details.unknown_time_ms,
        step_ms=details.step_time_ms,
    )


def _tpu_step(details: Any) -> StepSums | None:
    return make_step(
        details.step_number,
        {part: sum(getattr(details, name) for name in names) for part, names in _TPU.items()},
        idle_ms=details.tc_idle_time_ms,
    )


def _shown(pipeline: Any) -> frozenset[Aspect]:
    """The parts that the steps of a file list separately."""
    if any(map(_is_tpu, pipeline.step_details)):
        return frozenset({Aspect.INPUT, Aspect.COMMUNICATION})
    shown = {Aspect.COPIES, Aspect.HOST}
    # Without any record of an input pipeline, there may still be one.
    if pipeline.input_op_details or any(
        StepPart.INPUT in step.parts_ms for step in _steps(pipeline)
    ):
        shown.add(Aspect.INPUT)
    breakdown = MESSAGES["GenericStepTimeBreakdown"].FromString(pipeline.step_time_breakdown.value)
    if breakdown.HasField("device_collectives_ms_summary"):
        shown.add(Aspect.COMMUNICATION)
    return frozenset(shown)


def _stages(pipeline: Any) -> tuple[OperatorTotal, ...]:
    return costliest_first(
        OperatorTotal(
            name=_text(stage.op_name),
            type=_text(stage.category),
            is_on_device=False,
            count=max(stage.count, 0),
            total_ns=whole_ns(stage.time_in_ms, NS_PER_MS),
            self_ns=whole_ns(stage.self_time_in_ms, NS_PER_MS),
        )
        for stage in pipeline.input_op_details
    )


def costliest_first(operators: Iterable[OperatorTotal]) -> tuple[OperatorTotal, ...]:
    """Operators in descending order of self time."""
    return tuple(sorted(operators, key=lambda operator: -operator.self_ns))


def _read_tensorflow_stats(message: Any) -> Contents | None:
    table = message.without_idle if message.HasField("without_idle") else message.with_idle
    if not table.tf_stats_record:
        return None
    operators = [
        OperatorTotal(
            name=_text(record.op_name),
            type=_text(record.op_type),
            is_on_device=record.host_or_device == b"Device",
            count=max(record.occurrences, 0),
            total_ns=whole_ns(record.total_time_in_us, NS_PER_US),
            self_ns=whole_ns(record.total_self_time_in_us, NS_PER_US),
        )
        for record in table.tf_stats_record
    ]
    operators = [operator for operator in operators if operator.type != _IDLE_OPERATOR]
    on_device = sum(operator.count for operator in operators if operator.is_on_device)
    everywhere = sum(operator.count for operator in operators)
    return Contents(
        figures=(Figure(OPERATORS_ON_DEVICE, on_device / everywhere),) if on_device else (),
        input_stages=costliest_first(
            operator
            for operator in operators
            if operator.type == _PIPELINE_OPERATOR and not operator.is_on_device
        ),
        operators=tuple(operator for operator in operators if operator.type != _PIPELINE_OPERATOR),
        kernels=_by_type(operator for operator in operators if operator.is_on_device),
    )


def _by_type(operators: Iterable[OperatorTotal]) -> tuple[KernelTotal, ...]:
    """Sum device operators by type, because their names contain layers and replicas."""
    totals: dict[str, tuple[int, int]] = {}
    for operator in operators:
        count, total_ns = totals.get(operator.type, (0, 0))
        totals[operator.type] = (count + operator.count, total_ns + operator.self_ns)
    return _kernels(totals)


def _read_kernel_stats(message: Any) -> Contents | None:
    totals: dict[str, tuple[int, int]] = {}
    for report in message.reports:
        count, total_ns = totals.get(name := _text(report.name), (0, 0))
        totals[name] = (
            count + max(report.occurrences, 0),
            total_ns + whole_ns(report.total_duration_ns, 1),
        )
    return Contents(kernels=_kernels(totals)) if totals else None


def _kernels(totals: dict[str, tuple[int, int]]) -> tuple[KernelTotal, ...]:
    families = classify_kernels(list(totals)).family.tolist()
    kernels = (
        KernelTotal(name, KernelFamily(family).name.lower(), count, total_ns)
        for (name, (count, total_ns)), family in zip(totals.items(), families, strict=True)
    )
    return tuple(sorted(kernels, key=lambda kernel: -kernel.total_ns))


def _messages(diagnostics: Any) -> tuple[str, ...]:
    return tuple(_text(text) for text in (*diagnostics.errors, *diagnostics.warnings))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


_READERS: Final[dict[str, tuple[str, Callable[[Any], Contents | None]]]] = {
    "overview_page": ("OverviewPage", _read_overview),
    "input_pipeline": ("InputPipelineAnalysisResult", _read_input_pipeline),
    "tensorflow_stats": ("TfStatsDatabase", _read_tensorflow_stats),
    "kernel_stats": ("KernelStatsDb", _read_kernel_stats),
}
