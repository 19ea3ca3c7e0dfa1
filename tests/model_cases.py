"""A tiny version of every model, and pairs to feed it."""

import inspect
import json

import torch
from safetensors.torch import save_file

from selhn.base.types import SIDE_INPUTS, Batch
from selhn.data.side_inputs import neighbours
from selhn.models import MODELS, create_model, encode_batch
from selhn.ops.bert import Bert
from selhn.text import Vocabulary
from selhn.text.concept_graph import ConceptGraph

WORDS = Vocabulary(["<pad>", "<start>", "<end>", "<unk>", *(f"word{i}" for i in range(35)), "<mask>"])
BERT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}
VIT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
GRAPH = ConceptGraph(
    tuple((f"word{i}", f"word{i + 20}") for i in range(6)),
    torch.tensor([9.0, 8, 7, 6, 5, 4]),
    torch.tensor([[0.0 if i == j else 6 - max(i, j) for i in range(6)] for j in range(6)]),
)
FEATURE_DIM = 12
_COMMON = {"feature_dim": FEATURE_DIM, "dim": 16, "tokenizer": WORDS}
CASES = {
    "vse_fc": {**_COMMON, "word_dim": 8},
    "vse_mlp": {**_COMMON, "word_dim": 8},
    "rvse": {**_COMMON, "word_dim": 8},
    "rvsepp": {**_COMMON, "bert": BERT},
    "vsepp": {**_COMMON, "word_dim": 8},
    "vsepp_order": {**_COMMON, "word_dim": 8},
    "vse_infty": {**_COMMON, "word_dim": 8},
    "vse_infty_bert": {**_COMMON, "bert": BERT},
    "devise": _COMMON,
    "vsrn": {**_COMMON, "word_dim": 8, "graph_layers": 2, "caption_dim": 6},
    "cvse": {**_COMMON, "word_dim": 8, "num_regions": 5, "concept_graph": GRAPH},
    "clip": {**_COMMON, "bert": BERT, "num_regions": 5, "vision": VIT},
    "vit_bert": {**_COMMON, "bert": BERT, "num_regions": 5, "vision": VIT},
    "scan_t2i_avg": {**_COMMON, "word_dim": 8},
    "scan_t2i_lse": {**_COMMON, "word_dim": 8},
    "scan_i2t_avg": {**_COMMON, "word_dim": 8},
    "scan_i2t_lse": {**_COMMON, "word_dim": 8},
    "bfan_equal": {**_COMMON, "word_dim": 8},
    "bfan_prob": {**_COMMON, "word_dim": 8},
    "sgr": {**_COMMON, "word_dim": 8, "sim_dim": 8, "num_regions": 5},
    "saf": {**_COMMON, "word_dim": 8, "sim_dim": 8, "num_regions": 5},
    "camp": {**_COMMON, "word_dim": 8, "heads": 2},
    "camp_stage1": {**_COMMON, "word_dim": 8, "padded_length": 12},
    "imram_text": {**_COMMON, "word_dim": 8},
    "imram_image": {**_COMMON, "word_dim": 8},
    "imram": {**_COMMON, "word_dim": 8},
    "naaf": {**_COMMON, "word_dim": 8, "threshold_safe": 0.1, "min_words": 12},
}
CASES |= {
    name: {**_COMMON, "word_dim": 8, "blocks": 4, "hidden": 8, "kernels": 2}
    for name in ("gsmn_dense", "gsmn_sparse")
}
CASES["cmcan"] = CASES["sgr"]
FIXED_REGIONS = {"sgr", "saf", "cvse", "cmcan", "clip", "vit_bert"}
"""Models with weights or a batch norm for the places of regions: their images have so many and no other number."""


OF_IMAGES = {name for name, entry in SIDE_INPUTS.items() if entry.of == "images"}


def make_model(name, **settings):
    """A model of the table in evaluation mode, with batch statistics that are not the trivial ones."""
    torch.manual_seed(0)
    model = create_model(name, **{**CASES[name], **settings})
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            if not module.weight.any():  # as a layer of VSRN is made, so that it changes nothing
                torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()


