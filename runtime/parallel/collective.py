"""Sums over all ranks: by NCCL between GPUs, by gloo between processors."""

import datetime
import os
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

Backend = Literal["nccl", "gloo"]

LOOPBACK = "127.0.0.1"
# In which every rank must come to a sum. It only bounds a wait for a rank that hangs: one that ends is noticed at once.
LONGEST_WAIT = datetime.timedelta(minutes=30)


def device_of(backend: Backend, rank: int) -> torch.device:
    return torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")


class PeerLost(Exception):
    """A sum failed: some other rank is gone, which need not be the one that says so."""


class Collective:
    """The sums of one rank. Nothing in it reaches beyond this machine: ranks meet in a file and talk over loopback,
    or from card to card."""

    def __init__(self, backend: Backend, rank: int, n_ranks: int, meeting: Path) -> None:
        """Waits for all `n_ranks`, which meet in the file `meeting`."""
        backends: Any = dist  # whose stubs lack its options
        store = backends.FileStore(str(meeting), n_ranks)
        if backend == "gloo":
            options = backends.ProcessGroupGloo._Options()
            options._devices = [backends.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
            options._timeout = LONGEST_WAIT
            self._group = backends.ProcessGroupGloo(store, rank, n_ranks, options)
        else:
            os.environ["NCCL_SOCKET_IFNAME"] = "lo"  # by which its ranks find each other; read when it starts
            os.environ["NCCL_IB_DISABLE"] = "1"
            torch.cuda.set_device(device_of(backend, rank))
            options = backends.ProcessGroupNCCL.Options()
            options._timeout = LONGEST_WAIT
            self._group = backends.ProcessGroupNCCL(store, rank, n_ranks, options)

    def total(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks, each of which comes here in the same order; raises `PeerLost`."""
        try:
            self._group.allreduce([tensor]).wait()
        except RuntimeError as error:
            raise PeerLost(str(error)) from error

    def abort(self) -> None:
        """Let whoever waits here for another rank fail."""
        self._group.abort()
