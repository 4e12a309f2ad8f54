"""What a recorder knows of the machine and the program, stored beside each of its captures.

None, and an empty text, is unknown. The files come from elsewhere, so every field has a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

SUFFIX: Final = ".perfadvisor.json"
"""The file of facts is named like the capture's own file: `rank0.1795226000001.perfadvisor.json`
beside `rank0.1795226000001.pt.trace.json.gz`."""

_MOST_WHY: Final = 300
Text = Annotated[str, Meta(max_length=1000)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
Share = Annotated[float, Meta(ge=0, le=1)]
Value = bool | Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)] | float | Text

What = Literal["loader", "dataset", "optimizer", "model", "step loop"]
SideWork = Literal[
    "figures",
    "images",
    "checkpoints",
    "summaries",
    "texts",
    "every few steps",
    "between epochs",
]
"""What a program writes for people to look at, or to go on from; and what else it does every few
steps, such as `if step % 100 == 0`, or behind the loop over the steps of an epoch."""
OF_TRAINING: tuple[SideWork, ...] = ("every few steps", "between epochs")
"""Often evaluations."""
Activity = Literal["compiling", "Python", "operators", "parts", "calls", "waits"]
"""What is done most: a framework compiles; Python runs its own instructions; compiled code
computes `a + b`, reads or writes parts as `a[i] = b` does, or is called; or the program waits."""


class Machine(Struct, frozen=True):
    """The machine, as far as the program may use it."""

    system: Text = ""
    """Such as `Linux x86_64`."""
    processor: Text = ""
    """The processor's name."""
    cores: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    """Logical processors that the process may run on."""
    quota_cores: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Processor time that its cgroup may use, in processors; None without a limit."""
    physical_cores: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    """The cores that those processors are threads of."""
    machine_cores: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    """All logical processors of the machine."""
    cache_bytes: Bytes | None = None
    """The largest cache that one core can use."""
    memory_bytes: Bytes | None = None
    """What the machine has."""
    memory_limit_bytes: Bytes | None = None
    """What its cgroup may use; None without a limit."""
    available_bytes: Bytes | None = None
    """What new allocations could use when the capture was recorded."""
    instruction_sets: Annotated[tuple[Text, ...], Meta(max_length=256)] | None = None
    """Those that matter for numbers, in the kernel's names, such as `avx512_bf16`, `amx_bf16`."""

    @property
    def usable_cores(self) -> float | None:
        """The processors that the process can keep busy."""
        limits = [float(each) for each in (self.cores, self.quota_cores) if each is not None]
        return min(limits, default=None)

    @property
    def usable_memory_bytes(self) -> int | None:
        """The memory that the process can have at most."""
        limits = (self.memory_bytes, self.memory_limit_bytes)
        return min((each for each in limits if each is not None), default=None)

    def has(self, instruction_set: str) -> bool | None:
        """Whether the processors have an instruction set; None if it is unknown."""
        if self.instruction_sets is None:
            return None
        return instruction_set in self.instruction_sets


class Threads(Struct, frozen=True):
    """How many threads the process uses."""

    intra_op: Count | None = None
    """For one operator."""
    inter_op: Count | None = None
    """For operators at the same time."""
    process: Count | None = None
    """All threads of the process when the recording ended."""


class Load(Struct, frozen=True):
    """How the cores of the program were used while a capture was recorded, as shares of time."""

    others: Share
    """By other programs, and by other virtual machines on the same hardware."""
    idle: Share
    seconds: Annotated[float, Meta(ge=0)] | None = None
    """How long it was measured."""


class Made(Struct, frozen=True):
    """Where the program makes a part of itself."""

    what: What
    name: Text
    """Its class or function, such as `DataLoader`."""
    path: Text
    """Relative to the directory in which the program was started; a file elsewhere has no
    directories."""
    line: Annotated[int, Meta(ge=1, le=10**8)]
    function: Text = ""
    facts: Annotated[Mapping[Text, Value], Meta(max_length=64)] = {}
    """What is known about it: `num_workers` and `batch_size` of a loader, `parameters` of a model,
    `fused` of an optimizer."""

    def number(self, key: str) -> int:
        """A fact that counts something; 0 if it is unknown."""
        value = self.facts.get(key)
        return value if isinstance(value, int) else 0


