"""The paper's tables and figures: its numbers as data, the runs behind them, ours beside them."""

from selhn.reproduce.comparison import describe, reproduce
from selhn.reproduce.paper_figures import FIGURES, Figure
from selhn.reproduce.paper_runs import PaperRuns
from selhn.reproduce.tables import RUNS, TABLES, PaperRow, Wanted, paper_rows

__all__ = ["FIGURES", "RUNS", "TABLES", "Figure", "PaperRow", "PaperRuns", "Wanted", "describe"]
__all__ += ["paper_rows", "reproduce"]
