"""`perfadvisor rules` and `perfadvisor explain`: the catalog, and one rule's page."""

from __future__ import annotations

import click

from tb_perfadvisor.cli.help import Argument, Command
from tb_perfadvisor.cli.terminal import printing, terminal


@click.command(cls=Command)
def rules() -> None:
    """List all rules."""
    from rich.table import Table
    from rich.text import Text

    from tb_perfadvisor.rules.registry import all_rules

    table = Table(box=None, pad_edge=False)
    for heading in ("Rule", "Category", "What to do", ""):
        table.add_column(heading)
    for rule in all_rules():
        table.add_row(
            Text(rule.id, style="bold"),
            rule.category,
            rule.title,
            Text("preview" if rule.is_preview else "", style="dim"),
        )
    with printing():
        terminal().print(table)


@click.command(cls=Command)
@click.argument("rule", cls=Argument, help="The id of a rule.")
def explain(rule: str) -> None:
    """Show one rule's page: what it finds, how it measures, and when to ignore it."""
    from rich.markdown import Markdown
    from rich.text import Text

    from tb_perfadvisor.rules.page import rule_page
    from tb_perfadvisor.rules.registry import find_rule

    page = rule_page(find_rule(rule))
    console = terminal()
    with printing():
        console.print(Markdown(page) if console.is_terminal else Text(page), soft_wrap=True)
