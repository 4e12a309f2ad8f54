"""The report: built, ranked and encoded."""

from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.formats.encode import FORMATS, document, encode
from tb_perfadvisor.report.model import Document, Report

__all__ = ["FORMATS", "Document", "Report", "build_report", "document", "encode"]