class Program(Struct, frozen=True):
    """The program that was recorded."""

    script: Text = ""
    """Relative to the directory in which it was started; otherwise the file's name."""
    arguments: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    """Without values that are secrets by the name of their option."""
    start_method: Text = ""
    """How its worker processes start: `fork`, `spawn` or `forkserver`."""
    made: Annotated[tuple[Made, ...], Meta(max_length=256)] = ()
    """In the order in which they were made; the loop of the recorded steps before other loops."""
    files: Annotated[tuple[Text, ...], Meta(max_length=10_000)] = ()
    """Names of the files of its own modules, without directories, as XLA writes them."""

    def all_made(self, what: What) -> tuple[Made, ...]:
        """All parts of one kind."""
        return tuple(made for made in self.made if made.what == what)


class Line(Struct, frozen=True):
    """A line of the user's code, and what it was seen to call."""

    path: Text
    """As in `Made`."""
    line: Annotated[int, Meta(ge=1, le=10**8)]
    share: Share
    """Of the time of all looks."""
    function: Text = ""
    calls: Text = ""
    """The function that it calls, with its module; empty if it calls none that is in Python."""
    side_work: SideWork | None = None
    activity: Activity | None = None
    """None if nothing tells."""
    spells: Count | None = None
    """How many times the program was seen to come here from elsewhere; None if not counted."""
    is_in_loop: bool = False
    """Whether a loop runs it again and again in each step, in its function or around its calls."""


class Lines(Struct, frozen=True):
    """Where the main thread was from the first to the last step, but not while recording."""

    seconds: Annotated[float, Meta(gt=0)]
    looks: Annotated[int, Meta(ge=1, le=10**9)]
    """How many looks that makes."""
    lines: Annotated[tuple[Line, ...], Meta(max_length=256)] = ()
    """Those with most time; none twice."""


ObservedKind = Literal[
    "same in every step",
    "same twice",
    "same rows",
    "unused",
    "independent",
    "mostly zero",
    "padding",
    "dropped gradients",
    "page faults",
    "lines",
]
Look = Literal[
    "operators",
    "repeated results",
    "unread results",
    "independent calls",
    "zeros",
    "padding",
    "dropped gradients",
    "page faults",
    "lines",
]
"""What the steps whose tensors are looked at are searched for; without operators, for nothing."""


class Observed(Struct, frozen=True):
    """Something that the tensors of a few steps show about a line's operators."""

    kind: Text
    """One of `ObservedKind`; recordings of other versions may have more."""
    operator: Text
    """The one with most time, such as `aten::mm`."""
    path: Text
    """As in `Made`."""
    line: Annotated[int, Meta(ge=1, le=10**8)]
    share: Share
    """Of the time of all operators in these steps. If calls are independent: of the number of
    forward operators, those that one call for all would replace."""
    function: Text = ""
    shapes: Text = ""
    """Of its inputs."""
    calls: Count = 0
    """How many operators per step."""
    amount: Annotated[float, Meta(ge=0, le=1e9)] = 1.0
    """The share of zeros, of padding, or of what is read of a result; of independent calls, how
    many could be one; of page faults, how many per step; else the named operator's part."""
    elements: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    """Of the largest input, if calls are independent."""
    reads: Share = 0.0
    """Of the time of all operators, what independent products take to read matrices again that one
    product for all would read once."""
    updates: Share = 0.0
    """Of the optimizer's operators, those that independent calls with parameters of their own need
    more of than one call for all would."""


class FailedLook(Struct, frozen=True):
    """A look at the tensors of some steps that ended with an error."""

    look: Text
    """One of `Look`."""
    why: Text

    @classmethod
    def of(cls, look: Look, error: Exception | str) -> FailedLook:
        """A look and why it ended, in a line."""
        if isinstance(error, Exception):
            error = f"{type(error).__name__}: {error}"
        return cls(look, " ".join(error.split())[:_MOST_WHY])


