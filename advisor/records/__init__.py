"""Frozen records: everything that crosses a process, a module or a file boundary.

Units are in the names: ``_s`` seconds, ``_ms`` milliseconds, ``_bytes`` bytes. Nothing here imports torch.
"""

from advisor.records.data import BatchPrint, DataPrint, PartPrint, varying
from advisor.records.hardware import (
    AllReduceSweep,
    AllReduceTime,
    GpuInfo,
    GpuLink,
    GpuProcess,
    GpuSample,
    Hardware,
    HostInfo,
    HostSample,
)
from advisor.records.kinds import (
    Bottleneck,
    ConfigKind,
    Mode,
    Numerics,
    Objective,
    Outcome,
    Phase,
    TrialKind,
    Value,
    Values,
    Verdict,
    text_of,
)
from advisor.records.messages import (
    Activity,
    BlockDone,
    BuilderReady,
    Compiled,
    Finished,
    Forked,
    ForkEnded,
    GoOn,
    Inspected,
    MeasureBlock,
    Profiled,
    Ready,
    Started,
    Stop,
    TargetFailure,
    TrialCommand,
    TrialMessage,
)
from advisor.records.parallel import RankFound, RankJoined, RanksFound, ScalingRecord, ScalingRow, World
from advisor.records.trials import (
    BaselineRecord,
    Block,
    Candidate,
    Comparison,
    Exported,
    GpuReadings,
    Latency,
    NumericsResult,
    ParetoPoint,
    Proposal,
    Recommendation,
    Skip,
    StackRecord,
    TargetSpec,
    TimeSpent,
    TrialRecord,
    TrialResult,
    TrialSpec,
    Verification,
)
from advisor.records.workload import (
    Ceilings,
    ClockCheck,
    Facts,
    Finding,
    HabitRow,
    LoaderFacts,
    OperatorRow,
    OptimizerFacts,
    Profile,
    SyncPlace,
    WorkloadFacts,
)
