"""What `test_on_ray.py` runs in a process of its own: two nodes on 127.0.0.1, one of them killed in the middle.

python ray_program.py PICTURES OUT
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

# Before Ray is imported: 127.0.0.1 stays what it is, a lost node is noticed soon, nothing is reported.
os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}

import ray  # noqa: E402
import torch  # noqa: E402
from picture_cases import TinyBackbone  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from selhn.base.errors import Damaged, SelhnError  # noqa: E402
from selhn.models import create_model  # noqa: E402
from selhn.pictures import Extractor, embed_pictures  # noqa: E402
from selhn.text import Vocabulary  # noqa: E402


class Slow(TinyBackbone):
    """Leaves time to be killed."""

    def maps(self, pixels):
        time.sleep(0.02 * len(pixels))
        return super().maps(pixels)


def settings():
    torch.manual_seed(0)
    words = Vocabulary.build(["a red ball"], 1)
    model = create_model("rvse", tokenizer=words, feature_dim=4, dim=8).eval()
    return {"model": model, "extractor": Extractor(Slow()), "rows_per_shard": 10, "quiet": True}


def listening_elsewhere():
    """Ports of processes below this one that are open to the network."""
    inodes = set()
    for process in below(os.getpid()):
        with suppress(OSError):  # it has just ended
            inodes |= {os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()}
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().split("\n")[1:]
    ]
    open_ones = [one for one in lines if len(one) > 9 and one[3] == "0A" and f"socket:[{one[9]}]" in inodes]
    local = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
    return [one[1] for one in open_ones if one[1].split(":")[0] not in local]


def below(process):
    yield process
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from below(int(child))


def kill_in_the_middle(cluster, node, out, told):
    while (done := len(list((out / "done").glob("*.json")))) < 4:
        time.sleep(0.05)
    told["killed_at"] = done
    cluster.remove_node(node, allow_graceful=False)


def main(pictures, out):
    place = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **place}
    )
    other = cluster.add_node(num_cpus=1, **place)
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    told = {}
    killer = threading.Thread(target=kill_in_the_middle, args=(cluster, other, out, told), daemon=True)
    killer.start()
    done = embed_pictures(pictures, out, ray=cluster.address, **settings())
    told |= {"rows": done.rows, "left_out": done.left_out, "ports": listening_elsewhere()}
    killer.join()
    for name, cause in (("processes", {"processes": 5}), ("inputs", {})):
        if name == "inputs":
            (out / "done" / "done_0.json").unlink()
            (out / "inputs" / "inputs_0.jsonl").write_text('{"path": "/etc/hosts"}\n')
        try:
            embed_pictures(pictures, out, ray=cluster.address, **settings(), **cause)
        except SelhnError as error:
            told[name] = [type(error) is Damaged, str(error)]
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
