import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Scripts find each other by their folder. At the end, so that they hide nothing.
sys.path.append(str(BENCHMARKS))
