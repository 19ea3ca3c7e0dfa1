"""Train the ready model: RVSE++ whose MiniLM is adapted, on many views of each photograph, taught by an ensemble.

    python benchmarks/ready_train.py teachers --data f8k_pocket --minilm minilm --out teachers.safetensors
    python benchmarks/ready_train.py train --data f8k_pocket --views views --teachers teachers.safetensors --out run
    python benchmarks/ready_train.py train ... --out final with_dev=true epochs=12

`views.py` makes the views. Every epoch is measured on dev: from stored features, and from the photographs at 320 pixels
and smaller; test is never read here. The best epoch is packed: heads in float16, and what MiniLM has learnt as low-rank
updates of its linear layers. Settings (`key=value`) are the fields of `Settings`.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from selhn.base.device import choose_device
from selhn.base.types import to_int8
from selhn.data import Augmentation, Batches, DenseFeatures, Features, Pairs, Projection, Split, load_data
from selhn.data.formats.pocket import PocketFeatures, read_projection
from selhn.eval import recall_from_embeddings
from selhn.export.calibration import content_words, make_questions
from selhn.losses import AbstractLoss, create_loss
from selhn.models import VSE, create_model
from selhn.pictures.ready import HEADS_FILE, LEFT, RIGHT, SCALE, WORD_VECTORS, adapted
from selhn.search.fit import words_of
from selhn.text import Tokenizer
from selhn.training import TrainConfig, get_recipe, override
from selhn.training.average import WeightAverage
from selhn.training.capture import Stepper, recording_stream
from selhn.training.loop import train as train_model
from selhn.training.optim import make_optimizer
from selhn.training.protocols.self_distillation import divergence
from selhn.training.run import make_model

REGIONS = 10
SHORT = 7
"""Words of a caption that counts as short, as those are that people type."""
TOWER = "text.words."


@dataclass(frozen=True)
class Settings:
    """What is chosen on dev."""

    dim: int = 1024
    widths: Sequence[int] = (256,)
    """Narrower vectors, the first numbers of the whole one, that must be good too."""
    stored: float = 0.4
    """Share of pairs with stored features; the others have one of the views. 1 is none of them."""
    teach: float = 1.0
    """Weight of the ensemble's scores, at a temperature of 0.05."""
    spans: float = 0.2
    """Share of captions of which a few words in a row are taken."""
    words: float = 0.0
    """Share of captions of which one or two words are taken, as people ask."""
    epochs: int = 16
    batch_size: int = 256
    lr: float = 2e-3
    text_lr: float = 1e-4
    weight_decay: float = 0.1
    ema: float = 0.998
    drop_regions: float = 0.2
    corrupt_words: float = 0.2
    margin: float = 0.2
    temperature: float = 0.05
    rank: int = 128
    with_dev: bool = False
    """Train on train and dev: for the last run, when every choice is made."""
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Views(Features):
    """Several views of every image as codes; each reading takes one of them at random."""

    codes: Tensor
    """(views, images, regions, 256); the first are the stored ones."""
    projection: Projection
    stored: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """(I, M, F)."""
        return self.codes.shape[1], self.codes.shape[2], len(self.projection.mean)

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """One view of each."""
        rows = rows.to(self.codes.device)
        draw = torch.rand(len(rows), device=rows.device)
        other = 1 + ((draw - self.stored) / max(1e-6, 1 - self.stored) * (len(self.codes) - 1)).long()
        view = torch.where(draw < self.stored, 0, other.clamp(max=len(self.codes) - 1))
        coordinates = self.codes[view, rows].float() * self.projection.scale
        regions = (self.projection.mean + coordinates @ self.projection.components.T).relu()
        return regions, torch.ones(regions.shape[:2], dtype=torch.bool, device=rows.device)

    def to(self, device: torch.device | str) -> "Views":
        """On a device."""
        return Views(self.codes.to(device), self.projection.to(device), self.stored)

    @property
    def num_bytes(self) -> int:
        """Size of the codes."""
        return self.codes.nbytes


