"""What a measured program may not change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT


def ran(checkout: Path, code: str) -> str:
    program = (
        "from tb_perfadvisor.instrument.checkout_guard import *\n"
        "from tb_perfadvisor.instrument.checkout_guard import guard, modules_of_checkout\n"
        f"checkout, copy = {str(checkout)!r}, {str(checkout.parent / 'copy')!r}\n"
        f"guard(checkout)\n{code}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "data.txt").write_text("data")
    (tmp_path / "link").symlink_to(folder / "data.txt")
    (tmp_path / "copy").mkdir()
    return folder


@pytest.mark.parametrize(
    "code",
    [
        "open(checkout + '/data.txt', 'w')",
        "open('link', 'a')",
        "open('link', 'rb+')",
        "import os; os.open('link', os.O_RDWR)",
        "open(checkout + '/new.txt', 'x')",
        "import os; os.remove(checkout + '/data.txt')",
        "import os; os.rename('copy', checkout + '/copy')",
        "import os; os.mkdir(checkout + '/runs')",
        "import shutil; shutil.rmtree(checkout)",
        "import pathlib; pathlib.Path('link').write_text('x')",
        "import os; os.link(checkout + '/data.txt', 'copy/x'); open('copy/x', 'w')",
        "import os; os.symlink('copy', checkout + '/copy')",
    ],
)
def test_refuses_changes(checkout: Path, code: str) -> None:
    assert "keeps as it is" in ran(checkout, code)
    assert {each.name: each.read_text() for each in checkout.iterdir()} == {"data.txt": "data"}


def test_allows_everything_else(checkout: Path) -> None:
    code = (
        "assert open('link').read() == 'data'\n"
        "open('copy/out.txt', 'w').write('x')\n"
        "import os; os.remove('link'); os.mkdir('copy/runs')\nprint('done')"
    )
    assert ran(checkout, code) == "done\n"


def test_imports_come_from_the_copy(checkout: Path) -> None:
    for folder in (checkout, checkout.parent / "copy"):
        (folder / "src").mkdir()
        (folder / "src" / "net.py").write_text(f"where = {folder.name!r}")
    code = (
        "import sys; sys.path.append(checkout + '/src'); use_copy(checkout, copy)\n"
        "import net; print(net.where, modules_of_checkout(checkout))"
    )
    assert ran(checkout, code) == "copy []\n"
    # We measure, also where we are installed from the checkout.
    code = f"import tb_perfadvisor; print(modules_of_checkout({str(ROOT)!r}))"
    assert ran(checkout, code) == "[]\n"
    code = "import sys; sys.path.append(checkout + '/src'); import net\n"
    code += "print(modules_of_checkout(checkout))"
    assert ran(checkout, code) == "['net']\n"
