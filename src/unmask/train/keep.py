"""A run's weights <-> disk: checkpoints to go on from, and the model of a finished run."""

from dataclasses import asdict

import torch
from torch import Tensor
from torch.optim import Optimizer

from unmask.checkpoint.folder import save_folder
from unmask.checkpoint.state import newest_state, save_state
from unmask.checkpoint.weights import empty
from unmask.model.network import Network
from unmask.train.course import Course, Final, Position
from unmask.train.distributed import like, whole
from unmask.train.optim import mean, read_moments, write_moments
from unmask.train.run import CHECKPOINTS, MODEL


class Keeper:
    """Writes and reads what a run must not lose, for the weights of all its processes."""

    def __init__(self, course: Course, optimizer: Optimizer) -> None:
        self.course, self.optimizer = course, optimizer

    def save(self, position: Position) -> None:
        """Publish a checkpoint."""
        course = self.course
        network = self.network(averaged=False)
        moments = {}
        for name, tensor in read_moments(course.network, self.optimizer).items():
            full = whole(tensor)  # all must ask, and only who writes keeps it
            if course.processes.first:
                moments[name] = full
        if course.processes.first:
            course.folder.claim(f"{CHECKPOINTS}/step-{position.step}")
            save_state(
                course.folder.checkpoints,
                network,
                course.tokenizer,
                moments,
                asdict(position),
                target=course.target,
                step=position.step,
                keep=course.settings.keep,
                recipe=course.recipe,
                provenance={**course.provenance, "step": position.step},
            )
        course.processes.wait()

    def restore(self) -> Position | None:
        """Take weights and moments from the newest checkpoint; None if there is none yet."""
        course = self.course
        state = newest_state(course.folder.checkpoints, course.folder.say)
        found = -1.0 if state is None else float(state.facts["step"])
        course.processes.refuse_difference(found, "the newest checkpoint that each finds")
        if state is None:
            return None
        stored = state.network.state_dict()
        with torch.no_grad():
            for name, tensor in course.network.state_dict().items():
                tensor.copy_(like(stored[name], tensor))
        parameters = dict(course.network.named_parameters())
        moments = {
            key: like(value, parameters[key.partition("/")[2]])
            for key, value in state.optimizer.items()
        }
        write_moments(course.network, self.optimizer, moments)
        return Position(**state.facts)

    def publish(self, position: Position) -> None:
        """Write the model of a finished run."""
        course = self.course
        target = course.folder.path / MODEL
        last = Final(self.network(), {}, None)  # gathers from all processes
        if course.processes.first and not target.exists():
            final = course.final() if course.final else last
            course.folder.claim(MODEL)
            save_folder(
                target,
                final.network,
                course.tokenizer,
                target=course.target,
                recipe=course.recipe,
                provenance={**course.provenance, "step": position.step, **final.facts},
                task=final.task,
            )
        course.processes.wait()

    def network(self, *, averaged: bool = True) -> Network:
        """The network with all its weights in this process, or with their running means."""
        network = self.course.network
        averaged = averaged and self.course.settings.average > 0
        if not self.course.shard and not averaged:
            return network
        plain = empty(network.config, network.heads)
        state: dict[str, Tensor] = dict(network.state_dict())
        if averaged:
            state |= {n: mean(p, self.optimizer) for n, p in network.named_parameters()}
        plain.load_state_dict({n: whole(t.detach()).cpu() for n, t in state.items()}, assign=True)
        return plain
