"""The paper's tables and figures: its numbers as data, the runs behind them, ours beside them."""

from selhn.reproduce.figures import FIGURES, Figure
from selhn.reproduce.report import describe, reproduce
from selhn.reproduce.runs import Runs
from selhn.reproduce.tables import RUNS, TABLES, PaperRow, Wanted, paper_rows

__all__ = ["FIGURES", "RUNS", "TABLES", "Figure", "PaperRow", "Runs", "Wanted", "describe", "paper_rows", "reproduce"]
