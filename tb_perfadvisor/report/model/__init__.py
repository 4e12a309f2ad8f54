"""The report's types: one contract for JSON, tab, terminal and Python.

`report/schema.json` and the frontend's types are generated from these classes. An
absent number is None (`null`), never 0 and never NaN. Durations are nanoseconds; `share` is
0-1 of the step time unless its description says otherwise. Savings and step times are per
step: means over the used steps, divided once from totals that sum exactly.
"""

from tb_perfadvisor.report.model.checks import Missing, Outcome, RecordingGap, Status
from tb_perfadvisor.report.model.document import (
    SCHEMA_VERSION,
    Document,
    Generator,
    Rejected,
    Report,
)
from tb_perfadvisor.report.model.evidence import (
    Cell,
    EventsEvidence,
    Evidence,
    EvidenceRow,
    SeriesEvidence,
    SpanEvidence,
    TableColumn,
    TableEvidence,
)
from tb_perfadvisor.report.model.findings import (
    Basis,
    CombinedSaving,
    FindingInfo,
    FirstFinding,
    LargerBatchInfo,
    Place,
    Remedy,
    SavingInfo,
    Scope,
    Severity,
    SourceExcerpt,
)
from tb_perfadvisor.report.model.overview import (
    BreakdownPart,
    ExcludedStep,
    FlopInfo,
    HostMemoryInfo,
    KernelSummary,
    KeyNumber,
    MemoryInfo,
    MemoryPartInfo,
    OperatorPlacement,
    OperatorSummary,
    Overview,
    ProgramMemoryInfo,
    ServingInfo,
    StepsInfo,
)
from tb_perfadvisor.report.model.profile import (
    DeviceInfo,
    NoteInfo,
    RecordedInfo,
    Worker,
    WorkloadEvidence,
    WorkloadInfo,
)
from tb_perfadvisor.report.model.whole_run import CostInfo, RealSaving, WholeRunInfo

__all__ = [
    "SCHEMA_VERSION",
    "Basis",
    "BreakdownPart",
    "Cell",
    "CombinedSaving",
    "CostInfo",
    "DeviceInfo",
    "Document",
    "EventsEvidence",
    "Evidence",
    "EvidenceRow",
    "ExcludedStep",
    "FindingInfo",
    "FirstFinding",
    "FlopInfo",
    "Generator",
    "HostMemoryInfo",
    "KernelSummary",
    "KeyNumber",
    "LargerBatchInfo",
    "MemoryInfo",
    "MemoryPartInfo",
    "Missing",
    "NoteInfo",
    "OperatorPlacement",
    "OperatorSummary",
    "Outcome",
    "Overview",
    "Place",
    "ProgramMemoryInfo",
    "RealSaving",
    "RecordedInfo",
    "RecordingGap",
    "Rejected",
    "Remedy",
    "Report",
    "SavingInfo",
    "Scope",
    "SeriesEvidence",
    "ServingInfo",
    "Severity",
    "SourceExcerpt",
    "SpanEvidence",
    "Status",
    "StepsInfo",
    "TableColumn",
    "TableEvidence",
    "WholeRunInfo",
    "Worker",
    "WorkloadEvidence",
    "WorkloadInfo",
]
