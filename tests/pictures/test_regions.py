import pytest
import torch

from selhn.pictures import grid_boxes, pool_boxes


def test_whole_picture_then_cells_row_by_row():
    third = 1 / 3
    boxes = grid_boxes(3)
    assert boxes.shape == (10, 4)
    assert boxes[0].tolist() == [0, 0, 1, 1]
    assert torch.allclose(boxes[2], torch.tensor([third, 0, 2 * third, third]))
    assert torch.allclose(boxes[9], torch.tensor([2 * third, 2 * third, 1, 1]))
    assert torch.equal(grid_boxes(0), boxes[:1])
    with pytest.raises(ValueError, match="cells is -1"):
        grid_boxes(-1)


def test_cells_that_fit_the_map_are_plain_means():
    maps = torch.rand(2, 5, 9, 9)
    pooled = pool_boxes(maps, grid_boxes(3).expand(2, -1, -1))
    assert torch.allclose(pooled[:, 0], maps.mean((2, 3)), atol=1e-6)
    assert torch.allclose(pooled[:, 4], maps[:, :, 3:6, :3].mean((2, 3)), atol=1e-6)


def test_a_box_across_cells_counts_areas():
    maps = torch.arange(8.0).view(1, 1, 2, 4)
    box = torch.tensor([[[0.125, 0.25, 0.5, 1.0]]])  # half of column 0, all of 1; half of row 0, all of 1
    row0, row1 = (0 * 0.5 + 1) / 1.5, (4 * 0.5 + 5) / 1.5
    assert pool_boxes(maps, box).item() == pytest.approx((row0 * 0.5 + row1) / 1.5)
    fine = maps.repeat_interleave(8, 2).repeat_interleave(8, 3)[
        :, :, 4:16, 4:16
    ]  # the same box, counted in pixels
    assert pool_boxes(maps, box).item() == pytest.approx(fine.mean().item())


@pytest.mark.parametrize("box", [[0.5, 0, 0.5, 1], [0, 0, 1.1, 1], [-0.1, 0, 1, 1], [0, float("nan"), 1, 1]])
def test_boxes_that_are_none(box):
    with pytest.raises(ValueError, match="a box needs"):
        pool_boxes(torch.rand(1, 2, 3, 3), torch.tensor([[box]]))
