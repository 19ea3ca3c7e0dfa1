import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from selhn.base.errors import Damaged, SelhnError
from selhn.base.types import SIDE_INPUTS, SideInput
from selhn.data import Data, DenseFeatures, RaggedFeatures, Report, Split, check, load_data, write_native
from selhn.data.formats.precomp import open_split
from selhn.data.side_inputs import neighbours

CAPTIONS, OWNERS = ["a dog", "a cat sat", "two men", "rain"], torch.tensor([0, 1, 1, 2])


def make_split(name="test", **side):
    generator = torch.Generator().manual_seed(len(name))
    features = DenseFeatures(torch.rand(3, 5, 4, generator=generator))
    corners = torch.rand(3, 5, 2, generator=generator)
    boxes = torch.cat([corners, corners + 0.1], -1)
    return Split(name, features, CAPTIONS, OWNERS, [f"{name}{n}" for n in range(3)], boxes, given_side=side)


def test_they_are_read_when_they_are_used():
    calls = []

    def read():
        calls.append(1)
        return torch.ones(4, 2)

    split = make_split(concepts=read)
    assert list(split.side) == ["boxes", "adjacency", "concepts"]
    part = split.some(torch.tensor([1, 2]))
    assert not calls
    assert part.side["concepts"].shape == (3, 2)
    assert torch.equal(part.side["boxes"], split.boxes[1:])
    assert torch.equal(part.side["adjacency"], split.side["adjacency"][1:])
    assert split.side["concepts"] is split.side["concepts"]
    assert len(calls) == 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(SelhnError, match="did you mean"):
        make_split(concept=torch.ones(4, 2))
    for wrong in (torch.ones(3, 2), torch.ones(4), torch.full((4, 2), math.nan)):
        with pytest.raises(SelhnError, match="concepts"):
            make_split(concepts=wrong).side["concepts"]


def by_hand(boxes):
    """For each region, the nearest other in four sectors of angles, one pair at a time."""
    found = torch.eye(len(boxes), dtype=torch.bool)
    for i, own in enumerate(boxes.tolist()):
        nearest = {}
        for j, other in enumerate(boxes.tolist()):
            right, up = (
                (other[0] + other[2] - own[0] - own[2]) / 2,
                (own[1] + own[3] - other[1] - other[3]) / 2,
            )
            sector = math.floor((math.atan2(up, right) + 3 * math.pi / 4) / (math.pi / 2)) % 4
            if i != j and math.hypot(right, up) < nearest.get(sector, (9, 0))[0]:
                nearest[sector] = math.hypot(right, up), j
        for _, j in nearest.values():
            found[i, j] = True
    return found


