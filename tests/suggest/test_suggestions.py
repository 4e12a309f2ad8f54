"""When a patch is made, when it is refused, and what it looks like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.sources import Repository
from tb_perfadvisor.suggest import suggest
from tests.support.command import ROOT, SLOW, run
from tests.support.patches import added, git_apply, only, report_with

LOADER = "from torch.utils.data import DataLoader\n\n\n"


# --- where ----------------------------------------------------------------------------------------

TWO = LOADER + "first = DataLoader(a)\n\n\ndef second():\n    return DataLoader(b)\n"


def test_several_places_are_shown_and_not_changed(tmp_path: Path) -> None:
    suggestion = only(tmp_path, TWO, "loader-workers")
    assert suggestion.outcome == "unsure"
    assert suggestion.reason == "2 places match"
    assert suggestion.places == ["train.py:4", "train.py:8"]
    assert suggestion.patch == ""


def _started(script: str) -> Report:
    report = report_with("loader-workers")
    return replace(report, workload=replace(report.workload, script=script))


def test_only_what_the_recorded_script_imports_is_meant(tmp_path: Path) -> None:
    report = _started("train.py")
    (tmp_path / "train.py").write_text("from data import loader\n", encoding="utf-8")
    (tmp_path / "other.py").write_text(LOADER + "loader = DataLoader(a)\n", encoding="utf-8")
    (suggestion,) = suggest(report, Repository(tmp_path))
    assert suggestion.outcome == "unsure"
    assert suggestion.reason == "the profiled program, train.py, does not import this code"
    assert suggestion.places == ["other.py:4"]
    (tmp_path / "data.py").write_text(LOADER + "loader = DataLoader(b)\n", encoding="utf-8")
    (suggestion,) = suggest(report, Repository(tmp_path))
    assert suggestion.changes == ["data.py:4: num_workers=4, persistent_workers=True"]
    # Without a known script, both may be meant.
    (suggestion,) = suggest(report_with("loader-workers"), Repository(tmp_path))
    assert suggestion.reason == "2 places match"


def test_the_recorded_script_and_line_decide_between_files_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for path in ("train.py", "old/train.py"):
        (tmp_path / path).write_text(TWO, encoding="utf-8")
    report = _started("train.py")
    place = model.Place(file="train.py", line=8, function="second")
    finding = replace(report.findings[0], places=[place])
    (suggestion,) = suggest(replace(report, findings=[finding]), Repository(tmp_path))
    assert suggestion.changes == ["train.py:8: num_workers=4, persistent_workers=True"]


def test_a_script_in_a_directory_of_tests_may_be_the_program(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    script = tmp_path / "tests" / "speed.py"
    script.write_text(LOADER + "loader = DataLoader(a)\n", encoding="utf-8")
    (suggestion,) = suggest(_started("tests/speed.py"), Repository(tmp_path))
    assert suggestion.outcome == "patch"


@pytest.mark.parametrize("code", ["[" * 5000, "(" * 5000 + ")" * 5000, "first = ", "\0"])
def test_files_that_are_not_valid_python_are_passed_over(tmp_path: Path, code: str) -> None:
    (tmp_path / "broken.py").write_text(f"DataLoader(a, {code}", encoding="utf-8")
    suggestion = only(tmp_path, LOADER + "first = DataLoader(a)\n", "loader-workers")
    assert added(suggestion) == ["first = DataLoader(a, num_workers=4, persistent_workers=True)"]


def test_the_profile_decides_between_places(tmp_path: Path) -> None:
    place = model.Place(file="app/train.py", line=8, function="second")
    suggestion = only(tmp_path, TWO, "loader-workers", place)
    assert added(suggestion) == ["return DataLoader(b, num_workers=4, persistent_workers=True)"]


def test_a_loader_that_has_what_the_profile_lacked_is_not_meant(tmp_path: Path) -> None:
    code = LOADER + "first = DataLoader(a)\nsecond = DataLoader(b, num_workers=2)\n"
    suggestion = only(tmp_path, code, "loader-workers")
    assert suggestion.changes == ["train.py:4: num_workers=4, persistent_workers=True"]


def test_the_demo_of_the_readme_gets_a_patch() -> None:
    script = ROOT / "demo_logs" / "record" / "pytorch_input.py"
    told = run("suggest", SLOW, "--repo", script).stdout
    assert "pytorch_input.py:91: num_workers=4, persistent_workers=True" in told
    assert told.count("diff --git") == 1


NOISE = "\n\ndef sample():\n    return numpy.random.normal(0, 1, 8)\n"


@pytest.mark.parametrize(
    ("before", "outcome"),
    [
        ("", "patch"),
        ("steps = [RandomCrop(28)]\na = Images(steps)\n", "unsure"),
        ("steps = []\nsteps.append(RandomCrop(28))\na = Images(steps)\n", "unsure"),
        ("def turned(x):\n    return x * random.random()\na = Images(turned)\n", "unsure"),
        ("class A:\n    def __getitem__(self, i):\n        return random.random()\n", "unsure"),
    ],
)
def test_random_numbers_matter_where_the_dataset_reaches_them(
    tmp_path: Path, before: str, outcome: str
) -> None:
    code = f"{LOADER}{before}loader = DataLoader(a)\n{NOISE}"
    assert only(tmp_path, code, "prepared-samples").outcome == outcome


def test_the_loader_for_training_is_meant(tmp_path: Path) -> None:
    code = LOADER + "train_loader = DataLoader(a)\ntest_loader = DataLoader(b)\n"
    suggestion = only(tmp_path, code, "loader-workers")
    assert suggestion.changes == ["train.py:4: num_workers=4, persistent_workers=True"]


def test_code_without_the_call_gets_no_patch(tmp_path: Path) -> None:
    suggestion = only(tmp_path, "import torch\n", "loader-workers")
    assert (suggestion.outcome, suggestion.patch) == ("none", "")


def test_files_that_are_no_python_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("DataLoader(\n", encoding="utf-8")
    (tmp_path / "binary.py").write_bytes(b"DataLoader\0")
    suggestion = only(tmp_path, LOADER + "loader = DataLoader(a)\n", "loader-workers")
    assert suggestion.outcome == "patch"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("DataLoader(a, **options())", "other arguments may set num_workers"),
        ("DataLoader(a, *options)", "other arguments may set num_workers"),
        ("DataLoader(a, num_workers=workers())", "num_workers is `workers()`"),
        ("DataLoader(MyIterableDataset())", "each worker would repeat the data"),
        ("DataLoader(a, 8, True, None, None, 2)", "other arguments may set num_workers"),
    ],
)
def test_unsure_loaders_are_shown(tmp_path: Path, code: str, reason: str) -> None:
    suggestion = only(tmp_path, f"{LOADER}loader = {code}\n", "loader-workers")
    assert suggestion.outcome == "unsure"
    assert suggestion.reason.startswith(reason)


@pytest.mark.parametrize(
    ("mapped", "source", "reason"),
    [
        ("flipped", "from_tensor_slices(x)", "the function is random"),
        ("elsewhere", "from_tensor_slices(x)", "`elsewhere` is defined elsewhere"),
        ("decoded", "range(10_000_000)", "the number of elements"),
        ("decoded", "from_generator(g)", "the generator may never end"),
    ],
)
def test_caches_that_would_change_the_program_are_refused(
    tmp_path: Path, mapped: str, source: str, reason: str
) -> None:
    code = (
        "import tensorflow as tf\n\n\ndef decoded(x):\n    return x + 1\n\n\n"
        "def flipped(x):\n    return tf.image.random_flip_left_right(x)\n\n\n"
        f"data = tf.data.Dataset.{source}.map({mapped}).batch(8)\n"
    )
    suggestion = only(tmp_path, code, "cache")
    assert suggestion.outcome == "unsure"
    assert suggestion.reason.startswith(reason)


@pytest.mark.parametrize(
    "line",
    ["print(w)", "log.append(w)", "return float(w)", "if w > 0:\n        w = -w", "global counter"],
)
def test_functions_with_effects_are_not_jitted(tmp_path: Path, line: str) -> None:
    code = (
        "import jax\nimport jax.numpy as jnp\n\nlog = []\n\n\n"
        f"def update(w):\n    w = jnp.tanh(w)\n    {line}\n    return w\n\n\n"
        "for _ in range(9):\n    w = update(w)\n"
    )
    assert only(tmp_path, code, "jit").outcome == "unsure"


def test_an_item_whose_value_is_used_stays(tmp_path: Path) -> None:
    code = "total = 0.0\nfor x in data:\n    total += loss.item()\n    stop(total)\n"
    assert only(tmp_path, code, "detach-losses").reason == "`total` may be used as a number"


# --- what it looks like ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "snippet", "lines"),
    [
        (
            "import torch\nadam = torch.optim.AdamW(p, lr=1e-3, foreach=False)\n",
            "fused-optimizer",
            ["adam = torch.optim.AdamW(p, lr=1e-3, fused=True)"],
        ),
        ("o.zero_grad(set_to_none=False)\n", "set-to-none", ["o.zero_grad(set_to_none=True)"]),
        (
            "total = 0.0\nfor x in d:\n    loss.backward()\n    total += loss.item()\n"
            "print(f'{total:.3f}')\n",
            "detach-losses",
            ["total += loss.detach()"],
        ),
        (
            "import torch\n\nif __name__ == '__main__':\n    main()\n",
            "tf32",
            ["", 'torch.set_float32_matmul_precision("high")'],
        ),
        (
            "import jax\nstep = jax.jit(update)\nfor b in d:\n    p, s = step(p, s, b)\n",
            "donate",
            ["step = jax.jit(update, donate_argnums=(0, 1))"],
        ),
        (
            "import re\nimport torch\n\nwords = re.compile('a')\n"
            "opt = torch.optim.SGD(net.parameters())\n",
            "compile",
            ["net.compile()"],
        ),
        (
            "import torch\nmodel = Net().to(device)\nopt = SGD(model.parameters())\n",
            "channels-last",
            ["model = Net().to(device, memory_format=torch.channels_last)"],
        ),
    ],
    ids=["fused", "zero", "item", "tf32", "donate", "compile", "channels"],
)
def test_the_lines_that_a_patch_adds(
    tmp_path: Path, code: str, snippet: str, lines: list[str]
) -> None:
    assert added(only(tmp_path, code, snippet)) == lines


def test_trainers_get_the_arguments_of_the_remedy(tmp_path: Path) -> None:
    code = "from transformers import TrainingArguments\nargs = TrainingArguments('out')\n"
    suggestion = only(tmp_path, code, "trainer-arguments", bf16=True)
    assert added(suggestion) == ["args = TrainingArguments('out', bf16=True)"]
    code = "import lightning as L\ntrainer = L.Trainer(max_epochs=3)\n"
    suggestion = only(tmp_path, code, "trainer-arguments", precision="bf16-mixed")
    assert added(suggestion) == ['trainer = L.Trainer(max_epochs=3, precision="bf16-mixed")']


def test_loaders_get_the_workers_that_the_finding_proposes(tmp_path: Path) -> None:
    suggestion = only(tmp_path, LOADER + "a = DataLoader(x)\n", "loader-workers", workers=6)
    assert added(suggestion) == ["a = DataLoader(x, num_workers=6, persistent_workers=True)"]


def test_copies_do_not_wait_for_pinned_batches(tmp_path: Path) -> None:
    code = (
        LOADER + "loader = DataLoader(data, num_workers=2)\n"
        "for images, labels in loader:\n    images = images.to(device)\n    model.to(device)\n"
    )
    assert added(only(tmp_path, code, "pin-batches")) == [
        "loader = DataLoader(data, num_workers=2, pin_memory=True)",
        "images = images.to(device, non_blocking=True)",
    ]


def test_autocast_encloses_the_forward_pass(tmp_path: Path) -> None:
    code = (
        "import torch\n\n\ndef step(x, y):\n    x = x.to(device)\n    optimizer.zero_grad()\n"
        "    # forward\n    out = model(x)\n    loss = criterion(out, y)\n    loss.backward()\n"
    )
    assert added(only(tmp_path, code, "autocast")) == [
        'with torch.autocast("cuda", dtype=torch.bfloat16):',
        "out = model(x)",
        "loss = criterion(out, y)",
    ]


def test_gradients_may_be_zeroed_in_front_of_or_within_the_forward_pass(tmp_path: Path) -> None:
    zero, cast = "    optimizer.zero_grad()\n", 'with torch.autocast("cuda", dtype=torch.bfloat16):'
    forward = (
        "    out = net(x)[0]\n{}    loss = nn.CrossEntropyLoss()(out, y)\n{}    loss.backward()\n"
    )
    for inner, after in (("", zero), (zero, "")):
        code = "from torch import nn\n\n\ndef step(x, y):\n    x, y = Variable(x), Variable(y)\n"
        lines = added(only(tmp_path, code + forward.format(inner, after), "autocast"))
        assert lines[:3] == ["import torch", cast, "out = net(x)[0]"]
        assert lines[-1] == "loss = nn.CrossEntropyLoss()(out, y)"


def test_a_model_that_is_not_moved_gets_its_channels_last(tmp_path: Path) -> None:
    code = (
        "from torch import nn\nfrom torch.optim import RMSprop\n\n\nclass Net(nn.Module):\n"
        "    def forward(self, x):\n        return self.out(x.view(x.size(0), -1))\n\n\n"
        "net = Net()\noptimizer = RMSprop(net.parameters())\nclip_(net.parameters())\n"
        "mean = x.view(-1)\n"
    )
    assert added(only(tmp_path, code, "channels-last")) == [
        "import torch",
        "return self.out(x.reshape(x.size(0), -1))",
        "net.to(memory_format=torch.channels_last)",
    ]


def test_autocast_is_for_the_device_that_the_finding_names(tmp_path: Path) -> None:
    code = "import torch\n\n\ndef step(x, y):\n    loss = model(x, y)\n    loss.backward()\n"
    lines = added(only(tmp_path, code, "autocast", device="cpu"))
    assert lines[0] == 'with torch.autocast("cpu", dtype=torch.bfloat16):'


def test_no_workers_and_none_of_their_arguments(tmp_path: Path) -> None:
    code = (
        "from torch.utils.data import DataLoader\n\nloader = DataLoader("
        "data, batch_size=4, num_workers=2, prefetch_factor=2, persistent_workers=True)\n"
        "other = DataLoader(data, batch_size=4)\n"
    )
    lines = added(only(tmp_path, code, "no-loader-workers"))
    assert lines == ["loader = DataLoader(data, batch_size=4, num_workers=0)"]


def test_unpacked_arguments_are_overridden_in_the_call(tmp_path: Path) -> None:
    code = (
        LOADER + "options = {'batch_size': 4}\nif cuda:\n    options.update({'num_workers': 1})\n"
        "train_loader = DataLoader(data, shuffle=True, **options)\n"
        "test_loader = DataLoader(data, **options)\n"
    )
    (line,) = added(only(tmp_path, code, "loader-workers"))
    merged = '**{**options, "num_workers": 4, "persistent_workers": True}'
    assert line == f"train_loader = DataLoader(data, shuffle=True, {merged})"
    (line,) = added(only(tmp_path, code, "no-loader-workers"))
    assert line == 'train_loader = DataLoader(data, shuffle=True, **{**options, "num_workers": 0})'
    timed = code.replace("'num_workers': 1", "'prefetch_factor': 4")
    reason = only(tmp_path, timed, "no-loader-workers").reason
    assert reason == "its unpacked arguments may need worker processes"


@pytest.mark.parametrize(
    "other",
    [
        "test_loader = DataLoader(b, num_workers=args.workers)\n",
        "torch.set_num_threads(args.workers)\n",
    ],
)
def test_a_default_that_others_share_stays(tmp_path: Path, other: str) -> None:
    code = (
        LOADER + "parser.add_argument('--workers', type=int, default=0)\n"
        "args = parser.parse_args()\n"
        "train_loader = DataLoader(a, num_workers=args.workers)\n"
    )
    alone = only(tmp_path, code, "loader-workers")
    assert added(alone) == ["parser.add_argument('--workers', type=int, default=4)"]
    shared = only(tmp_path, code + other, "loader-workers")
    assert added(shared) == ["train_loader = DataLoader(a, num_workers=4)"]


def test_the_script_that_was_recorded_is_meant(tmp_path: Path) -> None:
    code = LOADER + "loader = DataLoader(data)\n\nfor batch in loader:\n    train(batch)\n"
    (tmp_path / "other.py").write_text(code, encoding="utf-8")
    assert only(tmp_path, code, "loader-workers").reason == "2 places match"
    loop = model.Place(file="runs/train.py", line=6, function="")
    suggestion = only(tmp_path, code, "loader-workers", loop)
    assert suggestion.changes == ["train.py:4: num_workers=4, persistent_workers=True"]


def test_models_are_made_before_the_forward_pass(tmp_path: Path) -> None:
    code = (
        "import torch\n\n\ndef main():\n    model = Net(8)\n"
        "    model = torch.nn.DataParallel(model)\n"
        "    loss = torch.nn.MSELoss()(model(x), y)\n    loss.backward()\n"
    )
    assert added(only(tmp_path, code, "autocast")) == [
        'with torch.autocast("cuda", dtype=torch.bfloat16):',
        "loss = torch.nn.MSELoss()(model(x), y)",
    ]


def test_formatting_comments_and_line_ends_stay(tmp_path: Path) -> None:
    code = (
        "from torch.utils.data import DataLoader\r\n\r\nloader = DataLoader(  # the loader\r\n"
        "    data,\r\n    batch_size=16,  # samples\r\n)"
    )
    (tmp_path / "train.py").write_bytes(code.encode())
    (suggestion,) = suggest(report_with("loader-workers"), Repository(tmp_path))
    assert added(suggestion) == ["num_workers=4,", "persistent_workers=True,"]
    changed = [line for line in suggestion.patch.split("\n") if line.startswith("+ ")]
    assert len(changed) == 2
    assert all(line.endswith("\r") for line in changed)


def test_two_findings_change_one_file_one_after_the_other(tmp_path: Path) -> None:
    code = (
        "import torch\nfrom torch.utils.data import DataLoader\n\nloader = DataLoader(data)\n"
        "adam = torch.optim.Adam(p)\n"
    )
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    report = report_with("loader-workers")
    other = report_with("fused-optimizer").findings[0]
    report = replace(report, findings=[*report.findings, replace(other, rule_id="other")])
    first, second = suggest(report, Repository(tmp_path))
    assert added(first) == ["loader = DataLoader(data, num_workers=4, persistent_workers=True)"]
    assert added(second) == ["adam = torch.optim.Adam(p, fused=True)"]
    assert " loader = DataLoader(data, num_workers=4" in second.patch  # on top of the first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Tabs, an annotation, a comment behind the last argument, no comma after it.
        (
            "def f(data: Data) -> DataLoader:\n\tloader: DataLoader = DataLoader(\n\t\tdata,\n"
            "\t\tshuffle=True  # mix\n\t)\n\treturn loader\n",
            "def f(data: Data) -> DataLoader:\n\tloader: DataLoader = DataLoader(\n\t\tdata,\n"
            "\t\tshuffle=True,  # mix\n\t\tnum_workers=4,\n\t\tpersistent_workers=True\n\t)\n"
            "\treturn loader\n",
        ),
        # Line ends of Windows, a form feed, and no line end at the end.
        (
            "x = 1\r\n\f\r\nasync def g():\r\n    return DataLoader(a)",
            "x = 1\r\n\f\r\nasync def g():\r\n"
            "    return DataLoader(a, num_workers=4, persistent_workers=True)",
        ),
        # Names beyond ASCII, and a call inside of others that has no argument of its own line.
        (
            "größe = 3\nwith made(iter(DataLoader(\n    daten, größe))) as it:\n    pass\n",
            "größe = 3\nwith made(iter(DataLoader(\n"
            "    daten, größe, num_workers=4, persistent_workers=True))) as it:\n    pass\n",
        ),
        # A dictionary whose arguments are known not to set workers is not known here.
        ("DataLoader(a, num_workers=0, **more)\n", "DataLoader(a, num_workers=4, **more)\n"),
    ],
    ids=["tabs", "windows", "unicode", "unpacked"],
)
def test_git_takes_the_patch_and_nothing_else_changes(
    before: str, after: str, tmp_path: Path
) -> None:
    folder = tmp_path / "my code"
    folder.mkdir()
    head = "from torch.utils.data import DataLoader\n"
    (folder / "train it.py").write_bytes(f"{head}{before}".encode())
    (suggestion,) = suggest(report_with("loader-workers"), Repository(tmp_path))
    git_apply(tmp_path, suggestion.patch)
    assert (folder / "train it.py").read_bytes().decode() == f"{head}{after}"
    compile(after, "train", "exec")


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_a_patch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADER + "loader = DataLoader(a)\n", encoding="utf-8")
    done = run("suggest", SLOW, "--repo", tmp_path)
    assert done.stdout.startswith("# 1. Feed the step without making it wait")
    assert "+loader = DataLoader(a, num_workers=4, persistent_workers=True)\n" in done.stdout
    assert "#    Same patch as for finding 1\n" in done.stdout
    assert (tmp_path / "train.py").read_text("utf-8") == LOADER + "loader = DataLoader(a)\n"
    run("suggest", SLOW, "--repo", tmp_path, "--output", tmp_path / "patches")
    assert [path.name for path in (tmp_path / "patches").iterdir()] == ["1-input-stall.patch"]


def test_a_redirected_patch_is_exact_whatever_the_encoding_of_the_terminal(tmp_path: Path) -> None:
    before = f"{LOADER}größe = 3\r\nloader = DataLoader(a)\r\n"
    (tmp_path / "train.py").write_bytes(before.encode())
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", "suggest", str(SLOW)],
        cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"},
    )  # fmt: skip
    git_apply(tmp_path, done.stdout.decode())
    after = before.replace("(a)", "(a, num_workers=4, persistent_workers=True)")
    assert (tmp_path / "train.py").read_bytes() == after.encode()


def test_the_command_needs_one_capture(tmp_path: Path) -> None:
    refused = run("suggest", SLOW.parent, "--repo", tmp_path, status=2)
    assert " captures (" in refused.stderr