class Examined(Struct, frozen=True):
    """What was found in steps whose tensors were looked at."""

    steps: Count = 0
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Of all operators, on what limits the steps."""
    calls: Count = 0
    """Operators per step."""
    on_device: bool = False
    """Whether times are those of a device: it limits the steps, and not the calls."""
    new_shapes: Share = 0.0
    """Of the products in later steps, those of shapes that none before had."""
    model_calls: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Calls of modules by the program itself, per step."""
    in_models: Share = 0.0
    """Of the operators of the forward pass, those in such calls."""
    observed: Annotated[tuple[Observed, ...], Meta(max_length=256)] = ()
    failed: Annotated[tuple[FailedLook, ...], Meta(max_length=64)] = ()

    def all_of(self, *kinds: ObservedKind) -> tuple[Observed, ...]:
        """What was found of some kinds, the costliest first."""
        found = (each for each in self.observed if each.kind in kinds)
        return tuple(sorted(found, key=lambda each: -each.share))


class Recording(Struct, frozen=True):
    """How the capture was recorded."""

    by: Literal["", "run", "continuous", "profile"] = ""
    """`perfadvisor run`, a call or callback of `continuous`, or `profile`."""
    is_rich: bool | None = None
    """Whether shapes, memory and stacks were asked for, as far as the framework has them."""
    reason: Text = ""
    first_step: Count | None = None
    """The number of its first step."""
    step_ns: Annotated[float, Meta(ge=0)] | None = None
    """The usual time of a step that was not recorded, before this recording."""


class Facts(Struct, frozen=True):
    """All that is stored beside a capture."""

    version: int = 1
    machine: Machine = Machine()
    threads: Threads = Threads()
    load: Load | None = None
    program: Program = Program()
    lines: Lines | None = None
    examined: Examined | None = None
    recording: Recording = Recording()


UNKNOWN: Final = Facts()


# A row is of some steps in succession. None is unknown, and never stands for zero. The files come
# from elsewhere, so every field has a limit.

RUN_SUFFIX: Final = ".run.perfadvisor.json"
"""The timers of a process lie in the run's directory: `rank0.run.perfadvisor.json`, beside
`step_00000020/rank0.1795226000001.pt.trace.json.gz`."""
MOST_ROWS: Final = 512

_Name = Annotated[str, Meta(max_length=200)]
_Number = Annotated[int, Meta(ge=0, le=1 << 62)]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Rows = Meta(max_length=MOST_ROWS)
Numbers = Annotated[tuple[_Number, ...], _Rows]
Amounts = Annotated[tuple[_Amount, ...], _Rows]
Known = Annotated[tuple[_Amount | None, ...], _Rows]
"""Values of rows, some of which are unknown."""

HEAT: Final = ("thermal slowdown", "hardware slowdown", "power brake")
"""Reasons for low clocks that come from cooling or supply, whatever the program does."""
POWER_CAP: Final = "power cap"
"""Heavy work reaches the limit of power on many healthy devices."""


class DeviceTimers(Struct, frozen=True):
    """What NVML tells of the process's first GPU; means of each row."""

    name: _Name = ""
    max_clock_hz: _Amount | None = None
    """Of the multiprocessors."""
    power_limit_w: _Amount | None = None
    utilization: Known = ()
    """The share of time in which any kernel ran (0-1)."""
    memory_bytes: Known = ()
    clock_hz: Known = ()
    power_w: Known = ()
    temperature_c: Known = ()
    reduced: Annotated[Mapping[_Name, Known], Meta(max_length=16)] = {}
    """By reason: the share of looks at which the clocks were reduced because of it (0-1)."""


class RunTimers(Struct, frozen=True):
    """The steps of one process, without those that were recorded, evaluated or saved."""

    version: int = 1
    worker: _Name = ""
    """As in the names of its captures: `rank0`, or host and process."""
    rank: Annotated[int, Meta(ge=0, le=10**7)] = 0
    first_step: Numbers = ()
    start_ns: Numbers = ()
    """Unix time at which the row's first step began."""
    end_ns: Numbers = ()
    steps: Numbers = ()
    """How many of the row's steps were timed."""
    step_ns: Amounts = ()
    """Mean time of a step."""
    input_ns: Known = ()
    """The part of it in which the loop waited for a DataLoader."""
    ready_ns: Known = ()
    """From its beginning to its last call of `backward`."""
    device: DeviceTimers | None = None

    @property
    def is_sound(self) -> bool:
        """Whether there are rows, in order, and all have what every row has."""
        columns = (self.start_ns, self.end_ns, self.steps, self.step_ns)
        return (
            {len(column) for column in columns} == {len(self.first_step)} != {0}
            and all(before < after for before, after in pairwise(self.first_step))
            and min(self.steps) > 0
            and min(self.step_ns) > 0
        )
