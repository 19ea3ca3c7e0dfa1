"""Moments of videos: found like pictures, one item per file in plans and lists, and bounded whatever a file holds."""

import shutil
import struct

import numpy as np
import pytest
from picture_cases import TinyBackbone, encoded, heic, photo, stand_in, video
from pictures.test_library import small_model

from selhn.base.errors import MissingExtra, SelhnError
from selhn.cli.answers import answers
from selhn.cli.search import find_hits
from selhn.pictures import Extractor, Library, decoding, index_pictures, picture_files
from selhn.pictures.dataset import picture_split
from selhn.pictures.decoder_processes import end_decoders
from selhn.pictures.decoding import Moment, TooSlow, decode_picture, decode_video
from selhn.pictures.picture_files import drawn, picture_source
from selhn.pictures.video_frames import MOST
from selhn.search.items import moment_ids, seconds_of, whole
from selhn.search.near_duplicates import near_duplicates

pytest.importorskip("av", reason="needs PyAV: pip install av")
SIZE = (64, 48)
IMAGES = [photo(number, SIZE) for number in range(3)]


@pytest.fixture(scope="module")
def clip():
    """Three pictures for four seconds each."""
    return video(IMAGES)


def distance(one, other):
    return np.abs(np.asarray(one, dtype=int) - np.asarray(other)).mean()


def frames(tmp_path, content, name="clip.mp4", **request):
    (tmp_path / name).write_bytes(content)
    return decode_video(tmp_path / name, name, **request)


@pytest.mark.parametrize(
    ("kind", "codec"), [("mp4", "libx264"), ("mkv", "mpeg4"), ("webm", "libvpx-vp9"), ("avi", "mpeg4")]
)
def test_one_frame_of_each_scene(tmp_path, kind, codec):
    found = frames(tmp_path, video(IMAGES, kind, codec), f"clip.{kind}")
    assert [frame.at for frame in found] == [0, 4, 8]
    for frame, image in zip(found, IMAGES):
        assert distance(frame.image, image) < 16, "MPEG-4 is coarse"
    assert found[0].facts == {"width": 64, "height": 48, "duration": 12.0}
    path = tmp_path / f"clip.{kind}"
    for at, image in ((None, IMAGES[0]), (4.0, IMAGES[1]), (8.0, IMAGES[2])):
        assert distance(decode_picture(Moment(path, at), "clip").image, image) < 16


def test_what_a_phone_writes(tmp_path):
    apple = "com.apple.quicktime."
    told = {"creation_time": "2019-06-14T15:03:22.000000Z"}
    assert frames(tmp_path, video(IMAGES[:1], told=told))[0].facts["taken"] == "2019-06-14 15:03:22"
    told |= {
        f"{apple}creationdate": "2019-06-14T17:03:22+0200",
        f"{apple}location.ISO6709": "-48.8582+002.2945+035/",
    }
    told |= {f"{apple}make": "Apple", f"{apple}model": "iPhone 12"}
    facts = frames(tmp_path, video(IMAGES[:1], told=told))[0].facts
    assert (facts["taken"], facts["camera"]) == ("2019-06-14 17:03:22", "Apple iPhone 12")
    assert (facts["latitude"], facts["longitude"]) == (-48.8582, 2.2945)
    lies = {
        "creation_time": "0000-00-00T00:00:00Z",
        f"{apple}location.ISO6709": "+99.9+999.9/",
        f"{apple}make": "\0\1",
    }
    assert frames(tmp_path, video(IMAGES[:1], told=lies))[0].facts == {
        "width": 64,
        "height": 48,
        "duration": 4.0,
    }


@pytest.mark.parametrize(
    ("turn", "matrix"), [(90, (0, -1, 1, 0)), (180, (-1, 0, 0, -1)), (270, (0, 1, -1, 0))]
)
def test_frames_are_upright(tmp_path, clip, turn, matrix):
    """A phone writes how it was held into the header of the track: x and y are multiplied by a matrix."""
    at = clip.index(b"tkhd") + 4 + 40
    a, b, c, d = (number * 2**16 for number in matrix)
    turned = clip[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 2**30) + clip[at + 36 :]
    found = frames(tmp_path, turned)[0]
    upright = IMAGES[0].rotate(turn, expand=True)
    assert distance(found.image, upright) < 8
    assert (found.facts["width"], found.facts["height"]) == upright.size


