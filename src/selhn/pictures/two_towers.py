"""Both towers of CLIP, SigLIP and similar models as one embedding model: pictures and texts in one space.

The picture tower is an extractor: the one region of a picture is its vector, which the matcher only normalises. So an
index, the feature cache, the service and the evaluation work with these models as with any other.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from selhn.base.device import device_of
from selhn.base.errors import NotFound, SelhnError
from selhn.base.untrusted import read_text
from selhn.eval.stored import digest_of
from selhn.models import AbstractMatcher
from selhn.models.foreign import MOST_TOKENS, LibraryTokenizer, vectors_of
from selhn.models.matcher import RegionMask, Regions, TokenMask, Tokens, all_real
from selhn.pictures.backbones import import_library, open_clip_name
from selhn.pictures.extractor import EMBEDDING, Extractor
from selhn.towers.preparation import RESAMPLING, Preparation, preparation, preparation_of_open_clip
from selhn.towers.ready import READY

LIBRARY_ERRORS = (OSError, RuntimeError, ValueError, KeyError, AttributeError, TypeError, ImportError)
"""What the libraries raise for a name or for files that they cannot open."""


class LibraryTowers(nn.Module, ABC):
    """Two towers with what turns pictures and texts into their inputs."""

    kind: str
    """Library and family, such as transformers:clip; it does not depend on where the files are."""
    prepare: Preparation
    tokenizer: LibraryTokenizer

    @abstractmethod
    def encode_pixels(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B d"]:
        """The vectors of pictures."""

    @abstractmethod
    def encode_tokens(self, tokens: Tokens, mask: TokenMask) -> Float[Tensor, "T d"]:
        """The vectors of texts."""


class TransformersTowers(LibraryTowers):
    """A model of transformers that has `get_image_features` and `get_text_features`."""

    def __init__(self, model: str, local_only: bool):
        super().__init__()
        is_local = local_only or Path(model).is_dir()  # a folder needs nothing from outside
        with _offline() if is_local else contextlib.nullcontext():
            self._open(model, is_local)

    def _open(self, model: str, is_local: bool) -> None:
        library = import_library("transformers", f"transformers:{model}", "pip install transformers")
        library.utils.logging.disable_progress_bar()
        safe = {"local_files_only": is_local, "trust_remote_code": False}  # a model's own code is never run
        self.network: Any = library.AutoModel.from_pretrained(model, **safe)
        if not hasattr(self.network, "get_text_features") or not hasattr(self.network, "get_image_features"):
            raise SelhnError(
                f"{type(self.network).__name__} has no towers for pictures and texts: use CLIP or SigLIP"
            )
        config = self.network.config
        self.kind = f"transformers:{config.model_type}"
        processor = library.image_processing_base.ImageProcessingMixin
        settings, _ = processor.get_image_processor_dict(model, local_files_only=is_local)
        self.prepare = preparation(settings, config.vision_config.image_size)
        words = library.AutoTokenizer.from_pretrained(model, use_fast=True, **safe)
        text = config.text_config
        longest = getattr(text, "max_position_embeddings", MOST_TOKENS)
        # SigLIP was trained on texts padded to one length, without a mask.
        self.whole = config.model_type.startswith("siglip")
        self.tokenizer = LibraryTokenizer.of_transformers(words, text.vocab_size, longest, self.whole)

    def encode_pixels(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B d"]:
        return vectors_of(self.network.get_image_features(pixel_values=pixels), len(pixels), "images")

    def encode_tokens(self, tokens: Tokens, mask: TokenMask) -> Float[Tensor, "T d"]:
        seen = None if self.whole else mask.long()
        found = self.network.get_text_features(input_ids=tokens, attention_mask=seen)
        return vectors_of(found, len(tokens), "texts")


class OpenClipTowers(LibraryTowers):
    """A model of open_clip, written `MODEL/WEIGHTS`, or a folder with its open_clip_config.json."""

    def __init__(self, model: str):
        super().__init__()
        library = import_library("open_clip", f"open_clip:{model}", "pip install open_clip_torch")
        name, weights = open_clip_name(model)
        folder = Path(model).expanduser()
        if folder.is_dir():
            if "trust_remote_code" in read_text(folder / "open_clip_config.json"):
                raise SelhnError(
                    f"{folder} asks to run code that comes with it (trust_remote_code): it is not opened"
                )
            name, weights = f"local-dir:{folder.resolve()}", None
        with _offline() if folder.is_dir() else contextlib.nullcontext():
            self.network: Any = library.create_model(name, pretrained=weights)
            self.words: Any = library.get_tokenizer(name)
        self.kind = f"open_clip:{type(self.network).__name__}"
        known = self.network.visual.preprocess_cfg
        self.prepare = preparation_of_open_clip(known)
        inner = getattr(self.words, "tokenizer", self.words)
        size = int(getattr(self.words, "vocab_size", 0) or len(inner))
        special = getattr(self.words, "all_special_ids", None) or getattr(inner, "all_special_ids", [])
        self.tokenizer = LibraryTokenizer(
            self._encode, size, special, lambda ids: [self.words.decode([i]) for i in ids]
        )

    def _encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        tokens = self.words(texts)
        return tokens, torch.ones_like(tokens, dtype=torch.bool)

    def encode_pixels(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B d"]:
        return self.network.encode_image(pixels)

    def encode_tokens(self, tokens: Tokens, mask: TokenMask) -> Float[Tensor, "T d"]:
        return self.network.encode_text(tokens)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Nothing is looked up: with `local_files_only` alone, huggingface_hub still asks for a list of its own."""
    try:
        from huggingface_hub import constants
    except ImportError:  # then neither library is here
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _as_before(prepare: Preparation) -> str:
    """What the digest of a model contains: indices of earlier versions have it in these words."""
    name = f"Preprocessing(size={prepare.size}, mean={prepare.mean}, deviation={prepare.deviation})"
    if prepare.resized is not None:
        return name
    resampling = Image.Resampling(RESAMPLING.index(prepare.resampling))
    return f"Cropping(last={name}, side={prepare.shorter_side}, resampling={resampling!r})"


