import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from picture_cases import TinyBackbone, animated_gif, encoded, huge_png, mutations, photo, turned_jpeg

from selhn.pictures import Extractor, FeatureCache, extract_pictures
from selhn.pictures.extraction import Extraction


def write(folder, **contents):
    paths = []
    for name, content in contents.items():
        paths.append(folder / name.replace("_", "."))
        paths[-1].write_bytes(content)
    return paths


def test_batches_and_threads_change_nothing(tmp_path):
    paths = write(tmp_path, **{f"{n}_png": encoded(photo(n), "PNG") for n in range(7)})
    results = []
    for batch_size, workers in ((1, 1), (3, 2), (16, 4)):
        extractor = Extractor(TinyBackbone())
        cache = tmp_path / f"cache{batch_size}"
        found = extract_pictures(
            paths,
            extractor,
            cache=cache,
            precision="float32",
            batch_size=batch_size,
            workers=workers,
            quiet=True,
        )
        assert found.paths == paths
        assert max(extractor.backbone.calls) <= batch_size
        results.append(found.features.gather(torch.arange(7))[0])
    direct = Extractor(TinyBackbone())([photo(n) for n in range(7)])
    for result in results:
        assert torch.allclose(result, direct, atol=1e-6)


def test_on_a_cpu_every_worker_computes_on_one_core(tmp_path):
    class OnCPU(TinyBackbone):
        device = torch.device("cpu")

        def maps(self, pixels):
            self.cores = torch.get_num_threads()
            return super().maps(pixels)

    paths = write(tmp_path, **{f"{n}_png": encoded(photo(n % 5), "PNG") for n in range(9)})
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        extractor = Extractor(OnCPU())
        how = {"precision": "float32", "batch_size": 2, "quiet": True}
        found = extract_pictures(paths, extractor, cache=tmp_path / "c", **how)
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 3, "new threads use all cores again"
    finally:
        torch.set_num_threads(before)
    assert set(extractor.backbone.calls) == {1}
    assert extractor.backbone.cores == 1
    assert found.report.computed == 5
    direct = Extractor(TinyBackbone())([photo(n % 5) for n in range(9)])
    assert torch.allclose(found.features.gather(torch.arange(9))[0], direct, atol=1e-6)


def test_only_new_content_is_computed(tmp_path):
    paths = write(tmp_path, a_png=encoded(photo(1), "PNG"), b_png=encoded(photo(2), "PNG"))
    first = extract_pictures(paths, Extractor(TinyBackbone()), cache=tmp_path / "c", quiet=True)
    assert first.report.computed == 2
    moved = paths[0].rename(tmp_path / "moved.png")
    paths[1].write_bytes(encoded(photo(3), "PNG"))
    copy = tmp_path / "copy.png"
    copy.write_bytes(paths[1].read_bytes())
    extractor = Extractor(TinyBackbone())
    second = extract_pictures([moved, paths[1], copy], extractor, cache=tmp_path / "c", quiet=True)
    assert second.report.computed == 1
    assert extractor.backbone.calls == [1]
    assert second.features.keys[0] == first.features.keys[0]
    assert second.features.keys[1] == second.features.keys[2]


def test_it_takes_up_where_it_stopped(tmp_path):
    paths = write(tmp_path, **{f"{n}_png": encoded(photo(n), "PNG") for n in range(6)})

    class Stops(TinyBackbone):
        def maps(self, pixels):
            if len(self.calls) == 2:
                raise KeyboardInterrupt
            return super().maps(pixels)

    with pytest.raises(KeyboardInterrupt):
        extract_pictures(paths, Extractor(Stops()), cache=tmp_path / "c", batch_size=2, quiet=True)
    found = extract_pictures(paths, Extractor(TinyBackbone()), cache=tmp_path / "c", batch_size=2, quiet=True)
    assert found.report.computed == 2
    assert found.report.used == 6


def test_bad_files_are_named_and_left_out(tmp_path):
    paths = write(
        tmp_path,
        a_jpg=b"",
        b_jpg=b"no picture",
        c_png=huge_png(),
        d_gif=animated_gif(),
        e_jpg=encoded(photo(4, mode="CMYK")),
        f_jpg=turned_jpeg(),
        g_jpg=encoded(photo(5)),
    )
    found = extract_pictures(
        [*paths, tmp_path / "gone.jpg"],
        Extractor(TinyBackbone()),
        cache=tmp_path / "c",
        quiet=True,
        root=tmp_path,
    )
    assert [path.name for path in found.paths] == ["d.gif", "e.jpg", "f.jpg", "g.jpg"]
    assert [name for name, _ in found.report.refused] == ["a.jpg", "b.jpg", "c.png", "gone.jpg"]
    assert ("f.jpg", "turned as its EXIF data say") in found.report.notes
    text = str(found.report)
    assert text.startswith("4 pictures used (4 computed now), 4 files left out")
    assert "left out: c.png: this file is too large" in text


def extract_damaged(tmp_path, number, seed):
    for place, content in enumerate(mutations(number, seed)):
        (tmp_path / f"{place}.jpg").write_bytes(content)
    paths = sorted(tmp_path.glob("*.jpg"))
    found = extract_pictures(paths, Extractor(TinyBackbone()), cache=tmp_path / "c", quiet=True)
    assert found.report.used + len(found.report.refused) == number
    regions, _ = found.features.gather(torch.arange(found.report.used))
    assert regions.isfinite().all()
    return found.report


def test_damaged_pictures_never_stop_it(tmp_path):
    assert extract_damaged(tmp_path, 100, seed=2).used > 5


@pytest.mark.slow
def test_two_thousand_damaged_pictures_never_stop_it(tmp_path):
    assert extract_damaged(tmp_path, 2000, seed=3).used > 100


def test_settings_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match="batch_size 0"):
        extract_pictures([], Extractor(TinyBackbone()), cache=tmp_path, batch_size=0)
    assert extract_pictures([], Extractor(TinyBackbone()), cache=tmp_path, quiet=True).report.used == 0


def test_known_and_new_pictures_keep_their_order(tmp_path):
    """Also where far more are known than fit into a batch."""
    paths = write(tmp_path, **{f"{n:02}_png": encoded(photo(n), "PNG") for n in range(30)})
    extract_pictures(paths[1:-1], Extractor(TinyBackbone()), cache=tmp_path / "c", quiet=True)
    store = FeatureCache(tmp_path / "c", Extractor(TinyBackbone()).identity, 4)
    extraction = Extraction(paths, Extractor(TinyBackbone()), store, batch_size=3, quiet=True)
    found = list(extraction)
    assert [picture.path for picture in found] == paths
    assert (extraction.report.computed, extraction.progress.done) == (2, 30)
    for picture, regions in zip(found, store.get([picture.key for picture in found]), strict=True):
        assert torch.equal(picture.regions, regions), "as they are stored"


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode here")
def test_a_name_that_is_no_text_is_left_out(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.png")
    path.write_bytes(encoded(photo(1), "PNG"))
    report = extract_pictures(
        [path], Extractor(TinyBackbone()), cache=tmp_path / "c", root=tmp_path, quiet=True
    ).report
    assert report.refused == [("caf\\udce9.png", "its name is not UTF-8: rename it")]
