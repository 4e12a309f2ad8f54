"""The types of reports, comparisons and histories, as every surface reads them.

`contract/schema.json` and the frontend's types are generated from these classes. An
absent number is None (`null`), never 0 and never NaN. Durations are nanoseconds; `share` is
0-1 of the step time unless its description says otherwise. Savings and step times are per
step: means over the used steps, divided once from totals that sum exactly.
"""

from tb_perfadvisor.contract.model.checks import (
    BlindSpotInfo,
    Missing,
    Outcome,
    RecordingGap,
    Status,
)
from tb_perfadvisor.contract.model.comparison import (
    CauseChange,
    ComparedRun,
    ComparedTarget,
    Comparison,
    ComparisonDocument,
    Difference,
    FindingChange,
    FindingState,
    FindingStatus,
    LineChange,
    LoggedChange,
    LossChange,
    LossVerdict,
    MemoryChanges,
    OperationChange,
    OperationChanges,
    OperationStatus,
    PredictedSaving,
    Scaling,
    TimeChange,
    Verdict,
)
from tb_perfadvisor.contract.model.document import (
    SCHEMA_VERSION,
    Document,
    Generator,
    Rejected,
    Report,
)
from tb_perfadvisor.contract.model.evidence import (
    Cell,
    EventsEvidence,
    Evidence,
    EvidenceRow,
    SeriesEvidence,
    SpanEvidence,
    TableColumn,
    TableEvidence,
)
from tb_perfadvisor.contract.model.findings import (
    Basis,
    CombinedSaving,
    FindingInfo,
    FirstFinding,
    LargerBatchInfo,
    MemorySavingInfo,
    Place,
    ProofInfo,
    RemarkInfo,
    Remedy,
    SavingBounds,
    SavingInfo,
    Scope,
    SourceExcerpt,
)
from tb_perfadvisor.contract.model.history import (
    CauseTime,
    FindingHistory,
    History,
    HistoryDocument,
    HistoryView,
    MissingRecording,
    Moment,
    Occurrence,
    Recording,
)
from tb_perfadvisor.contract.model.overview import (
    BreakdownPart,
    CostlyWork,
    ExcludedStep,
    FlopInfo,
    HostMemoryInfo,
    KernelSummary,
    KeyNumber,
    MemoryInfo,
    MemoryPartInfo,
    NextDoublingInfo,
    OperatorPlacement,
    Overview,
    ProgramMemoryInfo,
    ReferenceInfo,
    ServingInfo,
    StepKindInfo,
    StepsInfo,
)
from tb_perfadvisor.contract.model.profile import (
    DeviceInfo,
    NoteInfo,
    RecordedInfo,
    TrustInfo,
    TrustReason,
    Worker,
    WorkloadEvidence,
    WorkloadInfo,
)
from tb_perfadvisor.contract.model.whole_run import (
    CostInfo,
    Curve,
    DelayInfo,
    RealSaving,
    RecordingInfo,
    RegimeInfo,
    StepTimes,
    TrainingView,
    UnknownProfile,
    WholeRunInfo,
)
from tb_perfadvisor.contract.run_row import Severity, TrustLevel
