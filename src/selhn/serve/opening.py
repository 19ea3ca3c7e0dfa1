"""From what a person names to a service: the index or the examples, runs, and a model with attention."""

from pathlib import Path

from selhn.base.errors import SelhnError
from selhn.models import load_model
from selhn.pictures import Library
from selhn.pictures.example_library import open_examples
from selhn.pictures.picture_folders import found_index
from selhn.serve.collection import Collection
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
        collection = Collection.of(open_examples())
    elif place is not None or runs is None:
        collection = open_collection(found_index(place), model)
    looking = None if attention is None else load_model(attention)
    return Service(collection, watched, attention=looking, writable=writable)


def open_collection(place: Path | str, model: Path | None = None) -> Collection:
    """An index, in a folder or in Milvus, with its pictures, where it says how they became features.

    `model` where the index neither holds nor names its own.
    """
    library = Library.open(place, None if model is None else load_model(model))
    return Collection.of(library)
