"""The report: built, ranked and encoded."""

from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.formats.render import FORMATS, document, render
from tb_perfadvisor.report.model import Document, Report

__all__ = ["FORMATS", "Document", "Report", "build_report", "document", "render"]
