"""`selhn report`: one page about one run or several: verdict, results, curves, examples, settings."""

from selhn.report.page import write_report

__all__ = ["write_report"]
