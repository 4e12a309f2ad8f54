"""Compares runs with a base. A comparison is a pure function of the facts of each run."""

from tb_perfadvisor.contract.model import Comparison, ComparisonDocument
from tb_perfadvisor.report.comparison.compare import compare_facts, is_regression
from tb_perfadvisor.report.comparison.logged import LoggedRun, logged_run, with_logged
from tb_perfadvisor.report.comparison.pairing import Choice, Group, distinct_names, pair
from tb_perfadvisor.report.comparison.run_facts import RunFacts, make_facts

__all__ = [
    "Choice",
    "Comparison",
    "ComparisonDocument",
    "Group",
    "LoggedRun",
    "RunFacts",
    "compare_facts",
    "distinct_names",
    "is_regression",
    "logged_run",
    "make_facts",
    "pair",
    "with_logged",
]
