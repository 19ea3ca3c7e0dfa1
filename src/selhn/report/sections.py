"""The parts of a report that are words and tables: what became of each run, results, settings, environment."""

from collections.abc import Callable, Mapping, Sequence

from selhn.eval import DirectionMetrics, Metrics
from selhn.report.chart import sample
from selhn.report.markup import Html, element, together
from selhn.report.runs import RunRecord

SIGNS = {"healthy": "✓", "stalled": "‖", "collapsing": "⤓", "diverging": "⤒", "overfitting": "≠", "unclear": "?"}
RECALLS = (1, 5, 10)
NONE = "–"


def section(title: str, *inside: str) -> Html:
    """A part of the page under its title, which the list of contents leads to."""
    return element("section", element("h2", title), *inside, id=anchor(title))


def anchor(title: str) -> str:
    """What an address ends in to lead to a part."""
    return title.lower().replace(" ", "-")


def named(number: int, run: RunRecord) -> Html:
    """A run with the line it has in the curves."""
    return element("span", sample(number), element("span", run.name), class_="run")


def scrolling(table: Html, label: str) -> Html:
    """A table that may be wider than a phone, and can be moved by keys too."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def lead(runs: Sequence[RunRecord]) -> str:
    """The page in two sentences."""
    best = max(runs, key=lambda run: run.rsum)
    tested = best.test is not None
    reached = f"RSUM {best.rsum:.1f} on {'test' if tested else 'dev'}" if best.rsum >= 0 else "nothing measured yet"
    kinds = [f"{run.name} is {run.verdict.kind}" for run in runs]
    if len(runs) == 1:
        return f"{_made_of(best)}: {best.verdict.kind}, {reached}."
    words = ", ".join(kinds[:-1]) + f" and {kinds[-1]}"
    return f"{len(runs)} runs, of which {best.name} is the best ({reached}). By their logs {words}."


def verdicts(runs: Sequence[RunRecord]) -> Html:
    """What became of each run, since when, how that is seen, and what helps."""
    return element("div", *(_verdict(number, run) for number, run in enumerate(runs)), class_="cards")


def _verdict(number: int, run: RunRecord) -> Html:
    verdict = run.verdict
    badge = element("span", element("span", SIGNS[verdict.kind], aria_hidden="true"), f" {verdict.title}")
    parts = [
        element("h3", named(number, run)),
        element("p", _made_of(run), class_="quiet"),
        element("p", element("strong", badge, class_=f"badge {verdict.kind}")),
        element("p", f"{verdict.why[:1].upper()}{verdict.why[1:]}."),
        element("ul", *(element("li", one) for one in verdict.evidence)) if verdict.evidence else Html(),
    ]
    if verdict.kind != "healthy":
        parts.append(element("p", element("strong", "What helps: "), f"{verdict.remedy}.", class_="remedy"))
    if run.alarm:
        parts.append(element("p", f"In training the alarm said: “{run.alarm}”", class_="quiet"))
    return element("article", *parts, class_="card")


def _made_of(run: RunRecord) -> str:
    steps = f"{int(run.log.steps[-1]):,} step{'' if int(run.log.steps[-1]) == 1 else 's'}"
    end = "" if run.test is not None else ", not finished"
    if run.config is None:
        return f"{steps}{end}"
    return f"{run.config.model} with {run.config.loss} on {run.config.data}, {steps}{end}"


def results(runs: Sequence[RunRecord]) -> Html:
    """Recalls and RSUM on test and on dev; the best of every column is bold."""
    over = [element("td")] + [
        element("th", words, colspan=3, scope="colgroup") for words in ("image to texts", "text to images")
    ]
    names = [f"R@{k}" for k in RECALLS] * 2 + ["RSUM", "best epoch"]
    head = element(
        "thead",
        element("tr", *over, element("td", colspan=2)),
        element("tr", element("th", "run", scope="col"), *(element("th", name, scope="col") for name in names)),
    )
    bodies = [
        _rows(runs, "On test, measured once with the weights of the best epoch on dev", lambda run: run.test),
        _rows(runs, "On dev, at its best epoch", lambda run: run.dev),
    ]
    if not any(bodies):
        return element("p", "Nothing has been measured yet: the first epoch is not finished.")
    table = element("table", head, *bodies, class_="numbers")
    missing = [run.name for run in runs if run.test is None]
    told = element(
        "p", f"Without results on test, because training is not finished: {', '.join(missing)}.", class_="quiet under"
    )
    return together(scrolling(table, "Results"), told if missing else Html())


def _rows(runs: Sequence[RunRecord], words: str, of: Callable[[RunRecord], Metrics | None]) -> Html:
    measured = [(number, run, found) for number, run in enumerate(runs) if (found := of(run)) is not None]
    if not measured:
        return Html()
    table = [_numbers(found) for _, _, found in measured]
    best = [max((value for value in column if value is not None), default=None) for column in zip(*table)]
    rows = [element("tr", element("th", element("span", words), colspan=9, scope="rowgroup"), class_="group")]
    for (number, run, _), values in zip(measured, table):
        cells = [_cell(value, len(measured) > 1 and value == top) for value, top in zip(values, best)]
        epoch = element("td", NONE if run.best_epoch is None else str(run.best_epoch))
        rows.append(element("tr", element("th", named(number, run), scope="row"), *cells, epoch))
    return element("tbody", *rows)


def _numbers(found: Metrics) -> list[float | None]:
    def recalls(way: DirectionMetrics) -> list[float | None]:
        return [way.recalls.get(k) for k in RECALLS]

    return [*recalls(found.i2t), *recalls(found.t2i), found.rsum]


def _cell(value: float | None, is_best: bool) -> Html:
    written = NONE if value is None else f"{value:.1f}"
    return element("td", element("strong", written) if is_best else written)


def settings(runs: Sequence[RunRecord]) -> Html:
    """In what the configurations differ, and the whole folded away."""
    tables = [run.settings for run in runs]
    if not any(tables):
        return element("p", "The folder does not say how the run was set up.")
    parts = [_differences(runs, tables, "Settings that differ", "All settings are the same.")] if len(runs) > 1 else []
    whole = _table(runs, tables, list(dict.fromkeys(name for table in tables for name in table)), "All settings")
    return together(*parts, element("details", element("summary", "All settings"), whole))


def environment(runs: Sequence[RunRecord]) -> Html:
    """On what the runs were made."""
    tables = [run.environment for run in runs]
    names = list(dict.fromkeys(name for table in tables for name in table))
    if not names:
        return element("p", "The folder does not say where the run was made.")
    if all(table == tables[0] for table in tables):
        return _table(runs[:1], tables[:1], names, "Environment", head=len(runs) == 1)
    return _table(runs, tables, names, "Environment")


def _differences(runs: Sequence[RunRecord], tables: Sequence[Mapping[str, str]], title: str, none: str) -> Html:
    names = list(dict.fromkeys(name for table in tables for name in table))
    differing = [name for name in names if len({table.get(name) for table in tables}) > 1]
    return _table(runs, tables, differing, title) if differing else element("p", none)


def _table(
    runs: Sequence[RunRecord], tables: Sequence[Mapping[str, str]], names: Sequence[str], title: str, head: bool = True
) -> Html:
    """A row for every name, a column for every run."""
    over = element("tr", element("th", "name", scope="col"), *(element("th", run.name, scope="col") for run in runs))
    rows = [
        element(
            "tr",
            element("th", element("code", name), scope="row"),
            *(element("td", table.get(name, NONE)) for table in tables),
        )
        for name in names
    ]
    parts = [element("thead", over)] if head else []
    return scrolling(element("table", *parts, element("tbody", *rows), class_="settings"), title)
