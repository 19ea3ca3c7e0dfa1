"""Learns which scores mean a match, from a model and a data set: `calibrate` makes a `Fit`."""

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.files import refuse_links, write_whole
from selhn.base.names import require_type
from selhn.base.untrusted import read_json
from selhn.data import Data, Split
from selhn.data.batches import image_blocks
from selhn.eval.stored import digest_of
from selhn.models import AbstractMatcher
from selhn.search.fit import FEATURES, LEAST_SLOPE, Fit, text_features, words_of
from selhn.text import FUNCTION_WORDS
from selhn.towers import Description
from selhn.towers.description import DESCRIPTION_FILE

PRECISION = 0.5
"""By captions, which name half of what a picture shows; judged by eye it is higher, see docs/pictures.md."""
ENOUGH = 0.75
"""A picture matches if its captions have this share of a text's content words; of up to three words, all."""
NAMED_AGAIN, THING, PICTURES = 0.2, 0.25, 15
QUESTIONS = 500
RARE, FAMILIAR = 3, 100
"""Words in fewer than RARE training texts count as unknown. Counts are capped at FAMILIAR: how frequent dogs
are in a data set says little about a library."""
FAR = 11
"""Of the pairs with low scores, one in this many is used, with this weight."""
_PLAIN = FUNCTION_WORDS | {
    "background",
    "five",
    "foreground",
    "four",
    "group",
    "look",
    "looking",
    "looks",
    "top",
}
_SAME = {
    "men": "man", "guy": "man", "guys": "man", "male": "man", "women": "woman", "lady": "woman", "ladies": "woman",
    "female": "woman", "children": "child", "kid": "child", "kids": "child", "toddler": "child", "people": "person",
    "persons": "person", "puppy": "dog", "puppies": "dog", "bike": "bicycl", "bikes": "bicycl", "road": "street",
    "ocean": "sea", "ran": "run", "leap": "jump", "leaps": "jump", "leaping": "jump", "grassy": "grass",
    "snowy": "snow", "rocky": "rock", "sandy": "sand", "grey": "gray",
}  # fmt: skip
_KINDS = {"child": ("boy", "girl", "baby"), "person": ("man", "woman", "boy", "girl", "child", "baby")}


@dataclass(frozen=True, eq=False)
class Questions:
    """Texts that people could search for, of three kinds, and which pictures of a split match each."""

    texts: Sequence[str]
    kinds: Sequence[str]
    """The kind of each text: word, phrase or sentence."""
    matches: Bool[Tensor, "Q I"]

    def of(self, kind: str) -> Bool[Tensor, " Q"]:
        return torch.tensor([own == kind for own in self.kinds])


def content_words(text: str) -> list[str]:
    """The stems of the words that say what is in a picture."""
    return [_stem(word) for word in words_of(text) if _tells(word)]


def _tells(word: str) -> bool:
    return len(word) > 1 and word not in _PLAIN


def _stem(word: str) -> str:
    if word in _SAME:
        return _SAME[word]
    word = re.sub(r"ies$", "y", word) if len(word) > 4 else word
    for end in ("ing", "ed", "es", "s"):
        if word.endswith(end) and len(word) > len(end) + 2 and not word.endswith("ss"):
            word = re.sub(r"([b-df-hj-kmnp-rtv-z])\1$", r"\1", word.removesuffix(end))
            break
    return word.rstrip("e") if len(word) > 3 else word


def make_questions(split: Split, train: Split, number: int = QUESTIONS, seed: int = 0) -> Questions:
    """Things that training captions agree on, and phrases and sentences, half of them from captions of other pictures.

    A phrase is the part of a caption from one content word to the next or the one after it. Half of the phrases and
    sentences come from training captions, so that many have no answer in the split.
    """
    draw = random.Random(seed)
    agreed, spelt = _agreement(train)
    things = sorted({spelt[word] for word, share in agreed.items() if share >= THING})
    known = {word for word, share in agreed.items() if share >= NAMED_AGAIN}
    texts, kinds, owners = list(things), ["word"] * len(things), [-1] * len(things)
    for source in (split, train):
        rows = draw.sample(range(source.num_texts), source.num_texts)
        phrases = list(
            dict.fromkeys(filter(None, (_phrase(source.captions[row], known, draw) for row in rows)))
        )
        texts += phrases[:number] + [source.captions[row] for row in rows[:number]]
        kinds += ["phrase"] * len(phrases[:number]) + ["sentence"] * len(rows[:number])
        own = source.image_of_text[rows[:number]].tolist()
        owners += [-1] * len(phrases[:number]) + (own if source is split else [-1] * len(own))
    matches = find_matches(texts, split)
    for row, owner in enumerate(owners):
        if owner >= 0:
            matches[row, owner] = True
    return Questions(texts, kinds, matches)


