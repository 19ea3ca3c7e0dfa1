"""Training in a process in which something fails, for test_paper_runs.py; other processes import it from here."""

import os
import signal

import torch

from selhn.reproduce import run_processes

make_run = run_processes.run_config
train = run_processes.train_run
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


def train_with_failures(*task):
    run_processes.run_config = fail
    return train(*task)
