"""Generated pairs, a model of two towers that stalls with T-HN, and the plain loop that every adapter must equal."""

import importlib.util
import warnings

import torch
from torch import nn
from torch.nn.functional import normalize

CELLS, WORDS = 6, 8


def pairs(number=1024, seed=0):
    """Images, six noisy cells of one of eight looks each, and texts, a word for each cell."""
    generator = torch.Generator().manual_seed(seed)
    looks = torch.randn(CELLS, WORDS, 4, generator=torch.Generator().manual_seed(1))
    words = torch.randint(0, WORDS, (number, CELLS), generator=generator)
    images = looks[torch.arange(CELLS), words].flatten(1)
    return images + 0.1 * torch.randn(images.shape, generator=generator), words + WORDS * torch.arange(CELLS)


class Towers(nn.Module):
    """An MLP of six layers for each side: its first embeddings point nearly all one way, as in deep networks."""

    def __init__(self, hidden=64, dim=32):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.images, self.texts = (
                nn.Sequential(
                    *(
                        layer
                        for size in (width, *[hidden] * 4)
                        for layer in (nn.Linear(size, hidden), nn.ReLU())
                    ),
                    nn.Linear(hidden, dim),
                )
                for width in (4 * CELLS, hidden)
            )
            self.words = nn.EmbeddingBag(CELLS * WORDS, hidden, mode="mean")

    def forward(self, images, texts):
        return {"image_embeds": self.images(images), "text_embeds": self.texts(self.words(texts))}


def small_clip(pairs=16):
    """A CLIP of open_clip with one small layer a side, and a batch for it."""
    import open_clip

    torch.manual_seed(0)
    vision = {"image_size": 16, "patch_size": 8, "width": 16, "layers": 1, "head_width": 8}
    text = {"context_length": 6, "vocab_size": 32, "width": 16, "heads": 2, "layers": 1}
    batch = torch.randn(pairs, 3, 16, 16), torch.randint(1, 31, (pairs, 6))
    return open_clip.CLIP(8, vision, text, output_dict=True), batch


def sentences(pairs=16):
    """A small SentenceTransformer, and two columns of sentences."""
    import sentence_transformers
    from sentence_transformers.sentence_transformer.modules import BoW, Dense

    torch.manual_seed(0)
    parts = [BoW([f"w{word}" for word in range(24)]), Dense(24, 8)]
    columns = (
        [f"w{one} w{one + 1} w{one + 2}" for one in range(pairs)],
        [f"w{one + 8} w{23 - one}" for one in range(pairs)],
    )
    return sentence_transformers.SentenceTransformer(modules=parts, device="cpu"), columns


OPERATORS = []


def without_operators():
    """Declare the operators that torchvision, which timm and open_clip import, lacks beside another build of torch.

    Nothing calls them.
    """
    if importlib.util.find_spec("torchvision") is None or OPERATORS:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torchvision  # noqa: F401
    except RuntimeError:
        OPERATORS.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            OPERATORS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def found_first(model, pairs):
    """The share of images whose own text is the nearest."""
    with torch.no_grad():
        images, texts = (normalize(one, dim=1) for one in model(*pairs).values())
    return ((images @ texts.T).argmax(dim=1) == torch.arange(len(images))).float().mean()


def plain_gradients(model, loss, images, texts, ids=None):
    """The gradients of `loss` of the score matrix, in a loop without any library."""
    model.zero_grad()
    image_emb, text_emb = (normalize(one, dim=1) for one in model(images, texts).values())
    loss(image_emb @ text_emb.T, ids).backward()
    return gradients(model)


def gradients(model):
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=1e-3, atol=1e-6, msg=lambda said, name=name: f"{name}: {said}"
        )
