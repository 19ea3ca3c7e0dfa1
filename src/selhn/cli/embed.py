"""`selhn embed`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from selhn.cli.train import stoppable


def embed(
    source: Annotated[
        Path,
        Argument(help="A folder of pictures; a list of files, one per line; or Parquet, a file or a folder."),
    ],
    out: Annotated[Path, Argument(help="Folder for the embeddings; an unfinished one is completed.")],
    root: Annotated[
        Path | None,
        Option(
            help="Folder below which pictures of a list or of Parquet are read; default is the folder it is in."
        ),
    ] = None,
    model: Annotated[
        str,
        Option(
            help="A towers folder, a run, a saved model or transformers:FOLDER; default is the shipped one."
        ),
    ] = "ready",
    extractor: Annotated[
        str | None, Option(help="Vision model of a run or a saved model; see selhn data import.")
    ] = None,
    rows: Annotated[int, Option(help="Pictures per shard.")] = 10_000,
    column: Annotated[
        str | None,
        Option(help="Parquet column with paths or pictures; default is the first with a usual name."),
    ] = None,
    caption: Annotated[str | None, Option(help="Parquet column with captions.")] = None,
    device: Annotated[str, Option(help="Device: cpu or cuda.")] = "cpu",
    workers: Annotated[
        int | None, Option(help="Pictures computed at a time; default is one per core.")
    ] = None,
    ray: Annotated[
        str | None,
        Option(help="Address of a Ray cluster that does the work; auto, or local to start one here."),
    ] = None,
    processes: Annotated[
        int | None, Option(help="Number of Ray workers; default is all cores but one, or all GPUs.")
    ] = None,
    retry: Annotated[
        bool, Option("--retry", help="Make shards again from which pictures were left out.")
    ] = False,
) -> None:
    """Embed a large collection into shards of .npy and Parquet. If it was stopped, the same command continues."""
    from selhn.pictures import embed_pictures

    with stoppable():
        done = embed_pictures(
            source,
            out,
            root=root,
            towers=model,
            extractor=extractor,
            rows_per_shard=rows,
            column=column,
            caption=caption,
            device=device,
            workers=workers,
            retry=retry,
            ray=ray,
            processes=processes,
        )
        typer.echo(f"{done}\nMake an index of them: selhn index {out} --index photos.index")
