"""Training in a process in which something fails, for test_paper_runs.py; other processes import it from here."""

import os
import signal

import torch

from selhn.reproduce import paper_runs

make_run = paper_runs.run_config
train = paper_runs._train
broken = False


def fail(config, folder, **how):
    """An error of the GPU for `DEVICE_FAILS`, after which no run of this process succeeds; `KILLED` ends it."""
    global broken
    if folder.parent.name == os.environ.get("KILLED"):
        os.kill(os.getpid(), signal.SIGKILL)
    broken = broken or folder.parent.name == os.environ.get("DEVICE_FAILS")
    if broken:
        raise torch.AcceleratorError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA.")
    return make_run(config, folder, **how)


def train_with_failures(config, folder, quiet):
    paper_runs.run_config = fail
    return train(config, folder, quiet)
