"""`perfadvisor suggest`: patches for findings whose fix is mechanical."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import PATH, RUN, Argument, Command, choice_option
from tb_perfadvisor.cli.selection import git_apply, inputs_of, listing_of_runs, report_of_last
from tb_perfadvisor.cli.terminal import TextOrJson, note, printing
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.output_files import write_file
from tb_perfadvisor.plain_text import plain, printable_json

if TYPE_CHECKING:
    from tb_perfadvisor.suggest import Suggestion

_EXAMPLES = """\
Examples:
  perfadvisor suggest runs/baseline
  perfadvisor suggest runs/baseline --rule input-stall | git apply
  perfadvisor suggest runs/baseline --repo src | git -C src apply
  perfadvisor suggest runs/baseline --repo train.py      # if several scripts look alike
  perfadvisor suggest runs/baseline --output patches/    # one file per finding"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument(
    "path", cls=Argument, help="A run or one file: one capture, or several recordings of one run."
)
@click.option(
    "--repo",
    type=PATH,
    default=Path(),
    show_default="the current directory",
    help="The directory of the program's code, or its script. It is only read.",
)
@RUN
@click.option("--rule", multiple=True, help="Only for findings of this rule. Can be repeated.")
@click.option("--output", "-o", type=PATH, help="Write one patch per finding to this directory.")
@choice_option(TextOrJson, "--format", "-f", default=TextOrJson.TEXT, help="Output format.")
def suggest(
    path: str,
    repo: Path,
    run: str | None,
    rule: tuple[str, ...],
    output: Path | None,
    format: TextOrJson,
) -> None:
    """Print patches for findings that have a mechanical fix; `git apply` takes them."""
    from tb_perfadvisor.rules.registry import find_rule
    from tb_perfadvisor.sources import Repository
    from tb_perfadvisor.suggest import suggest as suggestions_for

    for rule_id in rule:
        find_rule(rule_id)
    repository = Repository(repo)
    listing = listing_of_runs(path, run)
    suggestions = suggestions_for(report_of_last(path, listing), repository, rule)
    if not repository.is_complete:
        note(f"{repo} was not fully listed. Name a directory with fewer files.")
    if not suggestions:
        note(f"the profile has no finding{' of these rules' if rule else ''}.")
    if output is not None:
        _write(suggestions, output, tuple(inputs_of([listing], repository=repository)))
    with printing():
        if format is TextOrJson.JSON:
            import msgspec

            content = msgspec.json.format(msgspec.json.encode(suggestions)).decode()
            sys.stdout.write(printable_json(content) + "\n")
        else:
            _keep_bytes()
            sys.stdout.write("\n".join(map(_text, suggestions)))
    if sys.stdout.isatty() and any(suggestion.patch for suggestion in suggestions):
        note(
            f"to apply the patches, add `| {git_apply(repository.root)}`; then record again, and "
            "`perfadvisor compare`."
        )


def _keep_bytes() -> None:
    """Write UTF-8 with Unix line ends to a file or a pipe on every system, as patches need."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


def _text(suggestion: Suggestion) -> str:
    """A suggestion as comments, which `git apply` skips, and its patch."""
    lines = [f"# {suggestion.number}. {plain(suggestion.title)} ({suggestion.rule_id})"]
    lines += [f"#    {plain(change)}" for change in suggestion.changes]
    lines += [f"#    Check: {text}" for text in suggestion.notes]
    if suggestion.outcome != "patch":
        what = "Same patch" if suggestion.outcome == "same" else "No patch:"
        lines.append(f"#    {what} {plain(suggestion.reason)}")
        lines += [f"#    see {plain(place)}" for place in suggestion.places]
    return "\n".join(lines) + "\n" + suggestion.patch


def _write(suggestions: list[Suggestion], directory: Path, inputs: Sequence[Path]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}.", where=str(directory)) from error
    for suggestion in suggestions:
        if suggestion.patch:
            path = directory / f"{suggestion.number}-{suggestion.rule_id}.patch"
            write_file(path, [_text(suggestion).encode()], inputs)
            note(f"wrote {path}.")
