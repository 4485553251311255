"""The report of a compilation: one self-contained HTML page with pictures, choices and generated code."""

from tilewright.tools.report.facts import ReportFacts, collect
from tilewright.tools.report.figures import require_matplotlib
from tilewright.tools.report.fused_ops import FusedOps
from tilewright.tools.report.report_page import report_page

__all__ = ["FusedOps", "ReportFacts", "collect", "report_page", "require_matplotlib"]
