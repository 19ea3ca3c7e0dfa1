"""Every way into a folder from elsewhere: commands, routes of the service, public functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from faults.given import TRAINED, Place, embed, evaluate_into, reproduced, selhn, update_ready_model
from faults.reader import small_data, small_model
from faults.routes import photographs, served
from picture_cases import encoded, photo
from tower_cases import write_towers

from selhn.export import towers_of
from selhn.models import load_model
from selhn.pictures import Library
from selhn.runs import RunFolder
from selhn.search import Index, Item
from selhn.towers import open_towers


@dataclass(frozen=True)
class Door:
    """Something that opens a folder; returns an exit status, or 0."""

    name: str
    given: str
    """What it opens, see `MAKERS`."""
    do: Callable[[Place], Any]
    command: str = ""
    """The command that it calls."""
    share: float = 1.0
    """Of the cases that others get, for doors that take seconds."""
    status: int = 0
    """How it ends where nothing is planted: 2 if what it opens names files outside."""


# The functions


def read_run(place: Place) -> None:
    run = RunFolder(place.given / "run")
    print(run.config, run.identity, run.environment, run.results, run.verdict, len(run.log()), run.finished)
    print(run.log_since(0), run.tokenizer() is not None, run.best_model().name)


def read_index(place: Place) -> None:
    index = Index.load(place.given / "index")
    index.check()
    print(index.ids(), [index.get(one) for one in index.ids()], index.search("word1 word2", k=20))
    print(sum(len(images) for _, images, _ in index.embeddings()), index.albums.all())


def change_index(place: Place) -> None:
    library = Library.open(place.given / "index")
    first, *_, last = library.index.ids()
    library.change(first, ["word5"], {"favourite": True})
    print(library.add(encoded(photo(12, (60, 40)), "PNG")))
    library.delete(last)
    library.index.albums.change("Trip", add=[first], new_name="Journey")
    library.index.compact()


def build_index(place: Place) -> None:
    Index.build(towers_of(small_model()), small_data().test, path=place.given / "index")


def save_index(place: Place) -> None:
    Index.build(towers_of(small_model()), small_data().test).save(place.given / "index")


def remake_index(place: Place) -> int:
    update_ready_model()
    return photographs(place)


def _run(name: str) -> list[Door]:
    """What opens a run."""

    def door(command: str, *words: Any, label: str = "", **settings: Any) -> Door:
        def do(place: Place) -> int:
            places = {"RUN": place.given / "run", "DATA": place.user / "data", "OUT": place.user / "out",
                      "PICTURES": place.user / "Pictures"}  # fmt: skip
            return selhn(*command.split(), *(places.get(word, word) for word in words))

        return Door(f"selhn {label or command}", name, do, command, **settings)

    return [
        door("eval", "RUN", "--device", "cpu"),
        door("report", "RUN", "--device", "cpu"),
        door("diagnose", "RUN"),
        door(
            "train",
            "--resume",
            "RUN",
            "epochs=30" if "killed" in name else "epochs=2",
            label="train --resume",
        ),
        *(
            []
            if name != "run"
            else [
                door("search", "RUN", "word1 word2"),
                door("export embeddings", "RUN", "OUT"),
                door("export towers", "RUN", "OUT", share=0.01),
                door("index", "DATA", "--model", "RUN", "--index", "OUT", label="index --model"),
                door("embed", "PICTURES", "OUT", "--model", "RUN", label="embed --model"),
            ]
        ),
    ]


def start_from(place: Place) -> int:
    start = f"start={place.given / 'model'}"
    return selhn(
        "train", f"data={place.user / 'data'}", *TRAINED, start, "epochs=1", "--out", place.user / "out"
    )


def serve_attention(place: Place) -> int:
    return served("serve", place.user / "index", "--attention", place.given / "model")


def _model(name: str) -> list[Door]:
    def of(*words: object) -> Callable[[Place], int]:
        places = {"MODEL": "given/model", "DATA": "user/data", "OUT": "user/out", "PICTURES": "user/Pictures"}
        return lambda place: selhn(*(place.root / places[word] if word in places else word for word in words))

    if name == "attention":
        show = of("show", "attention", "MODEL", "--data", "DATA", "--out", "a.png")
        return [
            Door("selhn show attention", name, show, "show attention"),
            Door("selhn serve --attention", name, serve_attention, "serve"),
        ]
    return [
        Door("selhn eval", name, of("eval", "MODEL", "--data", "DATA", "--device", "cpu"), "eval"),
        Door("selhn train start=", name, start_from, "train"),
        Door(
            "selhn index --model",
            name,
            of("index", "PICTURES", "--model", "MODEL", "--index", "OUT"),
            "index",
        ),
        Door("selhn embed --model", name, of("embed", "PICTURES", "OUT", "--model", "MODEL"), "embed"),
        Door(
            "selhn export embeddings",
            name,
            of("export", "embeddings", "MODEL", "OUT", "--data", "DATA"),
            "export embeddings",
        ),
        Door("selhn export towers", name, of("export", "towers", "MODEL", "OUT"), "export towers", 0.01),
        Door("load_model", name, lambda place: print(load_model(place.given / "model").settings)),
        Door("model.save", name, lambda place: small_model().save(place.given / "model")),
    ]


def read_towers(place: Place) -> None:
    towers = open_towers(place.given / "towers")
    print(towers.embed_texts(["a red ball"]), towers.embed_pictures([photo(1)]), towers.bank, towers.cutoff)
    print(towers.embed_parts(towers.prepare(photo(1))))


def save_towers(place: Place) -> None:
    open_towers(place.given / "towers").save(place.user / "out")


def _towers() -> list[Door]:
    """What opens a towers folder: wherever a command takes a model."""

    def of(*words: object) -> Callable[[Place], int]:
        places = {
            "TOWERS": "given/towers",
            "OUT": "user/out",
            "DATA": "user/data",
            "PICTURES": "user/Pictures",
        }
        return lambda place: selhn(*(place.root / places[word] if word in places else word for word in words))

    def on_page(place: Place) -> int:
        return photographs(place, place.user / "Pictures", "--model", place.given / "towers")

    def search(place: Place) -> int:
        index = place.user / "index"
        Index.build(
            open_towers(write_towers(place.user / "own")),
            [Item("a", vector=np.eye(4, dtype="f4")[0])],
            path=index,
        )
        return selhn("search", "red ball", "--index", index, "--model", place.given / "towers")

    index, embed = ("index", "PICTURES", "--index", "OUT"), ("embed", "PICTURES", "OUT")
    return [
        Door("selhn index --model", "towers", of(*index, "--model", "TOWERS"), "index"),
        Door("selhn embed --model", "towers", of(*embed, "--model", "TOWERS"), "embed"),
        Door("selhn photos --model", "towers", on_page, "photos", 0.2),
        Door("selhn search --model", "towers", search, "search"),
        Door("selhn export towers", "towers", of("export", "towers", "TOWERS", "OUT"), "export towers"),
        # Towers are not a model of torch: refused, with nothing opened.
        Door("selhn eval", "towers", of("eval", "TOWERS", "--data", "DATA"), "eval", status=2),
        Door("open_towers", "towers", read_towers),
        Door(
            "Towers.save",
            "towers",
            save_towers,
        ),
    ]


def _index(name: str) -> list[Door]:
    def of(*words: object) -> Callable[[Place], int]:
        places = {
            "INDEX": "given/index",
            "OUT": "user/out",
            "PICTURES": "user/Pictures",
            "NEW": "user/new.png",
        }
        return lambda place: selhn(*(place.root / places[word] if word in places else word for word in words))

    at = ("--index", "INDEX")
    return [
        Door("selhn search", name, of("search", "word1", *at, "--sheet", "sheet.png"), "search"),
        Door("selhn search --like", name, of("search", "--like", "NEW", *at), "search"),
        Door("selhn serve", name, lambda place: served("serve", place.given / "index"), "serve"),
        Door("selhn photos", name, lambda place: photographs(place, "--writable"), "photos", 0.2),
        Door("selhn index", name, of("index", "PICTURES", *at), "index"),
        Door(
            "selhn export embeddings", name, of("export", "embeddings", "INDEX", "OUT"), "export embeddings"
        ),
        Door("Index.load", name, read_index),
        *(
            []
            if name != "index"
            else [
                Door(
                    "selhn serve --writable",
                    name,
                    lambda place: served("serve", place.given / "index", "--writable"),
                    "serve",
                ),
                Door(
                    "selhn photos FOLDER",
                    name,
                    lambda place: photographs(place, place.user / "Pictures"),
                    "photos",
                    0.2,
                ),
                Door(
                    "selhn index --compact",
                    name,
                    of("index", *at, "--compact", "--check", "--approximate", "exact"),
                    "index",
                ),
                Door("Library.change", name, change_index),
                Door("Index.build", name, build_index),
                Door("Index.save", name, save_index),
            ]
        ),
    ]


def index_embeddings(place: Place) -> int:
    return selhn(
        "index", place.given / "embeddings", "--index", place.user / "out", "--model", place.user / "model"
    )


def reproduce(place: Place) -> int:
    return selhn(*reproduced(place))


def embed_named(source: str) -> Callable[[Place], int]:
    return lambda place: selhn(
        "embed", place.given / source, place.user / "out", "--model", place.user / "model"
    )


DOORS = [
    *_run("run"),
    *_run("killed run"),
    *_run("run naming data"),
    Door("load_model", "run", lambda place: print(load_model(place.given / "run").settings)),
    Door("load_model", "killed run", lambda place: print(load_model(place.given / "run").settings)),
    Door("RunFolder", "run", read_run),
    Door("selhn serve --runs", "run", lambda place: served("serve", "--runs", place.given), "serve"),
    *_model("model"),
    *_model("attention"),
    *_towers(),
    *_index("index"),
    *_index("index naming files"),
    Door("selhn photos", "outdated index", remake_index, "photos", 0.5),
    Door("selhn index EMBEDDINGS", "embeddings", index_embeddings, "index"),
    Door("selhn embed", "embeddings", lambda place: selhn(*embed(place)), "embed"),
    Door("selhn embed", "half embeddings", lambda place: selhn(*embed(place)), "embed"),
    Door("selhn eval --scores", "scores", lambda place: selhn(*evaluate_into(place)), "eval"),
    Door("selhn reproduce", "reproduced", reproduce, "reproduce"),
    Door("selhn embed TABLE", "table naming files", embed_named("table"), "embed", status=2),
    Door("selhn embed LIST", "table naming files", embed_named("list.txt"), "embed", status=2),
]

ELSEWHERE = {
    "export onnx": "says its new name",
    "demo": "writes a folder of its own",
    "models": "reads no folder",
    "losses": "reads no folder",
    "data check": "a data set",
    "data import": "a data set",
    "data concepts": "a data set",
    "data show": "a data set",
}
"""Commands that open none of these folders, and why: data sets are the user's own, and may be links."""