def read_codes(data: Path, views: Path | None, split: str) -> list[Tensor]:
    """Stored codes, then those of every view of a split."""
    files = [data / f"{split}_ims.npy"]
    files += sorted(views.glob(f"{split}_*.npy")) if views else []
    return [torch.from_numpy(np.load(file)[:, :REGIONS].copy()) for file in files]


def spans(tokens: Tensor, mask: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some texts cut down to three to eight tokens in a row, between their first and last one."""
    device, (batch, most) = tokens.device, tokens.shape
    length = mask.sum(1, keepdim=True)
    draw = torch.rand(batch, 3, device=device, generator=generator)
    width = torch.minimum(3 + (draw[:, :1] * 6).long(), length - 2).clamp(min=1)
    start = 1 + (draw[:, 1:2] * (length - 1 - width)).long().clamp(min=0)
    place = torch.arange(most, device=device)
    source = torch.where(place == 0, 0, torch.where(place <= width, start + place - 1, length - 1)).clamp(
        0, most - 1
    )
    cut = (draw[:, 2:] < share) & (length > 4)
    return torch.where(cut, tokens.gather(1, source), tokens), torch.where(cut, place < width + 2, mask)


def single_words(
    tokens: Tensor, mask: Tensor, tells: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Some texts cut down to one or two of the words that say what is in the picture, in their order."""
    device, (batch, most) = tokens.device, tokens.shape
    draw = torch.rand(batch, most, device=device, generator=generator).masked_fill(
        ~(mask & tells[tokens.long()]), 0
    )
    chance = torch.rand(batch, 2, device=device, generator=generator)
    found, places = draw.topk(2, 1)
    two = (chance[:, :1] < 0.5) & (found[:, 1:] > 0)
    first = torch.where(two, places.amin(1, keepdim=True), places[:, :1])
    end = mask.sum(1, keepdim=True) - 1
    source = torch.cat(
        [torch.zeros_like(first), first, torch.where(two, places.amax(1, keepdim=True), end), end], 1
    )
    source = torch.cat([source, end.expand(-1, most - 4)], 1)
    cut = (chance[:, 1:] < share) & (found[:, :1] > 0) & (end > 3)
    short = torch.arange(most, device=device) < torch.where(two, 4, 3)
    return torch.where(cut, tokens.gather(1, source), tokens), torch.where(cut, short, mask)


def telling_tokens(tokenizer: Tokenizer, captions: Sequence[str]) -> Tensor:
    """Which tokens are whole words that say what is in a picture."""
    tells = torch.zeros(tokenizer.size, dtype=torch.bool)
    words = sorted({word for caption in captions for word in words_of(caption) if content_words(word)})
    tokens, mask = tokenizer.encode(words)
    tells[tokens[mask.sum(1) == 3, 1].long()] = True
    return tells


def adapted_model(minilm: str, feature_dim: int, settings: Settings) -> VSE:
    """RVSE++ on MiniLM, whose word vectors are not trained."""
    model = create_model("rvsepp", bert=minilm, feature_dim=feature_dim, dim=settings.dim)
    assert isinstance(model, VSE)
    model.text.words.bert.embeddings.requires_grad_(False)
    return model


def narrow(vectors: Tensor, width: int) -> Tensor:
    """The first numbers of a vector, at length 1."""
    return torch.nn.functional.normalize(vectors[:, :width], dim=1)


class Training:
    """One run: a step, and what is measured after an epoch."""

    def __init__(self, arguments: argparse.Namespace, settings: Settings):
        torch.manual_seed(settings.seed)
        self.settings, self.device = settings, choose_device("auto")
        self.minilm, self.keep = arguments.minilm, arguments.keep
        data = load_data(arguments.data, regions=REGIONS)
        self.stored_train = data.train
        projection = read_projection(arguments.data / "projection.npz").to(self.device)
        self.model = adapted_model(arguments.minilm, data.feature_dim, settings).to(self.device)
        codes = torch.stack(
            read_codes(arguments.data, arguments.views if settings.stored < 1 else None, "train")
        )
        owners, captions, names = (
            data.train.image_of_text,
            list(data.train.captions),
            list(data.train.image_names),
        )
        self.dev: dict[str, Features] = {"stored": data.dev.features.to(self.device)}
        for path in sorted(arguments.views.glob("dev_*.npy")) if arguments.views else []:
            found = PocketFeatures(DenseFeatures(torch.from_numpy(np.load(path))), projection)
            self.dev[path.stem.removeprefix("dev_")] = found.to(self.device)
        if settings.with_dev:
            known = dict(
                zip([0, *self._view_numbers(arguments)], read_codes(arguments.data, arguments.views, "dev"))
            )
            dev = torch.stack([known.get(number, known[0]) for number in range(len(codes))])
            codes = torch.cat([codes, dev], 1)
            owners = torch.cat([owners, data.dev.image_of_text + len(names)])
            captions, names = [*captions, *data.dev.captions], [*names, *data.dev.image_names]
        features = Views(codes.to(self.device), projection, settings.stored)
        train = Split("train", features, captions, owners, names)
        self.dev_split = data.dev
        questions = make_questions(data.dev, data.train)
        asked = questions.of("word")
        self.words = [text for text, is_word in zip(questions.texts, asked.tolist()) if is_word]
        self.words_match = questions.matches[asked].to(self.device)
        assert self.model.tokenizer is not None
        self.tells = telling_tokens(self.model.tokenizer, data.train.captions).to(self.device)
        files = [load_file(path) for path in arguments.teachers] if settings.teach else []
        self.teachers = {}
        for name in files[0] if files else ():  # the mean of their scores is one product of all their vectors
            together = torch.cat([file[name].to(self.device) for file in files], 1)
            self.teachers[name] = together * len(files) ** -0.5
        half = self.device.type == "cuda"
        changed = Augmentation(settings.drop_regions, settings.corrupt_words)
        self.batches = Batches(train, self.model.tokenizer, settings.batch_size, augmentation=changed,
                               seed=settings.seed, device=self.device, token_step=4 if half else 1,
                               dtype=torch.bfloat16 if half else torch.float32)  # fmt: skip
        config = TrainConfig(lr=settings.lr, text_lr_factor=settings.text_lr / settings.lr,
                             weight_decay=settings.weight_decay)  # fmt: skip
        self.optimizer = make_optimizer(self.model, config, self.device)
        self.average = WeightAverage(self.model, settings.ema)
        self.loss: AbstractLoss = create_loss("tal", margin=settings.margin, temperature=settings.temperature)
        self.stepper = Stepper(self._step, self.batches.generator, record=half)

    def _view_numbers(self, arguments: argparse.Namespace) -> list[int]:
        """Where in the views of train those of dev are."""
        names = [path.stem.removeprefix("train_") for path in sorted(arguments.views.glob("train_*.npy"))]
        return [
            1 + names.index(path.stem.removeprefix("dev_"))
            for path in sorted(arguments.views.glob("dev_*.npy"))
        ]

    def _step(self, pairs: Pairs, num_tokens: int) -> dict[str, Tensor]:
        settings = self.settings
        batch = self.batches.assemble_seeded(pairs._replace(regions=None, region_mask=None), num_tokens)
        generator = self.batches.generator
        tokens, mask = spans(batch.tokens, batch.token_mask, settings.spans, generator)
        tokens, mask = single_words(tokens, mask, self.tells, settings.words, generator)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            images = self.model.encode_images(batch.regions, batch.region_mask)
            texts = self.model.encode_texts(tokens, mask)
        images, texts = images.float(), texts.float()
        value = images.new_zeros(())
        taught = None
        if self.teachers:
            taught = (
                self.teachers["images"][pairs.images].float() @ self.teachers["texts"][pairs.texts].float().T
            )
        widths = (settings.dim, *settings.widths)
        for width in widths:
            scores = narrow(images, width) @ narrow(texts, width).T
            value = value + self.loss(scores, image_ids=pairs.images)
            if taught is not None:
                value = value + settings.teach * 0.05 * divergence(taught, scores, 0.05)
        value = value / len(widths)
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.optimizer.step()
        return {"loss": value.detach()}

    @torch.no_grad()
    def measure(self, model: VSE) -> dict[str, float]:
        """For each kind of features of dev: RSUM, R@1 of short captions, average precision of words, narrow vectors."""
        device, split = self.device, self.dev_split
        texts = embed_texts(model, split, device)
        tokens, mask = model.tokenize(self.words)
        words = model.encode_texts(tokens.to(device), mask.to(device)).float()
        found: dict[str, float] = {}
        short = torch.tensor([len(caption.split()) <= SHORT for caption in split.captions])
        for name, features in self.dev.items():
            images = embed_images(model, features, device)
            metrics = recall_from_embeddings(images, texts, split.image_of_text)
            found[name] = round(metrics.rsum, 2)
            found[f"{name}_t2i"] = round(metrics.t2i[1], 2)
            best = (texts @ images.T).argmax(1).cpu()
            found[f"{name}_short"] = round(
                100 * float((best == split.image_of_text)[short].float().mean()), 2
            )
            ranked = self.words_match.gather(1, (words @ images.T).argsort(1, descending=True)).float()
            right = ranked.cumsum(1) / torch.arange(1, ranked.shape[1] + 1, device=device)
            precision = (right * ranked).sum(1) / ranked.sum(1).clamp(min=1)
            found[f"{name}_words"] = round(100 * float(precision[ranked.any(1)].mean()), 2)
            for width in self.settings.widths:
                whole = recall_from_embeddings(
                    narrow(images, width), narrow(texts, width), split.image_of_text
                )
                found[f"{name}_{width}"] = round(whole.rsum, 2)
        return found

    def run(self, out: Path) -> None:
        """All epochs; the best is packed."""
        settings, start, number, best = self.settings, time.perf_counter(), 0, 0.0
        out.mkdir(parents=True, exist_ok=True)
        log = []
        with recording_stream(self.device):
            for epoch in range(settings.epochs):
                self.model.train()
                for step in self.batches.steps(epoch):
                    numbers = self.stepper(step)
                    number += 1
                    self.average.update(number)
                model = self.average.current()
                assert isinstance(model, VSE)
                found = {
                    "epoch": epoch + 1,
                    "loss": round(float(numbers.values[0]), 4),
                    **self.measure(model),
                }
                found["seconds"] = round(time.perf_counter() - start)
                log.append(found)
                print(out.name, json.dumps(found), flush=True)
                judged = found["stored"] + found.get("plain", 0.0)
                if judged > best or settings.with_dev:
                    best = judged
                    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if self.keep is not None:
            model.load_state_dict(kept)
            self.keep_vectors(model)
        published = adapted_model(self.minilm, self.dev_split.features.width, settings).state_dict()
        for rank in sorted({32, 64, settings.rank}):
            packed = shipped({name: weight.cpu() for name, weight in kept.items()}, published, rank)
            model.load_state_dict(adapted(packed, published), strict=False)
            size = sum(tensor.nbytes for tensor in packed.values())
            found = {"rank": rank, "bytes": size, **self.measure(model)}
            log.append(found)
            print(out.name, json.dumps(found), flush=True)
        save_file(packed, out / HEADS_FILE)
        content = {"settings": dataclasses.asdict(settings), "log": log}
        (out / "log.json").write_text(json.dumps(content, indent=1))

    def keep_vectors(self, model: VSE) -> None:
        """What it says of train and dev, from stored features, for it to be one of the teachers."""
        assert self.keep is not None
        splits = (self.stored_train, self.dev_split)
        images = [embed_images(model, split.features, self.device) for split in splits]
        texts = [embed_texts(model, split, self.device) for split in splits]
        vectors = {"images": torch.cat(images), "texts": torch.cat(texts)}
        save_file({name: value.half().cpu().contiguous() for name, value in vectors.items()}, self.keep)


def shipped(state: Mapping[str, Tensor], published: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What is shipped of a trained model: all but the word vectors of its text tower, in few bytes.

    A matrix W of the tower is kept as its update from the W0 that is published, W - W0 = L' diag(scale) R with L and
    R of `rank` rows in int8: the largest singular values. All else is float16. `adapted` is the inverse.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in state.items():
        if name.startswith(WORD_VECTORS):
            continue
        if name.startswith(TOWER) and weight.ndim == 2:
            left, sizes, right = torch.linalg.svd(
                weight.float() - published[name].float(), full_matrices=False
            )
            root = sizes[:rank].sqrt()
            packed[name + LEFT], left_scale = to_int8((left[:, :rank] * root).T)
            packed[name + RIGHT], right_scale = to_int8(root[:, None] * right[:rank])
            packed[name + SCALE] = left_scale * right_scale
        else:
            packed[name] = weight.half() if weight.is_floating_point() else weight
    return {name: weight.cpu().contiguous() for name, weight in packed.items()}


@torch.no_grad()
def embed_images(model: VSE, features: Features, device: torch.device) -> Tensor:
    """Unit vectors of all images."""
    found = []
    for rows in torch.arange(features.shape[0]).split(1000):
        regions, mask = features.gather(rows)
        found.append(model.encode_images(regions.to(device), mask.to(device)).float())
    return torch.cat(found)


@torch.no_grad()
def embed_texts(model: VSE, split: Split, device: torch.device) -> Tensor:
    """Unit vectors of all captions."""
    tokens, mask = model.tokenize(list(split.captions))
    return torch.cat([model.encode_texts(*(x.to(device) for x in part)).float()
                      for part in zip(tokens.split(1000), mask.split(1000))])  # fmt: skip


def teachers(arguments: argparse.Namespace) -> None:
    """Train some models on stored features and keep what they say of train and dev: all vectors, side by side."""
    device = choose_device("auto")
    images, texts = [], []
    for number, text in enumerate(arguments.models):
        recipe, *settings = text.split()
        config = override(
            get_recipe(f"{recipe}_f8k"), [f"data={arguments.data}", f"seed={100 + number}", *settings]
        )
        data = load_data(arguments.data, **config.data_settings)
        model = make_model(config, data)
        run = train_model(
            model,
            replace(data, test=data.dev),
            create_loss(config.loss, **config.loss_settings),
            config=config.train,
            quiet=True,
        )
        print(f"teacher {text}: dev {run.dev.rsum:.1f} in epoch {run.best_epoch + 1}", flush=True)
        assert isinstance(model, VSE)
        model.eval()
        images.append(
            torch.cat([embed_images(model, split.features, device) for split in (data.train, data.dev)])
        )
        texts.append(torch.cat([embed_texts(model, split, device) for split in (data.train, data.dev)]))
        del model
    share = len(images) ** -0.5
    together = {"images": torch.cat(images, 1) * share, "texts": torch.cat(texts, 1) * share}
    count = data.train.num_images, data.train.num_texts
    of_dev = recall_from_embeddings(
        together["images"][count[0] :], together["texts"][count[1] :], data.dev.image_of_text
    )
    print(f"all of them: dev {of_dev}", flush=True)
    save_file({name: value.half().cpu().contiguous() for name, value in together.items()}, arguments.out)


def main() -> None:
    """Train teachers or the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("teachers")
    command.add_argument(
        "--models", nargs="+", required=True, help="recipes with their settings, each one word"
    )
    command.set_defaults(run=teachers)
    trained = commands.add_parser("train")
    trained.add_argument("--views", type=Path)
    trained.add_argument("--teachers", type=Path, nargs="*", default=[])
    trained.add_argument(
        "--keep", type=Path, help="file for what it says of train and dev, as a teacher of others"
    )
    trained.add_argument(
        "--minilm", default="minilm", help="folder of MiniLM, where its package is not installed"
    )
    trained.add_argument("settings", nargs="*", help="key=value")
    trained.set_defaults(run=train)
    for each in (command, trained):
        each.add_argument("--data", type=Path, required=True)
        each.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.run(arguments)


def train(arguments: argparse.Namespace) -> None:
    """One run of the ready model."""
    named = dict(text.split("=", 1) for text in arguments.settings)
    settings = Settings(**{key: json.loads(value) for key, value in named.items()})
    Training(arguments, settings).run(arguments.out)


if __name__ == "__main__":
    main()
