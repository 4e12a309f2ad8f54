"""Findings on profiles that this test records with the real frameworks.

Each recorder runs in its own process, because frameworks are slow to import and noisy. A test is
skipped if its framework cannot be imported.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import draw
from tb_perfadvisor.trace import EventKind
from tests.support.recording import record, run
from tests.support.writers import write_xplane
from tests.support.writers.chrome import export_space

GPU = """
    cell 10us
    step     |7..........|...........|
    main     |DDDoo.SSSS.|Doo...SSA..|
    gpu 7    |...hKKKm...|hKKK.g.....|
    gpu 20   |.....NN....|...NN......|
"""
TPU = """
    cell 10us
    step          |..........|..........|
    main          |Lcc.......|L.....D...|
    tpu 0         |.XXYYNN.I.|.XXYY.....|
    tpu 0 modules |.MMMMMMM..|.MMMM.....|
"""
TORCH = """
import sys, time, torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(16)

model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
once = schedule(wait=1, warmup=1, active=4, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=once,
             on_trace_ready=tensorboard_trace_handler(sys.argv[1]), record_shapes=True) as profiler:
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=8):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        profiler.step()
"""

BOTH_EXPORTERS = """
import torch
from torch.profiler import profile, schedule

def export(profiler):
    profiler.export_chrome_trace("written_in_c.pt.trace.json")
    profiler.export_chrome_trace("written_in_python.pt.trace.json", use_python_export=True)

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(schedule=schedule(wait=1, warmup=1, active=4), on_trace_ready=export,
             record_shapes=True, with_stack=True, profile_memory=True) as profiler:
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        profiler.step()
"""

LEAK = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
once = schedule(wait=1, warmup=1, active=6, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=once, profile_memory=True,
             on_trace_ready=tensorboard_trace_handler(sys.argv[1])) as profiler:
    for _ in range(10):
        optimizer.zero_grad()
        prediction = model(torch.randn(512, 512))
        prediction.square().mean().backward()
        optimizer.step()
        losses.append(model(torch.randn(512, 512)).mean() if sys.argv[2] == "leak" else 0.0)
        profiler.step()
"""

JAX = """
import sys, jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x) / 64.0)
x = step(jnp.ones((256, 256))).block_until_ready()
jax.profiler.start_trace(sys.argv[1])
for number in range(5):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(x).block_until_ready()
jax.profiler.stop_trace()
"""

KERAS = """
import sys, time, numpy as np, tensorflow as tf

def slow(index):
    time.sleep(0.004)
    return np.ones(8, np.float32), np.float32(0)

def load(index):
    features, label = tf.numpy_function(slow, [index], (tf.float32, tf.float32))
    features.set_shape([8]); label.set_shape([])
    return features, label

# A generator is fetched through the step's own thread, element by element.
data = tf.data.Dataset.range(96).map(load).batch(8)
options = tf.data.Options(); options.autotune.enabled = False
data = data.with_options(options)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(data.take(1), verbose=0)
callback = tf.keras.callbacks.TensorBoard(sys.argv[1], profile_batch=(3, 7))
model.fit(data, verbose=0, callbacks=[callback])
"""

TIMELINE = """
import pathlib, sys, tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline
tf.disable_eager_execution()
loss = tf.reduce_mean(tf.matmul(tf.random.normal([256, 256]), tf.ones([256, 256])))
with tf.Session() as session:
    recorded = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    session.run(loss, options=options, run_metadata=recorded)
text = timeline.Timeline(recorded.step_stats).generate_chrome_trace_format(show_memory=True)
pathlib.Path(sys.argv[1], "timeline.json").write_text(text)
"""


def _share(report: Report, cause: str) -> float:
    return sum(part.share for part in report.overview.breakdown if part.cause == cause)


def test_pytorch(tmp_path: Path) -> None:
    report = record(TORCH, "torch", tmp_path)
    assert (report.framework, report.steps.source, report.steps.used) == (
        "pytorch",
        "ProfilerStep",
        4,
    )
    # Eight samples of at least 5 ms each are waited for in every step.
    assert report.overview.input_wait_share is not None
    assert report.overview.window_ns * report.overview.input_wait_share > 4 * 8 * 5_000_000
    assert report.findings[0].rule_id == "input-stall"
    assert report.overview.device_compute_share is None


def test_a_loss_that_is_kept_keeps_its_graph(tmp_path: Path) -> None:
    (tmp_path / "leak").mkdir()
    report = record(LEAK, "torch", tmp_path / "leak", "leak")
    finding = next(finding for finding in report.findings if finding.rule_id == "memory-growth")
    # The graph of the kept loss holds what the gradients of the two layers' weights need: the
    # input and ReLU's result, 512 x 512 floats each, a mebibyte.
    assert finding.summary.startswith("Each step leaves 2.00 MiB allocated"), finding.summary
    held = next(
        evidence for evidence in finding.evidence if evidence.title.startswith("Allocated in steps")
    )
    assert {row[0] for row in held.rows} >= {"aten::randn", "aten::relu"}
    (tmp_path / "fixed").mkdir()
    fixed = record(LEAK, "torch", tmp_path / "fixed", "fixed")
    assert "memory-growth" not in {finding.rule_id for finding in fixed.findings}


