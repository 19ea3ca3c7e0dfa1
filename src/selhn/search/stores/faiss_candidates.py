"""Candidates by FAISS for a large index: HNSW, or inverted lists with float32 or int8 vectors.

FAISS only proposes rows. They are scored exactly from the index's own vectors, so that its rounding does not
affect scores, and deleted items never come back. It needs vectors whose products are the scores.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.errors import Damaged, MissingExtra, SelhnError, pip_install
from selhn.search.items import Kind
from selhn.search.stores.checked_files import check_content, write_file
from selhn.search.stores.segment import Segment
from selhn.search.stores.store import ApproximateKind
from selhn.search.stores.vectors import Vectors

# Below the first, exact search takes tens of milliseconds; above the second, a graph needs too much memory.
HNSW_FROM, IVF_FROM = 50_000, 500_000
NEIGHBOURS, BREADTH_AT_BUILD, BREADTH_AT_SEARCH = 16, 100, 128
PROBED_SHARE = 32
"""One in this many lists is searched, but at least 8."""
TRAINING_PER_LIST = 64
OVERSAMPLE = 4
"""This many times k rows are proposed."""
SCARCE = 0.1
"""If a filter leaves a smaller share of the rows, comparing all of them is quicker, and exact."""


@dataclass(frozen=True, eq=False)
class FaissCandidates:
    """A FAISS index over the images or the texts of the first segments of an index."""

    kind: str
    side: Kind
    parts: int
    """Number of segments that it covers, from the first on."""
    file: str = ""
    written: Sequence[int] = ()
    """Length and checksum of the file."""
    faiss_index: Any = None
    """None if it was not read, because FAISS is missing or the file is damaged; search is exact then."""

    @classmethod
    def of(cls, segments: Sequence[Segment], kind: ApproximateKind) -> dict[Kind, "FaissCandidates"]:
        """Build them over the images of some segments, and over their texts if there are any."""
        if kind not in get_args(ApproximateKind):
            raise SelhnError(f"approximate is {kind!r}: choose one of {', '.join(get_args(ApproximateKind))}")
        found: dict[Kind, FaissCandidates] = {}
        for side in get_args(Kind):
            vectors = [segment.vectors[side] for segment in segments]
            rows = sum(map(len, vectors))
            chosen = chosen_kind(rows) if kind == "auto" else kind
            if chosen != "exact" and rows > 0:
                found[side] = cls(chosen, side, len(segments), faiss_index=_built(chosen, vectors, rows))
        return found

    def propose(
        self, queries: Float[Tensor, "Q d"], k: int, mask: Bool[Tensor, " n"] | None
    ) -> Int[Tensor, "Q c"] | None:
        """Proposed rows, -1 if there are fewer. None if comparing all is better: few rows or a large k."""
        if self.faiss_index is None:
            return None
        faiss = require_faiss()
        if k > self.faiss_index.ntotal // OVERSAMPLE:
            return None
        settings: dict[str, Any] = {}
        if mask is not None:
            if int(mask.sum()) < max(SCARCE * len(mask), OVERSAMPLE * k):
                return None
            bits = np.packbits(mask.numpy(), bitorder="little")
            settings["sel"] = faiss.IDSelectorBitmap(bits)
        if self.kind == "hnsw":
            breadth = max(BREADTH_AT_SEARCH, OVERSAMPLE * k)
            parameters = faiss.SearchParametersHNSW(efSearch=breadth, **settings)
        else:
            probed = max(8, self.faiss_index.nlist // PROBED_SHARE)
            parameters = faiss.SearchParametersIVF(nprobe=probed, **settings)
        _, rows = self.faiss_index.search(queries.float().numpy(), OVERSAMPLE * k, params=parameters)
        return torch.from_numpy(rows)

    def write(self, folder: Path, name: str) -> "FaissCandidates":
        """Write it to a file; returns it with the entry of that file."""
        folder.mkdir(exist_ok=True)
        file = f"{name}_{self.side}.faiss"
        written = write_file(folder / file, [require_faiss().serialize_index(self.faiss_index).data])
        return replace(self, file=file, written=written)

    def read(self, folder: Path, segments: Sequence[Segment]) -> "FaissCandidates":
        """The same with the FAISS index, if usable. FAISS trusts what it reads: the checksum comes first."""
        path = folder / self.file
        try:
            faiss = require_faiss()
            check_content(path, self.written)
            content = faiss.deserialize_index(np.fromfile(path, np.uint8))
            rows = sum(len(segment.vectors[self.side]) for segment in segments[: self.parts])
            if not 0 < self.parts <= len(segments) or content.ntotal != rows:
                raise Damaged("it belongs to another index")
        except MissingExtra:
            return self
        except (OSError, Damaged, RuntimeError) as wrong:  # search works without candidates too
            reason = f"{path} cannot be used ({str(wrong)[:200]})"
            warnings.warn(f"{reason}, so search is exact: call index.approximate() again", stacklevel=4)
            return self
        return replace(self, faiss_index=content)


def chosen_kind(rows: int) -> ApproximateKind:
    """The kind that suits this many vectors."""
    return "exact" if rows < HNSW_FROM else "hnsw" if rows < IVF_FROM else "ivf_int8"


def _built(kind: str, parts: Sequence[Vectors], rows: int) -> Any:
    faiss, width = require_faiss(), parts[0].rows.shape[1]
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BREADTH_AT_BUILD
    else:
        lists = max(1, min(int(4 * math.sqrt(rows)), rows // TRAINING_PER_LIST))
        index = faiss.index_factory(
            width, f"IVF{lists},{'SQ8' if kind == 'ivf_int8' else 'Flat'}", faiss.METRIC_INNER_PRODUCT
        )
        # Spherical: otherwise long vectors draw everything into their lists.
        index.cp.spherical = True
        index.train(_sample(parts, lists * TRAINING_PER_LIST, rows).numpy())
    for vectors in parts:
        for block in vectors.blocks():
            index.add(np.ascontiguousarray(vectors.take(block).cpu().numpy()))
    return index


def _sample(parts: Sequence[Vectors], number: int, rows: int) -> Float[Tensor, "s d"]:
    """Rows spread evenly over all parts, the same at every call."""
    taken: list[Tensor] = []
    for vectors in parts:
        share = min(len(vectors), -(-number * len(vectors) // rows))
        generator = torch.Generator().manual_seed(len(taken))
        chosen = torch.randperm(len(vectors), generator=generator)[:share].sort().values
        taken.append(vectors.take(chosen.to(vectors.rows.device)).cpu())
    return torch.cat(taken)


def require_faiss() -> Any:
    """The FAISS module."""
    try:
        import faiss
    except ImportError:
        raise MissingExtra(f"approximate search needs FAISS: {pip_install('faiss')}") from None
    return faiss
