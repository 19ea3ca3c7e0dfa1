"""Noisy correspondence: training texts that are given a wrong image (Huang et al., NCR, NeurIPS 2021)."""

from dataclasses import replace

import torch

from selhn.base.errors import SelhnError
from selhn.data.batches import seed_for
from selhn.data.splits import Data

NOISE = 2  # keeps this random stream apart from those of order and augmentation


def with_noise(data: Data, rate: float, seed: int) -> Data:
    """The data with a share of the training texts given the images of each other; dev and test do not change.

    None of them keeps its image, and every image keeps its number of texts. The seed decides which they are.
    """
    # Official: the images are shuffled among the chosen texts: some keep theirs, and the rate is a little lower.
    if not 0 <= rate < 1:
        raise SelhnError(f"noise is {rate}: give the share of training texts with a wrong image, 0 <= noise < 1")
    if rate == 0:
        return data
    split = data.train
    generator = torch.Generator().manual_seed(seed_for(seed, NOISE))
    chosen = torch.randperm(split.num_texts, generator=generator)[: round(rate * split.num_texts)]
    own = split.image_of_text[chosen]
    if not len(chosen) or 2 * int(own.unique(return_counts=True)[1].max()) > len(chosen):
        raise SelhnError(
            f"noise={rate} of the {split.num_texts} texts of {split.name} are {len(chosen)}, too few to change "
            "their images among themselves: raise noise"
        )
    images = own[torch.randperm(len(own), generator=generator)]
    while len(kept := (images == own).nonzero().flatten()):
        for place in kept.tolist():
            other = int(torch.randint(len(own), (), generator=generator))
            images[[place, other]] = images[[other, place]]
    image_of_text = split.image_of_text.clone()
    image_of_text[chosen] = images
    return replace(data, train=replace(split, image_of_text=image_of_text))