def find_matches(texts: Sequence[str], split: Split) -> Bool[Tensor, "Q I"]:
    """Which pictures match texts, by the words of the captions that people gave the pictures."""
    column: dict[str, int] = {}
    named = [set[str]() for _ in split.image_names]
    for caption, image in zip(split.captions, split.image_of_text.tolist()):
        named[image].update(content_words(caption))
    for own in named:
        own |= {kind for kind, members in _KINDS.items() if not own.isdisjoint(members)}
    asked = [set(content_words(text)) for text in texts]
    for own in (*named, *asked):
        for word in own:
            column.setdefault(word, len(column))
    tables = []
    for rows in (asked, named):
        table = torch.zeros(len(rows), len(column))
        for row, own in enumerate(rows):
            table[row, [column[word] for word in own]] = 1
        tables.append(table)
    needed = (ENOUGH * tables[0].sum(1)).ceil().clamp_min(1)
    return tables[0] @ tables[1].T >= needed[:, None]


def _agreement(train: Split) -> tuple[dict[str, float], dict[str, str]]:
    """For each content word, the share of a picture's other captions with it, and its usual spelling."""
    named: dict[int, list[set[str]]] = defaultdict(list)
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for caption, image in zip(train.captions, train.image_of_text.tolist()):
        named[image].append(set(content_words(caption)))
        for word in words_of(caption):
            spellings[_stem(word)][word] += 1
    pictures, shares = Counter[str](), defaultdict[str, float](float)
    for own in named.values():
        for word, times in Counter(word for words in own for word in words).items():
            pictures[word] += 1
            shares[word] += (times - 1) / max(1, len(own) - 1)
    known = {word: shares[word] / times for word, times in pictures.items() if times >= PICTURES}
    return known, {word: spellings[word].most_common(1)[0][0] for word in known}


def _phrase(caption: str, known: Collection[str], draw: random.Random) -> str | None:
    words = words_of(caption)
    places = [place for place, word in enumerate(words) if _tells(word)]
    found = []
    for number in (2, 3):
        for first in range(len(places) - number + 1):
            some = places[first : first + number]
            stems = {_stem(words[place]) for place in some}
            if len(stems) == number and stems <= set(known) and some[-1] - some[0] <= number + 2:
                found.append(" ".join(words[some[0] : some[-1] + 1]))
    return draw.choice(found) if found else None


def score_questions(model: AbstractMatcher, texts: Sequence[str], split: Split) -> Float[Tensor, "Q I"]:
    """The scores of texts with all pictures of a split, as an index gives them."""
    if not model.is_embedding:
        raise SelhnError(
            "this model does not score by products of vectors: only models that do can be calibrated"
        )
    pictures = torch.cat([model.embed_images(*block).float().cpu() for block in image_blocks(split)])
    return model.embed_texts(list(texts)).float().cpu() @ pictures.T


def calibrate(model: AbstractMatcher, data: Data, precision: float = PRECISION) -> Fit:
    """Learn the fit of a model's scores on the dev split of a data set.

    The cut-off is the lowest at which a share of `precision` of the pictures called matches are right,
    averaged over the questions with such pictures. `find_matches` decides what is right.
    """
    require_type("model", model, AbstractMatcher, "open one with load_model(...)")
    questions = make_questions(data.dev, data.train)
    counts = Counter(word for caption in data.train.captions for word in set(words_of(caption)))
    known = {word: min(times, FAMILIAR) for word, times in sorted(counts.items()) if times >= RARE}
    scores = score_questions(model, questions.texts, data.dev)
    features = torch.from_numpy(text_features(known, questions.texts))
    offset, slope = learn_line(scores, features, questions)
    numbers = judged(scores, features, offset, slope)
    cut = cut_off(numbers, questions.matches, precision)
    offset[0] -= cut
    learnt = {
        "data": data.name,
        "precision": precision,
        "questions": len(questions.texts),
        "pictures": len(scores[0]),
    }
    return Fit(digest_of(model), known, tuple(offset.tolist()), tuple(slope.tolist()), learnt)


