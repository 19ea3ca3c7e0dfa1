"""Where to look in a picture, and what the map of a backbone says there."""

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError


def grid_boxes(cells: int = 3) -> Float[Tensor, "M 4"]:
    """The whole picture, then cells x cells of it row by row: x1, y1, x2, y2 from 0 to 1."""
    if cells < 1:
        raise SelhnError(f"cells is {cells}: a grid has at least one cell per side")
    edges = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
    low, high = edges[:-1], edges[1:]
    y, x = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    grid = torch.stack([low[x], low[y], high[x], high[y]], dim=-1).flatten(0, 1)
    return torch.cat([torch.tensor([[0.0, 0, 1, 1]], dtype=torch.float64), grid]).float()


def pool_boxes(maps: Float[Tensor, "B C h w"], boxes: Float[Tensor, "B M 4"]) -> Float[Tensor, "B M C"]:
    """The mean of the map over each box, where a cell counts by the area it shares with the box."""
    sizes = boxes[..., 2:] - boxes[..., :2]
    if not bool((sizes > 0).all()) or not bool(((boxes >= 0) & (boxes <= 1)).all()):
        raise SelhnError(
            "a box needs 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1, shares of the picture's width and height"
        )
    rows = _shares(boxes[..., 1], boxes[..., 3], maps.shape[2])
    columns = _shares(boxes[..., 0], boxes[..., 2], maps.shape[3])
    return torch.einsum("bchw,bmh,bmw->bmc", maps, rows.to(maps.dtype), columns.to(maps.dtype))


def _shares(low: Float[Tensor, "B M"], high: Float[Tensor, "B M"], cells: int) -> Float[Tensor, "B M cells"]:
    """Which share of the range from low to high is in each of some equal cells."""
    edges = torch.arange(cells + 1, device=low.device, dtype=torch.float64) / cells
    low, high = low.double()[..., None], high.double()[..., None]
    shared = torch.minimum(high, edges[1:]) - torch.maximum(low, edges[:-1])
    return shared.clamp(min=0) / (high - low)
