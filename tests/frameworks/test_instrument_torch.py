"""Labels and profiles of the real PyTorch, on a CPU; skipped where it cannot be imported.

Each program runs in its own process, because PyTorch is slow to import and noisy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.origins import NODE, node_name
from tb_perfadvisor.trace import EventKind
from tests.support import recording
from tests.support.command import ROOT
from tests.support.recording import facts_files

MODEL = """
import json, sys, tempfile, warnings
import torch
from torch.profiler import profile as record
from tb_perfadvisor.instrument.torch import annotate, profile

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(16, 16)
        self.act = torch.nn.ReLU(inplace=True)  # full backward hooks would forbid it
    def forward(self, x):
        return x + self.act(self.fc(x))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(16, 4)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def step(model):
    model(torch.randn(8, 16)).square().mean().backward()

def labels(model):
    with record() as recorded:
        step(model)
    return [e.name for e in recorded.events() if e.name.startswith("nn.Module")]

def warned(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
    return made, [str(one.message) for one in caught]
"""
FORWARD = [
    "nn.Module: Net",
    "nn.Module: blocks.0 (Block)",
    "nn.Module: blocks.0.fc (Linear)",
    "nn.Module: blocks.0.act (ReLU)",
    "nn.Module: blocks.1 (Block)",
    "nn.Module: blocks.1.fc (Linear)",
    "nn.Module: blocks.1.act (ReLU)",
    "nn.Module: head (Linear)",
]


def run(program: str, *arguments: str, **environment: str) -> Any:
    """What a program prints as JSON on its last line."""
    said = recording.run(MODEL + program, "torch", ROOT, *arguments, **environment)
    lines = [line for line in said.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


RECORD = """
model = Net()
hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counts = []
with profile(sys.argv[1], model=model, wait=2, warmup=1, active=3) as profiler:
    for _ in range(8):
        optimizer.zero_grad()
        step(model)
        counts.append(hooks())
        optimizer.step()
        profiler.step()
print(json.dumps({"hooks": counts, "left": hooks()}))
"""


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("recorded")
    return folder, run(RECORD, str(folder / "runs"))


def test_the_profile_lies_where_tensorboard_finds_it(labeled: tuple[Path, Any]) -> None:
    folder, _ = labeled
    facts, profile = sorted(path.name for path in (folder / "runs").iterdir())
    assert facts.removesuffix(".perfadvisor.json") == profile.removesuffix(".pt.trace.json.gz")
    ((trace,),) = (run.traces for run in load(folder))
    signals = Signals(load(folder)[0])
    assert signals.steps.source == "ProfilerStep"
    assert len(signals.steps) == 3
    assert trace.source.has_shapes
    assert trace.source.has_memory
    assert not trace.source.has_stacks
    assert len(trace.rows(EventKind.PYTHON)) == 0


def test_labels_name_the_modules_of_backward_operators(labeled: tuple[Path, Any]) -> None:
    folder, _ = labeled
    signals = Signals(load(folder)[0])
    trace, found = signals.trace, signals.origins
    nodes = Counter(
        (node_name(trace, row), found.module_of(row))
        for row in trace.rows(EventKind.OPERATOR).tolist()
        if trace.name(row).startswith(NODE)
    )
    linear = {name: count for (node, name), count in nodes.items() if node == "AddmmBackward0"}
    # Three linear layers, two of them of equal shape and class; three steps.
    assert linear == {"blocks.0.fc (Linear)": 3, "blocks.1.fc (Linear)": 3, "head (Linear)": 3}
    assert nodes["ReluBackward0", "blocks.1.act (ReLU)"] == 3
    assert nodes["AddBackward0", "blocks.0 (Block)"] == 3
    # The loss belongs to no module.
    assert nodes["MeanBackward0", None] == 3


def test_marks_alone_tell_it_too(labeled: tuple[Path, Any]) -> None:
    # As if the profile had begun after the forward pass: no node knows its forward operator.
    import numpy as np
    from msgspec.structs import fields, replace

    from tb_perfadvisor.trace.tables import EventTable, make_table

    folder, _ = labeled
    run_ = load(folder)[0]
    (trace,) = run_.traces
    columns = {item.name: getattr(trace.events, item.name) for item in fields(EventTable)}
    columns["forward"] = np.full(len(trace.events), -1)
    bare = replace(trace, events=make_table(EventTable, columns))
    found = Signals(replace(run_, traces=(bare,))).origins
    rows = bare.rows(EventKind.OPERATOR).tolist()
    linear = Counter(
        found.module_of(row) for row in rows if bare.name(row) == f"{NODE}AddmmBackward0"
    )
    assert linear == {"blocks.0.fc (Linear)": 3, "blocks.1.fc (Linear)": 3, "head (Linear)": 3}


def test_without_a_profiler_only_the_model_has_hooks(labeled: tuple[Path, Any]) -> None:
    _, result = labeled
    # Two waiting steps and one of warm-up, three recorded ones, two after them; eight modules.
    assert result["hooks"] == [2, 2, 2, 16, 16, 16, 2, 2]
    assert result["left"] == 0


SHAPES = """
import torch.distributed as dist
said = {}
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
ddp = torch.nn.parallel.DistributedDataParallel(Net())
with annotate(ddp):
    said["ddp"] = labels(ddp)
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    said["fsdp"] = None
else:
    sharded = Net()
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    with annotate(sharded):
        said["fsdp"] = labels(sharded)
pair = torch.nn.ModuleDict({"generator": Net(), "critic": Net()})  # never called itself
with annotate(pair):
    said["container"] = labels(pair["critic"])
plain = Net()
handle = annotate(plain)
said["plain"] = labels(plain)
handle.remove()
handle.remove()
said["removed"] = labels(plain)
with annotate(plain):
    try:
        plain(torch.randn(8, 3))
    except RuntimeError:
        said["raised"] = labels(plain)
from torch.utils.checkpoint import checkpoint
again = Net()
with annotate(again), record() as recorded:
    x = torch.randn(8, 16, requires_grad=True)
    checkpoint(again, x, use_reentrant=False).sum().backward()
said["checkpoint"] = sum(e.name == "nn.Module: Net" for e in recorded.events())
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def shapes() -> Any:
    return run(SHAPES)


def forward(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("nn.Module: ")]


def test_a_plain_model(shapes: Any) -> None:
    names = shapes["plain"]
    assert forward(names) == FORWARD
    begun = [name for name in names if name.startswith("nn.Module backward: ")]
    # The backward pass goes the other way; the model's last node is its head's.
    assert begun[0] == "nn.Module backward: head (Linear)"
    assert begun[1] == "nn.Module backward: Net"
    assert begun[-1] == "nn.Module backward: blocks.0.fc (Linear)"
    assert "nn.Module backward done: blocks.1.act (ReLU)" in names
    assert shapes["removed"] == []


def test_data_parallel_and_sharded_models_have_the_names_of_the_plain_one(shapes: Any) -> None:
    assert forward(shapes["ddp"]) == ["nn.Module: DistributedDataParallel", *FORWARD]
    if shapes["fsdp"] is not None:
        assert forward(shapes["fsdp"]) == FORWARD


def test_a_container_that_is_never_called_labels_what_is(shapes: Any) -> None:
    wanted = [
        name.replace(": Net", ": critic (Net)").replace(": blocks", ": critic.blocks")
        for name in FORWARD[:-1]
    ]
    assert forward(shapes["container"]) == [*wanted, "nn.Module: critic.head (Linear)"]


def test_a_forward_pass_that_raises_leaves_no_range_open(shapes: Any) -> None:
    assert forward(shapes["raised"]) == FORWARD


def test_what_checkpointing_computes_anew_is_labeled_again(shapes: Any) -> None:
    assert shapes["checkpoint"] == 2


COMPILED = """
said = {}
before = Net()
with annotate(before):
    said["annotated before"] = labels(torch.compile(before, backend="eager", fullgraph=True))
compiled = torch.compile(Net(), backend="eager", fullgraph=True)
labeled, said["warnings"] = warned(lambda: annotate(compiled))
with labeled:
    said["compiled"] = labels(compiled)
partly = Net()
partly.blocks[0] = torch.compile(partly.blocks[0], backend="eager", fullgraph=True)
labeled, said["partly warnings"] = warned(lambda: annotate(partly))
with labeled:
    said["partly"] = labels(partly)
print(json.dumps(said))
"""


def test_compiled_code_is_one_piece_and_says_so() -> None:
    result = run(COMPILED)
    # fullgraph: a hook that broke the graph would have raised.
    assert result["annotated before"] == []
    assert forward(result["compiled"]) == ["nn.Module: OptimizedModule"]
    (warning,) = result["warnings"]
    assert warning.startswith("OptimizedModule: compiled code runs as one unit")
    block = FORWARD.index("nn.Module: blocks.0 (Block)")
    wanted = [*FORWARD[:block], "nn.Module: blocks.0 (OptimizedModule)", *FORWARD[block + 3 :]]
    assert forward(result["partly"]) == wanted
    assert result["partly warnings"][0].startswith("blocks.0 (OptimizedModule): compiled code")


MISUSED = """
def too_short():
    with profile(sys.argv[1], wait=1, warmup=1, active=2) as profiler:
        profiler.step()

_, said = warned(too_short)
try:
    with profile("gs://bucket/runs"):
        pass
except Exception as error:
    refused = [type(error).__name__, str(error)]
import os
with profile(sys.argv[1], wait=0, warmup=0, active=1) as profiler:
    torch.ones(1)
    profiler.step()
print(json.dumps({"warnings": said, "refused": refused, "files": os.listdir(sys.argv[1])}))
"""


def test_a_profile_that_was_never_written_is_said(tmp_path: Path) -> None:
    result = run(MISUSED, str(tmp_path), RANK="3", WORLD_SIZE="8")
    (warning,) = [warning for warning in result["warnings"] if "no profile" in warning]
    assert "the program ran 1 steps, but recording begins after 2" in warning
    assert result["refused"][0] == "UsageError"
    assert "copy the profile afterwards" in result["refused"][1]
    assert len(result["files"]) == 2  # with its facts
    assert all(name.startswith("rank3.") for name in result["files"])


def test_importing_it_does_not_import_the_framework() -> None:
    program = "import sys, tb_perfadvisor.instrument.torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


LAYOUTS = """
import torch
from tb_perfadvisor.instrument.parts import Parts, watch_models
parts = Parts()
watch_models(parts, torch.nn.Module)
first = torch.nn.Conv2d(3, 4, 3)
last = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
linear = torch.nn.Linear(2, 2)
print([made.facts.get("channels_last") for made in parts.all()])
"""


def test_facts_tell_the_layout_of_filters(tmp_path: Path) -> None:
    script = tmp_path / "layouts.py"  # parts are made in the user's files
    script.write_text(LAYOUTS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[False, True, None]"


FACTS = """
from tb_perfadvisor.instrument.torch import continuous
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(recorder, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        step(model)
        optimizer.step()
        recorder.step()
with profile(sys.argv[1] + "/profile", wait=1, warmup=1, active=2) as profiler:
    train(profiler, 9)
with continuous(sys.argv[1] + "/continuous", first=5, slower_than=None, rich_every=0) as profiler:
    train(profiler, 240)
print(json.dumps({}))
"""


def test_each_way_to_record_stores_the_same_facts(tmp_path: Path) -> None:
    run(FACTS, str(tmp_path))
    for way in ("profile", "continuous"):
        path = facts_files(tmp_path / way)[0]
        facts = json.loads(path.read_bytes())
        assert facts["recording"]["by"] == way
        assert facts["machine"]["cores"]
        made = {each["what"] for each in facts["program"]["made"]}
        assert {"model", "optimizer", "step loop"} <= made
        # As many steps as were recorded, and at least four, are looked at after them.
        assert facts["examined"]["steps"] == {"profile": 4, "continuous": 5}[way]