@dataclass(eq=False)
class PictureTower:
    """The picture tower as a backbone: a map of one cell, which is the vector."""

    towers: LibraryTowers
    name: str
    width: int

    @property
    def prepare(self) -> Preparation:
        return self.towers.prepare

    def maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C 1 1"]:
        return self.towers.encode_pixels(pixels.to(device_of(self.towers)))[:, :, None, None]


class TwoTowers(AbstractMatcher):
    """An embedding model of another library. Its `extractor` gives the regions that it takes.

    Example:
        model = load_model("transformers:openai/clip-vit-base-patch32")
        split, report = picture_split("photos", model.extractor, "captions.csv")
        evaluate(model, split)
    """

    is_embedding = True

    def __init__(self, towers: LibraryTowers, source: str):
        super().__init__(towers.tokenizer)
        self.towers, self.name, self.source = towers, towers.kind, source
        self.eval()
        self.settings = {"prepare": _as_before(towers.prepare)}
        with torch.inference_mode():  # a model that cannot take pictures fails now, not at the first of them
            pixels = torch.from_numpy(towers.prepare(Image.new("RGB", (8, 8))))[None]
            width = towers.encode_pixels(pixels).shape[1]
        self.settings["feature_dim"] = self.embed_texts(["a"]).shape[1]
        if width != self.settings["feature_dim"]:
            raise SelhnError(
                f"{source} gives pictures {width} numbers, but texts a different number: use CLIP or SigLIP"
            )

    @cached_property
    def extractor(self) -> Extractor:
        tower = PictureTower(self.towers, f"{self.name} {digest_of(self)}", self.settings["feature_dim"])
        return Extractor(tower, cells=0)

    def require_own(self, extractor: str | Extractor | None) -> Extractor:
        """The extractor of these towers, the only one that fits."""
        name = f"{EMBEDDING}{self.source}"
        if extractor not in (None, READY, name, self.extractor):
            raise SelhnError(f"{self.source} has a tower for pictures: leave the extractor {extractor} out")
        return self.extractor

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Float[Tensor, "I d"]:
        """The vector of each picture; the mean if there are several regions."""
        mask = all_real(regions, region_mask)
        return functional.normalize((regions * mask[..., None]).sum(1), dim=-1)

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, "T d"]:
        mask = all_real(tokens, token_mask)
        return functional.normalize(self.towers.encode_tokens(tokens, mask).float(), dim=-1)

    def score(self, images: Float[Tensor, "I d"], texts: Float[Tensor, "T d"]) -> Float[Tensor, "I T"]:
        return images @ texts.T

    def save(self, out: Path | str) -> None:
        raise SelhnError(
            f"{self.source} is a model of another library: keep its own files, an index only names it"
        )


def load_two_towers(source: str, local_only: bool = False) -> TwoTowers:
    """Both towers by name: transformers:NAME or FOLDER, open_clip:MODEL/WEIGHTS or FOLDER.

    With `local_only`, for names that a file holds, nothing is fetched; open_clip cannot promise that and is refused.
    """
    kind, _, model = source.partition(":")
    folder = Path(model).expanduser()
    if folder.is_dir():
        model = str(folder.absolute())
    asks = (
        "give it with --model, or towers=open_towers(...), by its folder or by a name that may be downloaded"
    )
    if local_only and kind != "transformers":
        raise NotFound(f"the index names the model {source}, which is opened only if you ask for it: {asks}")
    if local_only and folder.is_absolute() and not folder.is_dir():
        raise NotFound(f"the index names the model {source}, which is not on this machine: {asks}")
    if folder.is_absolute() and not folder.is_dir():
        raise NotFound(f"there is no folder {folder}: name the one that holds the model")
    try:
        towers: LibraryTowers = (
            OpenClipTowers(model) if kind == "open_clip" else TransformersTowers(model, local_only)
        )
        return TwoTowers(towers, f"{kind}:{model}")
    except SelhnError:
        raise
    except (*LIBRARY_ERRORS, SafetensorError) as error:
        if local_only:
            raise NotFound(
                f"the index names the model {source}, which cannot be opened here: {asks}"
            ) from error
        why = " ".join(str(error).split())[:200]
        raise SelhnError(f"{kind} cannot open {model!r} ({why}): check its name, or its files") from error
