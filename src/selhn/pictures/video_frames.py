"""Some key frames of a video, and what its container says about it.

Used by the program of a decoder only, which imports this file without the package around it.
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, ImageChops, ImageStat

if TYPE_CHECKING or __name__ == "selhn.pictures.video_frames":
    from selhn.pictures.picture_headers import Missing, Refused, reason, too_large
else:
    from picture_headers import Missing, Refused, reason, too_large

APART, MOST = 2.0, 16
"""Least seconds between two frames, and most frames of one video."""
SMALL, SAME, DULL = (16, 16), 6.0, 4.0
"""Size in which frames are compared; largest mean difference of equal ones and deviation of a blank one."""
LARGEST = 1280
"""Pixels of the longer side of a frame that is not resized otherwise."""
SLOW = 3
"""How much longer a frame takes than a picture of its size."""
# Only these: others read further files, or no camera writes them.
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
CODECS = (
    "h264,hevc,av1,libdav1d,vp8,vp9,libvpx,libvpx-vp9,mpeg4,mpeg1video,mpeg2video,mjpeg,h263,prores,dnxhd,dvvideo,"
    "msmpeg4,msmpeg4v2,wmv1,wmv2,wmv3,vc1,rawvideo,ffv1,theora"
)
PLACE = re.compile(r"([+-]\d{1,2}(?:\.\d+)?)([+-]\d{1,3}(?:\.\d+)?)(?:[-+/]|$)")
DATES = ("com.apple.quicktime.creationdate", "creation_time")
"""The first is by the camera's own clock, the second usually in UTC."""
MAKERS = ("com.apple.quicktime.make", "com.android.manufacturer", "make")
MODELS = ("com.apple.quicktime.model", "com.android.model", "model")
PLACES = ("com.apple.quicktime.location.iso6709", "location", "location-eng")


def frames(request: dict[str, Any], allow_seconds: Any) -> tuple[list[Image.Image], dict[str, Any]]:
    """Frames that differ, and what to say about them; `only` asks for the one at some seconds, or for the "first"."""
    try:
        import av
    except ImportError:
        raise Missing("video", "av") from None
    try:
        with _opened(request["video"]) as file, av.open(
            file, options={"format_whitelist": CONTAINERS, "codec_whitelist": CODECS}, metadata_errors="replace"
        ) as container:  # fmt: skip
            return _frames(container, request, allow_seconds)
    except (av.error.DecoderNotFoundError, av.error.PatchWelcomeError):
        raise Refused("is a video in a format that is not read here: convert it to MP4 (H.264)") from None
    except MemoryError:
        raise
    except (av.error.FFmpegError, OSError, ValueError, ArithmeticError) as broken:
        why = getattr(broken, "strerror", None) or reason(broken)
        raise Refused(f"cannot be read as a video ({why}): copy or export it again") from None