def test_repeated_and_black_frames_are_left_out(tmp_path):
    black = photo().resize(SIZE).point(lambda value: 0)
    found = frames(tmp_path, video([black, IMAGES[0], IMAGES[1], IMAGES[0]]))
    assert [frame.at for frame in found] == [4, 8]
    assert decode_picture(Moment(tmp_path / "clip.mp4"), "clip").at == 4
    assert [frame.at for frame in frames(tmp_path, video([black]))] == [0], "if there is nothing else"


def test_frames_are_few_however_long_it_is(tmp_path):
    found = frames(tmp_path, video([photo(number, SIZE) for number in range(40)], each=2, rate=1, gop=1))
    assert len(found) == MOST
    gaps = np.diff([frame.at for frame in found])
    assert gaps.min() >= 2
    assert gaps.max() <= 8, "spread over the whole"


def with_duration(content, seconds):
    """The header of the film, and of its track, say another length, in thousandths."""
    for name, at in ((b"mvhd", 20), (b"tkhd", 24)):
        place = content.index(name) + at
        content = content[:place] + struct.pack(">I", 1000 * seconds) + content[place + 4 :]
    return content


def test_a_duration_that_is_not_true(tmp_path, clip):
    assert [frame.at for frame in frames(tmp_path, with_duration(clip, 4_000_000))] == [0, 4, 8]
    assert [frame.at for frame in frames(tmp_path, with_duration(clip, 0))] == [0, 4, 8]


def test_a_stream_without_an_end(tmp_path):
    """Its length is not known: frames from the beginning on, at growing distances."""
    endless = video([photo(number, SIZE) for number in range(30)], "mkv", "mpeg4", live="1")
    found = [frame.at for frame in frames(tmp_path, endless, "live.mkv")]
    assert found[0] == 0
    assert len(found) <= MOST
    assert all(np.diff(found) >= 2)


def too_wide(content):
    """Its pictures, which are JPEGs, say that they have 16,384 x 16,384 pixels."""
    at = content.index(b"\xff\xc0\0\x11\x08") + 5
    return content.replace(
        content[at - 5 : at + 4], content[at - 5 : at] + struct.pack(">HH", 16_384, 16_384)
    )


