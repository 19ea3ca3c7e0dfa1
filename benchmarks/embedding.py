"""`selhn embed` in one process and on Ray: two nodes, one of which is killed in the middle, and the same bits.

    python benchmarks/embedding.py                      20,000 generated pictures, in shards of 500
    python benchmarks/embedding.py --pictures 2000 --rows 100 --ready
    python benchmarks/embedding.py --read 1000000       an index from 1,000 shards of generated vectors: time and memory

Without `--ready`, colours of 12 x 12 cells stand for the vision model: what is left is reading, decoding, handing out
and writing, where Ray's part is largest.

Both nodes are on this machine, which has as many cores for them as for one process: the ratio of the CPU times is what
Ray costs, and the ratio by the clock says nothing about more machines. CPU time is that of all processes, sampled every
half second. Everything listens on 127.0.0.1 only. Needs the extra `ray`.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch
from extraction import children, generate, resident
from PIL import Image
from report import environment, save, table

from selhn.base.sealed import digest_file
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Extractor, embed_pictures
from selhn.search import Record
from selhn.search.embedded import EmbeddedRow
from selhn.search.shards import Shards
from selhn.search.stores.store import Identity
from selhn.text import Vocabulary

# Ray would replace 127.0.0.1 by an address of the network; and it would report its use.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
TICKS = os.sysconf("SC_CLK_TCK")
OBJECT_STORE = 100 * 2**20


class CpuTime(Thread):
    """CPU seconds of this process and of all below it, also of those that have ended since."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen, self.ended = {}, Event()

    def run(self):
        while not self.ended.wait(0.5):
            self.look(os.getpid())

    def look(self, process):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            # With its number, when it started: numbers are used again.
            self.seen[process, fields[19]] = sum(map(int, fields[11:13])) / TICKS
            for child in children(process):
                self.look(child)

    def __enter__(self):
        self.look(os.getpid())
        self.before = sum(self.seen.values())
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()
        self.look(os.getpid())
        self.spent = sum(self.seen.values()) - self.before


class Colours:
    """The colours of 12 x 12 cells and their brightness, as a vision model would give them."""

    name, width, device = "colours", 4, torch.device("cpu")

    def prepare(self, image):
        """The picture in 24 x 24 pixels."""
        pixels = np.array(image.resize((24, 24), Image.Resampling.BICUBIC))
        return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255

    def maps(self, pixels):
        """Means of 2 x 2 pixels."""
        cells = torch.nn.functional.avg_pool2d(pixels, 2)
        return torch.cat([cells, cells.mean(1, keepdim=True)], dim=1)


def colours() -> dict:
    """Towers of 512 numbers on such features."""
    torch.manual_seed(0)
    model = create_model("rvse", tokenizer=Vocabulary.build(["a ball"], 1), feature_dim=4, dim=512).eval()
    return {"towers": towers_of(model, Extractor(Colours()))}


def digests(folder: Path) -> dict[str, str]:
    """Of all files of a folder."""
    return {
        str(path.relative_to(folder)): digest_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def written(out: Path) -> int:
    """Shards that are complete."""
    return len(list((out / "done").glob("done_*.json")))


class Killer(Thread):
    """Kills a node when a third of the shards is there; says when, and how many were."""

    def __init__(self, cluster, node, out, shards):
        super().__init__(daemon=True)
        self.cluster, self.node, self.out, self.shards = cluster, node, out, shards
        self.began, self.at = None, None

    def run(self):
        while (done := written(self.out)) < self.shards / 3:
            if done and self.began is None:
                self.began = (time.monotonic(), done)
            time.sleep(0.1)
        self.at = (time.monotonic(), done)
        self.cluster.remove_node(self.node, allow_graceful=False)


def start_cluster():
    """Two nodes: a core for each process that embeds, and one beside them."""
    import ray
    from ray.cluster_utils import Cluster

    place = {"node_ip_address": "127.0.0.1", "object_store_memory": OBJECT_STORE}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **place}
    )
    other = cluster.add_node(num_cpus=1, **place)
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    return ray, cluster, other