def _opened(path: str) -> Any:
    """The file; a link or a pipe that has replaced it since it was found is not opened."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        file.close()
        raise Refused("is no longer a file")
    return file


def _frames(
    container: Any, request: dict[str, Any], allow_seconds: Any
) -> tuple[list[Image.Image], dict[str, Any]]:
    if not container.streams.video:
        raise Refused(
            "has no pictures in it, only sound" if container.streams.audio else "has no pictures in it"
        )
    stream, most_pixels = container.streams.video[0], request["most_pixels"]
    codec = stream.codec_context
    if codec is None:
        raise Refused("is a video in a format that is not read here: convert it to MP4 (H.264)")
    if codec.width * codec.height > most_pixels:
        raise too_large(codec.width, codec.height, most_pixels)
    codec.thread_count, codec.skip_frame, codec.options = 1, "NONKEY", {"max_pixels": str(most_pixels)}
    only = request.get("only")
    each = request["seconds_per_megapixel"] * SLOW * codec.width * codec.height / 1e6
    seconds = request["seconds"] + each * (MOST + 2)
    allow_seconds(seconds)
    until = _until(seconds / 2, request["deadline"] / 3)
    start = (container.start_time or 0) / 1e6
    found = (_drawn(at, frame, request) for at, frame in _key_frames(container, stream, start, only, until))
    chosen = _differing(found, first_only=only is not None)
    if not chosen:
        raise Refused("has no frame that can be decoded: copy or export it again")
    images, first = [one.image for one in chosen], chosen[0]
    said = {"size": first.image.size, "at": [one.at for one in chosen], "notes": [], "format": "video"}
    return images, {**said, "facts": {**_describe(container), "size": first.size}}


def _until(cpu: float, clock: float) -> Any:
    """Whether there is time for another frame: at half of the limit, it stops with the frames so far."""
    end, last = time.monotonic() + clock, time.process_time() + cpu
    return lambda: time.monotonic() < end and time.process_time() < last


def _key_frames(
    container: Any, stream: Any, start: float, only: Any, until: Any
) -> Iterator[tuple[float, Any]]:
    """Key frames in order with their seconds, spread evenly up to the last one, whatever the header says."""
    import av

    def at(seconds: float) -> tuple[float, Any] | None:
        container.seek(int((start + seconds) * 1e6))
        with suppress(av.error.InvalidDataError, av.error.EOFError, StopIteration):
            frame = next(container.decode(stream))
            return (frame.time or 0.0) - start, frame
        return None

    if isinstance(only, int | float):
        found = at(only + 0.002)  # times are rounded
        if found is not None:
            yield found
        return
    try:
        last = at(container.duration / 1e6) if container.duration and container.duration > 0 else None
    except av.error.FFmpegError:
        last = None
    if last is None:
        yield from _one_after_another(container, stream, start, until)
        return
    number, before = min(MOST, 1 + int(last[0] / APART)), -1.0
    for place in range(number - 1):
        found = at(last[0] * place / (number - 1))
        if found is not None and before < found[0] < last[0]:
            before = found[0]
            yield found
        if not until():
            break
    yield last


def _one_after_another(container: Any, stream: Any, start: float, until: Any) -> Iterator[tuple[float, Any]]:
    """For a file that does not say how long it is: from its beginning on, at growing distances."""
    import av

    container.seek(0)
    following, apart, number = 0.0, APART, 0
    with suppress(av.error.FFmpegError):  # cut off: what came before it counts
        for frame in container.decode(stream):
            seconds = (frame.time or 0.0) - start
            if number == 0 or seconds >= following:
                yield seconds, frame
                following, apart, number = seconds + apart, apart * 1.5, number + 1
            if number == MOST or not until():
                return


class _Frame(NamedTuple):
    at: float
    image: Image.Image
    """The frame, upright, in the requested size."""
    size: tuple[int, int]
    """Size in the video, upright."""


def _differing(found: Iterator[_Frame], first_only: bool) -> list[_Frame]:
    """The frames, without those that repeat an earlier one, and without blank ones unless all are blank."""
    chosen: list[_Frame] = []
    known: list[Image.Image] = []
    dull: list[_Frame] = []
    for frame in found:
        small = frame.image.resize(SMALL, Image.Resampling.BOX).convert("YCbCr")
        if max(ImageStat.Stat(small).stddev) < DULL:
            dull = dull or [frame]
        elif all(max(ImageStat.Stat(ImageChops.difference(small, other)).mean) >= SAME for other in known):
            chosen.append(frame)
            known.append(small)
            if first_only:
                break
    return chosen or dull


def _drawn(at: float, frame: Any, request: dict[str, Any]) -> _Frame:
    if frame.width * frame.height > request["most_pixels"]:  # its header lied
        raise too_large(frame.width, frame.height, request["most_pixels"])
    turned = round(frame.rotation / 90) % 4
    image: Image.Image = frame.to_image().rotate(90 * turned, expand=True)
    size = image.size
    if request.get("resized"):
        image = image.resize(tuple(request["resized"]), Image.Resampling.BICUBIC)
    else:
        image.thumbnail((request.get("within") or LARGEST,) * 2, Image.Resampling.LANCZOS)
    return _Frame(round(max(0.0, at), 3), image, size)


def _describe(container: Any) -> dict[str, Any]:
    """What `selhn.pictures.facts` checks."""
    told = {name.lower(): value for name, value in container.metadata.items()}
    first = lambda names: next((told[name] for name in names if told.get(name)), None)  # noqa: E731
    facts: dict[str, Any] = {
        "camera": (first(MAKERS), first(MODELS)),
        "dates": [told.get(name) for name in DATES],
    }
    if place := PLACE.match(first(PLACES) or ""):
        for name, number, sides in zip(("latitude", "longitude"), map(float, place.groups()), ("NS", "EW")):
            facts[name] = (sides[number < 0], [abs(number), 0.0, 0.0])
    if container.duration and 0 < container.duration < 1e6 * 1e6:
        facts["duration"] = round(container.duration / 1e6, 1)
    return facts
