"""How much of the FLOP that a program executes on several devices is useful work."""

from __future__ import annotations

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.devices import repeated_products
from tb_perfadvisor.signals.program.graph import PRODUCTS, running_programs
from tb_perfadvisor.signals.program.useful_work import partly_used_products
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.product_time import product_flop
from tb_perfadvisor.trace.hlo_text import parse_instruction


@memoized
def useful_share(signals: Signals) -> float | None:
    """The share of the FLOP of products that is neither repeated by others nor thrown away.

    None if no program shows its products.
    """
    repeated = {id(running.program): set(rows) for running, rows in repeated_products(signals)}
    used = {(id(p.running.program), p.product): p.used for p in partly_used_products(signals)}
    whole = useful = 0.0
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(PRODUCTS):
            product = parse_instruction(program.texts.get(row, ""))
            flop = product_flop(product) if product is not None else None
            runs = float(program.runs[row])
            if flop is None or runs != runs:
                return None
            whole += runs * flop
            part = used.get((id(program), row), 1.0)
            part /= program.devices if row in repeated.get(id(program), ()) else 1
            useful += runs * flop * part
    return useful / whole if whole else None
