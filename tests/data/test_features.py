import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selhn.base.errors import SelhnError
from selhn.data import DenseFeatures, PocketFeatures, Projection, RaggedFeatures, SomeImages
from selhn.data import features as features_module
from selhn.data.features import blocks

ROWS = torch.tensor([3, 0, 3, 1])
META = torch.device("meta")


@pytest.fixture
def mapped(tmp_path):
    def write(array):
        np.save(tmp_path / "array.npy", array)
        return np.load(tmp_path / "array.npy", mmap_mode="r")

    return write


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_a_mapped_array(mapped, dtype):
    array = np.random.default_rng(0).random((5, 3, 4)).astype(dtype)
    store = DenseFeatures(mapped(array))
    regions, mask = store.gather(ROWS)
    assert (store.num_images, store.num_regions, store.width, store.num_bytes) == (5, 3, 4, array.nbytes)
    assert regions.dtype == torch.float32
    np.testing.assert_array_equal(regions, array[ROWS].astype(np.float32))
    assert mask.all()
    assert mask.shape == (4, 3)


def test_one_vector_an_image_is_one_region(mapped):
    array = np.random.default_rng(0).random((5, 4)).astype(np.float32)
    store = DenseFeatures(mapped(array))
    assert (store.num_regions, store.width) == (1, 4)
    np.testing.assert_array_equal(store.gather(ROWS)[0], array[ROWS][:, None])


def test_rows_say_where_an_image_is(mapped):
    array = np.random.default_rng(0).random((20, 3, 4)).astype(np.float32)
    store = DenseFeatures(mapped(array), torch.arange(0, 20, 5))
    assert store.num_images == 4
    assert store.num_bytes == array.nbytes // 5
    np.testing.assert_array_equal(store.gather(ROWS)[0], array[::5][ROWS])
    assert store.where(3).endswith("row 15")


def test_a_tensor_with_a_mask_moves_with_its_rows():
    tensor, mask = torch.rand(6, 3, 4), torch.rand(6, 3) < 0.5
    store = DenseFeatures(tensor, torch.tensor([5, 3, 1, 0]), mask)
    regions, found = store.gather(ROWS)
    torch.testing.assert_close(regions, tensor[[0, 5, 0, 3]])
    assert torch.equal(found, mask[[0, 5, 0, 3]])
    moved = store.to("cpu")
    assert moved.rows is None
    assert moved.num_bytes == 4 * 3 * 4 * 4
    assert all(torch.equal(a, b) for a, b in zip(moved.gather(ROWS), (regions, found)))


def test_moving_reads_in_blocks_and_keeps_the_dtype(mapped, monkeypatch):
    # The meta device stands for a GPU: what matters here is which rows are read, and how many at a time.
    array = np.random.default_rng(0).random((20, 3, 4)).astype(np.float16)
    read = []
    take = features_module.take
    monkeypatch.setattr(
        features_module, "take", lambda store, rows: read.append(rows.tolist()) or take(store, rows)
    )
    monkeypatch.setattr(features_module, "blocks", lambda rows, size: blocks(rows, size, budget=3 * size))
    moved = DenseFeatures(mapped(array), torch.arange(0, 20, 2)).to(META)
    assert [rows for rows in read if rows] == [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18]]
    assert moved.store.dtype == torch.float16
    assert moved.store.device == META
    assert moved.num_images == 10


def test_a_mapped_array_stays_in_its_file_on_the_cpu(mapped):
    store = DenseFeatures(mapped(np.zeros((5, 3, 4), np.float32)))
    assert store.to("cpu") is store


def test_blocks_cover_all_rows_once():
    assert [(b.start, b.stop) for b in blocks(7, 10, budget=30)] == [(0, 3), (3, 6), (6, 7)]
    assert len(list(blocks(3, 1000, budget=10))) == 3


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data(), st.booleans())
def test_ragged_equals_one_image_at_a_time(counts, data, as_tensor):
    flat = np.random.default_rng(0).standard_normal((sum(counts), 3)).astype(np.float16)
    offsets = torch.tensor([0, *np.cumsum(counts)])
    store = RaggedFeatures.of(torch.from_numpy(flat) if as_tensor else flat, offsets)
    rows = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=6))
    regions, mask = store.gather(torch.tensor(rows))
    assert store.num_images == len(counts)
    assert regions.shape == (len(rows), max(counts), 3)
    for row, found, there in zip(rows, regions, mask):
        assert there.tolist() == [n < counts[row] for n in range(max(counts))]
        np.testing.assert_array_equal(found[there], flat[offsets[row] : offsets[row + 1]].astype(np.float32))
        assert not found[~there].any()
    assert all(torch.equal(a, b) for a, b in zip(store.to("cpu").gather(torch.tensor(rows)), (regions, mask)))


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([1, 4], "begin with 0"),
        ([0, 3], "4 rows"),
        ([0, 2, 2, 4], "row 2"),
        ([0, 3, 2, 4], "row 2"),
        ([], "begin with 0"),
    ],
)
def test_offsets_that_do_not_fit(offsets, sentence):
    with pytest.raises(SelhnError, match=sentence):
        RaggedFeatures.of(torch.zeros(4, 2), torch.tensor(offsets, dtype=torch.int64))


def test_ragged_moves_to_a_device():
    flat = np.ones((4, 2), np.float32)
    moved = RaggedFeatures.of(flat, torch.tensor([0, 1, 4])).to(META)
    assert moved.store.device == moved.offsets.device == META
    assert (moved.num_images, moved.num_regions, moved.num_bytes) == (2, 3, 32)
    assert moved.where.__self__ is moved


def test_codes_are_unpacked_by_the_formula():
    rng = np.random.default_rng(0)
    codes = rng.integers(-128, 128, (6, 4, 3)).astype(np.int8)
    mean, components, scale = (rng.standard_normal(s).astype(np.float32) for s in (5, (5, 3), 3))
    projection = Projection(*map(torch.from_numpy, (mean, components, scale)))
    coordinates = codes[ROWS].astype(np.float64) * scale
    full = PocketFeatures(DenseFeatures(codes), projection)
    assert (full.num_images, full.num_regions, full.width, full.num_bytes) == (6, 4, 5, codes.size)
    np.testing.assert_allclose(
        full.gather(ROWS)[0], np.maximum(0, mean + coordinates @ components.T), atol=1e-4
    )
    pca = PocketFeatures(DenseFeatures(codes), projection, "pca")
    assert pca.width == 3
    np.testing.assert_allclose(pca.gather(ROWS)[0], coordinates, rtol=1e-6)
    moved = full.to(META)
    assert moved.codes.store.dtype == torch.int8
    assert moved.projection.mean.device == META


def test_some_images_of_other_features():
    store = torch.rand(6, 3, 4)
    some = SomeImages(DenseFeatures(store), torch.tensor([5, 2, 0, 1]))
    assert (some.shape, some.num_bytes, some.where(1)) == ((4, 3, 4), store.nbytes, "features, row 2")
    for features in (some, some.to("cpu")):
        torch.testing.assert_close(features.gather(ROWS)[0], store[[1, 5, 1, 2]])
