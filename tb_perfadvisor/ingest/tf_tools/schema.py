"""The protobuf messages of tool results, built at run time in a separate descriptor pool.

Field numbers are those of `tensorflow/core/profiler/protobuf/{overview_page,input_pipeline,
tpu_input_pipeline,tf_stats,kernel_stats}.proto`; unused fields are not declared, so parsing
skips them. Every varint is an int64. Text is bytes, so that a broken character does not lose a
file.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2

from tb_perfadvisor.ingest.protobuf_messages import INT64, TEXT, MessageTable, build_messages

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
