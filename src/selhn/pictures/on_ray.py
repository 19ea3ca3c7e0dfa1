"""Shards of vectors on a Ray cluster: Ray Data hands out shards, and makes those of a lost machine elsewhere."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from selhn.base.errors import MissingExtra, SelhnError, pip_install
from selhn.pictures.embedding import ShardEmbedder
from selhn.search.shards import ShardDone

LOCAL = "local"


class ShardActor:
    """A `ShardEmbedder` as Ray Data calls it; the model is loaded once per process."""

    def __init__(self, settings: Mapping[str, Any]):
        self.embedder = ShardEmbedder(**settings)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Make the shards with these numbers."""
        done = [self.embedder(int(number)) for number in batch["shard"]]
        return {"rows": np.array([one.rows for one in done]), "left_out": np.array([one.left_out for one in done])}


def embed_on_ray(
    settings: Mapping[str, Any],
    shards: int,
    address: str,
    actors: int | None,
    cpus: int,
    step: Callable[[int], None] = lambda number: None,
) -> Iterator[ShardDone]:
    """Make shards on a cluster, each as soon as a process is free; what they hold comes in any order.

    Args:
        settings: of `ShardEmbedder`; the folder must be the same on all machines, which need selhn too.
        address: of the cluster, "auto" for the one of this machine, or "local" to start one here.
        actors: processes; by default as many as there are cores or GPUs for, but for one core, which Ray needs.
        cpus: cores per process.
        step: is told how many pictures were finished.
    """
    with _cluster(address) as ray:
        on_gpu = str(settings["device"]).startswith("cuda")
        there = ray.cluster_resources()
        most = int((there.get("CPU", 0) - 1) // cpus)
        most = min(most, int(there.get("GPU", 0))) if on_gpu else most
        if not 1 <= (actors or most) <= most:
            what = f"{int(there.get('CPU', 0))} cores and {int(there.get('GPU', 0))} GPUs"
            raise SelhnError(
                f"the cluster has {what}, which is not enough for {actors or 1} processes of {cpus} cores"
                f"{' and a GPU' if on_gpu else ''} and one core beside them: add machines, or use fewer"
            )
        numbers = [{"shard": number} for number in range(shards)]
        made = ray.data.from_items(numbers, override_num_blocks=shards).map_batches(
            ShardActor,
            fn_constructor_args=[{**settings, "workers": cpus}],
            batch_size=1,
            concurrency=min(actors or most, shards),
            num_cpus=cpus,
            num_gpus=1 if on_gpu else 0,
        )
        try:
            for one in made.iter_rows():
                done = ShardDone(int(one["rows"]), int(one["left_out"]))
                step(sum(done))
                yield done
        except ray.exceptions.RayError as error:
            raise _cause(error) from error


def _cause(error: BaseException) -> BaseException:
    """Our own error, or one of a file, which another process has raised; anything else unchanged."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, SelhnError | OSError) and not hasattr(inner, "cause"):
            return inner
        inner = getattr(inner, "cause", None) or inner.__cause__
    return error


def import_ray() -> Any:
    """Ray, which is told not to report its use to its makers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra(f"many machines need Ray: {pip_install('ray')}") from None
    return ray


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, connected; one that is connected already is used and left so."""
    ray = import_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == LOCAL else {}
        try:
            ray.init(address, log_to_driver=False, logging_level="warning", **here)
        except (ConnectionError, ValueError) as error:
            raise SelhnError(f"there is no Ray cluster at {address} ({error}): start it, or give --ray local") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()
