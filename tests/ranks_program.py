"""Several processes that train together, for test_ranks.py: ranks_program.py FOLDER STEPS.

Rank 0 leaves in FOLDER/found.pt what came out; the test compares it with one process.
"""

import sys
from copy import deepcopy
from pathlib import Path

import torch
import torch.distributed as dist
from loss_cases import CASES, MeanOfHardest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from selhn.base.errors import SelhnError
from selhn.base.ranks import joined
from selhn.data import load_data
from selhn.losses import AOQ, NCR, InfoNCE, MetaSPN, TripletHN, TripletSelHN, TripletSHN, across_ranks
from selhn.losses.base import Scheduled, TakesGiven, learnt_by
from selhn.models import create_model
from selhn.text import Vocabulary
from selhn.training.loop import train

PAIRS, WIDTH = 22, 6


class Towers(nn.Module):
    """Two linear maps, whose gradients tell right from wrong."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(5, WIDTH), nn.Linear(4, WIDTH)

    def forward(self, images, texts):
        return tuple(nn.functional.normalize(x, dim=1) for x in (self.image(images), self.text(texts)))


def batch(step=0, dtype=torch.float64):
    """Pairs of one image are on several ranks, and the last rank has fewer pairs."""
    generator = torch.Generator().manual_seed(1 + step)
    images, texts = (torch.randn(PAIRS, n, generator=generator, dtype=torch.float64) for n in (5, 4))
    return images.to(dtype), texts.to(dtype), torch.arange(PAIRS) % 15


def rows_of(rank, ranks):
    each = -(-PAIRS // ranks)
    return slice(rank * each, min(PAIRS, (rank + 1) * each))


def losses():
    made = {name: case.make() for name, case in CASES.items()} | {"outside": MeanOfHardest()}
    return {
        name: loss
        for name, loss in made.items()
        if not isinstance(loss, TakesGiven) and loss.reduction != "none"
    }


def weights(model, loss):
    return torch.cat([x.detach().flatten().double() for x in [*model.parameters(), *learnt_by(loss)]])


def course(loss, compute, ranks=None, dtype=torch.float64, *, steps):
    """Value and gradients of the first step, and the weights after some steps of SGD with learnt parts of the loss."""
    model, rows = Towers().to(dtype), slice(None) if ranks is None else rows_of(ranks.own, ranks.number)
    loss = loss.to(dtype)
    if isinstance(loss, Scheduled):
        loss.set_epoch(99)
    wrapped = model if ranks is None else DistributedDataParallel(model)
    optimizer = torch.optim.SGD([*model.parameters(), *learnt_by(loss)], lr=0.01)
    first = None
    for step in range(steps):
        images, texts, ids = (x[rows] for x in batch(step, dtype))
        optimizer.zero_grad()
        value = compute(*wrapped(images, texts), ids)
        value.backward()
        if ranks is not None:
            ranks.average_gradients(learnt_by(loss))
        if first is None:
            grads = [x.grad.flatten() for x in [*model.parameters(), *learnt_by(loss)] if x.grad is not None]
            first = torch.cat([value.detach()[None], *grads]).double()
        optimizer.step()
    return torch.cat([first, weights(model, loss)])


def alone(loss, dtype=torch.float64, *, steps):
    """One process with the whole batch: the truth."""
    return course(loss, lambda a, b, ids: loss.from_embeddings(a, b, ids), dtype=dtype, steps=steps)


def gathered_without_gradient(ranks):
    def compute(a, b, ids):
        both = []
        for own in (a, b):
            parts = [torch.zeros(len(range(*rows_of(r, ranks.number).indices(PAIRS))), WIDTH).double()
                     for r in range(ranks.number)]  # fmt: skip
            for r in range(ranks.number):
                sent = own.detach().clone() if r == ranks.own else parts[r]
                dist.broadcast(sent, r)
                parts[r] = own if r == ranks.own else sent
            both.append(torch.cat(parts))
        return TripletHN().from_embeddings(*both)

    return compute


def softmax(scores):
    """A loss from outside."""
    return nn.functional.cross_entropy(scores / 0.1, torch.arange(len(scores)))


RUNS = {
    # Augmentation and batch norms; no number of processes shares 25 pairs evenly.
    "rvse": ("rvse", TripletSelHN(), {}),
    "mask": ("rvse", TripletSelHN.paper(), {"mlp_order": "bn-fc-relu-bn-fc", "mask_bn": True}),
    "chunk": ("vse_fc", InfoNCE(learn=True), {"chunk": 9}),
    "scan": ("scan_t2i_avg", TripletHN(), {}),
    "saf": ("saf", TripletSelHN(), {}),
    "two_pass": ("scan_t2i_avg", TripletSHN(), {"two_pass": True}),
    "distil": ("vse_fc", TripletHN(), {"distil": 0.3, "ema": 0.9, "schedule": "cosine", "lr_warmup": 0.5}),
    "outside": ("vsepp_order", softmax, {}),
}
"""A model, a loss, and settings of both and of training."""
REFUSED = {
    "ncr": ("vse_fc", NCR(warmup_epochs=0), {"networks": 2}),
    "aoq": ("vse_fc", AOQ(), {}),
    "meta": ("vse_fc", MetaSPN(), {}),
    "naaf": ("naaf", TripletHN(), {}),
    "vsrn": ("vsrn", TripletHN(), {}),
}


def world():
    return load_data("world", images=20)


def trained(data, name, loss, settings, out=None, **more):
    """Weights after training, and the numbers of the run."""
    torch.manual_seed(0)
    sizes = {"feature_dim": data.feature_dim, "dim": 8, "word_dim": 6}
    sizes |= {key: settings[key] for key in ("networks", "mlp_order", "mask_bn") if key in settings}
    if name == "saf":
        sizes |= {"num_regions": data.train.features.num_regions, "sim_dim": 4, "dropout": 0.0}
    model = create_model(name, tokenizer=Vocabulary.build(data.train.captions), **sizes)
    of_training = {key: value for key, value in settings.items() if key not in sizes}
    of_training = {"batch_size": 25, "epochs": 1, "lr": 2e-3, "device": "cpu", **of_training, **more}
    run = train(model, data, deepcopy(loss), out=out, quiet=True, **of_training)
    return {key: value.double() for key, value in model.state_dict().items()}, run.dev.rsum


def main(folder, steps):
    torch.set_num_threads(1)
    found = {}
    with joined() as ranks:
        for name, loss in losses().items():
            shared = across_ranks(loss)
            found[name] = course(loss, shared, ranks, steps=steps)
            if name in ("selhn", "infonce"):
                found[f"{name} float32"] = course(loss, shared, ranks, torch.float32, steps=steps)
        wrong = TripletSelHN().from_embeddings, gathered_without_gradient(ranks)
        found["wrong: each rank alone"] = course(TripletSelHN(), wrong[0], ranks, steps=steps)
        found["wrong: gathered without gradient"] = course(TripletHN(), wrong[1], ranks, steps=steps)
        data = world()
        for name, made in RUNS.items():
            found[f"run {name}"] = trained(data, *made)[0]
        out = Path(folder) / "run"
        trained(data, *RUNS["rvse"], out=out, epochs=1)
        found["resumed"] = trained(data, *RUNS["rvse"], out=out, resume=True, epochs=2)[0]
        found["not stopped"] = trained(data, *RUNS["rvse"], epochs=2)[0]
        for name, made in REFUSED.items():
            try:
                trained(data, *made)
            except SelhnError as error:
                found[f"refused {name}"] = str(error)
        if ranks.own == 0:
            torch.save(found, f"{folder}/found.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
