"""`perfadvisor run` with real programs that know nothing of it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze_all
from tb_perfadvisor.ingest.recordings import split_step
from tb_perfadvisor.instrument.step_hooks import is_in_backward
from tests.support.recording import QUIET, facts_files

TORCH = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(150):
    optimizer.zero_grad()
    net(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""
# The form of torchtitan's trainer: parts of a model with an optimizer each, in a container that is
# an optimizer, too, and accumulated gradients.
TITAN = """
import torch

class Container(torch.optim.Optimizer):
    def __init__(self, parts):
        self.optimizers = [torch.optim.AdamW(part.parameters(), 1e-3) for part in parts]
        super().__init__([each for part in parts for each in part.parameters()], {})
    def step(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)
    def zero_grad(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.zero_grad(*args, **kwargs)

class Trainer:
    def __init__(self):
        self.parts = [torch.nn.Linear(32, 32) for _ in range(3)]
        self.optimizers = Container(self.parts)
        self.step = 0
    def train_step(self):
        self.optimizers.zero_grad()
        for _ in range(2):
            x = torch.ones(8, 32)
            for part in self.parts:
                x = part(x)
            (torch.nn.functional.mse_loss(x, torch.zeros(8, 32)) / 2).backward()
        for part in self.parts:
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0, foreach=True)
        self.optimizers.step()
    def train(self):
        while self.step < 120:
            self.step += 1
            self.train_step()

Trainer().train()
"""
SIXTEEN_BITS = """
import torch
is_whole = {is_whole}
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 500))
x = torch.randn(256, 64)
if is_whole:
    net, x = net.to(torch.bfloat16), x.to(torch.bfloat16)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(120):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=not is_whole):
        y = net(x)
    y[:8].float().square().mean().backward()
    optimizer.step()
"""
KERAS = """
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(32), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
x = np.ones((800, 16), "float32")
for _ in range(2):
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
"""
# It goes on until the command was told what came of recording it.
LOSSES = """
import json, os, pathlib, time
import jax, jax.numpy as jnp
train = jax.jit(lambda w: (w - 0.01 * jnp.tanh(w @ w), jnp.mean(w**2)))
w = jax.random.normal(jax.random.key(0), (64, 64))
for _ in range(100):
    w, loss = train(w)
print("loss", repr(float(loss)))
status = json.loads(os.environ["PERFADVISOR_RUN"])["status"]
while not {"problem", "summary"} & json.loads(
    pathlib.Path(status, f"{os.getpid()}.json").read_text()
).keys():
    train(w)[1].block_until_ready()
    time.sleep(0.002)
"""
# Programs of each framework that draw random numbers as they train, and print each loss exactly.
PRINTED_LOSSES = {
    "torch": """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
for _ in range(80):
    loss = (net(torch.randn(16, 32)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
""",
    "keras": """
import keras, numpy as np
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(32), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
x = np.random.default_rng(0).standard_normal((800, 16), "float32")
for _ in range(2):
    print([each.hex() for each in model.fit(x, x[:, :1], batch_size=16, verbose=0).history["loss"]])
""",
    "tensorflow": """
import tensorflow as tf
tf.random.set_seed(0)
w = tf.Variable(tf.random.normal((32, 1)))
for _ in range(80):
    x = tf.random.normal((16, 32))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.dropout(x, 0.5) @ w - 1) ** 2)
    w.assign_sub(0.01 * tape.gradient(loss, w))
    print(float(loss).hex())
""",
    "jax": """
import jax, jax.numpy as jnp

@jax.jit
def train(w, key):
    loss = lambda w: jnp.mean((jax.random.normal(key, (16, 32)) @ w - 1) ** 2)
    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.01 * gradient, value

w = jnp.ones((32, 1))
for key in jax.random.split(jax.random.key(0), 80):
    w, loss = train(w, key)
    print(float(loss).hex())
""",
    "numpy": """
