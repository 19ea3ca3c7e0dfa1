import torch

from selhn.data.world.counter import Draws


def test_known_numbers():
    """The same on every platform and for ever: a saved run names its data by a seed."""
    draws = Draws(0, "train")
    assert draws.integers("shape", torch.arange(6), below=1000).tolist() == [507, 84, 513, 854, 105, 974]
    assert draws.uniform("x", torch.tensor([123456789])).item() == 0.557818591594696


def test_a_row_does_not_depend_on_its_neighbours():
    draws = Draws(7, "dev")
    rows = torch.tensor([5, 900_000, 3])
    together = draws.normal("noise", rows, 4, 2)
    alone = torch.cat([draws.normal("noise", row, 4, 2) for row in rows.split(1)])
    assert torch.equal(together, alone)
    assert together.shape == (3, 4, 2)


def test_seed_split_and_purpose_all_matter():
    rows = torch.arange(50)
    families = [Draws(0, "train"), Draws(1, "train"), Draws(0, "dev"), Draws("train", 0)]
    drawn = {tuple(d.integers(purpose, rows, below=10).tolist()) for d in families for purpose in ("x", "y")}
    assert len(drawn) == 8


def test_moments():
    rows = torch.arange(20_000)
    noise = Draws(0).noise("noise", rows, 5)
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert noise.abs().max() <= 3**0.5
    uniform, normal = Draws(0).uniform("u", rows, 5), Draws(0).normal("n", rows, 5)
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.005
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    # Neither neighbours in a row nor neighbouring rows are related.
    correlations = torch.corrcoef(torch.cat([normal[1:], normal[:-1]], dim=1).T) - torch.eye(10)
    assert correlations.abs().max() < 0.03
    counts = Draws(0).integers("i", rows, 5, below=10).flatten().bincount()
    assert ((counts - 10_000).abs() < 500).all()