def test_neighbours_are_the_nearest_in_four_directions():
    corners = torch.rand(20, 9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    boxes = torch.cat([corners, corners + 0.2], -1)
    assert torch.equal(neighbours(boxes), torch.stack([by_hand(own) for own in boxes]))
    padded = torch.cat([boxes, torch.zeros(20, 2, 4)], 1)
    assert torch.equal(neighbours(padded)[:, :9, :9], neighbours(boxes))
    assert not neighbours(padded)[:, 9:, :9].any()
    assert not neighbours(padded)[:, :9, 9:].any()
    assert neighbours(boxes[:0]).shape == (0, 9, 9)


def test_each_diagonal_belongs_to_one_direction():
    centres = torch.tensor([[0.5, 0.5], [0.75, 0.75], [0.75, 0.25], [0.25, 0.25], [0.25, 0.75]])
    found = neighbours(torch.cat([centres - 0.125, centres + 0.125], 1)[None])[0]
    assert found[0].all(), "the middle one has a neighbour on every diagonal"


def write_precomp(folder):
    for name in ("train", "dev", "test"):
        np.save(folder / f"{name}_ims.npy", np.random.default_rng(len(name)).random((2, 3, 4), np.float32))
        (folder / f"{name}_caps.txt").write_text("a dog runs\na cat\na man\nrain falls\n")
        (folder / f"{name}_ids.txt").write_text(f"{name}0\n{name}1\n")
        np.save(
            folder / f"{name}_ims_dir_selfadj4.npy", np.stack([np.eye(3), np.ones((3, 3))]).astype(np.float32)
        )
        (folder / f"{name}_caps.json").write_text(
            json.dumps([[[0, 2], [2, 1], [2, 3]], [[0, 2]], [], [[0, 1]]])
        )
    return folder


def test_files_of_the_authors_programs(tmp_path):
    data = load_data(write_precomp(tmp_path))
    side = data.train.side
    assert sorted(side) == ["adjacency", "dependencies"]
    assert side["adjacency"].dtype == torch.bool
    assert side["adjacency"].sum((1, 2)).tolist() == [3, 9]
    assert side["dependencies"].tolist()[:2] == [[[0, 2], [2, 1], [2, 3]], [[0, 2], [-1, -1], [-1, -1]]]
    assert "with adjacency, dependencies" in str(check(tmp_path))
    cut = open_split(tmp_path / "train", "train", Report(), regions=2)
    assert cut.side["adjacency"].sum((1, 2)).tolist() == [2, 4], "of the regions that are kept"
    np.save(tmp_path / "train_dependencies.npy", np.zeros((4, 1, 2), np.int64))
    assert load_data(tmp_path).train.side["dependencies"].shape == (4, 1, 2), "our own file comes first"
    (tmp_path / "dev_caps.json").write_text("[[[0, -2]], [], [], []]")
    with pytest.raises(Damaged, match="caption 0"):
        load_data(tmp_path).dev.side["dependencies"]
    assert "problem" in str(check(tmp_path))


def test_our_own_format_keeps_them(tmp_path):
    side = {
        "concepts": torch.rand(4, 2),
        "dependencies": torch.tensor([[[0, 1], [1, 2]]] * 4, dtype=torch.int32),
        "adjacency": torch.rand(3, 5, 5) > 0.5,
    }
    whole = make_split("train", **side)
    kept = torch.tensor([1, 2, 3, 4, 0])
    ragged = Split(
        "dev", RaggedFeatures.of(torch.rand(9, 4), torch.tensor([0, 2, 4, 9])), CAPTIONS, OWNERS, list("abc"),
        given_side=side,
    )  # fmt: skip
    mask = torch.tensor([[False, True, True, True, True]] * 3)
    gap = make_split("test", **side)
    gap = Split(
        "test", DenseFeatures(gap.features.store, mask=mask), CAPTIONS, OWNERS, gap.image_names, gap.boxes,
        given_side=side,
    )  # fmt: skip
    write_native(Data("tiny", whole, ragged, gap), tmp_path / "out")
    data = load_data(tmp_path / "out")
    for split in (data.train, data.dev, data.test):
        for name in ("concepts", "dependencies"):
            assert torch.equal(split.side[name], side[name])
    assert torch.equal(data.train.side["adjacency"], side["adjacency"])
    assert torch.equal(data.dev.side["adjacency"], side["adjacency"])
    places = kept[:4]
    assert torch.equal(data.test.side["adjacency"], side["adjacency"][:, places][:, :, places])
    assert torch.equal(data.test.side["boxes"], gap.boxes[:, places])


@pytest.mark.parametrize(("axes", "shape"), [("M", (5,)), ("M 1", (5, 1)), ("C M", (2, 5)), ("C", (2,))])
def test_a_new_row_of_the_table_needs_no_other_line_in_data(axes, shape, tmp_path, monkeypatch):
    monkeypatch.setitem(SIDE_INPUTS, "saliency", SideInput("images", axes, torch.float32, "how much is seen"))
    value, mask = torch.rand(3, *shape), torch.tensor([[False, True, True, True, True]] * 3)
    splits = [make_split(name, saliency=value) for name in ("train", "dev", "test")]
    gap = DenseFeatures(splits[2].features.store, mask=mask)
    splits[2] = replace(splits[2], features=gap)
    write_native(Data("tiny", *splits), tmp_path / "out")
    data, kept = load_data(tmp_path / "out"), value[..., 1:] if axes.endswith("M") else value
    assert torch.equal(data.train.side["saliency"], value)
    assert torch.equal(data.test.side["saliency"], kept[:, 1:] if axes == "M 1" else kept)
    write_precomp(tmp_path)
    first = value[:2, ..., :3] if axes.endswith("M") else value[:2, :3]
    np.save(tmp_path / "train_saliency.npy", first.numpy())
    cut = open_split(tmp_path / "train", "train", Report(), regions=1).side["saliency"]
    wanted = first[:, :1] if axes in ("M", "M 1") else first[..., :1] if axes == "C M" else first
    assert torch.equal(cut, wanted)