def test_jax(tmp_path: Path) -> None:
    report = record(JAX, "jax", tmp_path)
    assert (report.framework, report.steps.source) == ("jax", "train")
    # The first is left out, and on a busy machine others that took unusually long.
    assert report.steps.used + len(report.steps.excluded) == 5
    assert _share(report, "host-compute") > 0
    assert _share(report, "compiling") == 0  # it was compiled before the recording began
    assert report.overview.input_wait_share is None  # nothing tells
    # Of the same recording, what JAX wrote for trace viewers says the same.
    (xplane,) = tmp_path.rglob("*.xplane.pb")
    xplane.unlink()
    export = analyze(tmp_path)
    assert (report.formats, export.formats) == (["xplane"], ["chrome"])
    assert export.steps == report.steps
    # Only the xplane contains the program, and so its memory and its lines.
    seen, whole = export.overview, replace(report.overview, program_memory=None)
    costliest, of_whole = (
        [replace(work, place="") for work in each.costliest] for each in (seen, whole)
    )
    assert costliest == of_whole
    assert replace(seen, costliest=[]) == replace(whole, costliest=[])
    assert [note.id for note in export.notes] == [
        "chrome-export",
        *(note.id for note in report.notes),
    ]


def test_keras(tmp_path: Path) -> None:
    report = record(KERAS, "tensorflow", tmp_path)
    assert (report.framework, report.steps.source) == ("tensorflow", "Profiled batch")
    assert report.steps.used >= 4
    # A batch of eight elements of at least 4 ms each.
    assert report.overview.input_wait_share is not None
    assert report.findings[0].rule_id == "input-stall"


def test_a_timeline_of_tensorflow_1(tmp_path: Path) -> None:
    report = record(TIMELINE, "tensorflow", tmp_path)
    assert (report.framework, report.formats) == ("tensorflow", ["chrome"])
    assert _share(report, "host-compute") > 0
    listing = discover(tmp_path)
    (trace,) = load_capture(listing, listing.captures[0]).traces
    assert "Mean:Mean" in {trace.name(row) for row in trace.rows(EventKind.OPERATOR).tolist()}
    assert trace.source.origin_unix_ns is not None


EXPORT = """
import pathlib, sys
try:
    from jax._src.lib import _profiler
    export = _profiler.ProfilerSession().export
except (ImportError, AttributeError):
    sys.exit(print("no exporter"))
export(pathlib.Path(sys.argv[1]).read_bytes(), sys.argv[2])
"""


@pytest.mark.parametrize("drawing", [GPU, TPU])
def test_exports_written_for_tests_are_as_jax_writes_them(drawing: str, tmp_path: Path) -> None:
    data = write_xplane(draw(drawing, framework="jax"))
    (tmp_path / "h.xplane.pb").write_bytes(data)
    arguments = [str(tmp_path / "h.xplane.pb"), str(tmp_path / "exported")]
    if "no exporter" in run(EXPORT, "jax", tmp_path, *arguments).stdout:
        pytest.skip("this version of JAX has no exporter that can be called")
    (path,) = tmp_path.rglob("*.trace.json.gz")
    assert _events(gzip.decompress(path.read_bytes())) == _events(export_space(data))


def _events(data: bytes) -> Counter[tuple[str, str, str]]:
    """Process, thread and the rest of each event; processes are numbered at will."""
    events = [event for event in json.loads(data)["traceEvents"] if event]
    names = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["name"] in ("process_name", "thread_name")
    }
    return Counter(
        (
            names[event["pid"], None],
            names[event["pid"], event["tid"]],
            json.dumps(
                {**event, "pid": 0, "ts": float(event["ts"]), "dur": float(event["dur"])},
                sort_keys=True,
            ),
        )
        for event in events
        if event["ph"] == "X"
    )


def test_both_exporters_of_pytorch_give_the_same_report(tmp_path: Path) -> None:
    """`use_python_export` is an option since PyTorch 2.13."""
    if importlib.util.find_spec("torch.profiler._chrome_trace_export") is None:
        pytest.skip("this PyTorch has one exporter")
    run(BOTH_EXPORTERS, "torch", tmp_path)
    config = Config(with_views=True)
    first, second = (
        analyze(tmp_path / f"written_in_{language}.pt.trace.json", config)
        for language in ("c", "python")
    )
    assert first.views is not None
    assert second.views is not None
    assert first.views["memory"] is not None
    for view in ("steps", "operators", "memory"):  # labels of threads are shorter in Python
        assert first.views[view] == second.views[view]
    assert (first.overview, first.steps) == (second.overview, second.steps)
    assert [each.rule_id for each in first.findings] == [each.rule_id for each in second.findings]


EXPERTS = """
import sys, torch
from tb_perfadvisor.instrument.torch import profile

tables, x = torch.randn(8, 128, 128), torch.randn(256, 128)
experts = torch.randint(0, 8, (256,))
with profile(sys.argv[1], wait=1, warmup=1, active=4) as profiler:
    for _ in range(6):
        if sys.argv[2] == "copied":
            torch.bmm(x[:, None], tables[experts])
        else:
            order, counts = experts.argsort(), torch.bincount(experts, minlength=8).tolist()
            torch.cat([a @ b for a, b in zip(x[order].split(counts), tables)])[order.argsort()]
        profiler.step()
"""


@pytest.mark.parametrize("way", ["copied", "grouped"])
def test_matrices_that_the_cpu_copies_for_each_row(tmp_path: Path, way: str) -> None:
    report = record(EXPERTS, "torch", tmp_path, way)
    found = {each.rule_id: each for each in report.findings}
    assert ("gathered-weights" in found) is (way == "copied")
    if way == "copied":
        assert "256 matrices are made of 8" in found["gathered-weights"].summary
