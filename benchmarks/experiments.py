"""What is compared, as data: named sets of experiments, each a recipe with its settings and seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from candidates import SCREEN

from selhn.training import RECIPES

TABLE1 = tuple(name for name in RECIPES if name.startswith(("vse_", "rvse_")))
LOSS_NAMES = ("triplet", "hn", "warmup", "shn", "sct", "selhn", "ssp", "aoq", "ncr", "meta_spn", "infonce",
              "infonce learn=true", "siglip", "siglip learn=false", "tal", "multi_positive")  # fmt: skip
PAIRS = (("scan_t2i_avg", "scan_i2t_avg"), ("bfan_equal", "bfan_prob"), ("saf", "sgr"))
"""Systems that their papers average."""
USUAL = ("batch_size=128", "centred=false")
"""Settings that say what is so anyway: with them or without, it is one experiment."""


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in nothing but the seed; or, with `members`, the averaged scores of other experiments.

    `settings` are those of `selhn train`, and `centred=true`: features less their mean over the training regions.
    """

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    members: tuple[str, ...] = ()
    keep_scores: bool = False
    """Whether the scores of test are kept, for an ensemble."""


def experiment(
    model: str, loss: str, *settings: str, seeds: Sequence[int] = (0,), keep_scores: bool = False
) -> Experiment:
    """A model with a loss, written as its name and settings: `experiment("rvse", "tal temperature=0.05")`."""
    loss, *of_loss = loss.split()
    settings = tuple(setting for setting in settings if setting not in USUAL)
    recipe, changes = f"{model}_{loss}", tuple(f"loss.{setting}" for setting in of_loss)
    name = "/".join([recipe, *([",".join([*of_loss, *settings])] if of_loss or settings else [])])
    if recipe not in RECIPES:
        recipe, changes = f"{model}_selhn", (f"loss={loss}", *changes)
    return Experiment(name, recipe, (*changes, *settings), tuple(seeds), keep_scores=keep_scores)


def table1() -> Iterator[Experiment]:
    """Table 1 of the paper: three models, three losses."""
    return (Experiment(recipe, recipe, seeds=(0, 1, 2)) for recipe in TABLE1)


TAL = "tal margin=0.1"
"""With its authors' margin, as in the recorded results."""


def losses() -> Iterator[Experiment]:
    """Every loss with the simplest model and with RVSE."""
    names = (TAL if loss == "tal" else loss for loss in LOSS_NAMES)
    return (experiment(model, loss, seeds=(0, 1, 2)) for model, loss in product(("vse_fc", "rvse"), names))


def pairs() -> Iterator[Experiment]:
    """The losses that the paper compares on cross-attention systems."""
    yield from (experiment("bfan_equal", loss) for loss in ("ssp", "aoq", "meta_spn", "selhn"))
    yield from (
        experiment("sgr", loss) for loss in ("ncr reduction=sum", "selhn")
    )  # NCR's authors built it on SGR


def epsilon() -> Iterator[Experiment]:
    """What epsilon does, from mining always to averaging long."""
    forms = (
        "selhn",
        *(f"selhn epsilon={value}" for value in ("0", "0.0001", "0.001", "0.1")),
    )  # 0.01 is the default
    return (experiment(model, form) for model in ("rvse", "rvsepp") for form in forms)


def batch() -> Iterator[Experiment]:
    """Small and large batches, over the same number of epochs."""
    names, sizes = ("hn", "selhn", "infonce", TAL), (32, 128, 512, 2048)
    return (experiment("rvse", loss, f"batch_size={size}") for loss in names for size in sizes)


def centred() -> Iterator[Experiment]:
    """Whether the shared mean of the features makes the stall."""
    names, forms = ("hn", "selhn", "infonce"), ("true", "false")
    return (experiment("rvse", loss, f"centred={form}", seeds=(0, 1)) for loss in names for form in forms)


def noise() -> Iterator[Experiment]:
    """A share of the training pairs belongs to other images."""
    return (experiment("rvse", loss, f"noise={share}") for loss in ("ncr", "selhn") for share in (0.2, 0.4))


def systems() -> Iterator[Experiment]:
    """Cross-attention systems with the hardest negative and with SelHN, and the pairs their papers average."""
    for loss in ("hn", "selhn"):
        yield from (experiment(model, loss, keep_scores=True) for pair in PAIRS for model in pair)
        for pair in PAIRS:
            members = tuple(f"{model}_{loss}" for model in pair)
            yield Experiment("+".join(pair) + f"_{loss}", "", members=members)


def own() -> Iterator[Experiment]:
    """Our candidates and the public losses they have to beat, one seed each."""
    return (experiment("rvse", loss) for loss in SCREEN)


def own_batches() -> Iterator[Experiment]:
    """The same over batch sizes, with and without dropout on word embeddings: choose candidates with --only."""
    for loss in SCREEN:
        for dropout in ((), ("model.word_dropout=0.4",)):
            for size, seeds in ((128, range(5)), (32, range(2)), (512, range(2)), (2048, range(2))):
                yield experiment("rvse", loss, f"batch_size={size}", *dropout, seeds=seeds)


SETS: Mapping[str, Callable[[], Iterator[Experiment]]] = {
    make.__name__: make
    for make in (table1, losses, pairs, epsilon, batch, centred, noise, systems, own, own_batches)
}
