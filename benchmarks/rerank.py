"""Two-stage search: recall of the first stage alone and with its k best re-ranked, and what that costs a query.

    python benchmarks/rerank.py runs/rvse runs/scan --depths 10 20 50

The runs are what `selhn train` wrote, on the same data: one of an embedding model, one that compares regions with
words. Choose `--shares` by the dev split, not by test.
"""

import argparse
import statistics
import time
from pathlib import Path

from report import environment, save, table

from selhn.eval import Metrics, PairScorer, evaluate, rerank_split
from selhn.export import towers_of
from selhn.search import Index, Reranker
from selhn.training import open_run

REPEATS = 30


def milliseconds(compute) -> float:
    """The median over some queries after three that are not counted."""
    times = []
    for number in range(REPEATS + 3):
        start = time.perf_counter()
        compute(number)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[3:])


def _row(metrics: Metrics) -> str:
    """A paper's row in one cell of a Markdown table."""
    return str(metrics).replace(" | ", "; ")


def main() -> None:
    """Every depth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recaller", type=Path)
    parser.add_argument("reranker", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0, 0.5], help="of the first stage in the order"
    )
    parser.add_argument("--split", default="test")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    (first, data), (second, _) = open_run(arguments.recaller), open_run(arguments.reranker)
    split = data[arguments.split]
    index, reranker = Index.build(towers_of(first), split), Reranker(PairScorer.of_split(second, split))
    texts = [split.captions[5 * number] for number in range(REPEATS + 3)]
    alone = milliseconds(lambda number: index.search(texts[number], k=10))
    rows = [[f"{first.name} alone", _row(evaluate(first, split)), f"{alone:.1f}"]]
    for depth in arguments.depths:
        cost = milliseconds(
            lambda number, depth=depth: reranker.search(index, texts[number], k=10, depth=depth)
        )
        for share in arguments.shares:
            ranked = _row(rerank_split(first, second, split, depth, share))
            rows.append([f"{depth}, {1 - share:.0%} by {second.name}", ranked, f"{cost:.1f}"])
    rows.append([f"all by {second.name}", _row(evaluate(second, split)), ""])
    header = ["ranked by", "R@1 R@5 R@10 both ways, RSUM", "ms per query"]
    where = next(second.parameters()).device.type
    title = f"# Two-stage search: {split.num_images} images, {split.num_texts} texts of {data.name}"
    text = f"{title}\n\n{environment()}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save(f'rerank-{where}', text, arguments.out)}")


if __name__ == "__main__":
    main()