import numpy as np
np.random.seed(0)
w = np.ones((32, 1))
for _ in range(80):
    x = np.random.standard_normal((16, 32))
    error = x @ w - 1
    w -= 0.01 * x.T @ error / 16
    print(float((error**2).mean()).hex())
""",
}
# These have no loop of their own, and go on until the command was told of a recording.
UNTIL_SEEN = """
import itertools, json, os, pathlib, threading

def is_recorded(number=0):
    path = pathlib.Path(json.loads(os.environ["PERFADVISOR_RUN"])["status"], f"{os.getpid()}.json")
    return bool({"summary", "problem"} & json.loads(path.read_text()).keys())
"""
GENERATORS = """
import torch
torch.manual_seed(0)
w = torch.randn(200, 200)
numbers = itertools.takewhile(lambda number: not is_recorded(), itertools.count())
total = sum(map(torch.sum, map(torch.tanh, map(lambda number: w @ w, numbers))))
"""
PROFILED = f"""
import torch.profiler
with torch.profiler.profile() as profiler:
    exec({GENERATORS!r})
assert any(each.key == "aten::tanh" for each in profiler.key_averages())
"""
TREE = """
import numpy as np
w = np.random.default_rng(0).standard_normal((200, 200))

def reduce(depth, x):
    x = np.tanh(x @ w)
    if depth == 0 or is_recorded():
        return x
    return reduce(depth - 1, x) + reduce(depth - 1, x / 2)

reduce(40, w)
"""
TREE_OF_TENSORS = """
import tensorflow as tf
w = tf.random.normal((200, 200), seed=0)

def reduce(depth, x):
    x = tf.tanh(x @ w)
    if depth == 0 or is_recorded():
        return x
    return reduce(depth - 1, x) + reduce(depth - 1, x / 2)

