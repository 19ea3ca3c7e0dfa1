"""Kernels that ask for 208 KiB of shared memory: GPUs from Hopper on have it, except workstation GPUs."""
