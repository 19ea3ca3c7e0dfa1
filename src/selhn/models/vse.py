"""VSE (FC), VSE (MLP), RVSE, RVSE++: Li et al., Selectively Hard Negative Mining, 2023, the base models.

regions -> FC -> body -> GPO -> unit vector;  words -> BiGRU -> GPO -> unit vector;  score = dot product.
The bodies are f, mlp(f) and f + mlp(f). Public code has only the last, without the file of its MLP.
"""

from collections.abc import Mapping
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.models.builders import BertSettings, WordSettings, xavier
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, all_real
from selhn.models.table import Paper, model
from selhn.ops import GPO, MLP, WordGRU, unit
from selhn.ops.bert import Bert, bert_tokenizer
from selhn.ops.mlp import MLPOrder
from selhn.text import Tokenizer

Body = Literal["fc", "mlp", "residual", "parallel"]
"""The layers between region features x and pooling, with f = FC(x): f, mlp(f), f + mlp(f), or f + mlp(x)."""

MLP_ORDER: MLPOrder = "fc-bn-relu-fc"
"""The default order inside the MLP."""


class ImageEncoder(nn.Module):
    """Region features to one unit vector: `unit(GPO(body(x)))`."""

    def __init__(self, feature_dim: int, dim: int, body: Body, mlp_order: MLPOrder, mask_bn: bool):
        super().__init__()
        self.body = body
        self.fc = xavier(feature_dim, dim)
        if body != "fc":
            self.mlp = MLP(feature_dim if body == "parallel" else dim, dim // 2, dim, mlp_order, mask_bn)
        self.gpo = GPO()

    def forward(self, regions: Regions, mask: RegionMask) -> Float[Tensor, "I d"]:
        return unit(self.gpo.pool(lambda: self._features(regions, mask), mask))

    def _features(self, regions: Regions, mask: RegionMask) -> Float[Tensor, "I M d"]:
        features = self.fc(regions)
        if self.body == "fc":
            return features
        further = self.mlp(regions if self.body == "parallel" else features, mask)
        return further if self.body == "mlp" else features + further


class TextEncoder(nn.Module):
    """Tokens to one unit vector: `unit(GPO(fc(words(tokens))))`, where a BiGRU needs no fc."""

    def __init__(self, words: WordGRU | Bert, dim: int):
        super().__init__()
        self.words = words
        self.fc = nn.Linear(words.width, dim) if isinstance(words, Bert) else nn.Identity()
        self.gpo = GPO()

    def forward(self, tokens: Tokens, mask: TokenMask) -> Float[Tensor, "T d"]:
        return unit(self.gpo.pool(lambda: self.fc(self.words(tokens, mask)), mask))


class VSE(AbstractMatcher):
    """A visual-semantic embedding: `scores = images @ texts.T`, both of unit length."""

    is_embedding = True

    def __init__(self, image: nn.Module, text: TextEncoder, tokenizer: Tokenizer | None = None):
        super().__init__(tokenizer)
        self.image = image
        self.text = text
        self.watched = {"image": image, "text": text, "image_fc": image.get_submodule("fc")}
        if isinstance(text.words, Bert):
            self.watched["text_last"] = text.fc
            self.settings = {"bert": text.words.config}  # so that loading needs no other folder
        else:
            self.watched["text_last"] = text.words.rnn
            self.settings = {"vocab_size": text.words.embed.num_embeddings}

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Float[Tensor, "I d"]:
        return self.image(regions, all_real(regions, region_mask))

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, "T d"]:
        return self.text(tokens, all_real(tokens, token_mask))


def with_gru(
    body: Body, common: WordSettings, word_dropout: float, mlp_order: MLPOrder, mask_bn: bool
) -> VSE:
    """A VSE that reads words with a BiGRU."""
    words = WordGRU(common.num_words, common.word_dim, common.dim, word_dropout)
    image = ImageEncoder(common.feature_dim, common.dim, body, mlp_order, mask_bn)
    return VSE(image, TextEncoder(words, common.dim), common.tokenizer)


def with_words(common: BertSettings) -> tuple[Bert, Tokenizer | None]:
    """A BERT and what makes its tokens: by default its own tokenizer."""
    source, tokenizer = common.bert, common.tokenizer
    if isinstance(source, Mapping) and tokenizer is not None:
        # Random weights: as many rows as there are words.
        source = {"vocab_size": tokenizer.size, **source}
    words = Bert(source, common.freeze_bert)
    tokenizer = bert_tokenizer(source) if tokenizer is None else tokenizer
    rows = words.bert.config.vocab_size
    if tokenizer is not None and tokenizer.size > rows:
        raise SelhnError(
            f"the tokenizer has {tokenizer.size} tokens but this BERT has {rows}: use the BERT's own"
        )
    return words, tokenizer


def with_bert(body: Body, common: BertSettings, mlp_order: MLPOrder, mask_bn: bool) -> VSE:
    """A VSE that reads word pieces with a BERT."""
    words, tokenizer = with_words(common)
    image = ImageEncoder(common.feature_dim, common.dim, body, mlp_order, mask_bn)
    return VSE(image, TextEncoder(words, common.dim), tokenizer)


_PAPER = Paper("Li et al., 2023", "https://arxiv.org/abs/2303.00181")


@model(_PAPER)
def vse_fc(common: WordSettings, word_dropout: float = 0.0) -> VSE:
    """VSE (FC): the features of a region go through one linear layer."""
    return with_gru("fc", common, word_dropout, MLP_ORDER, mask_bn=False)


@model(_PAPER)
def vse_mlp(
    common: WordSettings, mlp_order: MLPOrder = MLP_ORDER, mask_bn: bool = False, word_dropout: float = 0.0
) -> VSE:
    """VSE (MLP): mlp(FC(x)), the model that stalls most with hard negatives."""
    return with_gru("mlp", common, word_dropout, mlp_order, mask_bn)


@model(_PAPER)
def rvse(
    common: WordSettings, mlp_order: MLPOrder = MLP_ORDER, mask_bn: bool = False, word_dropout: float = 0.0
) -> VSE:
    """RVSE (MLP): FC(x) + mlp(FC(x))."""
    return with_gru("residual", common, word_dropout, mlp_order, mask_bn)


@model(_PAPER, brings_tokenizer=True)
def rvsepp(common: BertSettings, mlp_order: MLPOrder = MLP_ORDER, mask_bn: bool = False) -> VSE:
    """RVSE++: FC(x) + mlp(FC(x)) for regions; BERT, FC for words."""
    # Paper: it does not say which BERT, and the released code has the BiGRU only, so it is a setting.
    return with_bert("residual", common, mlp_order, mask_bn)
