"""One process or many: the same loop, with sums over all of them.

`unmask pretrain` is one process; `torchrun -m unmask pretrain` is many: gloo between processors,
NCCL between GPUs, every process with a copy (DDP) or a share (FSDP2, --shard) of the weights. A
step's batches are the same whatever the number of processes; only who computes them changes, as
long as a step has a piece for each of them.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unmask.system.errors import SettingsError

TIMEOUT = timedelta(minutes=10)  # a process that is silent for longer has died


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009

    @property
    def first(self) -> bool:
        """Does this process write and print?"""
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes, the same on each."""
        if self.world == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        found: list[float] = sums.tolist()
        return found

    def refuse_difference(self, value: str | float | Mapping[str, object], what: str) -> None:
        """Refuse to go on where processes have come to different values."""
        if len(set(self.gather(ascii(value).encode()))) > 1:
            raise SettingsError(
                f"{what} is not the same on all {self.world} processes. They must see the same "
                "data and the same --out, on a disk that all machines share."
            )

    def gather(self, payload: bytes) -> list[bytes]:
        """The bytes of every process, in the order of their ranks, the same on each."""
        if self.world == 1:
            return [payload]
        ranks = range(self.world)
        sizes = self.total([len(payload) if rank == self.rank else 0 for rank in ranks])
        padded = bytearray(payload.ljust(max(1, *map(int, sizes)), b"\0"))
        own = torch.frombuffer(padded, dtype=torch.uint8).to(self.device)
        parts = [torch.empty_like(own) for _ in ranks]
        dist.all_gather(parts, own)
        found = zip(parts, map(int, sizes), strict=True)
        return [bytes(part.cpu().numpy()[:size]) for part, size in found]

    def from_first(self, values: Sequence[float]) -> list[float]:
        """The numbers of the first process."""
        return self.total([value if self.first else 0.0 for value in values])

    def agree(self, answer: bool) -> bool:
        """Let the first process decide for all."""
        return self.from_first([float(answer)])[0] > 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()

    def wrap(self, module: nn.Module, blocks: Sequence[nn.Module], *, shard: bool) -> nn.Module:
        """Let gradients be averaged over the processes."""
        module.to(self.device)
        if self.world == 1:
            if shard:
                raise SettingsError("--shard: one process has nobody to share with. Use torchrun.")
            return module
        if not shard:
            ids = [self.device.index] if self.device.type == "cuda" else None
            return nn.parallel.DistributedDataParallel(module, device_ids=ids)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.world,))
        for part in (*blocks, module):
            fully_shard(part, mesh=mesh)
        return module

    def syncing(self, module: nn.Module, now: bool) -> AbstractContextManager[None]:
        """Exchange gradients in this pass, or only add them up here."""
        if isinstance(module, nn.parallel.DistributedDataParallel) and not now:
            return module.no_sync()
        if set_sync := getattr(module, "set_requires_gradient_sync", None):  # of shares
            set_sync(now)
        return nullcontext()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the other processes, if torchrun started several."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(device=_device(0))
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=_store(rank, world),
        rank=rank,
        world_size=world,
        timeout=TIMEOUT,
    )
    try:
        yield Processes(rank, world, device)
        dist.barrier()  # who leaves while another still talks may be aborted on the way out
    finally:
        dist.destroy_process_group()


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor that may lie in shares on several processes, whole; all of them must ask."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def sharded_like(tensor: Tensor, model: Tensor) -> Tensor:
    """A whole tensor laid out like another, in shares if that one is."""
    tensor, alike = tensor.to(model.device), tensor.shape == model.shape
    if alike and hasattr(model, "device_mesh") and hasattr(model, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, model.device_mesh, model.placements)
    return tensor


def _device(local: int) -> torch.device:
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def _store(rank: int, world: int) -> Any:
    """Where processes find each other; each restart by torchrun has names of its own.

    Under the same names, restarted workers would connect to the ports of the dead ones, fail, and
    cost further restarts.
    """
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        is_master=rank == 0 and not by_agent,
        timeout=TIMEOUT,
    )
    return PrefixStore(f"try-{restart_count()}", store)


def restart_count() -> int:
    """How often torchrun has restarted the workers of this run."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