def main() -> None:
    """Embed twice and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--ready", action="store_true", help="with the ready model instead of colours")
    parser.add_argument("--folder", type=Path, default=None, help="where pictures and embeddings are kept")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument(
        "--read", type=int, metavar="NUMBER", help="measure reading instead, with generated vectors"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        print((measure_reading if arguments.read else measure)(arguments, Path(arguments.folder or base)))


def measure(arguments, base: Path) -> str:
    """One process, then two nodes; an error if their files differ."""
    pictures, one, two = base / "pictures", base / "one", base / "two"
    if not pictures.exists():
        pictures.mkdir(parents=True)
        generate(pictures, arguments.pictures)
        (pictures / "broken.jpg").write_bytes(b"\xff\xd8 not a picture")
    shards = -(-(arguments.pictures + 1) // arguments.rows)
    how = {"rows_per_shard": arguments.rows, "quiet": True, **({} if arguments.ready else colours())}
    start = time.monotonic()
    with CpuTime() as alone:
        done = embed_pictures(pictures, one, **how)
    alone_lasted = time.monotonic() - start
    print(done, f"{alone_lasted:.0f} s", flush=True)
    ray, cluster, other = start_cluster()
    try:
        killer = Killer(cluster, other, two, shards)
        killer.start()
        start = time.monotonic()
        with CpuTime() as spread:
            done = embed_pictures(pictures, two, ray=cluster.address, **how)
        spread_lasted = time.monotonic() - start
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(done, f"{spread_lasted:.0f} s", flush=True)
    assert killer.at is not None, "the node was killed"
    assert killer.at[1] < shards, "in the middle"
    ours, theirs = digests(one), digests(two)
    assert ours == theirs, "the files differ"
    (began, first), (killed, at_kill) = killer.began, killer.at
    number = arguments.pictures
    rate = (at_kill - first) * arguments.rows / (killed - began)
    rows = [
        ["one process", f"{alone_lasted:.0f}", f"{number / alone_lasted:.1f}", f"{1e3 * alone.spent / number:.1f}"],
        ["Ray, a node killed", f"{spread_lasted:.0f}", f"{number / spread_lasted:.1f}",
         f"{1e3 * spread.spent / number:.1f}"],
    ]  # fmt: skip
    text = "\n\n".join([
        f"# Embedding: {number:,} pictures of 320 x 240 and one broken file, {shards} shards, two nodes of Ray, "
        f"{'the ready model' if arguments.ready else 'colours instead of a vision model'}",
        environment(),
        table(["", "s by the clock", "pictures/s", "CPU ms per picture"], rows),
        f"One node was killed when {at_kill} of {shards} shards were written; from the first shard until then, Ray "
        f"embedded {rate:.1f} pictures/s. All {len(ours):,} files, manifest, lists and checksums included, are equal "
        f"bit for bit to those of one process. CPU time per picture, Ray to one process: "
        f"{spread.spent / alone.spent:.2f}; pictures/s: {alone_lasted / spread_lasted:.2f}. Ray {ray.__version__}, "
        f"{done.rows:,} pictures embedded and {done.left_out} left out by both.",
    ])  # fmt: skip
    return f"\n{text}\n\nwritten to {save('embedding-ray-cpu' + '-ready' * arguments.ready, text, arguments.out)}"


def write_vectors(folder: Path, model, number: int) -> Shards:
    """Shards of 1,000 random vectors each."""
    identity = Identity.of(towers_of(model), "float32", {})
    entries = (
        [{"path": f"/pictures/{shard:04}/{n:03}.jpg"} for n in range(1000)] for shard in range(number // 1000)
    )
    shards = Shards.plan(folder, identity, {}, entries)
    chance = np.random.default_rng(0)
    for shard in range(len(shards)):
        vectors = chance.standard_normal((1000, identity.width), np.float32)
        records = [Record(one["path"], (), {"width": 320, "height": 240}) for one in shards.entries(shard)]
        shards.write(shard, [EmbeddedRow(record, own, "", None) for record, own in zip(records, vectors)], [])
    return shards


def measure_reading(arguments, base: Path) -> str:
    """Memory of `selhn index` of such a folder, every half second."""
    model = colours()["towers"].matcher
    model.save(base / "model")
    start = time.monotonic()
    shards = write_vectors(base / "embeddings", model, arguments.read)
    wrote = time.monotonic() - start
    command = [sys.executable, "-c", "from selhn.cli import main; main()", "index", str(shards.folder)]
    command += ["--index", f"{base}/index", "--model", f"{base}/model", "--precision", "float16"]
    samples, usage, start = [], resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while child.poll() is None:
        with suppress(OSError):
            samples.append(resident(child.pid))
        time.sleep(0.5)
    assert child.returncode == 0
    lasted, now = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime
    tenth = -(-len(samples) // 10)
    rows = [
        [f"{10 * n} to {10 * n + 10} %", f"{max(samples[n * tenth : (n + 1) * tenth]):.0f}"]
        for n in range(10)
        if samples[n * tenth :]
    ]
    text = "\n\n".join([
        f"# `selhn index` of {arguments.read:,} vectors of 512 numbers in {len(shards):,} shards, float16",
        environment(),
        table(["time", "most MiB"], rows),
        f"{lasted:.0f} s by the clock, {1e6 * spent / arguments.read:.0f} CPU seconds per million, every file verified "
        f"by its checksum first. Writing the shards took {wrote:.0f} s.",
    ])  # fmt: skip
    return f"\n{text}\n\nwritten to {save('embedding-read-cpu', text, arguments.out)}"


if __name__ == "__main__":
    sys.exit(main())
