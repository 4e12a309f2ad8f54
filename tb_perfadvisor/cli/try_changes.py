"""`perfadvisor try`: proves changes, by running a copy of the program with and without them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from tb_perfadvisor.cli.help import PATH, Argument, Command, Duration, choice_option
from tb_perfadvisor.cli.selection import git_apply, listing_of_runs, report_of_last
from tb_perfadvisor.cli.terminal import TextOrJson, note, printing, show_progress
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.plain_text import plain, plain_lines, printable_json, shell_line

if TYPE_CHECKING:
    from tb_perfadvisor.proof.ledger import Proof
    from tb_perfadvisor.proof.session import Tried
    from tb_perfadvisor.report.report import Report

_EXAMPLES = """\
Examples:
  perfadvisor try -- python train.py --epochs 1
  perfadvisor try runs/baseline --change fused-optimizer -- python train.py
  perfadvisor try --patch mine.diff -- python train.py"""
_HINT = "Write it after two dashes: perfadvisor try runs/baseline -- python train.py"
_PROGRAM = "tb_perfadvisor.program"
_STOPS = ("SIGTERM", "SIGHUP")


class _CommandWithProgram(Command):
    """A command followed by two dashes and the user's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set aside what follows the dashes: none of it is ours."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_PROGRAM] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The pieces, with the program."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@click.command("try", cls=_CommandWithProgram, epilog=_EXAMPLES)
@click.argument(
    "path",
    cls=Argument,
    required=False,
    help="A recording of the program. Without one, the program is recorded first.",
)
@click.option("--change", multiple=True, help="The id of a change to try. Can be repeated.")
@click.option("--patch", type=PATH, multiple=True, help="A patch to try. Can be repeated.")
@click.option(
    "--repo",
    type=PATH,
    default=Path(),
    show_default="the current directory",
    help="The directory of the program's code, which patches are relative to. It is only read.",
)
@click.option(
    "--check",
    multiple=True,
    metavar="NAME",
    help="A tensor of the model to compare, such as `head.weight` or `*.bias`. Can be repeated.",
)
@click.option(
    "--budget",
    "budget_s",
    type=Duration(),
    default="10m",
    show_default=True,
    help="The most time for each change: seconds, minutes or hours, such as 90s, 10m or 1h.",
)
@click.option("--yes", is_flag=True, help="Don't ask before the program is run several times.")
@choice_option(TextOrJson, "--format", "-f", default=TextOrJson.TEXT, help="Output format.")
@click.option(
    "--logdir",
    type=PATH,
    help="Keep the recording that is made in this directory, so that its report shows the proofs.",
)
@click.pass_context
def try_changes(
    ctx: click.Context,
    path: str | None,
    change: tuple[str, ...],
    patch: tuple[Path, ...],
    repo: Path,
    check: tuple[str, ...],
    budget_s: float,
    yes: bool,
    format: TextOrJson,
    logdir: Path | None,
) -> None:
    """Prove changes: run a copy of the program with and without them, and compare.

    Tries the mechanical fixes for the findings of a recording, or of one that it makes. Patches are
    applied to copies: the checkout stays as it is.
    """
    command: list[str] = ctx.meta.get(_PROGRAM, [])
    if not command:
        raise UsageError("the program to run is missing.", hint=_HINT)
    if sys.platform == "win32":
        raise UsageError("needs Linux or macOS.", where="try", hint="On Windows, use WSL.")
    _ask(command, budget_s, is_agreed=yes)
    # The report of a recording that exists is made first: it may say that there is nothing to try.
    report = None if path is None else _report_of(path)
    from tb_perfadvisor.proof import ledger
    from tb_perfadvisor.proof.ledger import proof_of
    from tb_perfadvisor.proof.runner import Runner
    from tb_perfadvisor.proof.session import Session, changes_to_try, started_with
    from tb_perfadvisor.proof.snapshot import take_snapshot, working_space

    done: list[tuple[Tried, Proof]] = []
    is_text = format is TextOrJson.TEXT
    with _stops_clean_up(), working_space() as space, show_progress("copying the program") as shown:

        def progress(text: str) -> None:
            shown.describe(text, 0.0)

        here = Path.cwd()
        snapshot = take_snapshot(here, space)
        for name in snapshot.left_out:
            note(f"{plain(name)} is too large to copy, and was left out.")
        runner = Runner(snapshot, space, command, here)
        session = Session(runner, space, repo, budget_s=budget_s, checks=check, progress=progress)
        if report is None and (change or not patch):
            report = session.record(lambda made: _report_of(str(made)), keep=logdir)
        if report is not None:
            report = started_with(command, here, repo, report)
        candidates = changes_to_try(report if change or not patch else None, repo, change, patch)
        for tried in session.try_all(candidates, report):
            machine = ledger.this_machine(tried.trial.accelerator)
            proof = proof_of(tried.candidate, tried.trial, report, machine, int(time.time()))
            ledger.append([proof], ledger.ledger_file())
            done.append((tried, proof))
            if is_text:
                with printing():
                    _print(tried, repo)
        changed = snapshot.changed_data()
    if not session.fits_together:
        note("the changes that helped do not fit together, and were not tried as one.")
    for name in changed[:3]:
        note(f"{plain(name)} changed meanwhile: the program, or another one, wrote to it.")
    if not is_text:
        with printing():
            sys.stdout.write(_as_json(done) + "\n")


def _ask(command: Sequence[str], budget_s: float, *, is_agreed: bool) -> None:
    """Say what will run, and ask whether it may."""
    budget = f"{budget_s:g} seconds" if budget_s < 120 else f"{budget_s / 60:g} minutes"
    note(
        f"this runs a copy of `{shell_line(command)}` many times, for up to {budget} "
        "per change. Absolute paths and networks that the program uses are not contained."
    )
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked whether it may run.", hint="Add --yes.")
    if not click.confirm("Run it?", err=True):
        raise click.Abort


def _report_of(path: str) -> Report:
    """The report of a recording; of the last one if a run was recorded several times."""
    return report_of_last(path, listing_of_runs(path, None))


@contextmanager
def _stops_clean_up() -> Iterator[None]:
    """Let signals that would end this process at once end it like Ctrl-C, so that copies go."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, stop)
        for name in _STOPS
        if (number := getattr(signal, name, None)) is not None
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(tried: Tried, repo: Path) -> None:
    """A verdict, what it rests on, and how to make the change."""
    from tb_perfadvisor.proof.wording import detail_lines, verdict_line

    lines = [plain(verdict_line(tried.candidate, tried.trial))]
    lines += [f"  {plain(what)}" for what in tried.candidate.what]
    lines += [f"  {plain(line)}" for line in detail_lines(tried.candidate, tried.trial)]
    if tried.trial.verdict == "faster":
        lines += [f"  to make the change: {git_apply(repo)} <<'END_OF_PATCH'"]
        lines += [plain_lines(tried.candidate.patch.rstrip("\n")), "END_OF_PATCH"]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _as_json(done: Sequence[tuple[Tried, Proof]]) -> str:
    import msgspec

    rows = [
        {
            "change": tried.candidate.name,
            "what": tried.candidate.what,
            "patch": tried.candidate.patch,
            "proof": proof,
            "reason": tried.trial.reason,
            "results": tried.trial.results,
        }
        for tried, proof in done
    ]
    return printable_json(msgspec.json.format(msgspec.json.encode(rows)).decode())
