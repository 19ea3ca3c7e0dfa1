"""Search: the embeddings of a collection, and the nearest of them to a query."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from selhn.data import Split
from selhn.eval.encoded import encode_split, in_eval_mode
from selhn.models import AbstractMatcher, CrossAttention, Twins, load_model

Kind = Literal["image", "text"]
EMBEDDINGS = "embeddings.safetensors"


@dataclass(frozen=True)
class Hit:
    """One answer: the item, its score, and what it is called."""

    score: float
    kind: Kind
    position: int
    """Row of the image or text in the indexed collection."""
    name: str
    """The image's name, or the text itself."""
    captions: tuple[str, ...] = ()
    """Known texts of an image."""


class Index:
    """The images and texts of a split, encoded once; exact search in both directions.

    `path/` holds the embeddings (safetensors), what the items are called (JSON lines) and the model, so that nothing
    else is needed to search it.
    """

    def __init__(
        self,
        model: AbstractMatcher,
        images: Float[Tensor, "I d"],
        texts: Float[Tensor, "T d"],
        image_names: Sequence[str],
        captions: Sequence[str],
        image_of_text: Int[Tensor, " T"],
    ):
        self.model = model
        self.images, self.texts = images, texts
        self.image_names, self.captions, self.image_of_text = list(image_names), list(captions), image_of_text

    @classmethod
    def build(cls, model: AbstractMatcher, items: Split, path: str | Path | None = None) -> "Index":
        """Encode a split; with `path`, save the index there too."""
        if path is not None:
            _refuse_foreign(Path(path))
        if isinstance(model.both[0] if isinstance(model, Twins) else model, CrossAttention):
            raise ValueError(
                f"{model.name or type(model).__name__} compares regions with words and has no vector to search by: "
                "build the index with an embedding model, such as rvse"
            )
        images, texts = encode_split(model, items)
        index = cls(model, images.cpu(), texts.cpu(), items.image_names, items.captions, items.image_of_text.cpu())
        if path is not None:
            index.save(path)
        return index

    def search(self, query: str | Float[Tensor, "M F"], k: int = 5, find: Kind | None = None) -> list[Hit]:
        """The k best answers to a text (images, unless `find="text"`) or to an image's regions (texts)."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if find not in (None, "image", "text"):
            raise ValueError(f'find must be "image" or "text", got {find!r}')
        device = next(self.model.parameters()).device
        with in_eval_mode(self.model):
            if isinstance(query, str):
                if not query.strip():
                    raise ValueError("the query is empty: write a few words")
                tokens, mask = self.model.tokenize([query])
                encoded, asked = self.model.encode_texts(tokens.to(device), mask.to(device)), "text"
            else:
                wanted_width = self.model.settings.get("feature_dim", query.shape[-1])
                if query.ndim != 2 or query.shape[1] != wanted_width:
                    raise ValueError(
                        f"an image is asked for by its regions, (M, {wanted_width}) for this model; "
                        f"got shape {tuple(query.shape)}"
                    )
                regions = query.to(device)[None]
                mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=device)
                encoded, asked = self.model.encode_images(regions, mask), "image"
            wanted = find or ("image" if asked == "text" else "text")
            return self._nearest(encoded, asked, wanted, k)

    def _nearest(self, encoded: Float[Tensor, "1 d"], asked: str, wanted: str, k: int) -> list[Hit]:
        """Score the query against one side of the collection.

        Across modalities that is the model's own score; within one, the product of embeddings.
        """
        encoded = encoded.to(self.images.device)
        if asked == wanted:
            scores = (self.images if wanted == "image" else self.texts) @ encoded[0]
        elif wanted == "image":
            scores = self.model.score(self.images.to(encoded.device), encoded)[:, 0]
        else:
            scores = self.model.score(encoded, self.texts.to(encoded.device))[0]
        best = scores.cpu().topk(min(k, len(scores)))
        return [self._hit(score, wanted, row) for score, row in zip(best.values.tolist(), best.indices.tolist())]

    def _hit(self, score: float, kind: str, row: int) -> Hit:
        if kind == "text":
            return Hit(score, "text", row, self.captions[row])
        own = (self.image_of_text == row).nonzero()[:, 0].tolist()
        return Hit(score, "image", row, self.image_names[row], tuple(self.captions[text] for text in own))

    def __len__(self) -> int:
        return len(self.image_names)

    def save(self, path: str | Path) -> None:
        """Write the index; an index that was there is replaced only when the new one is complete."""
        path = Path(path)
        _refuse_foreign(path)
        partial = path.with_name(f".{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tensors = {"images": self.images, "texts": self.texts, "image_of_text": self.image_of_text}
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial / EMBEDDINGS)
            for name, lines in (("images.jsonl", self.image_names), ("texts.jsonl", self.captions)):
                with (partial / name).open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            self.model.save(partial / "model")
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise OSError(f"the index {path} could not be written ({error}); one that was there is untouched") from None
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)

    @classmethod
    def load(cls, path: str | Path) -> "Index":
        """Open an index that `save` or `build` wrote."""
        path = Path(path)
        try:
            tensors = load_file(path / EMBEDDINGS)
            names, captions = (list(_read_lines(path / name)) for name in ("images.jsonl", "texts.jsonl"))
            if (len(names), len(captions)) != (len(tensors["images"]), len(tensors["texts"])):
                raise ValueError("names and embeddings differ in number")
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(
                f"{path} is no index, or a damaged one ({error}): build it again with Index.build"
            ) from None
        return cls(
            load_model(path / "model"), tensors["images"], tensors["texts"], names, captions, tensors["image_of_text"]
        )


def _refuse_foreign(path: Path) -> None:
    """Never replace what is not an index."""
    if path.exists() and not (path / EMBEDDINGS).exists():
        raise ValueError(f"{path} exists and is no index: choose another name")


def _read_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
