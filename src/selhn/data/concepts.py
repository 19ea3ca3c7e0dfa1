"""Concepts for CVSE: frequent words of captions, how often they occur together, and which a text has."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.files import write_whole
from selhn.base.untrusted import read_json
from selhn.data.formats import load_data
from selhn.data.formats.precomp import precomp_folder
from selhn.data.splits import Data, Split
from selhn.text import FUNCTION_WORDS, split_words
from selhn.text.concept_graph import CONCEPTS_FILE, MOST_CONCEPTS, ConceptGraph

_CAPTIONS_AT_ONCE = 2**14
_LEFT_OUT = FUNCTION_WORDS | set(
    """
    after all alongside also any because before beneath beyond but can close could do does doing during
    either etc every few here hers how i if inside itself just left lot made me more most much my nearby
    no not others our outside own part past right same so still such than themselves then these those
    together too underneath until upon we what when where whose will within without you your
    """.split()  # noqa: SIM905
)


def build_graph(captions: Sequence[str], number: int = 300) -> ConceptGraph:
    """The most frequent words of captions, without function words, and how often two occur together."""
    # Official: 300 words that a tagger calls objects, motions or properties (7 : 2 : 1), as lemmas of WordNet.
    if not 1 <= number <= MOST_CONCEPTS:
        raise SelhnError(f"the number of concepts is {number}: choose from 1 to {MOST_CONCEPTS}")
    spoken = [set(split_words(caption)) for caption in captions]
    counts = Counter(word for words in spoken for word in words)
    forms: dict[str, list[str]] = {}
    for word in sorted(counts, key=lambda word: (-counts[word], word)):
        if word not in _LEFT_OUT and word[0].isalpha():
            forms.setdefault(_lemma(word, counts), []).append(word)
    together_with = {lemma: sum(counts[word] for word in own) for lemma, own in forms.items()}
    kept = sorted(forms, key=lambda lemma: (-together_with[lemma], lemma))[:number]
    if not kept:
        raise SelhnError("these captions have no words for concepts: give captions in English")
    graph = ConceptGraph(
        tuple(tuple(forms[lemma]) for lemma in kept),
        torch.zeros(len(kept)),
        torch.zeros(len(kept), len(kept)),
    )
    for first in range(0, len(captions), _CAPTIONS_AT_ONCE):
        labels = concept_labels(graph, captions[first : first + _CAPTIONS_AT_ONCE]).float()
        graph.counts.add_(labels.sum(0))
        graph.together.add_(labels.T @ labels)
    graph.together.fill_diagonal_(0)
    return graph


def _lemma(word: str, counts: Counter[str]) -> str:
    """The singular of a word, if captions contain it."""
    endings = {"ies": "y", "es": "", "s": ""} if len(word) > 3 and not word.endswith("ss") else {}
    shorter = (word.removesuffix(end) + new for end, new in endings.items() if word.endswith(end))
    return next((lemma for lemma in shorter if lemma in counts and lemma not in _LEFT_OUT), word)


def concept_labels(graph: ConceptGraph, captions: Sequence[str]) -> Bool[Tensor, "T C"]:
    """The concepts that each caption has."""
    ids = {word: concept for concept, forms in enumerate(graph.words) for word in forms}
    labels = np.zeros((len(captions), len(graph.words)), dtype=bool)
    for row, caption in zip(labels, captions):
        row[[ids[word] for word in split_words(caption) if word in ids]] = True
    return torch.from_numpy(labels)


def training_labels(graph: ConceptGraph, split: Split) -> Bool[Tensor, "T C"]:
    """For each caption, the concepts of all captions of its image, as used to train CVSE."""
    own = concept_labels(graph, split.captions)
    of_image = torch.zeros(split.num_images, own.shape[1]).index_add(0, split.image_of_text, own.float()) > 0
    return of_image[split.image_of_text]


def graph_of(data: Data) -> ConceptGraph:
    """The graph that `selhn data concepts` wrote into a data set, or one made from its training captions."""
    path = None if data.source is None else precomp_folder(Path(data.source)) / CONCEPTS_FILE
    return (
        ConceptGraph.read(path) if path is not None and path.is_file() else build_graph(data.train.captions)
    )


def write_concepts(
    source: Path | str, out: Path | None = None, number: int = 300
) -> tuple[ConceptGraph, list[Path]]:
    """Write the concept graph of a data set's training captions into a folder; returns the written files.

    In the data set's own folder, the labels of its training texts are written too (`train_concepts.npy`); a
    model finds the concepts of other texts by their words.
    """
    data = load_data(source)
    folder = precomp_folder(Path(str(data.source)))
    graph = build_graph(data.train.captions, number)
    if out is None and not folder.is_dir():
        raise SelhnError(f"{source} is not a folder: name an output folder, selhn data concepts {source} OUT")
    place = folder if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    written = [place / CONCEPTS_FILE]
    if place.resolve() == folder.resolve():
        written.append(place / "train_concepts.npy")
        content = io.BytesIO()
        np.save(content, training_labels(graph, data.train).numpy())
        write_whole(written[1], content.getvalue())
        if (place / "data.json").is_file():  # which names the files of a split
            about = read_json(place / "data.json")
            about["splits"]["train"]["concepts"] = written[1].name
            write_whole(place / "data.json", json.dumps(about, indent=2) + "\n")
    graph.write(written[0])
    return graph, written
