"""A small collection of pictures and a real server of it: `python tiny.py FOLDER [key=value ...]`."""

import contextlib
import resource
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import torch
from picture_cases import TinyBackbone, encoded, photo, video

from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Extractor, Library
from selhn.pictures.plans import picture_facts
from selhn.search import Index, Item
from selhn.serve.collection import Collection
from selhn.text import Vocabulary

COLOURS = ("red", "green", "blue", "grey")
WORDS = [f"a {colour} {thing} in the snow" for colour in COLOURS for thing in ("ball", "dog", "house")]
NUMBER = 12
SCENES = [photo(number, (96, 64)) for number in (50, 51, 52)]
SHAPES = ((60, 40), (40, 60), (50, 50), (90, 30))


def small_model(name="rvse", **settings):
    torch.manual_seed(0)
    return create_model(
        name, **{"tokenizer": Vocabulary.build(WORDS, 1), "feature_dim": 4, "dim": 8, **settings}
    ).eval()


def make_collection(folder, place=None, more=0, videos=0):
    """Twelve pictures in two folders, four of them with a licence, in an index as `selhn index` writes it.

    Args:
        more: pictures of several shapes without captions, five on every third day before 2024-03-02.
        videos: 1 for clip.webm, three pictures for four seconds each, and old.avi, which no browser plays.
    """
    root = folder / "Pictures"
    (root / "trip").mkdir(parents=True)
    extractor = Extractor(TinyBackbone())
    about = {"extractor": "tiny", "features": extractor.identity}
    index = Index.create(towers_of(small_model()), place or folder / "pictures.index", about=about)
    items = []
    for number in range(NUMBER):
        image = photo(number, (60, 40))
        path = root / ("trip" if number % 2 else ".") / f"{number:02}.png"
        path.write_bytes(encoded(image, "PNG"))
        facts = picture_facts(path, root) | {"colour": COLOURS[number % 4]}
        if number % 3 == 0:
            facts |= {
                "license": "CC BY 2.0",
                "license_url": "https://example.org/by",
                "source": "https://example.org/1",
            }
        items.append(Item(str(path), extractor([image])[0], None, (WORDS[number], f"number {number}"), facts))
    for number in range(more):
        size = SHAPES[number % len(SHAPES)]
        image = photo(NUMBER + number, size)
        path = root / f"more{number:03}.png"
        path.write_bytes(encoded(image, "PNG"))
        taken = datetime(2024, 3, 1, 12) - timedelta(days=3 * (number // 5), minutes=number % 5)
        facts = {"taken": str(taken), "width": size[0], "height": size[1], "camera": "Tiny One"}
        items.append(Item(str(path), extractor([image])[0], None, (), picture_facts(path, root) | facts))
    index.add(items)
    library = Library(index, extractor, [root], "Tiny pictures")
    if videos:
        (root / "clip.webm").write_bytes(video(SCENES, "webm", "libvpx-vp9"))
        (root / "old.avi").write_bytes(video(SCENES[:1], "avi", "mpeg4"))
        library.apply(library.plan(library.scan(root)), cache=folder / "cache", quiet=True)
    return Collection(library)


def take_all_descriptors(kept=[]):  # noqa: B006
    with contextlib.suppress(OSError):
        while True:
            kept.append(open("/dev/null"))  # noqa: SIM115
    return {}


def main():
    from selhn.serve.app import create_app
    from selhn.serve.limits import Limits
    from selhn.serve.service import Service
    from selhn.serve.start import listen, run_server
    from selhn.serve.watched_runs import WatchedRuns

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    settings = dict(pair.split("=", 1) for pair in sys.argv[2:])
    token = settings.pop("token", None)
    with_bug = settings.pop("bug", None) is not None
    slow = float(settings.pop("slow", 0))
    more, videos = (int(settings.pop(name, 0)) for name in ("more", "videos"))
    greedy = settings.pop("greedy", None) is not None
    unnamed = settings.pop("unnamed", None) is not None
    if descriptors := int(settings.pop("descriptors", 0)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    limits = Limits(**{key: float(value) if "." in value else int(value) for key, value in settings.items()})
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    collection = make_collection(folder, None, more, videos)
    if unnamed:
        collection = Collection(Library(collection.index))
    service = Service(
        collection,
        WatchedRuns(folder / "runs"),
        limits=limits,
        writable=True,
    )
    if with_bug:
        service.collection.fields = lambda: 1 // 0
    if slow:
        answer = service.collection.answer
        service.collection.answer = lambda *asked: time.sleep(slow) or answer(*asked)
    if greedy:
        service.collection.fields = take_all_descriptors
    listening = listen("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    run_server(create_app(service, token=token), listening, limits)


if __name__ == "__main__":
    main()
