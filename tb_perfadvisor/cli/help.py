"""Building blocks of the commands, and their help pages, drawn by rich when asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from tb_perfadvisor.units import LARGEST_SETTING


class NumberRange(click.FloatRange):
    """Numbers from a least one on. Neither "nan" nor "inf", which Python reads as numbers."""

    def __init__(self, min: float, *, min_open: bool = False) -> None:
        super().__init__(min=min, max=LARGEST_SETTING, min_open=min_open)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number that a text means."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):  # lies in every range, as comparisons with it are false
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A time, such as `90s`, `10m` or `1h`, in seconds. A number without a unit counts minutes."""

    name = "time"
    _SECONDS = MappingProxyType({"s": 1, "m": 60, "": 60, "h": 3600})

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The seconds that a text means."""
        found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?([smh]?)", value)
        seconds = float(found[1]) * self._SECONDS[found[2]] if found else 0.0
        if not seconds:
            self.fail(f"{value!r} is no time, such as 90s, 10m or 1h.", param, ctx)
        return seconds


class CountRange(click.IntRange):
    """Whole numbers from a least one on."""

    def __init__(self, min: int, max: int = LARGEST_SETTING) -> None:
        super().__init__(min=min, max=max)


class Argument(click.Argument):
    """An argument with a help text, which old versions of click do not support."""

    def __init__(self, names: Sequence[str], *, help: str, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.help = help


E = TypeVar("E", bound=Enum)
PATH = click.Path(path_type=Path)
WORKERS = click.option(
    "--workers",
    type=CountRange(min=1),
    help="Number of processes that read files. By default, as many as pay off.",
)
TIME_LIMIT = click.option(
    "--time-limit",
    type=NumberRange(min=0, min_open=True),
    help="The most seconds for each capture. By default 600, or PERFADVISOR_TIME_LIMIT_S.",
)
RUN = click.option("--run", help="Only captures whose run matches this regular expression.")
CONFIG = click.option(
    "--config", type=PATH, help="TOML file with rules, limits and the link bandwidth."
)

PRICE = click.option(
    "--price-per-device-hour",
    type=NumberRange(min=0, min_open=True),
    help="What an hour of one device costs, to show what steps and savings are worth.",
)
TOTAL_STEPS = click.option(
    "--total-steps",
    type=CountRange(min=1),
    help="The step at which the run will end, to show what is saved until then.",
)
REPO = click.option(
    "--repo",
    type=PATH,
    help="The directory of the program's code, to show the lines that findings are about.",
)
SOURCE_LINK = click.option(
    "--source-link",
    help="Links to these lines: `vscode`, or a URL with {path} and {line}, such as "
    "https://github.com/me/repo/blob/main/{path}#L{line}.",
)


def choice_option(
    choices: type[E], *names: str, default: E | None = None, help: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option whose values are those of an enumeration."""
    return click.option(
        *names,
        type=click.Choice([choice.value for choice in choices]),
        default=None if default is None else default.value,
        show_default=default is not None,
        callback=lambda ctx, option, value: None if value is None else choices(value),
        help=help,
    )


class Command(click.Command):
    """A command whose help shows its arguments and options in panels."""

    def get_help(self, ctx: click.Context) -> str:
        """The help page, with panels."""
        return _page(self, ctx)


class Group(click.Group):
    """A group of commands whose help shows them in a panel."""

    command_class = Command

    def get_help(self, ctx: click.Context) -> str:
        """The help page, with panels."""
        return _page(self, ctx)


def _page(command: click.Command, ctx: click.Context) -> str:
    """Usage, description and panels, as wide as the terminal."""
    from rich.console import Console, Group
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    def table(rows: Sequence[Sequence[str]]) -> Table:
        drawn = Table.grid(padding=(0, 2, 0, 0))
        drawn.add_column(style="bold cyan", no_wrap=True)
        # The type of a parameter is one word, however long.
        for _ in rows[0][1:-1]:
            drawn.add_column(no_wrap=True)
        drawn.add_column(overflow="fold")
        for row in rows:
            drawn.add_row(*map(Text, row))
        return drawn

    parameters = command.get_params(ctx)
    arguments = [
        (_spelling(parameter), _type(parameter), _help(parameter, ctx))
        for parameter in parameters
        if isinstance(parameter, Argument)
    ]
    options = [
        (_spelling(parameter), _type(parameter), _help(parameter, ctx))
        for parameter in parameters
        if isinstance(parameter, click.Option)
    ]
    commands = [
        (name, subcommand.get_short_help_str(1000))
        for name, subcommand in (
            command.commands.items() if isinstance(command, click.Group) else ()
        )
    ]
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    parts: list[Any] = [
        Padding(Text.assemble(("Usage: ", "yellow"), (usage, "bold")), 1),
        Padding(Text(_reflowed(command.help or "")), (0, 1, 1, 1)),
    ]
    parts += [
        Panel(table(rows), title=title, title_align="left", border_style="dim")
        for title, rows in (
            ("Arguments", arguments),
            ("Options", options),
            ("Commands", commands),
        )
        if rows
    ]
    if command.epilog:
        parts.append(Padding(Text(command.epilog), (0, 1, 1, 1)))
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(Group(*parts))
    return capture.get()


def _reflowed(docstring: str) -> str:
    """Paragraphs without the line breaks of the code, so that the terminal breaks them."""
    return "\n\n".join(" ".join(part.split()) for part in docstring.split("\n\n"))


def _spelling(parameter: click.Parameter) -> str:
    """How a parameter is written on the command line."""
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name + ("..." if parameter.nargs == -1 else "")
    return " ".join([*parameter.opts, *parameter.secondary_opts])


def _type(parameter: click.Parameter) -> str:
    """The type of value that a parameter takes."""
    kind = parameter.type
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return ""
    if isinstance(kind, click.Choice):
        return f"<{'|'.join(map(str, kind.choices))}>"
    name = {"text": "str", "boolean": "bool", "integer": "int", "integer range": "int range"}.get(
        kind.name, kind.name
    )
    if parameter.multiple or parameter.nargs == -1:
        name = f"list[{name}]"
    if isinstance(kind, click.IntRange | click.FloatRange):
        return f"<{name}> [x>={kind.min:g}]"
    return f"<{name}>"


def _help(parameter: Argument | click.Option, ctx: click.Context) -> str:
    """What a parameter is for, and its default."""
    text = parameter.help or ""
    if isinstance(parameter, click.Argument):
        return f"{text} [required]" if parameter.required else text
    if parameter.show_default:
        default = parameter.get_default(ctx)
        if isinstance(default, bool):
            default = (parameter.opts if default else parameter.secondary_opts)[0].lstrip("-")
        text += f" [default: {default}]"
    return text
