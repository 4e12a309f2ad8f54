"""Which changes are tried, and which of them together."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.proof import snapshot as snapshot_module
from tb_perfadvisor.proof.runner import Runner
from tb_perfadvisor.proof.runs import Plan, Run
from tb_perfadvisor.proof.session import Session, Tried, changes_to_try
from tb_perfadvisor.proof.snapshot import Snapshot, take_snapshot, working_space
from tests.proof.stand_ins import CHANGE, Program
from tests.support.patches import report_with

CODE = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader(dataset)
model = Net()
criterion = torch.nn.MSELoss()
epochs = 3
optimizer = torch.optim.AdamW(model.parameters())


def main():
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""
FACTORS = {"fused=True": 0.8, "num_workers": 0.7}
"""By what text, a step takes how much longer."""


class OfCode(Program):
    """Steps take as long as the code of a version says."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.versions: list[str] = []

    def _run(self, version: Path, plan: Plan, number: int) -> Run:
        code = (version / "train.py").read_text("utf-8")
        if code not in self.versions:
            self.versions.append(code)
        self._change = 1.0
        for text, factor in FACTORS.items():
            self._change *= factor if text in code else 1.0
        return super()._run(CHANGE, plan, number)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "train.py").write_text(CODE, "utf-8")
    return folder


@pytest.fixture
def program(checkout: Path) -> Iterator[OfCode]:
    with working_space() as space:
        yield OfCode(take_snapshot(checkout, space))


def tried(
    program: OfCode, report: model.Report | None, patches: Sequence[Path] = ()
) -> tuple[list[Tried], Session]:
    repository = program.snapshot.checkout
    session = Session(
        cast("Runner", program),
        program.snapshot.directory.parent,
        repository,
        budget_s=600.0,
        checks=(),
        progress=lambda text: None,
    )
    candidates = changes_to_try(report, repository, (), patches)
    return [*session.try_all(candidates, report)], session


def report_of(*fixes: str) -> model.Report:
    """A report with a finding for each fix."""
    reports = [report_with(fix) for fix in fixes]
    findings = [
        replace(
            report.findings[0],
            rule_id=fix,
            remedies=[replace(report.findings[0].remedies[0], change=fix)],
        )
        for fix, report in zip(fixes, reports, strict=True)
    ]
    return replace(reports[0], findings=findings)


def patch_file(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    after = CODE
    for old, new in changes:
        assert old in after
        after = after.replace(old, new)
    lines = (text.splitlines(keepends=True) for text in (CODE, after))
    file = folder / name
    file.write_text("".join(difflib.unified_diff(*lines, "a/train.py", "b/train.py")), "utf-8")
    return file


def test_changes_that_each_helped_are_tried_together(program: OfCode) -> None:
    found, session = tried(program, report_of("fused-optimizer", "loader-workers"))
    assert [each.candidate.name for each in found] == [
        *("fused-optimizer", "loader-workers", "fused-optimizer + loader-workers"),
    ]
    assert session.fits_together
    assert "fused=True" in program.versions[-1]
    assert "num_workers" in program.versions[-1]
    effects = [each.trial.effect for each in found]
    # A fifth less, three tenths less, and 1 - 0.8 * 0.7.
    assert [effect and effect.estimate for effect in effects] == pytest.approx([0.2, 0.3, 0.44])


def test_changes_that_did_not_help_are_not_combined(program: OfCode) -> None:
    found, session = tried(program, report_of("fused-optimizer", "set-to-none"))
    verdicts = [(each.candidate.name, each.trial.verdict) for each in found]
    assert verdicts == [("fused-optimizer", "faster"), ("set-to-none", "no difference")]
    assert session.fits_together


def test_patches_of_the_user_are_combined(program: OfCode, tmp_path: Path) -> None:
    patches = [
        patch_file(tmp_path, "first.diff", ("AdamW(model.parameters())", "AdamW(x, fused=True)")),
        patch_file(
            tmp_path, "second.diff", ("DataLoader(dataset)", "DataLoader(x, num_workers=1)")
        ),
    ]
    found, _ = tried(program, None, patches)
    assert found[-1].candidate.name == "first.diff + second.diff"
    assert not found[-1].candidate.is_of_catalog  # the ledger names no file
    effect = found[-1].trial.effect
    assert effect is not None
    assert effect.estimate == pytest.approx(0.44)


def test_patches_that_change_the_same_line_are_not_combined(
    program: OfCode, tmp_path: Path
) -> None:
    line = "AdamW(model.parameters())"
    patches = [
        patch_file(tmp_path, "first.diff", (line, "AdamW(x, fused=True)")),
        patch_file(tmp_path, "second.diff", (line, "SGD(x, fused=True)")),
    ]
    found, session = tried(program, None, patches)
    assert [each.trial.verdict for each in found] == ["faster", "faster"]
    assert not session.fits_together


@pytest.mark.parametrize("place", ["..", "images", "linked"])
def test_patches_apply_to_code_that_is_copied(
    place: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy, data is a link to the checkout, which must stay as it is."""
    monkeypatch.setattr(snapshot_module, "_MANY_FILES", 3)
    (checkout / "images").mkdir()
    for number in range(4):
        (checkout / "images" / f"{number}.png").touch()
    (checkout / "linked").symlink_to("images")
    with working_space() as space:
        runner = cast("Runner", OfCode(take_snapshot(checkout, space)))
        with pytest.raises(UsageError, match="lies outside of the program"):
            Session(
                *(runner, space, checkout / place),
                budget_s=600.0, checks=(), progress=lambda text: None,
            )  # fmt: skip
