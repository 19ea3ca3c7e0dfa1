"""Towers folders: their description, networks and tokenizer, with the first run in a process of its own."""

import os

import numpy as np
import torch
from faults.reader import Reader
from model_cases import write_bert
from picture_cases import photo
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from tower_cases import SPECIAL, change_description, sums, write_towers

from selhn.text import WordPiece
from selhn.towers import TextSide, Towers
from selhn.towers.tokenizer import FileTokenizer
from selhn.towers.words import PATTERNS

CUTOFF = {
    "counts": {"dog": 3},
    "offset": [1, 2, 3, 4.5],
    "slope": [0, 0, 0, 1e-3],
    "learnt": {"data": "tiny"},
}


def make_towers(folder):
    write_towers(folder / "towers", parts=True, bank=True, cutoff=CUTOFF)


def read_towers(folder):
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # nothing has passed yet
    towers = Towers.open(folder / "towers")
    prepared = towers.prepare(photo(1))
    texts = towers.embed_texts(["a red ball", "the dog's snow, zebra", "dog " * 40])
    vectors = {
        "texts": texts,
        "images": towers.embed_prepared([prepared]),
        "parts": towers.embed_parts(prepared),
        "bank": np.array(towers.bank, "f4"),
        "scores": towers.score(texts, texts),
    }
    return {
        **{
            name: torch.from_numpy(own) if isinstance(own, np.ndarray) else own
            for name, own in vectors.items()
        },
        "description": towers.description.content(),
        "cutoff": towers.cutoff,
        "ordinary": towers.tokenizer.ordinary,
    }


def is_listed(path):
    """Files with a checksum in towers.json, as long as that can be read."""
    return path.name in ("image.onnx", "text.onnx", "tokenizer.json", "bank.npy")


def seal_towers(folder):
    change_description(folder / "towers", lambda content: content.update(sha256=sums(folder / "towers")))


def make_pieces(folder):
    write_bert(folder / "bert")
    WordPiece.load(folder / "bert", 32).save(folder)
    for path in (folder / "bert").iterdir():
        path.unlink()
    (folder / "bert").rmdir()


def read_pieces(folder):
    text = TextSide("text.onnx", ("tokens", "mask"), "v", max_length=16, special=SPECIAL, inner_prefix="##")
    tokenizer = FileTokenizer(folder / "tokenizer.json", text)
    return tokenizer.encode(["a dog jumps", "two dogs jumping ."]), tokenizer.ordinary, tokenizer.inner


def make_byte_pairs(folder):
    """As CLIP has them."""
    letters = [*"abdgoswt", *(f"{letter}</w>" for letter in "abdgoswt")]
    vocabulary = {piece: i for i, piece in enumerate(["<s>", "</s>", *letters, "do", "dog</w>"])}
    made = Tokenizer(
        models.BPE(vocabulary, [("d", "o"), ("do", "g</w>")], unk_token="</s>", end_of_word_suffix="</w>")
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    pattern = next(pattern for pattern in PATTERNS if pattern.startswith("'s|"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "removed", invert=True), pre_tokenizers.ByteLevel(False)]
    )
    made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    made.save(str(folder / "tokenizer.json"))


def make_unigrams(folder):
    """As SigLIP has them."""
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581a", -1.0), ("\u2581dog", -2.0), ("s", -3.0)], 0))
    made.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(["</s>"])
    made.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 4)])
    made.save(str(folder / "tokenizer.json"))


READERS = {
    # Every case starts a process: a second.
    "towers": Reader(make_towers, read_towers, is_listed, seal_towers, share=0.3),
    "towers, word pieces": Reader(make_pieces, read_pieces),
    "towers, byte pairs": Reader(make_byte_pairs, read_pieces),
    "towers, unigrams": Reader(make_unigrams, read_pieces),
}
