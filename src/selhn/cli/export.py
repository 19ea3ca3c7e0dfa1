"""`selhn export`: vectors and towers for programs that do not use selhn."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from selhn.base.errors import SelhnError

export_app = typer.Typer(
    help="Export embeddings, or a model as ONNX files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@export_app.command("embeddings")
def embeddings(
    source: Annotated[Path, typer.Argument(help="An index, or a run or saved model that encodes its data.")],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    layout: Annotated[str, typer.Option(help="Layout of the files: clip-retrieval.")] = "clip-retrieval",
    rows: Annotated[
        str, typer.Option(help="image: one per image, with its first caption; pair: one per caption.")
    ] = "image",
    data: Annotated[str | None, typer.Option(help="Data to embed; default is that of the run.")] = None,
    split: Annotated[str, typer.Option(help="Split of a run's data.")] = "test",
    model: Annotated[
        Path | None, typer.Option(help="Model, if the index has none or cannot find it.")
    ] = None,
) -> None:
    """Write vectors of images and texts, with their metadata."""
    from selhn.export import embeddings_of_index, embeddings_of_split, write_clip_retrieval
    from selhn.search import Index
    from selhn.search.embedded import Rows
    from selhn.towers import open_towers
    from selhn.training import open_run

    if layout != "clip-retrieval":
        raise SelhnError(f"unknown --layout {layout!r}: use clip-retrieval")
    if rows not in get_args(Rows):
        raise SelhnError(f"--rows is {rows!r}: choose {' or '.join(get_args(Rows))}")
    if Index.exists(source):
        parts = embeddings_of_index(Index.load(source, None if model is None else open_towers(model)))
    else:
        own_model, dataset = open_run(source, data)
        parts = embeddings_of_split(own_model, dataset[split])
    number = write_clip_retrieval(parts, out, rows)  # type: ignore[arg-type]
    folders = "img_emb, text_emb, metadata" if (out / "text_emb").is_dir() else "img_emb, metadata"
    typer.echo(f"{number:,} rows in {out}: {folders}")


@export_app.command("onnx")
def onnx(
    source: Annotated[str, typer.Argument(help="A run, a saved model, or ready: the model in the package.")],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
) -> None:
    """Write both towers of a model as ONNX files. Checks with onnxruntime that they equal the model."""
    from selhn.export import export_towers
    from selhn.models import load_model
    from selhn.pictures import load_extractor

    is_ready = source == "ready" and not Path(source).exists()
    model = load_model(source)
    about = {"regions": load_extractor().identity} if is_ready else {}
    written = export_towers(model, out, about)
    largest = max(written["largest_difference"].values())
    names = ", ".join(sorted(path.name for path in out.iterdir()))
    head = f"{written['model']['name']}, d = {written['d']}: {names} in {out}"
    typer.echo(f"{head}; outputs differ from the model's by at most {largest:.0e}")
