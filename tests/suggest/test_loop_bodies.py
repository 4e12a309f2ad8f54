"""The part of a loop that trains becomes a function, which TensorFlow compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patches import added, git_apply, only

LOOP = """\
import tensorflow as tf

model = make_model()
optimizer = tf.keras.optimizers.SGD(0.1)

for epoch in range(3):
    for step, (x, y) in enumerate(batches):
        x = tf.reshape(x, [-1, 4])

        # One step.
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        print(step, float(loss))
"""


def test_the_loop_gives_what_it_binds_and_takes_what_it_reads(tmp_path: Path) -> None:
    suggestion = only(tmp_path, LOOP, "tf-function")
    lines = [line for line in added(suggestion) if line]
    assert lines[:2] == ["@tf.function", "def train_step(x, y):"]
    assert lines[-2:] == ["return loss", "loss = train_step(x, y)"]
    git_apply(tmp_path, suggestion.patch)
    after = (tmp_path / "train.py").read_text("utf-8")
    compile(after, "train.py", "exec")
    assert after.index("def train_step") < after.index("for epoch")
    assert after.count("# One step.") == 1


def test_a_loop_of_a_function_stays_in_it(tmp_path: Path) -> None:
    head, loop = LOOP.split("\n\n", 1)
    code = f"{head}\n\n\ndef main():\n" + "".join(
        f"    {line}\n" if line else "\n" for line in loop.splitlines()
    )
    git_apply(tmp_path, only(tmp_path, code, "tf-function").patch)
    after = (tmp_path / "train.py").read_text("utf-8")
    compile(after, "train.py", "exec")
    assert "\n    @tf.function\n    def train_step(x, y):\n        with tf.Grad" in after


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("model(x) - y", "model(x) - y * step", "`step` is another number in each step"),
        ("        print(", "        scale *= 2\n        print(", ""),
        ("model(x) - y", "scale * model(x)", ""),
        ("        grads =", "        print(loss)\n        grads =", "it uses `print`"),
        ("        grads =", "        losses.append(loss)\n        grads =", "it changes `losses`"),
        ("        grads =", "        total += loss\n        grads =", "it adds to a value"),
        ("print(step,", "print(tape,", "`tape` may be used after the step"),
        ("optimizer.apply_gradients", "update", "no optimizer applies"),
        ("(model(x)", "(0 if x is None else model(x)", "it branches"),
        ("make_model()", "train_step = make_model() or compiled_train_step",
         "the file has a train_step"),
    ],
)  # fmt: skip
def test_what_would_run_only_once_stays(tmp_path: Path, old: str, new: str, reason: str) -> None:
    code = LOOP.replace(old, new, 1)
    assert code != LOOP
    suggestion = only(tmp_path, code, "tf-function")
    if reason:
        assert (suggestion.outcome, suggestion.patch) == ("unsure", "")
        assert suggestion.reason.startswith(reason)
    else:
        assert suggestion.patch


def test_a_number_that_changes_is_not_passed(tmp_path: Path) -> None:
    code = LOOP.replace("model(x) - y", "scale * model(x)").replace(
        "        print(", "        scale *= 2\n        print("
    )
    reason = only(tmp_path, code, "tf-function").reason
    assert reason.startswith("`scale` is another number in each step")


_MADE = """\
import json
import tensorflow as tf

tf.keras.utils.set_random_seed(0)
batches = [(tf.random.normal([8, 2, 2]), tf.random.normal([8, 1])) for _ in range(4)]
losses = []


def make_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
"""


@pytest.mark.frameworks
def test_the_patched_loop_gives_the_same_losses(tmp_path: Path) -> None:
    code = LOOP.replace("import tensorflow as tf\n", _MADE).replace(
        "print(step, float(loss))", "losses.append(float(loss))"
    )
    code += "\nprint(json.dumps(losses))\n"
    before = _run(tmp_path, code)
    git_apply(tmp_path, only(tmp_path, code, "tf-function").patch)
    after = _run(tmp_path, (tmp_path / "train.py").read_text("utf-8"))
    assert len(before) == 12
    assert after == pytest.approx(before, rel=1e-4)


def _run(directory: Path, code: str) -> list[float]:
    path = directory / "run.py"
    path.write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=300
    )
    path.unlink()  # the patch is for one file
    assert done.returncode == 0, done.stderr[-3000:]
    losses: list[float] = json.loads(done.stdout.splitlines()[-1])
    return losses
