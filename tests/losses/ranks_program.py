"""One rank of test_ranks.py: python ranks_program.py RANK RANKS FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from loss_cases import CASES  # noqa: E402

from selhn.losses import TripletHN, TripletSelHN, across_ranks  # noqa: E402
from selhn.losses.base import TakesGiven  # noqa: E402

PAIRS, WIDTH = 22, 6


class Towers(nn.Module):
    """Two linear maps, whose gradients tell right from wrong."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(5, WIDTH), nn.Linear(4, WIDTH)

    def forward(self, images, texts):
        return tuple(nn.functional.normalize(x, dim=1) for x in (self.image(images), self.text(texts)))


def batch():
    generator = torch.Generator().manual_seed(1)
    images, texts = (torch.randn(PAIRS, n, generator=generator, dtype=torch.float64) for n in (5, 4))
    return images, texts, torch.arange(PAIRS) % 15  # ids that lie on several ranks


def rows_of(rank, ranks):
    """The pairs of a rank; the last has fewer."""
    each = -(-PAIRS // ranks)
    return slice(rank * each, min(PAIRS, (rank + 1) * each))


def losses():
    made = {name: case.make() for name, case in CASES.items()}
    return {
        name: loss.double()
        for name, loss in made.items()
        if not isinstance(loss, TakesGiven) and loss.reduction != "none"
    }


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def whole(loss):
    """One process with the whole batch: the truth."""
    images, texts, ids = batch()
    model = Towers().double()
    value = loss.from_embeddings(*model(images, texts), ids)
    value.backward()
    return torch.cat([value.detach()[None], gradients(model)])


def main(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    images, texts, ids = (x[rows_of(rank, ranks)] for x in batch())

    def step(compute):
        model = DistributedDataParallel(Towers().double())
        value = compute(*model(images, texts))
        value.backward()
        return torch.cat([value.detach()[None], gradients(model.module)])

    found = {}
    for name, loss in losses().items():
        found[name] = step(lambda a, b, loss=loss: across_ranks(loss)(a, b, ids))

    def gathered_without_gradient(a, b):
        both = []
        for own in (a, b):
            parts = [torch.zeros(len(range(*rows_of(r, ranks).indices(PAIRS))), WIDTH).double() for r in range(ranks)]
            parts = [part if r != rank else own for r, part in enumerate(parts)]
            for r, part in enumerate(parts):
                sent = part.detach().clone()
                dist.broadcast(sent, r)
                parts[r] = own if r == rank else sent
            both.append(torch.cat(parts))
        return TripletHN().from_embeddings(*both)

    found["wrong: each rank alone"] = step(lambda a, b: TripletSelHN().from_embeddings(a, b, ids))
    found["wrong: gathered without gradient"] = step(gathered_without_gradient)
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
