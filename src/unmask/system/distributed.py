"""One process or many: the same training loop, with sums over all processes.

`unmask pretrain` runs one process. `torchrun -m unmask pretrain` runs several, which communicate
through gloo (CPU) or NCCL (GPU); each holds a full copy of the weights (DDP) or a shard of them
(FSDP2, --shard). The batches of a step do not depend on the number of processes, only which process
computes them does, as long as a step has a micro-batch for each process.
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

from unmask.system.devices import device_of
from unmask.system.errors import SettingsError

TIMEOUT = timedelta(minutes=10)  # a process that is silent for longer counts as dead


@dataclass(frozen=True)
class Processes:
    """Rank, world size and device of this process, with the collective operations of a run."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone writes files and prints."""
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all processes; every process gets the same sums."""
        if self.world == 1:
            return list(values)
        # float64 adds counts of tokens and bytes exactly, up to 2^53.
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        totals: list[float] = sums.tolist()
        return totals

    def refuse_difference(self, value: str | float | Mapping[str, object], what: str) -> None:
        """Raise an error on all processes unless they all have the same value."""
        # Every process sees every value, so all of them raise and none waits for the others.
        if len(set(self.gather(ascii(value).encode()))) > 1:
            raise SettingsError(
                f"{what} differs between the {self.world} processes. All of them need the same "
                "data and the same --out, on a disk that all machines share."
            )

    def gather(self, payload: bytes) -> list[bytes]:
        """Gather the bytes of all processes, in the order of their ranks, on every process."""
        if self.world == 1:
            return [payload]
        ranks = range(self.world)
        # all_gather needs tensors of one shape: exchange the sizes, pad to the largest, cut again.
        sizes = self.total([len(payload) if rank == self.rank else 0 for rank in ranks])
        padded = bytearray(payload.ljust(max(1, *map(int, sizes)), b"\0"))
        payload_tensor = torch.frombuffer(padded, dtype=torch.uint8).to(self.device)
        parts = [torch.empty_like(payload_tensor) for _ in ranks]
        dist.all_gather(parts, payload_tensor)
        sized_parts = zip(parts, map(int, sizes), strict=True)
        return [bytes(part.cpu().numpy()[:size]) for part, size in sized_parts]

    def from_first(self, values: Sequence[float]) -> list[float]:
        """Broadcast the numbers of rank 0 to all processes."""
        # A sum to which only rank 0 contributes: no second kind of collective is needed.
        return self.total([value if self.first else 0.0 for value in values])

    def agree(self, answer: bool) -> bool:
        """Let rank 0 decide for all processes."""
        # Processes that branched differently would wait for each other in different collectives.
        return self.from_first([float(answer)])[0] > 0

    def wait(self) -> None:
        """Block until all processes have arrived here."""
        if self.world > 1:
            dist.barrier()

    def wrap(self, module: nn.Module, blocks: Sequence[nn.Module], *, shard: bool) -> nn.Module:
        """Move a module to this process's device, with gradients averaged over all processes."""
        module.to(self.device)
        if self.world == 1:
            if shard:
                raise SettingsError("--shard: needs more than one process. Run under torchrun.")
            return module
        if not shard:
            ids = [self.device.index] if self.device.type == "cuda" else None
            return nn.parallel.DistributedDataParallel(module, device_ids=ids)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.world,))
        # Bottom-up: FSDP2 makes one group of the parameters that no inner call has taken, so each
        # block gathers its own weights when it runs.
        for part in (*blocks, module):
            fully_shard(part, mesh=mesh)
        return module

    def syncing(self, module: nn.Module, now: bool) -> AbstractContextManager[None]:
        """Return a context that exchanges gradients (`now`), or only accumulates them locally."""
        if isinstance(module, nn.parallel.DistributedDataParallel) and not now:
            return module.no_sync()
        if set_sync := getattr(module, "set_requires_gradient_sync", None):  # FSDP2; stays set
            set_sync(now)
        return nullcontext()


@contextmanager
def join_processes(device_name: str = "auto") -> Iterator[Processes]:
    """Join the other processes if torchrun has started several; each computes on its device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(device=device_of(device_name))
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    device = device_of(device_name, local_rank)
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
        dist.barrier()  # a process that exits while others still communicate may be aborted
    finally:
        dist.destroy_process_group()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in full, even if it is sharded over processes; all of them must call this."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def sharded_like(tensor: Tensor, model: Tensor) -> Tensor:
    """Lay a full tensor out like `model`: sharded if that is, else only on its device."""
    tensor, same_shape = tensor.to(model.device), tensor.shape == model.shape
    # Only tensors of the parameter's shape are sharded: a count of steps, say, stays whole.
    if same_shape and hasattr(model, "device_mesh") and hasattr(model, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, model.device_mesh, model.placements)
    return tensor


def _store(rank: int, world: int) -> Any:
    """Return the store through which processes find each other, under a prefix for each restart.

    With the prefix of an earlier attempt, restarted workers would connect to the ports of dead
    ones, fail, and cause further restarts.
    """
    uses_agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        # torchrun's agent may already be listening on the port; then rank 0 is a client too.
        is_master=rank == 0 and not uses_agent_store,
        timeout=TIMEOUT,
    )
    return PrefixStore(f"try-{restart_count()}", store)


def restart_count() -> int:
    """Return how often torchrun has restarted the workers of this run."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
