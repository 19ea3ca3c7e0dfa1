"""Shards of vectors on a Ray cluster: Ray Data hands out shards, also again after a machine is lost."""

import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from selhn.base import errors
from selhn.base.errors import MissingExtra, SelhnError, pip_install
from selhn.pictures.embedding import ShardEmbedder
from selhn.search.shards import ShardDone

LOCAL = "local"


class ShardActor:
    """A `ShardEmbedder` as Ray Data calls it; the model is loaded once per process."""

    def __init__(self, settings: Mapping[str, Any]):
        self.embedder = ShardEmbedder(**settings)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Make the shard with this number. Errors are returned, not raised: Ray would print a page of traceback."""
        (number,), made, kind, why = batch["shard"], ShardDone(0, 0), "", ""
        try:
            made = self.embedder(int(number))
        except SelhnError as error:
            kind, why = type(error).__name__, str(error)
        except OSError as error:  # the disk is full, say
            kind, why = SelhnError.__name__, f"on {platform.node()}: {error}"
        return {
            name: np.array([value]) for name, value in {**made._asdict(), "kind": kind, "why": why}.items()
        }


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
        actors: processes; by default as many as cores or GPUs allow, minus one core that Ray needs.
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
                f"{' and a GPU' if on_gpu else ''} and one core more: add machines, or use fewer"
            )
        numbers = [{"shard": number} for number in range(shards)]
        made = ray.data.from_items(numbers, override_num_blocks=shards).map_batches(
            ShardActor,
            fn_constructor_args=[{**settings, "workers": cpus}],
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(actors or most, shards)),
            num_cpus=cpus,
            num_gpus=1 if on_gpu else 0,
        )
        for one in made.iter_rows():
            if one["kind"]:
                raise getattr(errors, one["kind"], SelhnError)(one["why"])
            done = ShardDone(int(one["rows"]), int(one["left_out"]))
            step(sum(done))
            yield done


def import_ray(address: str) -> Any:
    """Import Ray, with its usage reports turned off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:  # else it would take 127.0.0.1 for a network address, and listen there
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra(f"many machines need Ray: {pip_install('ray')}") from None
    return ray


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, connected; an existing connection is used and left open."""
    ray = import_ray(address)
    is_ours = not ray.is_initialized()
    if is_ours:
        here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == LOCAL else {}
        try:
            ray.init(address, log_to_driver=False, logging_level="warning", **here)
        except (ConnectionError, ValueError) as error:
            raise SelhnError(
                f"there is no Ray cluster at {address} ({error}): start it, or give --ray local"
            ) from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # hide its execution plans
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()
