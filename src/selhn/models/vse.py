"""VSE (FC), VSE (MLP) and RVSE: Li et al., Selectively Hard Negative Mining, 2023, section on the base models.

regions -> FC -> body -> GPO -> unit vector;  words -> BiGRU -> GPO -> unit vector;  score = dot product.
The bodies are f, mlp(f) and f + mlp(f). Public code has only the last one, and without the file of its MLP.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.layers import GPO, MLP, Bert, MLPOrder, WordGRU, bert_tokenizer, unit
from selhn.models.base import AbstractMatcher, all_real
from selhn.text import Tokenizer

Body = Literal["fc", "mlp", "residual", "parallel"]
"""What stands between region features x and pooling, f = FC(x): f, mlp(f), f + mlp(f), or f + mlp(x)."""


class ImageEncoder(nn.Module):
    """Region features to one unit vector: `unit(GPO(body(x)))`."""

    def __init__(self, feature_dim: int, dim: int, body: Body, mlp_order: MLPOrder, mask_bn: bool):
        super().__init__()
        self.body = body
        self.fc = nn.Linear(feature_dim, dim)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)
        if body != "fc":
            self.mlp = MLP(feature_dim if body == "parallel" else dim, dim // 2, dim, mlp_order, mask_bn)
        self.gpo = GPO()

    def forward(self, regions: Float[Tensor, "I M F"], mask: Bool[Tensor, "I M"]) -> Float[Tensor, "I d"]:
        """One unit vector an image."""
        return unit(self.gpo.pool(lambda: self._features(regions, mask), mask))

    def _features(self, regions: Float[Tensor, "I M F"], mask: Bool[Tensor, "I M"]) -> Float[Tensor, "I M d"]:
        features = self.fc(regions)
        if self.body == "mlp":
            return self.mlp(features, mask)
        if self.body == "residual":
            return features + self.mlp(features, mask)
        if self.body == "parallel":
            return features + self.mlp(regions, mask)
        return features


class TextEncoder(nn.Module):
    """Tokens to one unit vector: `unit(GPO(fc(words(tokens))))`, where a BiGRU needs no fc."""

    def __init__(self, words: WordGRU | Bert, dim: int):
        super().__init__()
        self.words = words
        self.fc: nn.Module = nn.Identity()
        if isinstance(words, Bert):
            self.fc = nn.Linear(words.width, dim)
        self.gpo = GPO()

    def forward(self, tokens: Int[Tensor, "T N"], mask: Bool[Tensor, "T N"]) -> Float[Tensor, "T d"]:
        """One unit vector a text."""
        return unit(self.gpo.pool(lambda: self.fc(self.words(tokens, mask)), mask))

    def head(self, states: Float[Tensor, "T N h"], mask: Bool[Tensor, "T N"]) -> Float[Tensor, "T d"]:
        """From the states of the words to the text."""
        return unit(self.gpo(self.fc(states), mask))


class VSE(AbstractMatcher):
    """A visual-semantic embedding: `scores = images @ texts.T`, both of unit length."""

    is_embedding = True

    def __init__(self, image: ImageEncoder, text: TextEncoder, tokenizer: Tokenizer | None = None):
        super().__init__(tokenizer)
        self.image = image
        self.text = text
        self.watched = {"image": image, "text": text, "image_fc": image.fc}
        if isinstance(text.words, Bert):
            self.watched["text_last"] = text.fc
            self.settings = {"bert": text.words.config}  # so that loading needs no other folder
        else:
            self.watched["text_last"] = text.words.rnn
            self.settings = {"vocab_size": text.words.embed.num_embeddings}

    def encode_images(
        self, regions: Float[Tensor, "I M F"], region_mask: Bool[Tensor, "I M"] | None = None
    ) -> Float[Tensor, "I d"]:
        """A unit vector an image."""
        return self.image(regions, all_real(regions, region_mask))

    def encode_texts(
        self, tokens: Int[Tensor, "T N"], token_mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T d"]:
        """A unit vector a text."""
        return self.text(tokens, all_real(tokens, token_mask))

    def score(self, images: Float[Tensor, "I d"], texts: Float[Tensor, "T d"]) -> Float[Tensor, "I T"]:
        """Cosines."""
        return dot_scores(images, texts)


def dot_scores(images: Float[Tensor, "I d"], texts: Float[Tensor, "T d"]) -> Float[Tensor, "I T"]:
    """`images @ texts.T`, never in half precision: SelHN compares scores that differ by 0.01."""
    with torch.autocast(images.device.type, enabled=False):
        return images @ texts.T


def vocabulary_size(vocab_size: int | None, tokenizer: Tokenizer | None) -> int:
    """The size of the vocabulary from whichever of the two is given."""
    if tokenizer is None:
        if vocab_size is None:
            raise SelhnError("pass tokenizer=Vocabulary.build(captions), or vocab_size=")
        return vocab_size
    if vocab_size is not None and vocab_size != tokenizer.size:
        raise SelhnError(f"vocab_size is {vocab_size} and the tokenizer has {tokenizer.size} tokens: pass only one")
    return tokenizer.size


def with_gru(
    body: Body,
    vocab_size: int | None,
    tokenizer: Tokenizer | None,
    feature_dim: int,
    dim: int,
    word_dim: int,
    mlp_order: MLPOrder = "fc-bn-relu-fc",
    mask_bn: bool = False,
    word_dropout: float = 0.0,
) -> VSE:
    """A VSE that reads words with a BiGRU."""
    words = WordGRU(vocabulary_size(vocab_size, tokenizer), word_dim, dim, word_dropout)
    return VSE(ImageEncoder(feature_dim, dim, body, mlp_order, mask_bn), TextEncoder(words, dim), tokenizer)


def with_bert(
    body: Body,
    bert: str | Path | Mapping[str, Any],
    tokenizer: Tokenizer | None,
    feature_dim: int,
    dim: int,
    freeze_bert: bool,
    mlp_order: MLPOrder = "fc-bn-relu-fc",
    mask_bn: bool = False,
) -> VSE:
    """A VSE that reads word pieces with a BERT, whose own tokenizer it takes unless another is given."""
    words = Bert(bert, freeze_bert)
    tokenizer = tokenizer if tokenizer is not None else bert_tokenizer(bert)
    rows = words.bert.config.vocab_size
    if tokenizer is not None and tokenizer.size > rows:
        raise SelhnError(f"the tokenizer has {tokenizer.size} tokens and this BERT knows {rows}: take the BERT's own")
    return VSE(ImageEncoder(feature_dim, dim, body, mlp_order, mask_bn), TextEncoder(words, dim), tokenizer)


def vse_fc(
    vocab_size: int | None = None,
    tokenizer: Tokenizer | None = None,
    feature_dim: int = 2048,
    dim: int = 1024,
    word_dim: int = 300,
    word_dropout: float = 0.0,
) -> VSE:
    """VSE (FC): the features of a region go through one linear layer."""
    return with_gru("fc", vocab_size, tokenizer, feature_dim, dim, word_dim, word_dropout=word_dropout)


def vse_mlp(
    vocab_size: int | None = None,
    tokenizer: Tokenizer | None = None,
    feature_dim: int = 2048,
    dim: int = 1024,
    word_dim: int = 300,
    mlp_order: MLPOrder = "fc-bn-relu-fc",
    mask_bn: bool = False,
    word_dropout: float = 0.0,
) -> VSE:
    """VSE (MLP): mlp(FC(x)), which hard negatives stall worst of all."""
    return with_gru("mlp", vocab_size, tokenizer, feature_dim, dim, word_dim, mlp_order, mask_bn, word_dropout)


def rvse(
    vocab_size: int | None = None,
    tokenizer: Tokenizer | None = None,
    feature_dim: int = 2048,
    dim: int = 1024,
    word_dim: int = 300,
    mlp_order: MLPOrder = "fc-bn-relu-fc",
    mask_bn: bool = False,
    word_dropout: float = 0.0,
) -> VSE:
    """RVSE (MLP): FC(x) + mlp(FC(x))."""
    return with_gru("residual", vocab_size, tokenizer, feature_dim, dim, word_dim, mlp_order, mask_bn, word_dropout)