reduce(40, w)
"""
SERVER = """
import sys, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).eval()

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with torch.no_grad():
            body = repr(model(torch.ones(8, 64)).sum().item()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass

server = SERVER(("127.0.0.1", 0), Handler)

def ask():
    while not is_recorded():
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read()
    server.shutdown()

threading.Thread(target=ask).start()
server.serve_forever()
"""
# These go on until the command was told of two recordings, and print what the first rounds give.
UNTIL_RECORDED = """
import json, os, pathlib

def is_recorded():
    path = pathlib.Path(json.loads(os.environ["PERFADVISOR_RUN"])["status"], f"{os.getpid()}.json")
    count, _, _ = json.loads(path.read_text()).get("summary", "").partition(" ")
    return count.isdigit() and int(count) >= 2
"""
ARRAYS = """
import numpy as np
a, number = np.random.default_rng(0).standard_normal((300, 300)), 0
while number < 50 or not is_recorded():
    a = a @ a.T
    a = a / np.abs(a).max()
    number += 1
    if number == 50:
        print(a.sum().hex())
"""
ARRAYS_OF_JAX = """
import jax, jax.numpy as jnp
a, number = jax.random.normal(jax.random.key(0), (100, 100)), 0
while number < 50 or not is_recorded():
    a = a @ a.T
    a = a / jnp.abs(a).max()
    number += 1
    if number == 50:
        print(float(a.sum()).hex())
"""
METHODS = """
import torch
torch.manual_seed(0)

class Coder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(64, 32), torch.nn.Linear(32, 64)
    def encode(self, x):
        return self.inner(x).relu()
    def decode(self, x):
        return self.outer(x)

def main():
    coder, number = Coder(), 0
    while number < 50 or not is_recorded():
        x = torch.randn(16, 64)
        for _ in range(3):
            x = coder.decode(coder.encode(x))
        number += 1
        if number == 50:
            print(float(x.sum()).hex())

with torch.inference_mode():
    main()
"""
PREPARED = """
import time, torch
torch.manual_seed(0)
rows, began_s = [], time.monotonic()
while not is_recorded() or time.monotonic() < began_s + 5:
    rows.append(torch.rand(64).cumsum(0).sin().sum())

model = torch.nn.Linear(64, 1)
for _ in range(600):
    model.zero_grad()
    loss = model(torch.ones(256, 64)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.data -= 1e-3 * parameter.grad
"""
# As much of libtpu as JAX asks for on a machine without a TPU: it does not start, but leaves a
# profiler. That one is of another size than JAX expects, as in a libtpu of another time.
LIBTPU = """
#include <stddef.h>
typedef struct { size_t size; void *extensions; } Arguments;
typedef struct { Arguments start; const void *error; const char *text; size_t length; } Message;
typedef struct { Arguments start; const void *error; int code; } Code;
static const char no_tpu[] = "no TPU";
static void *pass(void *arguments) { return 0; }
static void *fail(void *arguments) { return (void *)no_tpu; }
static void *message(Message *asked) {
  asked->text = no_tpu;
  asked->length = sizeof no_tpu - 1;
  return 0;
}
static void *code(Code *asked) {
  asked->code = 14; /* unavailable */
  return 0;
}
static size_t profiler[64] = {7};
static struct { size_t size; int type; void *next; void *profiler; long id[4]; }
    extension = {64, 1, 0, profiler};
static struct {
  Arguments start;
  struct { Arguments start; int major, minor; } version;
  void *functions[1024];
} api = {{sizeof api, &extension}, {{24, 0}, 0, 10000}, {pass, message, code, fail}};
void *GetPjrtApi(void) {
  for (int place = 4; place < 1024; place++) api.functions[place] = pass;
  return &api;
}
"""


# What is found in the tensors of one loop says nothing about the other.
TWO_LOOPS = """
import json, os, pathlib, torch
body, head = torch.nn.Linear(64, 500), torch.nn.Linear(500, 4)

def is_recorded(times):
    path = pathlib.Path(json.loads(os.environ["PERFADVISOR_RUN"])["status"], f"{os.getpid()}.json")
    return int(json.loads(path.read_text()).get("summary", "0 ").split()[0]) >= times

def train(parameters, times, loss):
    optimizer, left = torch.optim.SGD(parameters, 0.1), 40
    while left:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        left -= is_recorded(times)

def calibration():
    return body(torch.randn(8, 32, 64))[:, -1].square().mean()

def training():
    return head(body(torch.randn(64, 64))).square().mean()

train(body.parameters(), 2, calibration)
train(head.parameters(), 4, training)
"""


def recorded(program: str, module: str, folder: Path, every: int = 60, **environment: str) -> str:
    return recorded_and_printed(program, module, folder, every, **environment)[0]


def recorded_and_printed(
    program: str, module: str, folder: Path, every: int = 60, **environment: str
) -> tuple[str, str]:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(folder / "run")]
    command += ["--every", str(every), "--after", "2", "--", sys.executable, "-c", program]
    done = subprocess.run(
        command,
        env={**os.environ, **QUIET, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr, done.stdout


def test_steps_of_the_optimizer(tmp_path: Path) -> None:
    assert "kept in" in recorded(TORCH, "torch", tmp_path)
    reports = analyze_all(tmp_path)
    assert {report.steps.source for report in reports} == {"ProfilerStep"}
    # The end of the program may cut off the last recording.
    whole = [report for report in reports if report.steps.used >= 5]
    assert whole
    for report in whole:
        assert report.workload.mode == "training", report.workload


@pytest.mark.parametrize("is_whole", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_tensors_of_programs_in_sixteen_bits_are_looked_at(is_whole: bool, tmp_path: Path) -> None:
    recorded(SIXTEEN_BITS.format(is_whole=is_whole), "torch", tmp_path)
    for path in facts_files(tmp_path):
        examined = json.loads(path.read_bytes())["examined"]
        assert examined["failed"] == []
        # 8 of 256 rows are read.
        assert 8 / 256 in [each["amount"] for each in examined["observed"]]
    assert not [
        n for report in analyze_all(tmp_path) for n in report.notes if n.id == "failed-look"
    ]


def test_each_loop_is_recorded_and_looked_at(tmp_path: Path) -> None:
    # Two recordings of each loop, also where a busy machine makes some steps slow.
    recorded(TWO_LOOPS, "torch", tmp_path, every=1000)
    found = {
        frozenset(each["kind"] for each in json.loads(path.read_bytes())["examined"]["observed"])
        - {"lines"}  # what takes the time
        for path in facts_files(tmp_path)
    }
    # One of 32 rows of logits is read; the gradients of the body are not.
    assert found == {frozenset({"unused"}), frozenset({"dropped gradients"})}


def test_a_step_of_several_optimizers_is_one_step(tmp_path: Path) -> None:
    said = recorded(TITAN, "torch", tmp_path)
    assert "kept in" in said
    path = sorted(tmp_path.rglob("*.pt.trace.json.gz"))[0]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spans = [e for e in events if str(e.get("name")).startswith("Optimizer.step#Container")]
    marks = [e for e in events if str(e.get("name")).startswith("ProfilerStep#")]
    # The first step may be recorded without a mark.
    first = min(mark["ts"] for mark in marks)
    names = Counter(e.get("name") for e in events if "dur" in e and e["ts"] >= first)
    # The end of a step is that of the outermost optimizer: no mark divides its range.
    ends = [at for mark in marks for at in (mark["ts"], mark["ts"] + mark["dur"])]
    assert not [e for e in spans for at in ends if e["ts"] < at < e["ts"] + e["dur"]]
    # Five steps, or more where they were uneven, of three optimizers and of their container.
    assert len(marks) >= 5
    assert names["Optimizer.step#AdamW.step"] == len(marks) * 3
    assert names["Optimizer.step#Container.step"] == len(marks)


@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.nightly), "torch"]
)
def test_batches_of_fit(backend: str, tmp_path: Path) -> None:
    assert "kept in" in recorded(KERAS, backend, tmp_path, KERAS_BACKEND=backend)
    # Steps count on from one call of fit to the next: two times two epochs of 100 batches.
    steps = [split_step(report.run)[1] or 0 for report in analyze_all(tmp_path)]
    assert max(steps) > 200
    if backend == "torch":  # its tensors are looked at, as in other programs of PyTorch
        facts = [json.loads(path.read_bytes()) for path in facts_files(tmp_path)]
        assert any(each.get("examined") for each in facts)


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A recorded program of JAX, and what the command and the program printed."""
    folder = tmp_path_factory.mktemp("losses")
    return folder, *recorded_and_printed(LOSSES, "jax", folder)


def test_jax_is_recorded(losses: tuple[Path, str, str]) -> None:
    folder, said, _ = losses
    # By time, if the program has ended before its loop was found.
    is_by_loop = "a step is a round of the loop at <string>:13" in said
    assert is_by_loop or "by time" in said
    assert "kept in" in said
    reports = analyze_all(folder)
    assert {report.framework for report in reports} == {"jax"}
    assert not is_by_loop or {report.steps.source for report in reports} == {"train"}


def test_a_program_of_jax_that_ends_at_once_is_told_so(tmp_path: Path) -> None:
    said = recorded("import jax.numpy as jnp; print(jnp.ones(3).sum())", "jax", tmp_path)
    assert "imported JAX, but ended before it had computed for a moment" in said


def test_a_profiler_that_would_end_the_program_is_not_started(
    tmp_path: Path, losses: tuple[Path, str, str]
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "libtpu.c").write_text(LIBTPU)
    library = str(tmp_path / "libtpu.so")
    command = [compiler, "-w", "-shared", "-fPIC", "-o", library, str(tmp_path / "libtpu.c")]
    subprocess.run(command, check=True)
    given = {"TPU_LIBRARY_PATH": library, "JAX_PLATFORMS": ""}
    said, printed = recorded_and_printed(LOSSES, "jax", tmp_path / "with", **given)
    assert printed.startswith("loss ")
    assert printed == losses[2]
    assert "would end the program with signal 11 (SIGSEGV)" in said
    assert "or set JAX_PLATFORMS=cpu." in said


@pytest.mark.parametrize(
    ("program", "module", "framework"),
    [
        (ARRAYS, "numpy", "none"),
        (METHODS, "torch", "pytorch"),
        (ARRAYS_OF_JAX, "jax", "jax"),
    ],
)
def test_rounds_of_a_loop(program: str, module: str, framework: str, tmp_path: Path) -> None:
    pytest.importorskip(module)
    path = tmp_path / "program.py"
    path.write_text(UNTIL_RECORDED + program)
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(tmp_path / "run")]
    environment = {**os.environ, **QUIET, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--", sys.executable, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "a step is a round of the loop at program.py:" in done.stderr
    plain = "is_recorded = lambda: True\n" + program
    alone = subprocess.run(
        [sys.executable, "-c", plain], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == alone.stdout
    reports = analyze_all(tmp_path / "run")
    assert reports
    source = "train" if module == "jax" else "ProfilerStep"
    assert {(report.framework, report.steps.source) for report in reports} == {(framework, source)}


def test_a_loop_that_prepares_the_data_is_recorded_as_its_own(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(UNTIL_RECORDED + PREPARED)
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, "--", sys.executable, str(path)],
        env={**os.environ, **QUIET, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "a step is a round of the loop at program.py:" in done.stderr
    assert ", and later a computation of gradients" in done.stderr
    first, *_, last = analyze_all(tmp_path / "run")
    assert (first.workload.mode == "training", last.workload.mode) == (False, "training")


def test_no_step_ends_inside_of_a_backward_pass() -> None:
    torch = pytest.importorskip("torch")
    seen = []

    class Twice(torch.autograd.Function):  # type: ignore[misc, name-defined, unused-ignore]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            seen.append(is_in_backward())
            return gradient * 2

    assert not is_in_backward()
    Twice.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [True]
    assert not is_in_backward()


def recorded_to_the_end(program: str, folder: Path) -> str:
    """Run a program until it is recorded; returns what the command printed."""
    path = folder / "program.py"
    path.write_text(UNTIL_SEEN + program)
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(folder / "run")]
    done = subprocess.run(
        [*command, "--", sys.executable, str(path)],
        env={**os.environ, **QUIET, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize(
    ("program", "module", "framework"),
    [
        (GENERATORS, "torch", "pytorch"),
        (TREE, "numpy", "none"),
        (TREE_OF_TENSORS, "tensorflow", "tensorflow"),
    ],
)
def test_programs_without_a_loop_are_recorded_by_time(
    program: str, module: str, framework: str, tmp_path: Path
) -> None:
    pytest.importorskip(module)
    said = recorded_to_the_end(program, tmp_path)
    assert "by time, because no call of a model and no loop with rounds of 0.2 ms or more" in said
    report = analyze_all(tmp_path / "run")[0]
    assert (report.framework, report.steps.source) == (framework, "none")
    assert report.overview.window_ns > 0


def test_a_program_that_profiles_itself_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = recorded_to_the_end(PROFILED, tmp_path)
    assert "nothing was recorded: the program runs PyTorch's profiler itself." in said


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ("HTTPServer", "a step is a call of a model"),
        ("ThreadingHTTPServer", "models are called on many threads: a step is such a call"),
    ],
)
def test_a_request_to_a_server_is_a_step(server: str, reason: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = recorded_to_the_end(SERVER.replace("SERVER(", f"{server}("), tmp_path)
    assert reason in said
    report = analyze_all(tmp_path / "run")[0]
    assert report.steps.source == "ProfilerStep"
    assert report.steps.used >= 3


@pytest.mark.parametrize("framework", PRINTED_LOSSES)
def test_losses_are_those_of_the_program_by_itself(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    path = tmp_path / "program.py"
    path.write_text(PRINTED_LOSSES[framework])
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(tmp_path / "run")]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    printed = [
        subprocess.run(
            [*prefix, sys.executable, str(path)],
            env={**os.environ, **QUIET, **one_thread},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for prefix in ([], [*command, "--first", "5", "--"])
    ]
    assert printed[0] == printed[1]
    assert "0x" in printed[0]
