"""Shared by many models: groups of settings, which builders extend, and weight initialisation."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.models.matcher import AbstractMatcher
from selhn.text import Tokenizer
from selhn.text.word_vectors import read_word_vectors

MatcherT = TypeVar("MatcherT", bound=AbstractMatcher)


@dataclass(frozen=True)
class Words:
    """Settings of a model with a table of word vectors; give a tokenizer, or only the size of the vocabulary."""

    vocab_size: int | None = None
    tokenizer: Tokenizer | None = None
    feature_dim: int = 2048

    @property
    def num_words(self) -> int:
        if self.tokenizer is None:
            if self.vocab_size is None:
                raise SelhnError("pass tokenizer=Vocabulary.build(captions), or vocab_size=")
            return self.vocab_size
        if self.vocab_size not in (None, self.tokenizer.size):
            raise SelhnError(
                f"vocab_size is {self.vocab_size} and the tokenizer has {self.tokenizer.size} tokens: pass only one"
            )
        return self.tokenizer.size

    def vectors_from(self, path: Path | str, dim: int) -> tuple[Float[Tensor, "V d"], Bool[Tensor, " V"]]:
        """The vectors in a file for the words, and which words it has."""
        if self.tokenizer is None:
            raise SelhnError("word vectors are looked up by word: pass tokenizer=Vocabulary.build(captions)")
        return read_word_vectors(path, self.tokenizer.spell(list(range(self.tokenizer.size))), dim)


@dataclass(frozen=True)
class WordSettings(Words):
    """Settings of a model that learns its word vectors, and a joint space of its own width."""

    dim: int = 1024
    word_dim: int = 300


@dataclass(frozen=True)
class BertSettings:
    """Settings of a model whose texts are read by a BERT, with the BERT's own tokenizer unless another is given."""

    bert: str | Path | Mapping[str, Any] = "minilm"
    tokenizer: Tokenizer | None = None
    feature_dim: int = 2048
    dim: int = 1024
    freeze_bert: bool = False


def by_name(build: Callable[..., MatcherT]) -> Callable[..., MatcherT]:
    """Turn a function that takes a group as its first parameter into one that takes its settings by name."""
    shared, *own = inspect.signature(build).parameters.values()
    group = shared.annotation
    names = [field.name for field in fields(group)]

    @wraps(build)
    def built(**settings: Any) -> MatcherT:
        common = {name: settings.pop(name) for name in names if name in settings}
        return build(group(**common), **settings)

    parameters = [*inspect.signature(group).parameters.values(), *own]
    built.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return built


def xavier(input_dim: int, output_dim: int) -> nn.Linear:
    """A linear layer with the weight initialisation of all these models, and a zero bias."""
    linear = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
