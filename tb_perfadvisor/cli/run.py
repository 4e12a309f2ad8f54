"""`perfadvisor run`: records a program without changing it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tb_perfadvisor.cli.help import Argument, Command, CountRange, NumberRange
from tb_perfadvisor.cli.terminal import note
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.plain_text import shell_path
from tb_perfadvisor.units import format_exit_status

_JAX_FIRST_WINDOW_S = 1.0
_JAX_WINDOW_S = 2.0
_JAX_EVERY_S = 300.0
_EARLY_STEPS = 3
"""The first steps compile, tune and allocate."""
_MOST_SHARE = 0.02
_MOST_BYTES = 1 << 30
_PASSED_ON = ("SIGTERM", "SIGHUP")
"""Ctrl-C reaches the program without us."""
_KINETO = "KINETO_LOG_LEVEL"
_SILENT = "6"
"""Above its highest level."""
_NO_STEP = {
    "torch": "imported PyTorch, but neither an optimizer nor gradients, a model or a loop was seen "
    "three times.",
    "keras": "imported Keras, but no batches, no model and no loop were seen three times.",
    "tensorflow": "imported TensorFlow, but neither a tf.function nor gradients, a model or a loop "
    "was seen three times.",
    "jax": "imported JAX, but ended before it had computed for a moment.",
    "numpy": "imported NumPy, but no loop with rounds of 0.2 ms or more was seen to repeat.",
}
_NOTHING = "imported neither PyTorch, TensorFlow, Keras, JAX nor NumPy, and computed only briefly."


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.option(
    "--logdir",
    type=click.Path(file_okay=False),
    default="runs/perfadvisor",
    show_default=True,
    help="Directory of the run; each recording becomes a directory in it.",
)
@click.option(
    "--every",
    type=CountRange(min=20),
    default=1_000,
    show_default=True,
    help="Steps from one recording to the next.",
)
@click.option(
    "--first",
    type=CountRange(min=0),
    default=20,
    show_default=True,
    help="Steps before the first recording, at least.",
)
@click.option(
    "--after",
    "after_s",
    type=NumberRange(min=0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds before the first long recording of what is recorded by time.",
)
@click.option("--advise", is_flag=True, help="Analyze each recording and log the headline.")
@click.argument(
    "command",
    cls=Argument,
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    help="The program and its arguments, after two dashes.",
)
def run(
    logdir: str, every: int, first: int, after_s: float, advise: bool, command: Sequence[str]
) -> None:
    """Run a program and record a few steps now and then, without changing it.

    Write the program after two dashes: perfadvisor run -- python train.py. A step is a batch of
    Keras, a step of the optimizer, or else a round of the loop that repeats; at the end it says
    which. A program that repeats nothing is recorded by time.
    """
    from tb_perfadvisor.instrument import hook, site
    from tb_perfadvisor.instrument.continuous.profiler import SWITCH, is_switched_off

    _require_room(Path(logdir).absolute())
    if is_switched_off():
        note(f"nothing is recorded, because {SWITCH} is off.")
    elif any(Path(logdir).glob("step_*")):
        note(f"{logdir} has recordings already. To compare two variants, give each a --logdir.")
    with tempfile.TemporaryDirectory(prefix="perfadvisor-run-") as status:
        settings = {
            "status": status,
            "logdir": str(Path(logdir).absolute()),
            "plan": {
                "every": every,
                "first": first,
                "advise": advise,
                "early": _EARLY_STEPS,
                "pairs": True,
                "most_share": _MOST_SHARE,
                "most_bytes": _MOST_BYTES,
            },
            "after_s": after_s,
            "every_s": _JAX_EVERY_S,
            "window_s": _JAX_WINDOW_S,
            "first_window_s": _JAX_FIRST_WINDOW_S,
        }
        path = [str(Path(site.__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            hook.SETTINGS: json.dumps(settings),
            # PyTorch's profiler writes a line to stderr each time it starts and stops.
            _KINETO: os.environ.get(_KINETO, _SILENT),
        }
        try:
            process = subprocess.Popen(_with_python(command), env=environment)
        except OSError as error:
            raise UsageError(
                f"{command[0]} cannot be started: {error.strerror}.",
                hint="Write the program after two dashes: perfadvisor run -- python train.py",
            ) from error
        with _signals_passed_on(process):
            returncode = _wait(process)
        said = [json.loads(file.read_text("utf-8")) for file in sorted(Path(status).glob("*.json"))]
    death = _death(returncode)
    if death:
        note(f"the program {death}.")
    for line in _summary(said, logdir, has_died=bool(death)):
        note(line)
    sys.exit(returncode if returncode >= 0 else 128 - returncode)


def _with_python(command: Sequence[str]) -> Sequence[str]:
    """A script that cannot be run by itself runs in the Python that this command runs in."""
    script = command[0]
    is_script = script.endswith(".py") and Path(script).is_file() and not shutil.which(script)
    return [sys.executable, *command] if is_script else command


def _require_room(logdir: Path) -> None:
    """Refuse what nothing can be recorded to, before the program trains for hours."""
    existing = next(path for path in (logdir, *logdir.parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"{existing} is not a directory.", hint="Choose another --logdir.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{existing} cannot be written to.", hint="Choose another --logdir.")


@contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """What asks this command to end asks the program, so that it does not run on without us."""

    def pass_on(number: int, _: object) -> None:
        process.send_signal(number)

    numbers = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
    # After `nohup`, the program ignores SIGHUP as well.
    numbers = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the program; an interrupt reaches it, too, and it may take time to end."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _death(returncode: int) -> str:
    """How a signal ended the program; empty if none did."""
    if returncode < 0:
        return f"was ended by {format_exit_status(returncode)}"
    # Shells and launchers report what ended their child so.
    if returncode - 128 in set(signal.Signals):
        return (
            f"exited with status {returncode}, which stands for "
            f"{format_exit_status(128 - returncode)}"
        )
    return ""


def _summary(said: Sequence[dict[str, Any]], logdir: str, *, has_died: bool) -> list[str]:
    """What was recorded, or why nothing was."""
    recorded = [each["summary"] for each in said if each.get("summary")]
    if recorded:
        steps = {each["step"]: None for each in said if each.get("summary") and "step" in each}
        recorded = [*(f"a step is {step}." for step in steps), *recorded]
        if any(Path(logdir).glob("step_*")):
            recorded.append(f"next: perfadvisor analyze {shell_path(logdir)}")
        return recorded
    problems = sorted({each["problem"] for each in said if "problem" in each})
    if problems:
        return [f"nothing was recorded: {problem}." for problem in problems]
    if has_died:  # what it imported is not known
        return ["nothing was recorded before that."]
    if not said:
        return [
            "nothing was recorded: the program started no Python that reads PYTHONPATH. "
            "`python -I`, `-E` and `-S` do not."
        ]
    imported = {name for each in said for name in each["imported"]}
    # The others import NumPy.
    why = next((_NO_STEP[name] for name in _NO_STEP if name in imported), _NOTHING)
    return [f"nothing was recorded: the program {why}"]
