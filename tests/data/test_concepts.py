import json

import numpy as np
import pytest
import torch

from selhn.base.errors import Damaged, SelhnError
from selhn.data import concepts, load_data, write_native
from selhn.data.concepts import build_graph, concept_labels, graph_of, training_labels, write_concepts
from selhn.text.concept_graph import ConceptGraph

CAPTIONS = [
    "two dogs and a dog",
    "a cat",
    "the cats on the grass",
    "a dog on grass .",
    "ladies and a lady",
    "a glass",
]


def test_words_in_their_forms_and_how_often_they_meet(monkeypatch):
    monkeypatch.setattr("selhn.data.concepts._CAPTIONS_AT_ONCE", 2)
    graph = build_graph(CAPTIONS)
    assert graph.words == (("dog", "dogs"), ("cat", "cats"), ("grass",), ("ladies", "lady"), ("glass",))
    assert graph.counts.tolist() == [2, 2, 2, 1, 1], "captions, not words"
    expected = torch.zeros(5, 5)
    expected[0, 2] = expected[2, 0] = expected[1, 2] = expected[2, 1] = 1
    assert torch.equal(graph.together, expected)
    assert concept_labels(graph, ["a lady with cats", "nothing"]).int().tolist() == [[0, 1, 0, 1, 0], [0] * 5]
    assert build_graph(CAPTIONS, 2).words == graph.words[:2]


def test_adjacency_by_hand():
    together = torch.tensor([[0.0, 3, 1], [3, 0, 0], [1, 0, 0]])
    # 5^(p - 0.02) - 5^(-0.02) passes 0.3 from p = 0.1677 on: 3 of 4, 1 of 4, 3 of 10 and 1 of 5 captions.
    adjacency = ConceptGraph((("a",), ("b",), ("c",)), torch.tensor([4.0, 10, 5]), together).adjacency()
    linked = torch.tensor([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]])
    torch.testing.assert_close(adjacency, torch.eye(3) + 0.25 * linked / torch.tensor([2.0, 1, 1]))
    loose = ConceptGraph((("a",), ("b",), ("c",)), torch.tensor([4.0, 10, 6]), together).adjacency()
    linked[2, 0] = 0  # 1 of 6 is too little
    torch.testing.assert_close(loose, torch.eye(3) + 0.25 * linked)


@pytest.mark.parametrize("words", [0, 10**6])
def test_no_number_of_concepts(words):
    with pytest.raises(SelhnError, match="number"):
        build_graph(CAPTIONS, words)
    with pytest.raises(SelhnError, match="no words"):
        build_graph(["the one", "..."])


def test_a_file_and_what_is_wrong_with_it(tmp_path):
    graph = build_graph(CAPTIONS)
    graph.write(tmp_path / "concepts.json")
    again = ConceptGraph.read(tmp_path / "concepts.json")
    assert again.words == graph.words
    assert torch.equal(again.counts, graph.counts)
    assert torch.equal(again.together, graph.together)
    good = json.loads((tmp_path / "concepts.json").read_text())
    wrong = [{"words": []}, {"words": [[]] * 5}, {"words": [["a"]] * 5}, {"counts": [1]}, {"counts": None}]
    for change in [
        *wrong,
        {"together": good["together"][1:]},
        {"together": [[1.5] * 5] * 5},
        {"counts": [True] * 5},
    ]:
        (tmp_path / "wrong.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(Damaged):
            ConceptGraph.read(tmp_path / "wrong.json")


def test_into_the_folder_of_a_data_set(tmp_path):
    world = load_data("world", images=60, width=8, regions=7)
    folder = write_native(world, tmp_path / "own")
    graph, written = write_concepts(folder, number=20)
    assert [path.name for path in written] == ["concepts.json", "train_concepts.npy"]
    data = load_data(folder)
    assert graph_of(data).words == graph.words
    labels = data.train.side["concepts"]
    assert labels.shape == (data.train.num_texts, 20)
    assert "concepts" not in data.dev.side, "those are found by words: its other captions must not help"
    image = data.train.image_of_text[7]
    siblings = (data.train.image_of_text == image).nonzero()[:, 0].tolist()
    own = concept_labels(graph, [data.train.captions[text] for text in siblings])
    assert torch.equal(labels[7], own.any(0))
    assert torch.equal(labels, training_labels(graph, data.train))
    assert graph_of(world).words[:20] == graph.words, "without a file, from the captions"


def test_into_another_folder(tmp_path, monkeypatch):
    small = load_data("world", images=100)
    monkeypatch.setattr(concepts, "load_data", lambda source: small)
    _, written = write_concepts("world", tmp_path / "new", number=5)
    assert written == [tmp_path / "new" / "concepts.json"]
    with pytest.raises(SelhnError, match="selhn data concepts world OUT"):
        write_concepts("world")


def test_beside_precomputed_features(tmp_path):
    for split, images in (("train", 3), ("dev", 2), ("test", 2)):
        np.save(tmp_path / f"{split}_ims.npy", np.ones((images, 2, 4), dtype=np.float32))
        captions = [f"{word} {split}" for word in ("dog", "cat", "bird", "tree", "car")] * images
        (tmp_path / f"{split}_caps.txt").write_text("\n".join(captions) + "\n")
        (tmp_path / f"{split}_ids.txt").write_text("\n".join(map(str, range(images))) + "\n")
    graph, _ = write_concepts(tmp_path)
    assert {forms[0] for forms in graph.words} == {"dog", "cat", "bird", "tree", "car", "train"}
    assert load_data(tmp_path).train.side["concepts"].all(), "every image has all of them in some caption"