def make_from_pixels(name="vit_bert", vision=VIT, **settings):
    """A model for pictures of 32 x 32 in patches of 8 x 8."""
    torch.manual_seed(0)
    known = {
        "feature_dim": 192,
        "num_regions": 17,
        "dim": 16,
        "bert": BERT,
        "tokenizer": WORDS,
        "vision": vision,
    }
    return create_model(name, **{**known, **settings}).eval()


def make_batch(pairs=6, regions=5, tokens=7, seed=0, dtype=torch.float32):
    """Pairs with 1 to `regions` regions and 3 to `tokens` tokens."""
    generator = torch.Generator().manual_seed(seed)
    num_regions = torch.randint(1, regions + 1, (pairs,), generator=generator)
    num_tokens = torch.randint(3, tokens + 1, (pairs,), generator=generator)
    num_regions[0], num_tokens[0] = regions, tokens
    token_mask = torch.arange(tokens) < num_tokens[:, None]
    ids = torch.randint(4, 39, (pairs, tokens), generator=generator)
    corners = (
        torch.rand(pairs, regions, 2, 2, generator=torch.Generator().manual_seed(seed + 1)).sort(2).values
    )
    side = {
        "boxes": corners.flatten(2),
        "adjacency": neighbours(corners.flatten(2)),
        # Every word hangs on the word in the middle before it, the first on the root.
        "dependencies": torch.stack([torch.arange(tokens) // 2, torch.arange(tokens)], 1)[1:]
        .expand(pairs, -1, 2)
        .int(),
    }
    for name in OF_IMAGES - set(side):  # new in the table: any numbers do
        sizes = [regions if axis == "M" else 3 for axis in SIDE_INPUTS[name].axes.split()]
        side[name] = torch.rand(pairs, *sizes, generator=torch.Generator().manual_seed(seed + 2))
    return Batch(
        torch.rand(pairs, regions, FEATURE_DIM, generator=generator, dtype=dtype),
        torch.arange(regions) < num_regions[:, None],
        ids.masked_fill(~token_mask, 0),
        token_mask,
        torch.arange(pairs),
        side,
    )


def without_dropout(name):
    """Settings of a model whose training is not random."""
    return {"dropout": 0.0} if "dropout" in inspect.signature(MODELS[name].build).parameters else {}


def of_images(batch, regions):
    """Side inputs of a batch with other regions: their numbers, -1 for a new one that is padding."""
    side, real = dict(batch.side), (torch.tensor(regions) >= 0).float()
    for name in OF_IMAGES:
        value = side[name]
        for axis, of in enumerate(SIDE_INPUTS[name].axes.split(), 1):
            if of == "M":
                value = (value.movedim(axis, -1)[..., regions] * real).movedim(-1, axis)
        side[name] = value.to(side[name].dtype)
    return side


def of_rows(side, images, texts):
    """Side inputs of some images and texts of a batch."""
    return {
        name: value[images if SIDE_INPUTS[name].of == "images" else texts] for name, value in side.items()
    }


def score_batch(model, batch):
    """Scores of all pairs of a batch."""
    return model.score(*encode_batch(model, batch))


def write_bert(folder):
    """A tiny BERT as Hugging Face keeps it, with a pooler that nobody needs and names of old."""
    folder.mkdir()
    pieces = [
        "[PAD]",
        "[unused0]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "dog",
        "jump",
        "##s",
        "##ing",
        "two",
        ".",
    ]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    config = {**BERT, "vocab_size": len(pieces), "model_type": "bert", "architectures": ["BertModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    bert = Bert(config)
    old = {
        "bert." + key.replace("LayerNorm.weight", "LayerNorm.gamma"): x
        for key, x in bert.bert.state_dict().items()
    }
    save_file({**old, "bert.pooler.dense.weight": torch.zeros(16, 16)}, folder / "model.safetensors")
    return bert.eval()
