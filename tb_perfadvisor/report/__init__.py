"""The report of a capture: built from an analysis, rendered in several formats."""

from tb_perfadvisor.contract.model import Document
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.formats.render import FORMATS, document, render
from tb_perfadvisor.report.report import Report

__all__ = ["FORMATS", "Document", "Report", "build_report", "document", "render"]
