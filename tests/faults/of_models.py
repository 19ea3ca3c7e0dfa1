"""Models, tokenizers, BERT folders and the authors' checkpoints."""

import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from faults.reader import Reader, files, of_model
from model_cases import FEATURE_DIM, GRAPH, WORDS, make_model, write_bert

from selhn.base.sealed import seal
from selhn.models import create_model, load_model
from selhn.models.official import load_official
from selhn.ops.bert import Bert, bert_tokenizer
from selhn.text import Vocabulary, WordPiece
from selhn.text.concept_graph import ConceptGraph
from selhn.text.word_vectors import read_word_vectors

GOLDEN = Path(__file__).parents[1] / "golden"


def make_model_folder(name):
    return lambda folder: make_model(name).save(folder / "model")


def read_model(folder):
    return of_model(load_model(folder / "model"))


def read_state(folder):
    return load_model(folder / "model").state_dict()


def make_bert_model(folder):
    write_bert(folder / "bert")
    torch.manual_seed(0)
    create_model("rvsepp", feature_dim=FEATURE_DIM, dim=16, bert=folder / "bert").save(folder / "model")
    shutil.rmtree(folder / "bert")


def make_official(file, sides, old=False, **options):
    def make(folder):
        with np.load(GOLDEN / f"{file}.npz", allow_pickle=False) as archive:
            state = {
                key.removeprefix("state/"): archive[key] for key in archive.files if key.startswith("state/")
            }
        parts = [
            {
                key.removeprefix(side): torch.from_numpy(np.array(value))
                for key, value in state.items()
                if key.startswith(side)
            }
            for side in sides
        ]
        whole = {"epoch": 3, "model": parts, "best_rsum": 1.0, "opt": Namespace(**options), "Eiters": 9}
        torch.save(whole, folder / "model_best.pth.tar", _use_new_zipfile_serialization=not old)

    return make


def read_official(name):
    def read(folder):
        model = load_official(name, folder / "model_best.pth.tar")
        return model.state_dict(), model.settings

    return read


def make_pieces(folder):
    write_bert(folder / "bert")
    WordPiece.load(folder / "bert", 32).save(folder)
    shutil.rmtree(folder / "bert")


def read_pieces(folder):
    pieces = WordPiece.load(folder)
    tokens, mask = pieces.encode(["a dog jumps", "two dogs jumping ."])
    return (
        tokens,
        mask,
        pieces.size,
        pieces.pad_id,
        pieces.kinds.special,
        pieces.kinds.inner,
        pieces.kinds.ordinary,
    )


def read_words(folder):
    words = Vocabulary.from_json(folder / "vocabulary.json", add_mask=True)
    return words.words, words.max_length, words.encode(["word1 word2", "none word3"])


def make_vectors(folder):
    (folder / "vectors.txt").write_text(
        "".join(f"{word} {row} 0.5 -2e-3\n" for row, word in enumerate(WORDS.words))
    )


def read_bert(folder):
    bert, tokenizer = Bert(folder / "bert").eval(), bert_tokenizer(folder / "bert")
    tokens, mask = tokenizer.encode(["a dog jumps", "two dogs jumping ."])
    return bert.state_dict(), bert.config, tokens, mask, bert(tokens, mask)


def seal_model(folder):
    seal(folder / "model", MODEL_FILES)


MODEL_FILES = ("config.json", "model.safetensors", "vocabulary.json", "tokenizer.json")
IS_SEALED = files(*(f"model/{name}" for name in MODEL_FILES))
THREE = ("img_enc.", "txt_enc.", "sim_enc.")
CROSS = {
    "no_imgnorm": False,
    "no_txtnorm": False,
    "raw_feature_norm": "clipped_l2norm",
    "lambda_softmax": 9.0,
}
READERS = {
    "model": Reader(make_model_folder("rvse"), read_model, IS_SEALED, seal_model, finite=True),
    "model, cross-attention": Reader(
        make_model_folder("sgr"), read_state, IS_SEALED, seal_model, finite=True
    ),
    "model, BERT": Reader(make_bert_model, read_model, IS_SEALED, seal_model, finite=True),
    "official, SGR": Reader(
        make_official("sgraf_sgr", THREE, module_name="SGR", **CROSS), read_official("sgr"), finite=True
    ),
    "official, VSE++": Reader(
        make_official("vsepp_cosine", THREE[:2], measure="cosine"), read_official("vsepp"), finite=True
    ),
    "official, before zip": Reader(
        make_official("vsepp_cosine", THREE[:2], True), read_official("vsepp"), finite=True
    ),
    "BERT folder": Reader(lambda folder: write_bert(folder / "bert"), read_bert, finite=True),
    "word pieces": Reader(make_pieces, read_pieces),
    "word vectors": Reader(
        make_vectors, lambda folder: read_word_vectors(folder / "vectors.txt", WORDS.words, 3), finite=True
    ),
    "concept graph": Reader(
        lambda folder: GRAPH.write(folder / "concepts.json"),
        lambda folder: vars(ConceptGraph.read(folder / "concepts.json")),
    ),
    "vocabulary": Reader(lambda folder: WORDS.to_json(folder / "vocabulary.json"), read_words),
}
