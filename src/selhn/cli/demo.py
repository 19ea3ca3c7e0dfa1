"""`selhn demo`: one model, two losses, then a search; with `--pictures`, a search of photographs."""

import os
import shutil
import sys
from pathlib import Path

from selhn.base.errors import MissingExtra, SelhnError
from selhn.cli.answers import SIDE, Tile, answer_tiles, contact_sheet, save_picture
from selhn.data import Data, load_data
from selhn.data.world import world_scene
from selhn.data.world.render import render
from selhn.diagnose import training_figure
from selhn.eval import Metrics
from selhn.pictures import Library, index_pictures, open_picture
from selhn.pictures.examples import ANNOTATIONS, PICTURES
from selhn.pictures.picture_folders import picture_id
from selhn.reproduce.run_processes import outcomes
from selhn.runs import RunFolder
from selhn.search import Index
from selhn.towers import open_towers
from selhn.training import get_recipe, override

LOSSES = {
    "T-HN": ("hn", "every anchor learns from its hardest negative"),
    "SelHN": ("selhn", "an anchor learns from its hardest negative if that is distinct, else from all"),
}
QUERIES_ABOUT = (1, 4, 9)
"""Scenes of the test split whose first caption is searched for."""
PICTURE_QUERIES: tuple[tuple[str | None, str | None], ...] = (
    ("people skiing in the snow", None),
    ("a boy doing a trick on a skateboard", None),
    ("two bears", None),
    (None, "000000129648.jpg"),
    ("two people on the beach", "000000078499.jpg"),
)
"""Queries: a sentence, an example picture, or both. The ready model is not good at the third."""


def run_demo(out: Path, images: int, epochs: int) -> None:
    """Train twice, compare, draw, search; all files are in `out`."""
    print(f"A generated world: {images:,} scenes to learn from, five sentences each. For example:")
    data = load_data("world", images=images)
    for caption in data.train.captions[:2]:
        print(f"    {caption}")
    print("\nOne model (RVSE) is now trained twice at the same time, with one seed and the same settings:")
    for name, (_, words) in LOSSES.items():
        print(f"    {name:6} {words}")
    _train_side_by_side(images, epochs, out)
    _compare(out)
    _search(data, out)
    selhn = _command()
    print(f"""
What to type next:
    {selhn} search {out / "SelHN"} "a red ball"    # search for something else
    {selhn} train rvse_selhn_world epochs=3    # train with a recipe
    {selhn} train --list    # every recipe, with the paper's numbers
    {selhn} data check FOLDER    # look at your own features and captions""")


def _train_side_by_side(images: int, epochs: int, out: Path) -> None:
    """Both runs at the same time, each on one core, in place of those of an earlier demo."""
    small = [f"data.images={images}", f"batch_size={min(128, 5 * images)}", f"epochs={epochs}"]
    small += ["model.dim=128", "model.word_dim=128", "drop_regions=0", "corrupt_words=0"]
    small += ["decay_at=[]", "device=cpu"]
    tasks = {}
    for name, (loss, _) in LOSSES.items():
        if (out / name / "config.yaml").exists():
            shutil.rmtree(out / name)
        tasks[name] = override(get_recipe(f"rvse_{loss}_world"), small), out / name, False, f"{name:6} "
    for name, outcome in outcomes(tasks, jobs=len(tasks), cores=1):
        if outcome.failed:
            raise SelhnError(f"the training with {name} failed: {outcome.said}")


def _compare(out: Path) -> None:
    print("\nOn unseen scenes (R@1, R@5, R@10 for images to texts and for texts to images; their sum):")
    runs = {name: RunFolder(out / name) for name in LOSSES}
    for name, run in runs.items():
        results = run.results
        assert results is not None
        print(f"    {name:6} {Metrics.from_dict(results.test)}{'   <- stalled' if results.stalled else ''}")
    try:
        logs = {name: [run.log()] for name, run in runs.items()}
        print(f"Curves: {training_figure(logs, out / 'training.png')}")
    except MissingExtra as missing:
        print(f"No curves: {missing}")


def _search(data: Data, out: Path) -> None:
    index = Index.build(open_towers(out / "SelHN"), data.test, path=out / "index")
    print(f"\nSearch among the {len(index)} unseen scenes, with the model trained by SelHN:")
    for number, scene in enumerate(QUERIES_ABOUT, 1):
        query = data.test.captions[5 * scene]
        hits = index.search(query, k=5)
        wanted = data.test.image_names[scene]
        rank = next((i for i, hit in enumerate(hits, 1) if hit.id == wanted), None)
        scenes = [world_scene(data.test, data.test.image_names.index(hit.id)) for hit in hits]
        tiles = [  # best first; the scene that was described has a green frame
            Tile(render(scene, SIDE), f"{rank}.  {hit.score:.3f}", hit.id == wanted)
            for rank, (hit, scene) in enumerate(zip(hits, scenes), 1)
        ]
        path = out / f"search_{number}.png"
        save_picture(contact_sheet([(f"“{query}”", tiles)]), path)
        found = f"answer {rank}" if rank else "not among the five"
        print(f'    "{query}"\n        the scene it describes is {found}; pictures: {path}')


def run_picture_demo(out: Path) -> None:
    """Index the example pictures with the ready model, search them, and draw the answers."""
    print("Indexing the example pictures. The shipped model has never seen them:")
    done = index_pictures(PICTURES, out / "pictures.index", captions=ANNOTATIONS, cache=out / "features")
    print(f"{done.index}\n\nOnly pictures are searched; captions are printed to check the answers.")
    library, rows = Library(done.index), []
    for text, like in PICTURE_QUERIES:
        asked = None if like is None else picture_id(PICTURES / like)
        hits = done.index.search(library.query(text, asked), k=5)
        parts = [text and f"“{text}”", like and "a picture like the framed one"]
        title = " and ".join(filter(None, parts))
        judged = [hit.fit for hit in hits if hit.fit is not None]
        title += "   (no sure match)" if judged and not hits[0].fits else ""
        own = [] if asked is None else [Tile(open_picture(asked).image, "asked with", framed=True)]
        rows.append((title, own + answer_tiles(library, hits)))
        print(f"\n    {title}")
        for rank, hit in enumerate(hits, 1):
            print(f"        {rank}  {hit.score:.3f}  {Path(hit.id).name}  {hit.captions[0]}")
    save_picture(contact_sheet(rows), out / "pictures.png")
    asked_with = [(caption, record.id) for record in done.index.records() for caption in record.captions]
    found = done.index.search_many([caption for caption, _ in asked_with], k=5, find="image")
    ids = [[hit.id for hit in hits] for hits in found]
    first = sum(own == best[0] for best, (_, own) in zip(ids, asked_with)) / len(ids)
    among_five = sum(own in best for best, (_, own) in zip(ids, asked_with)) / len(ids)
    print(f"""
Searching for each of their captions, the right picture is the first answer
in {first:.0%} of the searches, and among the first five in {among_five:.0%}.
Pictures: {out / "pictures.png"}
What to type next:
    {_command()} search "food on a plate" --index {out / "pictures.index"}
    {_command()} photos ~/Pictures    # search your own, in the browser""")


def _command() -> str:
    """How this program was started, as it can be typed again."""
    if shutil.which("selhn"):
        return "selhn"
    started = Path(sys.argv[0])
    return "python -m selhn" if started.name == "__main__.py" else os.path.relpath(started)
