"""From what a person names to a service: the index or the examples, runs, and a model with attention."""

from pathlib import Path

from selhn.ready import load_extractor, load_ready_model
from selhn.retrieve import Index, is_index
from selhn.searching import DEFAULT_INDEX
from selhn.serve.collection import Collection
from selhn.serve.examples import open_examples
from selhn.serve.runs import Runs
from selhn.serve.service import Service
from selhn.train.run import open_model


def open_service(
    place: Path | None, examples: bool, runs: Path | None, attention: Path | None = None, writable: bool = False
) -> Service:
    """The service of an index (by default the one that `selhn index` makes), of the examples, or of runs alone."""
    if examples and place is not None:
        raise ValueError(f"either {place} or --examples is served, not both: leave one out")
    if examples and writable:
        raise ValueError("the example pictures are part of the package: --writable is for an index of your own")
    collection = None
    if examples:
        collection = open_examples(load_ready_model(), load_extractor())
    elif place is not None or runs is None or is_index(DEFAULT_INDEX):
        collection = open_collection(place or DEFAULT_INDEX)
    model = None if attention is None else open_model(attention)
    return Service(collection, None if runs is None else Runs(runs), attention=model, writable=writable)


def open_collection(place: Path) -> Collection:
    """An index with its pictures, where it says how and from where it was made."""
    if not is_index(place):
        raise ValueError(
            f"there is no index {place}: make one with `selhn index`, or look at the examples with "
            "`selhn serve --examples`"
        )
    return Collection(Index.load(place), name=place.name)
