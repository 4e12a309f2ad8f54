"""`perfadvisor mcp`: a server of the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

from pathlib import Path

import click

from tb_perfadvisor.cli.help import PATH, Command
from tb_perfadvisor.cli.terminal import note
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.extras import install_command


@click.command(cls=Command)
@click.option(
    "--root",
    type=PATH,
    default=Path(),
    show_default="the current directory",
    help="Directory of the profiles. Nothing outside of it is read.",
)
@click.option(
    "--repo", type=PATH, help="The directory of the program's code, to show lines and patches."
)
@click.option(
    "--try",
    "commands",
    multiple=True,
    metavar="COMMAND",
    help='A program that agents may try changes of, such as "python train.py". It runs in copies '
    "of --repo. Can be repeated.",
)
def mcp(root: Path, repo: Path | None, commands: tuple[str, ...]) -> None:
    """Serve profiles to coding agents by the Model Context Protocol, on stdin and stdout."""
    try:
        from tb_perfadvisor.mcp.answers import Trials
        from tb_perfadvisor.mcp.server import make_server
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "anyio"):
            raise
        raise UsageError(
            "needs the SDK of the Model Context Protocol, which is not installed.",
            where="mcp",
            hint=f"Install it with `{install_command('mcp')}`.",
        ) from error
    from tb_perfadvisor.execution import limits_from_environment

    trials = None
    if commands:
        if repo is None:
            raise UsageError("--try needs --repo, the directory of the program.", where="mcp")
        trials = Trials(root, repo, commands)
    make_server(root, repo, limits_from_environment(note), trials=trials).run("stdio")
