import numpy as np
import pytest
import torch

from selhn.data import load_data
from selhn.pictures import import_pictures, picture_split
from selhn.pictures.dataset import collect_region_files, read_regions


def write(folder, name, array, **more):
    folder.mkdir(exist_ok=True)
    path = folder / name
    np.save(path, array) if name.endswith(".npy") else np.savez(
        path, **{more.pop("called", "x"): array}, **more
    )
    return path


def test_arrays_and_archives(tmp_path):
    array = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    assert read_regions(write(tmp_path, "a.npy", array)).tolist() == array.tolist()
    assert read_regions(write(tmp_path, "a.npz", array, bbox=array)).tolist() == array.tolist()
    assert read_regions(write(tmp_path, "b.npz", array.T, called="features")).shape == (4, 3)
    assert read_regions(write(tmp_path, "b.npy", array[0])).shape == (1, 4)


@pytest.mark.parametrize(
    ("name", "array", "called", "reason"),
    [
        ("a.npy", np.zeros((2, 2, 2), np.float32), "", "2 axes are expected"),
        ("a.npy", np.full((2, 2), np.nan, np.float32), "", "not finite"),
        ("a.npy", np.array([{"run": "me"}], dtype=object), "", "Python objects"),
        ("a.npz", np.zeros((2, 2), np.float32), "other", "has no array called features or x or feat"),
        ("a.npz", np.zeros((2, 2), np.int64), "x", "instead of floats"),
    ],
)
def test_files_that_are_none(tmp_path, name, array, called, reason):
    with pytest.raises(ValueError, match=reason):
        read_regions(write(tmp_path, name, array, called=called))


def test_a_folder_of_files_becomes_a_data_set(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"{n}.npz": rng.random((n % 3 + 1, 4), dtype=np.float32) for n in range(10)}
    for name, array in arrays.items():
        write(tmp_path / "files", name, array)
    write(tmp_path / "files", "wide.npz", np.ones((1, 5), np.float32))
    (tmp_path / "files" / "cut.npy").write_bytes(b"123")
    (tmp_path / "c.csv").write_text("image,caption\n" + "".join(f"{n}.jpg,picture {n}\n" for n in range(10)))
    report = import_pictures(
        tmp_path / "files", tmp_path / "d", None, tmp_path / "c.csv", cache=tmp_path / "cache"
    )
    assert [name for name, _ in report.refused] == ["cut.npy", "wide.npz"]
    data = load_data(tmp_path / "d")
    for split in (data.train, data.dev, data.test):
        for row, name in enumerate(split.image_names):
            regions, mask = split.features.gather(torch.tensor([row]))
            assert np.allclose(regions[mask], arrays[name], atol=1e-3)
            assert split.captions[row] == f"picture {name.removesuffix('.npz')}"
    whole, _ = picture_split(tmp_path / "files", None, cache=tmp_path / "cache")
    assert (whole.num_images, whole.features.num_regions, whole.boxes) == (10, 3, None)


def test_folders_without_files(tmp_path):
    with pytest.raises(ValueError, match=r"holds no .npy or .npz files"):
        collect_region_files(tmp_path)
    (tmp_path / "a.npy").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"no array in .* can be read; of the first, a.npy: "):
        collect_region_files(tmp_path, cache=tmp_path / "c")
