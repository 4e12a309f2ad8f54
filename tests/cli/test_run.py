"""`perfadvisor run`, with programs that import no framework, or a small stand-in of PyTorch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT

# As much of PyTorch as the hook looks for. Its optimizer calls the hooks that were registered.
OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""


def perfadvisor_run(
    folder: Path, *command: str, logdir: str = "out", **environment: str
) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", logdir, "--", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


def test_a_program_without_a_framework_runs_as_without_us(tmp_path: Path) -> None:
    program = "import sys; print(sys.argv[1:]); sys.exit(3)"
    for name in ("torch", "keras", "jax"):
        (tmp_path / f"{name}.py").write_text("print('imported, although the program does not')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = (sys.executable, "-c", program, "--every", "7")
    status, out, said = perfadvisor_run(tmp_path, *command, PYTHONPATH=path)
    assert (status, out) == (3, "['--every', '7']\n")
    assert "imported neither PyTorch, TensorFlow, Keras, JAX nor NumPy" in said


PLAIN = """
import itertools, threading, time
print(threading.enumerate(), flush=True)
while True:
    sum(a * b % 7 for a, b in itertools.permutations(range(30), 2))
    if time.process_time() > {seconds}:
        print(threading.enumerate())
        {late}
"""
NUMPY = "def clip(a): return a"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_program_of_python_alone_is_recorded_when_it_has_worked(
    tmp_path: Path, *, is_late: bool
) -> None:
    (tmp_path / "numpy.py").write_text(NUMPY)
    script = tmp_path / "search.py"
    late = "import numpy; time.sleep(1); raise SystemExit(3)" if is_late else "raise SystemExit(3)"
    script.write_text(PLAIN.format(seconds=10, late=late))
    status, out, said = perfadvisor_run(tmp_path, str(script), logdir="out")
    assert status == 3
    assert out.count("Thread(") == 2  # the main one, at the beginning and at the end
    assert "a step is a round of the loop at search.py:4" in said
    assert list((tmp_path / "out").glob("step_*/*.pt.trace.json.gz"))


def test_a_program_that_hides_from_us_is_told_so(tmp_path: Path) -> None:
    status, _, said = perfadvisor_run(tmp_path, sys.executable, "-I", "-c", "pass")
    assert status == 0
    assert "started no Python that reads PYTHONPATH" in said


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    status, _, said = perfadvisor_run(tmp_path, "no-such-program")
    assert status == 2
    assert "no-such-program cannot be started" in said


def test_a_script_runs_in_the_same_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.executable, sys.argv[1:])")
    status, out, _ = perfadvisor_run(tmp_path, str(script), "--lr", "1")
    assert (status, out) == (0, f"{sys.executable} ['--lr', '1']\n")


def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    # The command itself starts Python, too, without the variable.
    mine = "import os, numpy\nif 'PERFADVISOR_RUN' in os.environ: print('mine')"
    (tmp_path / "sitecustomize.py").write_text(mine)
    (tmp_path / "numpy.py").write_text(NUMPY)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    _, out, said = perfadvisor_run(tmp_path, sys.executable, "-c", "print(1)", PYTHONPATH=path)
    assert out == "mine\n1\n"
    assert "imported NumPy, but no loop" in said  # before we could wait for it


def test_an_installation_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(ROOT, target_is_directory=True)
    path = str(tmp_path / "linked")
    program = "import tb_perfadvisor; print(tb_perfadvisor.__file__)"
    _, out, said = perfadvisor_run(tmp_path, sys.executable, "-c", program, PYTHONPATH=path)
    assert out.startswith(path)
    assert "RecursionError" not in said
    assert "imported neither PyTorch" in said


def test_a_logdir_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    program = (sys.executable, "-c", "print('started')")
    status, out, said = perfadvisor_run(tmp_path, *program, logdir="out/run")
    assert (status, out) == (2, "")
    assert said == f"error: {tmp_path / 'out'} is not a directory. Choose another --logdir.\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_ends_the_command_ends_the_program(name: str, tmp_path: Path) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    ours = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", "out dir", "--"]
    number = getattr(signal, name)
    # Tests that run in the background may ignore it, and so would what they start.
    handler = signal.signal(number, signal.SIG_DFL)
    with subprocess.Popen(
        [*ours, sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path
    ) as running:
        signal.signal(number, handler)
        assert running.stdout is not None
        process = int(running.stdout.readline())
        running.send_signal(number)
        assert running.wait(60) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_inference_is_told_from_training(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from torch.optim.optimizer import Optimizer")
    (package / "optimizer.py").write_text(OPTIMIZER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    program = "import torch.optim"
    _, _, said = perfadvisor_run(tmp_path, sys.executable, "-c", program, PYTHONPATH=path)
    assert "imported PyTorch, but neither an optimizer" in said


def test_the_switch_is_named(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "pass")
    _, _, said = perfadvisor_run(tmp_path, *command, PERFADVISOR_PROFILING="off")
    assert "nothing is recorded, because PERFADVISOR_PROFILING is off" in said


@pytest.mark.parametrize(
    ("in_shell", "said"),
    [
        (False, "the program was ended by signal 11 (SIGSEGV)."),
        (True, "the program exited with status 139, which stands for signal 11 (SIGSEGV)."),
    ],
)
def test_a_signal_that_ends_the_program_is_named(in_shell: bool, said: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]
    command = ["sh", "-c", '"$@"; exit $?', "sh", *program] if in_shell else program
    status, _, lines = perfadvisor_run(tmp_path, *command)
    assert status == 128 + 11
    assert said in lines
    assert "nothing was recorded before that" in lines
    assert "imported neither" not in lines


def test_a_status_that_no_signal_has(tmp_path: Path) -> None:
    status, _, said = perfadvisor_run(tmp_path, sys.executable, "-c", "raise SystemExit(255)")
    assert status == 255  # 128 + 127, and there is no signal 127
    assert "signal" not in said
