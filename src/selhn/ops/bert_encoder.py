"""BERT without its heads: Devlin et al., BERT, 2019. Its weights have their published names.

x_0 = dropout(LayerNorm(word + position + kind of text)),  then the layers of `selhn.ops.transformer_layers`
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.base.names import require_kind
from selhn.ops.gru import look_up
from selhn.ops.transformer import LayerSettings, LayerWeights, transformer_layers

_ONE_WAY = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}
"""Settings that must have these values: others would need a different computation."""
_ORDER = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
)  # fmt: skip


@dataclass(frozen=True)
class BertConfig:
    """Sizes and dropouts, under the names and with the default values of a published config.json."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            require_kind(f"{field.name} of a BERT", getattr(self, field.name), field.type)
            if field.type is int and getattr(self, field.name) < (field.name != "num_hidden_layers"):
                raise SelhnError(f"{field.name} of a BERT is {getattr(self, field.name)}: choose at least 1")
            if field.type is float and not 0 <= getattr(self, field.name) <= 1:
                raise SelhnError(f"{field.name} of a BERT is {getattr(self, field.name)}: choose 0 to 1")
        if self.hidden_size % self.num_attention_heads:
            raise SelhnError(
                f"hidden_size {self.hidden_size} of a BERT cannot be split into {self.num_attention_heads} "
                "heads: choose num_attention_heads so that it divides hidden_size"
            )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "BertConfig":
        """From the content of a config.json; entries that concern other parts of a model are ignored."""
        for name, value in _ONE_WAY.items():
            if config.get(name, value) != value:
                raise SelhnError(
                    f"a BERT with {name}={config[name]!r} cannot be used here, only with {value!r}"
                )
        return cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config})

    def to_dict(self) -> dict[str, Any]:
        return {"model_type": "bert", **asdict(self)}


class BertEncoder(nn.Module):
    """Tokens to hidden states. New weights are normal with `initializer_range`; biases and padding are zero.

    `embeddings` may be a module of your own that takes an input other than tokens.
    """

    def __init__(self, config: BertConfig, embeddings: nn.Module | None = None):
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config) if embeddings is None else embeddings
        self.encoder = nn.ModuleDict(
            {"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))}
        )
        self.apply(self._initialise)

    def forward(self, tokens: Shaped[Tensor, "T N *F"], mask: Bool[Tensor, "T N"]) -> Float[Tensor, "T N h"]:
        config, training = self.config, self.training
        settings = LayerSettings(
            heads=config.num_attention_heads,
            eps=config.layer_norm_eps,
            dropout=config.hidden_dropout_prob if training else 0.0,
            attention_dropout=config.attention_probs_dropout_prob if training else 0.0,
        )
        weights = [layer.weights() for layer in cast(Iterable[_Layer], self.encoder["layer"])]
        return transformer_layers(self.embeddings(tokens), mask, weights, settings)

    @torch.no_grad()
    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(0.0, self.config.initializer_range)
        if isinstance(module, nn.Linear):
            module.bias.zero_()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: Int[Tensor, "T N"]) -> Float[Tensor, "T N h"]:
        words = look_up(self.word_embeddings, tokens)
        # A caption is a single text, so every token has segment 0.
        places = self.position_embeddings.weight[: tokens.shape[1]] + self.token_type_embeddings.weight[0]
        return self.dropout(self.LayerNorm(words + places))


class _Layer(nn.Module):
    """The weights of a layer, under their published names."""

    def __init__(self, config: BertConfig):
        super().__init__()
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")}),
                "output": _dense_and_norm(width, width, eps),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = _dense_and_norm(inner, width, eps)

    def weights(self) -> LayerWeights:
        return LayerWeights(
            *(self.get_parameter(f"{name}.{kind}") for name in _ORDER for kind in ("weight", "bias"))
        )


def _dense_and_norm(input_dim: int, output_dim: int, eps: float) -> nn.ModuleDict:
    return nn.ModuleDict(
        {"dense": nn.Linear(input_dim, output_dim), "LayerNorm": nn.LayerNorm(output_dim, eps)}
    )
