"""Learn and measure the cut-off of the ready model: which pictures are called matches, and when nothing fits well.

    python benchmarks/cutoff.py learn --data f8k_pocket --twin runs/unseen --out src/selhn/towers/ready/fit.json
    python benchmarks/cutoff.py measure --data f8k_pocket --twin runs/unseen --split test

`learn` is `selhn.export.calibrate`: it reads the training captions and the dev split, with a twin of the
shipped model that was trained without dev: scores of pictures that were trained on are too high. `measure` compares
the shipped fit with one fixed score, and with the score's distance from the same question's scores with background
pictures in units of their deviation; each has the cut-off that dev gives it for the same precision.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from selhn.data import Data, Split, load_data
from selhn.data.batches import image_blocks
from selhn.eval.stored import digest_of
from selhn.export.calibration import Questions, calibrate, cut_off, judged, make_questions
from selhn.models import AbstractMatcher, load_model
from selhn.pictures.ready import load_ready_fit, load_ready_model
from selhn.search.fit import Fit, text_features

REGIONS = 10
BACKGROUND, SIZES, LIBRARIES = 500, (10, 100, 1000), {10: 40, 100: 20, 1000: 1}
WITHOUT_ANSWER = {
    "nonsense": "asdf qwerty;zxcvbnm;blorf snurgle;lorem ipsum dolor;flibbertigibbet;xkcd 4815;qqqq wwww;the of and "
    "with;gribble frotz plugh;aaaa bbbb cccc;snorkwaffle;12345 67890;untitled document final v2;hjkl yuiop;wug "
    "blicket dax;grault garply waldo;mxyzptlk;abc def ghi;foo bar baz;tpyo splelnig",
    "other languages": "ein Hund im Schnee;zwei Kinder spielen am Strand;un chien court sur la plage;deux enfants dans "
    "la rue;un perro jugando con una pelota;una mujer sonriente;un uomo in bicicletta;il bambino mangia il gelato;een "
    "hond in het water;pies biegnie po trawie;en man som klättrar;um menino jogando futebol;kaksi koiraa lumessa;eine "
    "Frau mit rotem Hut;homme qui grimpe une montagne;niños en el parque;Mädchen auf der Schaukel;chat noir;gato "
    "durmiendo;Geburtstagskuchen mit Kerzen",
    "not in the data": "zebra;giraffe at a waterhole;birthday cake with candles;tax invoice;screenshot of a "
    "spreadsheet;bar chart;x-ray of a hand;circuit board;bowl of ramen noodles;sushi on a plate;newborn in an "
    "incubator;passport photo;northern lights;eiffel tower at night;laptop keyboard;microscope slide;spiral galaxy;"
    "hospital corridor;airplane cockpit;penguins on ice;tropical fish in an aquarium;stack of books on a shelf;"
    "washing machine;qr code;handwritten letter;map of europe;lion in the savanna;elephant with its calf;snowman with "
    "a carrot nose;parrot on a branch;volcano erupting;cathedral interior;satellite photo;pumpkin soup",
}


class Rules:
    """Three ways to judge the scores of texts, each with one number above which a picture is called a match."""

    def __init__(self, model: AbstractMatcher, fit: Fit, data: Data):
        self.model, self.fit = model, fit
        rows = torch.randperm(data.train.num_images, generator=torch.Generator().manual_seed(0))[:BACKGROUND]
        self.background = pictures_of(model, data.train.some(rows))

    def numbers(self, texts: list[str], pictures: Tensor) -> dict[str, Tensor]:
        vectors = self.model.embed_texts(texts).float().cpu()
        scores, around = vectors @ pictures.T, vectors @ self.background.T
        lines = (torch.tensor(own, dtype=torch.float64) for own in (self.fit.offset, self.fit.slope))
        return {
            "one fixed score": scores,
            "distance from background": (scores - around.mean(1, keepdim=True)) / around.std(1, keepdim=True),
            "fit": judged(scores, torch.from_numpy(text_features(self.fit.counts, texts)), *lines),
        }


def pictures_of(model: AbstractMatcher, split: Split) -> Tensor:
    """The vectors of the pictures of a split."""
    return torch.cat([model.embed_images(*block).float().cpu() for block in image_blocks(split)])


def alarm(false: Tensor, pictures: Tensor, size: int) -> Tensor:
    """The chance that `size` of so many wrong pictures, drawn at random, have one that is called a match."""
    false, pictures = false.double(), pictures.double()
    size = torch.minimum(torch.tensor(float(size)), pictures)

    def ways(n: Tensor) -> Tensor:
        return torch.lgamma(n + 1) - torch.lgamma(n - size + 1)

    left = pictures - false
    none = torch.where(left >= size, (ways(left.maximum(size)) - ways(pictures)).exp(), 0.0)
    return 1 - none


def precision(called: Tensor, matches: Tensor, size: int) -> float:
    """The share of right ones among called pictures, as a mean over questions that call some in a random library."""
    shares, draw = [], torch.Generator().manual_seed(size)
    for _ in range(LIBRARIES[size]):
        some = torch.randperm(called.shape[1], generator=draw)[:size]
        own = called[:, some]
        any_called = own.any(1)
        shares.append(((own & matches[:, some]).sum(1) / own.sum(1))[any_called])
    found = torch.cat(shares)
    return 100 * float(found.mean()) if len(found) else float("nan")


def row(name: str, called: Tensor, matches: Tensor) -> str:
    """A line of the table for some questions."""
    has = matches.any(1)
    right, wrong = (called & matches).sum(1), (called & ~matches).sum(1)
    cells = [f"{100 * float((right[has] == 0).double().mean()):.0f}" if has.any() else "-"]
    cells += [f"{100 * float(alarm(wrong, (~matches).sum(1), size).mean()):.1f}" for size in SIZES]
    cells += [f"{precision(called, matches, size):.0f}" if has.any() else "-" for size in SIZES]
    cells.append(f"{1e6 * float(wrong.sum() / (~matches).sum()):.0f}")
    return f"| {name} | {len(called)} | " + " | ".join(cells) + " |"


def measure(arguments: argparse.Namespace) -> None:
    """Print a table for each rule; all cut-offs come from dev."""
    model, data = load_model("ready"), load_data(arguments.data, regions=REGIONS)
    rules = Rules(model, load_ready_fit(), data)
    wanted: float = rules.fit.learnt["precision"]
    chosen = make_questions(data.dev, data.train)
    unseen = load_ready_model(folder=arguments.twin) if arguments.twin else model
    known = Rules(unseen, rules.fit, data).numbers(list(chosen.texts), pictures_of(unseen, data.dev))
    cuts: Mapping[str, float] = {name: cut_off(own, chosen.matches, wanted) for name, own in known.items()}
    split: Split = getattr(data, arguments.split)
    seed = 0 if arguments.split == "dev" else 1
    asked: Questions = make_questions(split, data.train, seed=seed)
    pictures = pictures_of(model, split)
    found = rules.numbers(list(asked.texts), pictures)
    others = {kind: rules.numbers(texts.split(";"), pictures) for kind, texts in WITHOUT_ANSWER.items()}
    for name, cut in cuts.items():
        print(f"\n{name}, cut-off {cut:.3f}, for {wanted:.0%} on dev\n")
        sizes = [f"{what} {size:,}" for what in ("false alarm %,", "right %,") for size in SIZES]
        print("| questions | number | missed % | " + " | ".join(sizes) + " | wrong per million |")
        print("|---" * 10 + "|")
        for kind in ("word", "phrase", "sentence"):
            rows = asked.of(kind)
            print(row(kind, found[name][rows] >= cut, asked.matches[rows]))
        print(row("all", found[name] >= cut, asked.matches))
        for kind, numbers in others.items():
            called = numbers[name] >= cut
            print(row(kind, called, torch.zeros_like(called)), flush=True)


def learn(arguments: argparse.Namespace) -> None:
    """Write the file that is shipped."""
    model = load_ready_model(folder=arguments.twin) if arguments.twin else load_model("ready")
    fit = replace(
        calibrate(model, load_data(arguments.data, regions=REGIONS)), model=digest_of(load_model("ready"))
    )
    fit.write(arguments.out)
    print(f"{arguments.out}: {len(fit.counts)} words, {arguments.out.stat().st_size:,} bytes, {fit.learnt}")
    print("offset", fit.offset, "slope", fit.slope)


def main() -> None:
    """Learn or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("learn")
    command.add_argument("--data", required=True)
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(run=learn)
    command = commands.add_parser("measure")
    command.add_argument("--data", required=True)
    command.add_argument("--split", choices=("dev", "test"), default="dev")
    command.set_defaults(run=measure)
    for command in commands.choices.values():
        command.add_argument(
            "--twin", type=Path, help="the same model trained without dev, if the shipped one has seen it"
        )
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
