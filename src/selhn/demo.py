"""`selhn demo`: one model, two losses, side by side; then a search, with pictures."""

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from selhn.data import Data, Split, load_data
from selhn.data.render import render
from selhn.data.world import WorldFeatures, world_scene
from selhn.diagnose import training_figure
from selhn.eval import Metrics
from selhn.retrieve import Hit, Index
from selhn.train import RunConfig, get_recipe, open_run, override, read_log, run_config

LOSSES = {
    "T-HN": ("hn", "every anchor learns from its hardest negative"),
    "SelHN": ("selhn", "an anchor learns from its hardest negative where that is told apart, else from all"),
}
QUERIES_ABOUT = (1, 4, 9)
"""Scenes of the test split whose first caption is searched for."""


def run_demo(out: Path, images: int, epochs: int) -> None:
    """Train twice, compare, draw, search; everything lands in `out`."""
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
    selhn = "selhn" if shutil.which("selhn") else os.path.relpath(sys.argv[0])
    print(f"""
What to type next:
    {selhn} search {out / "SelHN"} "a red ball"    ask for something else
    {selhn} train rvse_selhn_world epochs=3    train by a recipe
    {selhn} train --list    every recipe, with the paper's numbers
    {selhn} data check FOLDER    look at your own features and captions""")


def _train_side_by_side(images: int, epochs: int, out: Path) -> None:
    """Both runs at once, each on one core: their lines come as they come."""
    small = [f"data.images={images}", f"batch_size={min(128, 5 * images)}", f"epochs={epochs}", "model.dim=128",
             "model.word_dim=128", "drop_regions=0", "corrupt_words=0", "decay_at=[]", "device=cpu"]  # fmt: skip
    configs = {name: override(get_recipe(f"rvse_{loss}_world"), small) for name, (loss, _) in LOSSES.items()}
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_train, args=(name, config, out / name)) for name, config in configs.items()]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        raise ValueError("the training did not come to its end; what it said is above")


def _train(name: str, config: RunConfig, folder: Path) -> None:
    """One run in a process of its own; what a user can mend is one sentence here too."""
    torch.set_num_threads(1)
    if (folder / "config.yaml").exists():  # of an earlier demo
        shutil.rmtree(folder)
    try:
        run_config(config, folder, label=f"{name:6} ")
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _compare(out: Path) -> None:
    print("\nOn scenes that neither has seen (R@1, R@5, R@10 for images to texts and texts to images; their sum):")
    for name in LOSSES:
        results = json.loads((out / name / "results.json").read_text())
        print(f"    {name:6} {Metrics.from_dict(results['test'])}{'   <- stalled' if results['stalled'] else ''}")
    try:
        figure = training_figure({name: [read_log(out / name / "log.jsonl")] for name in LOSSES}, out / "training.png")
        print(f"Curves: {figure}")
    except ValueError as missing:  # matplotlib
        print(f"No curves: {missing}")


def _search(data: Data, out: Path) -> None:
    model, _ = open_run(out / "SelHN")
    index = Index.build(model, data.test, path=out / "index")
    print(f"\nSearch among the {len(index)} unseen scenes, with the model trained by SelHN:")
    for number, scene in enumerate(QUERIES_ABOUT, 1):
        query = data.test.captions[5 * scene]
        hits = index.search(query, k=5)
        place = next((i for i, hit in enumerate(hits, 1) if hit.position == scene), None)
        path = out / f"search_{number}.png"
        answer_sheet(query, hits, data.test, scene).save(path)
        found = f"the scene it describes is answer {place}" if place else "the scene it describes is not among the five"
        print(f'    "{query}"\n        {found}; pictures: {path}')


def answer_sheet(query: str, hits: Sequence[Hit], split: Split, described: int | None = None) -> Image.Image:
    """The query and its answers in a row, best first; the scene that was described has a green frame."""
    side, gap, top = 200, 12, 44
    sheet = Image.new("RGB", (len(hits) * (side + gap) + gap, top + side + 34), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((gap, 14), f"“{query}”", fill="#111111", font=ImageFont.load_default(18))
    for column, hit in enumerate(hits):
        left = gap + column * (side + gap)
        picture = render(world_scene(split, hit.position), side)
        if hit.position == described:
            draw.rectangle((left - 5, top - 5, left + side + 4, top + side + 4), fill="#16a34a")
        sheet.paste(picture, (left, top))
        draw.text(
            (left, top + side + 8), f"{column + 1}.  {hit.score:.3f}", fill="#444444", font=ImageFont.load_default(15)
        )
    return sheet


def show_split(source: str, settings: Mapping[str, Any], name: str, number: int, pictures: Path | None) -> None:
    """Print the texts of the first images of a split; draw them where the data is a generated world."""
    split = load_data(source, **settings)[name]
    if pictures is not None and not isinstance(split.features, WorldFeatures):
        raise ValueError("only scenes of the generated world can be drawn: leave out --pictures")
    for image in range(min(number, split.num_images)):
        print(split.image_names[image])
        for text in (split.image_of_text == image).nonzero()[:, 0].tolist():
            print(f"    {split.captions[text]}")
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            render(world_scene(split, image)).save(pictures / f"{split.image_names[image]}.png")