def test_whatever_it_holds_gets_one_sentence(tmp_path, clip):
    avi = video(IMAGES[:1], "avi", "mjpeg", form="yuvj420p")
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\n/etc/passwd\n#EXT-X-ENDLIST\n"
    for content, reason in (
        (b"", "cannot be read as a video"),
        (clip[: len(clip) // 2], "cannot be read as a video"),
        (np.random.default_rng(0).bytes(5000), "cannot be read as a video"),
        (playlist, "cannot be read as a video"),
        (b"ffconcat version 1.0\nfile clip.mp4\n", "cannot be read as a video"),
        (encoded(photo(), "GIF"), "cannot be read as a video"),
        (video([]), "has no pictures in it, only sound"),
        (too_wide(avi), "is too large|has no frame that can be decoded"),
        (clip.replace(b"avc1", b"zzzz"), "is a video in a format that is not read here: convert it to MP4"),
        (clip[: clip.index(b"mdat") + 4] + bytes(len(clip)), "cannot be read as a video|has no frame"),
    ):
        with pytest.raises(SelhnError, match=f"^clip.mp4 ({reason})") as caught:
            frames(tmp_path, content)
        assert "\n" not in str(caught.value)
    with pytest.raises(SelhnError, match=r"is too large \(64 x 48 pixels\)"):
        frames(tmp_path, clip, most_pixels=3000)
    cut = video(IMAGES, "mkv", "mpeg4")
    assert frames(tmp_path, cut[: len(cut) // 2], "cut.mkv")[0].at == 0, "what came before the cut"
    (tmp_path / "link.mp4").symlink_to(tmp_path / "clip.mp4")
    with pytest.raises(SelhnError, match="cannot be read as a video"):
        decode_picture(Moment(tmp_path / "link.mp4"), "link.mp4")


def test_time_and_memory_are_bounded(tmp_path, clip, monkeypatch):
    large = video([photo(1, (1920, 1080))], each=1)
    end_decoders()  # the next one has no memory left over from larger pictures
    frames(tmp_path, clip)
    monkeypatch.setitem(decoding.LIMITS, "memory", 2**22)
    with pytest.raises(SelhnError, match="does not fit into memory|cannot be|has no frame"):
        frames(tmp_path, large)
    monkeypatch.setitem(decoding.LIMITS, "memory", 2**30)
    monkeypatch.setattr(
        decoding, "LIMITS", {**decoding.LIMITS, "seconds": 0.001, "seconds_per_megapixel": 0.0}
    )
    end_decoders()
    with pytest.raises(TooSlow, match=r"takes too long to decode: save it again as an ordinary MP4"):
        frames(tmp_path, large)


@pytest.fixture
def pictures(tmp_path, monkeypatch, clip):
    """Two pictures and two videos, one of them a copy in another folder."""
    stand_in(small_model, lambda: Extractor(TinyBackbone()), monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "Pictures"
    (place / "trip").mkdir(parents=True)
    (place / "clip.mp4").write_bytes(clip)
    (place / "trip" / "other.mp4").write_bytes(video([photo(7, SIZE), photo(8, SIZE)]))
    for number in (5, 6):
        (place / f"{number}.png").write_bytes(encoded(photo(number, SIZE), "PNG"))
    return place


@pytest.fixture
def index_of(pictures, tmp_path):
    return lambda: index_pictures(pictures, tmp_path / "i", quiet=True)


def files(index):
    return sorted(record.metadata["file"] for record in index.records(moments=False))


def test_a_video_is_one_item_with_moments(pictures, index_of):
    done = index_of()
    index, name = done.index, str(pictures / "clip.mp4")
    assert (done.added, done.report.used, index.count(moments=False), len(index)) == (4, 4, 4, 7)
    assert files(index) == ["5.png", "6.png", "clip.mp4", "other.mp4"]
    record = index.get(name)
    assert (record.metadata["moments"], record.metadata["duration"]) == ([4.0, 8.0], 12.0)
    assert moment_ids(record) == [f"{name}#t=4", f"{name}#t=8"]
    shared = {key: value for key, value in record.metadata.items() if key != "moments"}
    assert index.get(f"{name}#t=8").metadata == {**shared, "moment": 8.0}
    again = index_of()
    assert (again.added, again.changed, again.removed, again.plan.unchanged) == (0, 0, 0, 4)
    assert [found.id for found in index.records("duration > 10", moments=False)] == [name]


def test_search_finds_the_moment(pictures, index_of):
    index = index_of().index
    name = str(pictures / "clip.mp4")
    for image, moment in zip(IMAGES, (None, 4.0, 8.0)):
        best = index.search(image, k=4)
        assert best[0].id == (name if moment is None else f"{name}#t={moment:g}")
        assert sorted(whole(hit.id) for hit in best) == sorted(
            record.id for record in index.records(moments=False)
        )
    assert len({whole(hit.id) for hit in index.search("a dog", k=3)}) == 3
    like = index.search(like=f"{name}#t=4", k=9)
    assert name not in {whole(hit.id) for hit in like}
    assert len(like) == 3
    shown = answers(index.search(IMAGES[1], k=1))
    assert "clip.mp4 at 0:04" in shown
    assert "clip.mp4#" not in answers(find_hits(index, None, 9, "image", None, "newest"))
    small = decode_picture(drawn(picture_source(f"{name}#t=4"), name, 48), "a").image
    assert distance(small, IMAGES[1].resize(small.size)) < 12


def test_what_changes_with_the_file(pictures, index_of, tmp_path):
    """Renamed, replaced by another, made shorter and removed: its moments go with it."""
    index = index_of().index
    index.albums.change("Favourites", add=[f"{pictures / 'clip.mp4'}#t=4"])
    assert index.albums.all() == {"Favourites": [str(pictures / "clip.mp4")]}
    assert {whole(hit.id) for hit in index.search(IMAGES[2], k=5, where='album = "Favourites"')} == {
        str(pictures / "clip.mp4")
    }
    assert index.search(IMAGES[2], k=5, where='album = "Favourites"')[0].id.endswith("#t=8")
    (pictures / "clip.mp4").rename(pictures / "new.mp4")
    done = index_of()
    assert (done.added, done.removed, done.report.computed, len(done.index)) == (1, 1, 0, 7), (
        "by their content"
    )
    assert done.index.albums.all() == {"Favourites": [str(pictures / "new.mp4")]}
    (pictures / "new.mp4").write_bytes(video(IMAGES[:2], each=3))
    done = index_of()
    assert (done.added, done.changed, done.removed, len(done.index)) == (0, 1, 0, 6)
    assert done.index.get(str(pictures / "new.mp4")).metadata["moments"] == [5.0]
    shutil.copy(pictures / "new.mp4", pictures / "copy.mp4")
    groups = [set(group.ids) for group in near_duplicates(index_of().index)]
    assert any({str(pictures / name) for name in ("copy.mp4", "new.mp4")} <= group for group in groups)
    assert all(whole(name) == name for group in groups for name in group)
    (pictures / "new.mp4").write_bytes(b"no video any more")
    done = index_of()
    assert (done.removed, [name for name, _ in done.report.refused]) == (1, ["new.mp4"])
    (pictures / "copy.mp4").unlink()
    assert index_of().removed == 1
    left = index_of().index
    assert (files(left), len(left)) == (["5.png", "6.png", "other.mp4"], 4)


def test_a_killed_start_is_continued(pictures, index_of, tmp_path):
    """The item of the file comes last: without it the video is new, however many of its moments are there."""
    index, name = index_of().index, str(pictures / "clip.mp4")
    index.store.delete([name])
    assert f"{name}#t=4" in index
    done = index_of()
    assert (done.added, len(done.index)) == (1, 7)
    done.index.store.delete([name])
    (pictures / "clip.mp4").unlink()
    assert index_of().index.count(moments=True) == 4, "moments of a file that is gone"


def test_changed_and_deleted_by_hand(pictures, index_of, tmp_path):
    index_of()
    library, name = Library.open(tmp_path / "i"), str(pictures / "clip.mp4")
    assert library.picture(f"{name}#t=4") == pictures / "clip.mp4"
    library.change(f"{name}#t=4", ["a red ball"], {"tag": "mine", "moment": 99})
    assert {record.id: record.metadata.get("moment") for record in library.index.records('tag = "mine"')} == {
        name: None, f"{name}#t=4": 4.0, f"{name}#t=8": 8.0,
    }  # fmt: skip
    assert library.index.get(name).captions == ("a red ball",)
    assert library.index.get(f"{name}#t=4").captions == ()
    library.delete(f"{name}#t=4")
    assert [one for one in library.index.ids() if whole(one) == name] == []
    assert (pictures / "clip.mp4").exists()
    library.index.delete([str(pictures / "trip" / "other.mp4")])
    assert files(library.index) == ["5.png", "6.png"]


def test_without_the_package_videos_are_counted(pictures, index_of, monkeypatch, tmp_path):
    index_of()
    monkeypatch.setattr(picture_files, "find_spec", lambda name: None if name == "av" else name)
    done = index_of()
    assert (done.removed, len(done.index)) == (0, 7), "what is in the index stays there"
    assert "need a package: 2 .mp4 (pip install av)" in str(done)
    for number in (5, 6):
        (pictures / f"{number}.png").unlink()
    with pytest.raises(MissingExtra, match="pip install av"):
        index_pictures(pictures, tmp_path / "j", quiet=True)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "av.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path / "none")
    end_decoders()
    with pytest.raises(MissingExtra, match="clip.mp4 is a video, which needs a package .*: pip install av"):
        decode_video(pictures / "clip.mp4", "clip.mp4")
    end_decoders()


def test_beside_pictures(pictures, clip, tmp_path):
    """What moves in a live photograph is no video of its own, and a data set has pictures only."""
    (pictures / "live.heic").write_bytes(heic(photo(9)))
    (pictures / "live.MOV").write_bytes(clip)
    found = Library.scan(pictures)
    assert found.skipped == {"moving parts of live photographs": 1}
    assert {path.name for path in found.without_videos().pictures} == {"5.png", "6.png", "live.heic"}
    split, report = picture_split(pictures, Extractor(TinyBackbone()))
    assert len(split.image_names) == 3
    assert [why.partition(":")[0] for _, why in report.refused] == ["is a video"] * 2


def test_ids():
    assert [whole(name) for name in ("a.MP4#t=1.5", "a.jpg#t=1", "a.mp4#t=x", "b.mov")] == [
        "a.MP4", "a.jpg#t=1", "a.mp4#t=x", "b.mov",
    ]  # fmt: skip
    assert [seconds_of(name) for name in ("a.MP4#t=1.5", "a.mp4")] == [1.5, None]
