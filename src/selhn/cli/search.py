"""`selhn index` and `selhn search`: fill an index and search it from the command line."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from shlex import quote

from selhn.base.errors import NotFound, SelhnError
from selhn.base.progress import Progress
from selhn.base.types import StoredPrecision
from selhn.data import FORMATS, Split
from selhn.data.formats import DATASETS
from selhn.data.splits import split_ids
from selhn.export import towers_of
from selhn.models.saved import BEST_FOLDER, CONFIG_FILE
from selhn.pictures import Library, index_pictures
from selhn.pictures.picture_files import SUFFIXES, Found, find_pictures
from selhn.pictures.picture_folders import DEFAULT_INDEX, default_index, found_index
from selhn.pictures.plans import make_plan
from selhn.search import Hit, Index, Item, Query, Record, is_uri
from selhn.search.items import Kind, Order, by_date, date_of, split_items
from selhn.search.shards import holds_embeddings, index_embeddings
from selhn.towers import open_towers
from selhn.training import open_run
from selhn.training.run import open_data


def fill_index(
    source: str | None,
    path: Path | str | None,
    model: Path | None,
    split: str = "test",
    precision: StoredPrecision = "float32",
    *,
    captions: Path | None = None,
    extractor: str | None = None,
    device: str = "cpu",
    dry_run: bool = False,
    remove_missing: bool = False,
) -> str:
    """Put pictures, embeddings or a split into an index, which is created if needed; says what it holds.

    A folder of pictures needs no model and no path. What is in the index already is left alone, so that the
    same command continues after it was stopped. With `dry_run`, only say what would be done to pictures.
    """
    if source is None and model is None:
        raise SelhnError(
            "nothing to index: name a folder of pictures, `selhn index ~/Pictures`, or a data set or a run with --model"
        )
    is_embedded = source is not None and holds_embeddings(Path(source).expanduser())
    found = None if source is None or is_embedded else _pictures_of(source, remove_missing)
    opened = None if model is None else open_towers(model)
    if found is None:
        options = {"captions": captions, "extractor": extractor, "dry-run": dry_run or None}
        for name, value in {**options, "remove-missing": remove_missing or None}.items():
            if value is not None:
                raise SelhnError(
                    f"--{name} is for a folder of pictures, and {source or 'the data of a run'} is not one"
                )
        path = path or DEFAULT_INDEX
        if is_embedded:
            return str(index_embeddings(Path(str(source)).expanduser(), path, opened, precision))
        index = Index.load(path, opened) if Index.exists(path) else None
        if index is None and opened is None:
            raise NotFound(
                f"{source} is a data set, not a folder of pictures, and there is no index {path} yet: "
                "name a run, a saved model or a towers folder with --model"
            )
        advice = f"name a folder of pictures or a data set, `selhn index SOURCE --model {model}`"
        items = open_data(model or Path(path), source, advice)[split]
        if index is None:
            assert opened is not None
            index = Index.create(opened, path, precision=precision)
        index.add(_told(items, frozenset(index.ids())), existing="skip")
        return str(index)
    if dry_run:
        path = path or default_index()
        index = Index.load(path, opened) if Index.exists(path) else None
        return str(make_plan(found, index, captions, remove_missing))
    done = index_pictures(
        found,
        path,
        towers=opened,
        extractor=extractor,
        captions=captions,
        precision=precision,
        device=device,
        remove_missing=remove_missing,
    )
    here = "" if path is None else f" --{'uri' if is_uri(path) else 'index'} {path}"
    return f'{done}\n{done.index}\nSearch it: selhn search "children playing in the snow"{here}'


def _pictures_of(source: str, remove_missing: bool) -> Found | None:
    """The pictures of a folder, perhaps none; None if the source is a data set."""
    path = Path(source).expanduser()
    if source in DATASETS or (path.exists() and any(known.looks_like(path) for known in FORMATS.values())):
        return None
    if not path.exists() and remove_missing:
        return Found(path.resolve(), [], [], [])
    if path.is_file():
        what = "one picture" if path.suffix.lower() in SUFFIXES else "a file"
        raise SelhnError(f"{source} is {what}: name the folder that it is in: selhn index {path.parent}")
    return find_pictures(path.resolve())


def index_path(folder: Path | None, uri: str | None) -> Path | str | None:
    """The path of the index that the options name."""
    if uri is None:
        return folder
    if folder is not None:
        raise SelhnError(f"an index is in a folder ({folder}) or on a server (--uri {uri}): give one of them")
    if not is_uri(uri):
        raise SelhnError(
            f"--uri {uri} is not the address of a server, such as http://host:19530 or postgresql://host/photos"
        )
    return uri


def open_asked(
    words: Sequence[str],
    path: Path | str | None,
    model: Path | None = None,
    data: str | None = None,
    split: str = "test",
    extractor: str | None = None,
) -> tuple[Library, str | None]:
    """The library to search, and the sentence: the words, except the first if it names an index or a run.

    It names one if it is one, or if it looks like a path and other words follow.
    """
    picture = next((word for word in words if _is_picture(word)), None)
    if picture is not None:
        raise SelhnError(
            f"{picture} is a picture, not a word: to find pictures like it, `selhn search --like {quote(picture)}`"
        )
    named = words[0] if words and _is_place(words[0], followed=len(words) > 1) else None
    path = found_index(path) if named is None else named if is_uri(named) else Path(os.path.expanduser(named))
    sentence = " ".join(words if named is None else words[1:]) or None
    if named is None or is_uri(named) or Index.exists(path):
        return Library.open(
            path, None if model is None else open_towers(model), extractor=extractor
        ), sentence
    if Path(path).is_dir() and not _is_run(Path(path)):
        raise NotFound(
            f"{named} is neither an index nor a run: to search the pictures in it, `selhn index {named}`, "
            "then `selhn search` with only the words"
        )
    own_model, dataset = open_run(Path(path), data)
    return Library(Index.build(towers_of(own_model), dataset[split])), sentence


def _is_place(word: str, followed: bool) -> bool:
    path = Path(os.path.expanduser(word))  # a word after ~ that is no user stays as it is
    if is_uri(word) or (followed and len(path.parts) > 1):
        return True
    return os.path.isdir(path) and (_is_run(path) or Index.exists(path))


def _is_picture(word: str) -> bool:
    path = os.path.expanduser(word)
    return Path(path).suffix.lower() in SUFFIXES and os.path.isfile(path)


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in (CONFIG_FILE, BEST_FOLDER, "checkpoints"))


def find_hits(
    index: Index, query: Query | None, k: int, find: Kind, where: str | None, order: Order | None
) -> Sequence[Hit | Record]:
    """The answers to a query; without one, the first items in an order (newest first if only filtered)."""
    if find == "text" and not index.num_texts:
        raise SelhnError(
            f"{index.location} has no captions: add some with `selhn index FOLDER --captions FILE`, "
            "or search without --find text"
        )
    if query is not None:
        hits = index.search(query, k, find, where=where)
        return hits if order is None else by_date(((date_of(hit), hit.id, hit) for hit in hits), order)
    if (order or where) is None or find != "image":
        raise SelhnError(
            'nothing to search for: write `selhn search "a dog in the snow"`, '
            "or `selhn search --order newest` to list pictures by date"
        )
    return list(islice(index.records(where, order or "newest", moments=False), k))


def _told(split: Split, skip: frozenset[str]) -> Iterator[Item]:
    """The items of a split with its name as metadata, and progress on the screen."""
    ids = split_ids(split)
    shown = Progress(len(ids), sum(name in skip for name in ids))
    for item in split_items(split, skip):
        yield replace(item, metadata={"split": split.name})
        shown.step("images encoded")
    shown.clear()