def write_cutoff(fit: Fit, folder: Path | str) -> None:
    """Put a fit into the towers folder of its model: `towers.json` is written again, nothing else."""
    folder = Path(folder).expanduser()
    refuse_links(folder, [DESCRIPTION_FILE])
    description = Description.read(folder)
    if fit.model != description.digest:
        raise SelhnError(
            f"the fit was learnt with another model ({fit.model}) than that of {folder} ({description.digest}): "
            "calibrate the model that was exported"
        )
    path = folder / DESCRIPTION_FILE
    write_whole(
        path, json.dumps({**read_json(path), "cutoff": fit.cutoff()}, ensure_ascii=False, indent=1) + "\n"
    )


def judged(
    scores: Float[Tensor, "Q I"], features: Float[Tensor, "Q 4"], offset: Tensor, slope: Tensor
) -> Float[Tensor, "Q I"]:
    """The numbers that `Fit` takes the sigmoid of."""
    lines = features.double()
    return (lines @ offset)[:, None] + (lines @ slope).clamp_min(LEAST_SLOPE)[:, None] * scores.double()


def learn_line(
    scores: Float[Tensor, "Q I"], features: Float[Tensor, "Q 4"], questions: Questions
) -> tuple[Float[Tensor, " 4"], Float[Tensor, " 4"]]:
    """Offset and slope by logistic regression; the three kinds of questions weigh the same."""
    weights = torch.zeros(len(scores), dtype=torch.float64)
    for kind in set(questions.kinds):
        weights[questions.of(kind)] = 1 / questions.of(kind).sum().double()
    far = ~questions.matches & (scores < scores.quantile(0.8, dim=1, keepdim=True))
    drawn = torch.arange(scores.numel()).reshape(scores.shape) % FAR == 0
    row, column = (~far | drawn).nonzero().T
    number, own = scores[row, column].double()[:, None], features[row].double()
    target = questions.matches[row, column].double()
    weight = weights[row] * torch.where(far[row, column], float(FAR), 1.0)
    inputs = torch.cat([own, own * number], 1)
    found = _logistic(inputs, target, weight / weight.sum())
    return found[: len(FEATURES)], found[len(FEATURES) :]


def _logistic(
    x: Float[Tensor, "n p"], y: Float[Tensor, " n"], weight: Float[Tensor, " n"]
) -> Float[Tensor, " p"]:
    """The weights of a logistic regression, by Newton's method with halved steps; x has a constant column."""
    scale = x.square().mean(0).sqrt().clamp_min(1e-9)
    x = x / scale
    found = torch.zeros(x.shape[1], dtype=torch.float64)

    def loss(at: Tensor) -> float:
        return float((weight * (torch.nn.functional.softplus(x @ at) - y * (x @ at))).sum())

    now = loss(found)
    for _ in range(100):
        share = (x @ found).sigmoid()
        curve = (x * (weight * share * (1 - share))[:, None]).T @ x + 1e-9 * torch.eye(len(found))
        step, part = torch.linalg.solve(curve, x.T @ (weight * (share - y))), 1.0
        while loss(found - part * step) > now and part > 1e-6:
            part /= 2
        found = found - part * step
        before, now = now, loss(found)
        if before - now < 1e-10:
            break
    return found / scale


def cut_off(numbers: Float[Tensor, "Q I"], matches: Bool[Tensor, "Q I"], precision: float) -> float:
    """The lowest cut-off with this precision, averaged over the questions that have pictures above it."""
    for cut in numbers.max(1).values.sort().values.tolist():
        called = numbers >= cut
        some = called.any(1)
        right = (called & matches).sum(1)[some] / called.sum(1)[some]
        if right.mean() >= precision:
            return cut
    raise SelhnError(
        f"no cut-off reaches a precision of {precision:.0%}: train the model longer, or ask for less"
    )
