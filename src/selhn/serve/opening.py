"""From what a person names to a service: the index or the examples, runs, and a model with attention."""

from pathlib import Path

from selhn.base.errors import NotFound, SelhnError
from selhn.models import load_model
from selhn.pictures import Extractor
from selhn.pictures.library import found_index
from selhn.pictures.ready import load_extractor, load_ready_model
from selhn.search import AnyIndex, has_index, load_index
from selhn.serve.collection import Collection
from selhn.serve.examples import open_examples
from selhn.serve.service import Service
from selhn.serve.watched_runs import WatchedRuns


def open_service(
    place: Path | str | None,
    examples: bool,
    runs: Path | None,
    attention: Path | None = None,
    writable: bool = False,
    model: Path | None = None,
) -> Service:
    """The service of an index (by default the one that `selhn index` makes), of the examples, or of runs alone."""
    if examples and place is not None:
        raise SelhnError(f"either {place} or --examples is served, not both: leave one out")
    if model is not None and (examples or (place is None and runs is not None)):
        raise SelhnError("--model is for an index that does not hold its own: name that index, or leave --model out")
    if examples and writable:
        raise SelhnError("the example pictures are part of the package: --writable is for an index of your own")
    watched = None if runs is None else WatchedRuns(runs)
    collection = None
    if examples:
        collection = open_examples(load_ready_model(), load_extractor())
    elif place is not None or runs is None:
        collection = open_collection(found_index(place), model)
    looking = None if attention is None else load_model(attention)
    return Service(collection, watched, attention=looking, writable=writable)


def open_collection(place: Path | str, model: Path | None = None) -> Collection:
    """An index, in a folder or in Milvus, with its pictures, where it says how they became features.

    `model` where the index neither holds nor names its own.
    """
    if not has_index(place):
        raise NotFound(
            f"there is no index {place}: make one with `selhn index ~/Pictures`, or look at the examples with "
            "`selhn serve --examples`"
        )
    index = load_index(place, None if model is None else load_model(model))
    folders = indexed_folders(index)
    name = folders[0].name if len(folders) == 1 else Path(place).name.removesuffix(".index")
    return Collection(index, _extractor_of(index), folders, name or str(place))


def indexed_folders(index: AnyIndex) -> list[Path]:
    """The folders that `selhn index` was given: of every item its path without its place below the folder."""
    if "extractor" not in index.about:
        return []
    found: dict[Path, None] = {}
    for record in index.records():
        inside = Path(str(record.metadata.get("folder", "")), str(record.metadata.get("file", "")))
        path, depth = Path(record.id), len(inside.parts)
        if path.is_absolute() and depth and path.parts[-depth:] == inside.parts:
            found[Path(*path.parts[:-depth])] = None
    return list(found)


def _extractor_of(index: AnyIndex) -> Extractor | None:
    name = index.about.get("extractor")
    if name is None:
        return None
    extractor = load_extractor(str(name))
    if extractor.identity != index.about.get("features"):
        raise SelhnError(
            f"{index.place} was made with other features ({index.about.get('features')}) than {name} gives now "
            f"({extractor.identity}): make it again with `selhn index`"
        )
    return extractor
