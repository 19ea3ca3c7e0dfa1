import pytest
import torch

from selhn.search.stores.vectors import Vectors


@pytest.mark.parametrize(("precision", "error"), [("float32", 0.0), ("float16", 1e-3), ("int8", 1 / 250)])
def test_vectors_come_back_as_near_as_their_precision(precision, error):
    vectors = torch.nn.functional.normalize(
        torch.randn(50, 32, generator=torch.Generator().manual_seed(0)), dim=1
    )
    kept = Vectors.of(vectors, precision)
    assert kept.rows.dtype == getattr(torch, precision)
    largest = vectors.abs().amax(1, keepdim=True)
    assert ((kept.take(slice(None)) - vectors).abs() <= error * largest + 1e-9).all()
    some = torch.tensor([3, 40, 3])
    torch.testing.assert_close(kept.take(some), kept.take(slice(None))[some], rtol=0, atol=0)


def test_zeros_and_one_sign_survive_int8():
    vectors = torch.tensor([[0.0, 0.0], [-2.0, 1.0], [1e-30, 0.0]])
    torch.testing.assert_close(Vectors.of(vectors, "int8").take(slice(None)), vectors, rtol=0.01, atol=1e-32)


def test_joined_and_cut():
    vectors = torch.rand(10, 4)
    first, second = Vectors.of(vectors[:6], "int8"), Vectors.of(vectors[6:], "int8")
    joined = Vectors.joined([first, second])
    torch.testing.assert_close(joined.take(slice(None)), Vectors.of(vectors, "int8").take(slice(None)))
    assert len(joined[2:5]) == 3
    assert sum(block.stop - block.start for block in joined.blocks()) == 10


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_room_for_blocks_changes_nothing(precision, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.vectors.CONVERTED_BYTES", 4 * 5 * 3)
    vectors = Vectors.of(torch.randn(10, 5, generator=torch.Generator().manual_seed(0)), precision)
    buffer = vectors.buffer()
    assert (buffer is None) == (precision == "float32")
    some = [vectors.take(block, buffer).clone() for block in vectors.blocks()]
    assert len(some) == (1 if precision == "float32" else 4)
    torch.testing.assert_close(torch.cat(some), vectors.take(slice(None)), rtol=0, atol=0)
    torch.testing.assert_close(vectors.take(slice(None), buffer), vectors.take(slice(None)), rtol=0, atol=0)
