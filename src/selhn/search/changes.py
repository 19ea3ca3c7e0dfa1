"""Changes of an index: items to drafts of segments, and drafts to the next state, in memory or on disk."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.names import NAMED_MODELS
from selhn.data import Split
from selhn.models import AbstractMatcher, load_model
from selhn.search.encoding import digest_of, encode_items, require_vectors, width_of
from selhn.search.faiss_index import Approximate
from selhn.search.folder import IndexFolder, Opened
from selhn.search.items import Item, Record, split_ids
from selhn.search.segment import Draft, Part
from selhn.search.snapshot import Identity, Snapshot
from selhn.search.vectors import Precision, check_precision

ENCODED_AT_ONCE = 512
SEGMENT_ITEMS = 4096
"""Items that are written together: what a kill can cost."""
SMALL_SEGMENTS = 16
"""So many small segments are put together into one when the next is written."""

OnExisting = Literal["refuse", "skip", "replace"]


class Change(NamedTuple):
    """Items that are written together."""

    draft: Draft
    ids: tuple[str, ...]


def changes(
    model: AbstractMatcher, now: Callable[[], Snapshot], items: Iterator[Item], existing: OnExisting
) -> Iterator[Change]:
    """Items encoded a few hundred at a time, and handed out some thousand at a time; `now` is what the index holds."""
    identity = now().identity
    pending: dict[str, tuple[Record, Tensor, Tensor]] = {}
    seen: set[str] = set()

    def packed() -> Change:
        records, images, texts = zip(*pending.values())
        change = Change(Draft.of(records, torch.stack(images), torch.cat(texts), identity.precision), tuple(pending))
        pending.clear()
        return change

    while batch := list(islice(items, ENCODED_AT_ONCE)):
        chosen: dict[str, tuple[Item, Record]] = {}
        for item in batch:
            record = Record.of(item)
            if record.id in seen or record.id in now().row_of_id:
                if existing == "skip":
                    continue
                if existing == "refuse":
                    raise SelhnError(
                        f"there is an item {record.id!r} already: update it, or add with existing='skip' or 'replace'"
                    )
            record.to_line()  # what cannot be kept is not encoded first
            seen.add(record.id)
            chosen[record.id] = item, record
        if chosen:
            some, records = zip(*chosen.values())
            images, texts = encode_items(model, some, records, identity.width)
            own_texts = texts.split([len(record.captions) for record in records])
            pending.update({r.id: (r, image, own) for r, image, own in zip(records, images, own_texts)})
        if len(pending) >= SEGMENT_ITEMS:
            yield packed()
    if pending:
        yield packed()


def committed(
    folder: IndexFolder | None, before: Opened, parts: Sequence[Part], drafts: list[Draft], compact: bool = False
) -> Opened:
    """The index with these parts and drafts; `compact` gives up what FAISS knows of the parts that were there."""
    entries, candidates = ([], {}) if compact else (before.approximate, before.candidates)
    known = [*(entry["parts"] for entry in entries), *(one.num_parts for one in candidates.values())]
    covered = max(known, default=0)
    parts = [*parts[:covered], *(part for part in parts[covered:] if len(part))]
    small = list(takewhile(lambda part: len(part) < SEGMENT_ITEMS, reversed(parts[covered:])))[::-1]
    if drafts and len(small) >= SMALL_SEGMENTS:
        merged = Draft([*small, *(part for draft in drafts for part in draft.parts)])
        parts, drafts = parts[: -len(small)], [merged]
    if folder is not None:
        copied = {part.segment.name for draft in drafts for part in draft.parts}
        folder.check_segments(before, sorted(copied & set(before.segments)))
    return replace(written(folder, before, parts, drafts, entries), candidates=candidates)


def written(
    folder: IndexFolder | None,
    before: Opened,
    parts: Sequence[Part],
    drafts: list[Draft],
    entries: Sequence[dict[str, Any]],
) -> Opened:
    """Exactly these parts and drafts, on disk where there is a folder."""
    if folder is not None:
        return folder.commit(before, parts, drafts, approximate=entries)
    new = [draft.in_memory(f"{before.next_name + place:06}") for place, draft in enumerate(drafts)]
    everything = [*parts, *(Part(segment, torch.ones(len(segment), dtype=torch.bool)) for segment in new)]
    snapshot = replace(before.snapshot, parts=everything, generation=before.snapshot.generation + 1)
    return replace(before, snapshot=snapshot, next_name=before.next_name + len(new))


def moved(opened: Opened, device: torch.device) -> Opened:
    """With the vectors on a device."""
    parts = [Part(part.segment.to(device), part.alive) for part in opened.snapshot.parts]
    return replace(opened, snapshot=replace(opened.snapshot, parts=parts))


def nothing(model: AbstractMatcher, precision: Precision, about: Mapping[str, Any]) -> Opened:
    """An index before anything is in it."""
    require_vectors(model)
    check_precision(precision)
    name = model.name or type(model).__name__
    return Opened(Snapshot(Identity(digest_of(model), name, width_of(model), precision, dict(about))), {})


def write_copy(snapshot: Snapshot, model: AbstractMatcher, path: str | Path) -> None:
    """What is there as one segment in another folder; an index that was there is replaced in one step."""
    folder = IndexFolder(path)
    with folder.writing():
        whole = replace(snapshot, unfinished=None)
        before = folder.open_or(nothing(model, whole.identity.precision, {}))
        if before.snapshot.generation == 0:  # a manifest first: what a kill leaves is then known for what it is
            begun = replace(whole, parts=(), generation=0, unfinished="save")
            before = folder.commit(before, [], snapshot=begun, model=model)
        folder.sweep(before)
        drafts = [Draft(snapshot.parts)] if len(snapshot) else []
        folder.commit(before, [], drafts, snapshot=whole, model=model)


def own_model(folder: IndexFolder, opened: Opened) -> AbstractMatcher:
    """The model that an index holds, or that it names."""
    identity = opened.snapshot.identity
    if opened.model_kept:
        return load_model(folder.model_folder / identity.model)
    return named_model(identity, str(folder.path))


def named_model(identity: Identity, place: str) -> AbstractMatcher:
    """The model that an index names, if it is one that `load_model` knows by name."""
    name = identity.about.get("model")
    if name in NAMED_MODELS:
        return load_model(name)
    raise SelhnError(f"{place} holds no model ({identity.model_name} made it): give it with --model, or model=")


def with_candidates(path: Path, opened: Opened) -> Opened:
    """With the FAISS indices read, where there are some and FAISS is installed."""
    return replace(opened, candidates=Approximate.read(path / "approximate", opened.approximate, opened.snapshot))


def digest_of_split(split: Split) -> str:
    """What tells a split from another: names and texts."""
    digest = hashlib.blake2b(digest_size=12)
    for lines in (split_ids(split), split.captions, map(str, split.image_of_text.tolist())):
        for line in lines:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
