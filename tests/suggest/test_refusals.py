"""Code that a patch would break, or change the results of: it gets the place and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.sources import Repository
from tb_perfadvisor.suggest import suggest
from tests.support.patches import added, git_apply, only, report_with

LOADER = "from torch.utils.data import DataLoader, Dataset\n"
WORKERS, PINNED = "loader-workers", "pin-batches"
JIT = "jit"
JAX = "import jax\nimport jax.numpy as jnp\n"
LOOP = "for _ in range(9):\n    w = update(w)\n"
TF = "import tensorflow as tf\n"


def refused(tmp_path: Path, code: str, snippet: str) -> str:
    compile(code, "train.py", "exec")
    suggestion = only(tmp_path, code, snippet)
    assert (suggestion.outcome, suggestion.patch) == ("unsure", "")
    return suggestion.reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("n = 2\nfor n in (0, 2):\n    loader = DataLoader(a, num_workers=n)\n", "num_workers is"),
        ("a, n = 1, 2\nloader = DataLoader(x, num_workers=n)\n", "num_workers is `n`"),
        # CUDA cannot be used in processes that are forked.
        (
            "class Images(Dataset):\n    def __getitem__(self, i):\n        return x[i].cuda()\n"
            "loader = DataLoader(Images())\n",
            "worker processes would use the device",
        ),
        (
            "loader = DataLoader(a, collate_fn=lambda rows: stack(rows).to(device))\n",
            "worker processes would use the device",
        ),
        ("import webdataset as wds\nloader = DataLoader(wds.WebDataset(u))\n", "each worker would"),
        ("def evaluate():\n    return DataLoader(a)\n", "the only place that matches seems"),
        ("val_loader = DataLoader(a)\n", "the only place that matches seems to be of a test"),
    ],
)
def test_loaders(tmp_path: Path, code: str, reason: str) -> None:
    assert refused(tmp_path, LOADER + code, WORKERS).startswith(reason)


@pytest.mark.parametrize("name", ["tests/data.py", "test_data.py", "data_test.py", "conftest.py"])
def test_a_loader_in_a_test_is_not_that_of_the_program(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{LOADER}loader = DataLoader(a)\n", "utf-8")
    suggestion = only(tmp_path, "import torch\n", WORKERS)
    assert (suggestion.outcome, suggestion.places) == ("unsure", [f"{name}:2"])


def test_workers_end_after_each_epoch_if_the_dataset_changes(tmp_path: Path) -> None:
    code = LOADER + "loader = DataLoader(data)\nfor e in range(3):\n    data.set_epoch(e)\n"
    assert added(only(tmp_path, code, WORKERS)) == ["loader = DataLoader(data, num_workers=4)"]
    sampled = code.replace("data.set_epoch", "sampler.set_epoch")
    assert "persistent_workers=True" in added(only(tmp_path, sampled, WORKERS))[0]


def test_programs_without_a_guard_get_a_note(tmp_path: Path) -> None:
    (note,) = only(tmp_path, LOADER + "loader = DataLoader(data)\n", WORKERS).notes
    assert "__main__" in note
    guarded = LOADER + "loader = DataLoader(data)\nif __name__ == '__main__':\n    main()\n"
    assert only(tmp_path, guarded, WORKERS).notes == []


def test_copies_to_the_host_wait(tmp_path: Path) -> None:
    code = (
        LOADER + "loader = DataLoader(data)\n"
        "for x, y in loader:\n    x = x.to(device)\n    y = y.to(torch.int64)\n"
        "    x = model(x)\n    x = x.to('cpu')\n    x = x.to(device)\n"
    )
    assert added(only(tmp_path, code, PINNED)) == [
        "loader = DataLoader(data, pin_memory=True)",
        "x = x.to(device, non_blocking=True)",
    ]


@pytest.mark.parametrize(
    ("code", "snippet", "reason"),
    [
        (
            "import torch\nopt = torch.optim.Adam(p, fused=flag)\n",
            "fused-optimizer",
            "other arguments may choose",
        ),
        (
            "opt.zero_grad()\nnorm = w.grad.norm()\n",
            "set-to-none",
            "the file reads gradients",
        ),
        (
            "import numpy as np\ntotal = 0.0\nfor x in d:\n    total += np.mean(x).item()\n"
            "print(f'{total:.3f}')\n",
            "detach-losses",
            "it may not be a loss",
        ),
        # The model itself would stay outside of the autocast.
        (
            "import torch\ndef step(x, y):\n    out = model(x)\n    hooks.clear()\n"
            "    loss = criterion(out, y)\n    loss.backward()\n",
            "autocast",
            "where the forward pass begins",
        ),
        (
            "import torch\ndef step(x, y):\n    out = model(x)\n    loss = criterion(out, y)\n"
            "    loss.backward()\n    plot(out.data.numpy())\n",
            "autocast",
            "NumPy, which reads `out`, has no bfloat16",
        ),
        (
            "import torch\ndef step(x, y):\n    loss = torch.nn.BCELoss()(model(x), y)\n"
            "    loss.backward()\n",
            "autocast",
            "binary cross-entropy",
        ),
        (
            "import torch\nclass Net(Module):\n    def configure_optimizers(self):\n"
            "        return torch.optim.Adam(self.parameters())\n",
            "compile",
            "its trainer may not call",
        ),
        # The state is used again after a call that would give its memory away.
        (
            "import jax\nstep = jax.jit(update)\nfor b in d:\n    s, loss = step(s, b)\n"
            "_, last = step(s, b)\n",
            "donate",
            "its arguments may still be used",
        ),
        (
            "import jax\nstep = jax.jit(update)\nbest = s\nfor b in d:\n    s, loss = step(s, b)\n",
            "donate",
            "its arguments may still be used",
        ),
    ],
    ids=["fused", "grad", "numpy", "outside", "narrow", "bce", "lightning", "donated", "alias"],
)
def test_training_steps(tmp_path: Path, code: str, snippet: str, reason: str) -> None:
    assert refused(tmp_path, code, snippet).startswith(reason)


@pytest.mark.parametrize(
    ("code", "snippet"),
    [
        ("import torch\nopt = torch.optim.Adagrad(p)\n", "fused-optimizer"),  # not on CUDA
        ("import re, keras\nwords = re.compile('a', re.I)\n", "steps-per-execution"),
        ("def main():\n    import torch\nif __name__ == '__main__':\n    main()\n", "tf32"),
        ("import torch\nx.backward(gradient)\n", "autocast"),
        (f"{TF}n = tf.data.Dataset.range(9).cardinality()\n", "prefetch"),
        ("import torch\nmain = '__main__'\n", "tf32"),
        ("import torch\nm = Conv3d().to(d)\nopt = SGD(m.parameters())\n", "channels-last"),
    ],
    ids=["adagrad", "re", "tf32", "gradient", "cardinality", "module", "3d"],
)
def test_places_that_do_not_match(tmp_path: Path, code: str, snippet: str) -> None:
    assert only(tmp_path, code, snippet).outcome == "none"


@pytest.mark.parametrize(
    ("definition", "rest", "reason"),
    [
        (
            "def update(w):\n    return jnp.tanh(w) * rate\n",
            "    rate = rate / 2\n",
            "`rate` changes",
        ),
        ("def update(w):\n    return jnp.tanh(w) + next(batches)\n", "", "it uses `next`"),
        ("def update(w):\n    return jnp.tanh(w) * random.random()\n", "", "it uses `random`"),
        ("def update(w):\n    return jnp.tanh(w) if w > 0 else w\n", "", "it branches"),
        ("def update(w):\n    state.w = jnp.tanh(w)\n    return w\n", "", "it changes an object"),
        ("def update(w):\n    yield jnp.tanh(w)\n", "", "it does not return at once"),
        ("async def update(w):\n    return jnp.tanh(w)\n", "", "it is asynchronous or decorated"),
        ("@timed\ndef update(w):\n    return jnp.tanh(w)\n", "", "it is asynchronous or decorated"),
        ("def update(w):\n    return jnp.tanh(w.apply(1))\n", "", "`w` may not be an array"),
        (
            "def update(w):\n    for _ in range(w):\n        jnp.tanh(1.0)\n",
            "",
            "an argument may be",
        ),
        (
            "def update(w, on=0):\n    return jnp.tanh(w)\n",
            "    w = update(w, on=True)\n",
            "it is called",
        ),
    ],
)
def test_functions_that_are_not_jitted(
    tmp_path: Path, definition: str, rest: str, reason: str
) -> None:
    code = f"{JAX}import random\nrate = 0.1\n{definition}{LOOP}{rest}"
    assert refused(tmp_path, code, JIT).startswith(reason)


@pytest.mark.parametrize(
    ("mapped", "reason"),
    [
        ("lambda x: prepared(x)", "`prepared` is defined elsewhere"),
        ("lambda x: (layers(x), x)", "`layers` is defined elsewhere"),
        ("outer", "the function is random"),
    ],
)
def test_maps_that_are_not_cached(tmp_path: Path, mapped: str, reason: str) -> None:
    code = (
        f"{TF}from data import prepared\nlayers = make()\n"
        "def inner(x):\n    return tf.image.random_crop(x, 8)\n"
        "def outer(x):\n    return inner(x)\n"
        f"d = tf.data.Dataset.from_tensor_slices(x).map({mapped}).batch(8)\n"
    )
    assert refused(tmp_path, code, "cache").startswith(reason)


def test_pipelines_in_parentheses_are_continued_inside_of_them(tmp_path: Path) -> None:
    code = f"{TF}d = (\n    tf.data.Dataset.range(9)\n    .batch(3)\n)\nn = d.cardinality()\n"
    suggestion = only(tmp_path, code, "prefetch")
    assert added(suggestion) == [".prefetch(tf.data.AUTOTUNE)"]
    git_apply(tmp_path, suggestion.patch)
    compile((tmp_path / "train.py").read_text("utf-8"), "train.py", "exec")


def test_tensorflow_goes_by_the_name_that_the_file_has(tmp_path: Path) -> None:
    code = "import tensorflow\nd = tensorflow.data.Dataset.range(9).map(f)\n"
    assert added(only(tmp_path, code, "parallel-calls")) == [
        "d = tensorflow.data.Dataset.range(9).map(f, num_parallel_calls=tensorflow.data.AUTOTUNE)"
    ]


# --- code that was patched after the recording ----------------------------------------------------

CHANGED = (
    "the code has changed since the profile was recorded: {} is there already; record it again"
)


@pytest.mark.parametrize(
    "code",
    [
        "loader = DataLoader(a, num_workers=4)\n",
        "n = 4\nloader = DataLoader(a, num_workers=n)\n",
        # The loader that lacks workers is not that of the training.
        "train_loader = DataLoader(a, num_workers=4)\nother_loader = DataLoader(b)\n",
    ],
)
def test_workers_are_not_doubled_for_a_profile_without_workers(tmp_path: Path, code: str) -> None:
    assert refused(tmp_path, LOADER + code, WORKERS) == CHANGED.format("num_workers=4")


def test_workers_that_the_profile_shows_are_doubled(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{LOADER}loader = DataLoader(a, num_workers=2)\n", "utf-8")
    report = report_with(WORKERS)
    shown = [*report.workload.input, "DataLoader with workers"]
    report = replace(report, workload=replace(report.workload, input=shown))
    (suggestion,) = suggest(report, Repository(tmp_path))
    assert suggestion.changes == ["train.py:2: num_workers=4, persistent_workers=True"]
    assert suggestion.notes == [
        "The profile was recorded with num_workers=2; if not, record it again."
    ]


def test_a_second_run_with_the_same_profile_gives_no_patch(tmp_path: Path) -> None:
    code = f"{LOADER}loader = DataLoader(a)\n"
    first = only(tmp_path, code, WORKERS)
    git_apply(tmp_path, first.patch)
    patched = (tmp_path / "train.py").read_text("utf-8")
    assert refused(tmp_path, patched, WORKERS) == CHANGED.format("num_workers=4")


def test_an_optimizer_that_is_fused_now(tmp_path: Path) -> None:
    code = "import torch\noptimizer = torch.optim.Adam(p, fused=True)\n"
    snippet = "fused-optimizer"
    assert refused(tmp_path, code, snippet) == CHANGED.format("fused=True")
    # Of two, the one that is not fused is what the profile shows.
    two = f"{code}other = torch.optim.SGD(q)\n"
    assert added(only(tmp_path, two, snippet)) == ["other = torch.optim.SGD(q, fused=True)"]
