"""`selhn index` and `selhn search`: an index that is filled and asked from the command line."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from selhn.data import Split
from selhn.models import AbstractMatcher
from selhn.progress import Progress
from selhn.retrieve import Hit, Index, Item, is_index
from selhn.retrieve.items import split_ids, split_items
from selhn.retrieve.vectors import Precision
from selhn.train import open_run
from selhn.train.run import open_data, open_model

DEFAULT_INDEX = Path("selhn.index")


def fill_index(
    source: str | None, folder: Path, run: Path | None, split: str = "test", precision: Precision = "float32"
) -> str:
    """Put a split of a data set into an index, which is made where there is none; says what it holds afterwards.

    What is there already is left alone, so that the same command goes on with indexing that was stopped.
    """
    index = Index.load(folder, None if run is None else open_model(run)) if is_index(folder) else None
    model = index.model if index is not None else _model_of(run, folder)
    if source is None and run is None:
        raise ValueError("nothing to index: name a data set, or the run whose data is meant with --model")
    items = open_data(run or folder, source)[split]
    if index is None:
        index = Index.create(model, folder, precision=precision)
    index.add(_told(items, frozenset(index.ids())), existing="skip")
    return describe(index)


def change_index(
    folder: Path, delete: Sequence[str] = (), compact: bool = False, check: bool = False, approximate: str | None = None
) -> str:
    """Change or check an index; says what it holds afterwards."""
    index = Index.load(folder)
    if delete:
        index.delete(delete)
    if compact:
        index.compact()
    if approximate is not None:
        index.approximate(approximate)  # type: ignore[arg-type]
    if check:
        index.check()
    return describe(index) + ("; every file is what was written" if check else "")


def ask(
    words: Sequence[str],
    folder: Path,
    k: int = 5,
    where: str | None = None,
    like: str | None = None,
    data: str | None = None,
    split: str = "test",
) -> list[Hit]:
    """The answers to a sentence, from the index or the run named before it, else from the index in `folder`."""
    if len(words) > 2 or (not words and like is None):
        raise ValueError('write `selhn search "a dog in the snow"`, with a run or an index before it if you like')
    place = Path(words[0]) if len(words) == 2 else folder
    text = words[-1] if words else None
    if is_index(place):
        index = Index.load(place)
    elif len(words) == 2:
        model, dataset = open_run(place, data)
        index = Index.build(model, dataset[split])
    else:
        raise ValueError(f"there is no index {place}: make one with `selhn index`, or name it with --index")
    return index.search(text=text, like=like, k=k, where=where)


def describe(index: Index) -> str:
    """One line about an index."""
    identity = index.snapshot.identity
    texts = sum(len(record.captions) for record in index.snapshot.records())
    kinds = {one.kind for one in index.candidates.values()}
    how = f", candidates by {', '.join(sorted(kinds))}" if kinds else ""
    return (
        f"{index.path}: {len(index):,} images, {texts:,} texts, {identity.width} numbers each in {identity.precision}, "
        f"by {identity.model_name}{how}"
    )


def _model_of(run: Path | None, folder: Path) -> AbstractMatcher:
    if run is None:
        raise ValueError(f"there is no index {folder} yet: name the run or the model that is to make it with --model")
    return open_model(run)


def _told(split: Split, skip: frozenset[str]) -> Iterator[Item]:
    """The items of a split with a word on where they are from, and progress on the screen."""
    ids = split_ids(split)
    shown = Progress(len(ids), sum(name in skip for name in ids))
    for item in split_items(split, skip):
        yield replace(item, metadata={"split": split.name})
        shown.step("images encoded")
    shown.clear()
