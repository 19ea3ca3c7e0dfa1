"""Settings that many models share, written once: a builder takes one of these groups and adds its own."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from selhn.base.errors import SelhnError
from selhn.models.matcher import AbstractMatcher
from selhn.text import Tokenizer

MatcherT = TypeVar("MatcherT", bound=AbstractMatcher)


@dataclass(frozen=True)
class WordSettings:
    """Of a model that learns its own word vectors; give a tokenizer, or only the size of the vocabulary."""

    vocab_size: int | None = None
    tokenizer: Tokenizer | None = None
    feature_dim: int = 2048
    dim: int = 1024
    word_dim: int = 300

    @property
    def num_words(self) -> int:
        """The size of the vocabulary, from whichever of the two is given."""
        if self.tokenizer is None:
            if self.vocab_size is None:
                raise SelhnError("pass tokenizer=Vocabulary.build(captions), or vocab_size=")
            return self.vocab_size
        if self.vocab_size not in (None, self.tokenizer.size):
            raise SelhnError(
                f"vocab_size is {self.vocab_size} and the tokenizer has {self.tokenizer.size} tokens: pass only one"
            )
        return self.tokenizer.size


@dataclass(frozen=True)
class BertSettings:
    """Of a model whose texts are read by a BERT, with the BERT's own tokenizer unless another is given."""

    bert: str | Path | Mapping[str, Any] = "minilm"
    tokenizer: Tokenizer | None = None
    feature_dim: int = 2048
    dim: int = 1024
    freeze_bert: bool = False


def builder(build: Callable[..., MatcherT]) -> Callable[..., MatcherT]:
    """A function whose first parameter is one of the groups, as one that takes its settings by name."""
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
