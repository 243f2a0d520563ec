"""A run's weights <-> disk: checkpoints to resume from, and the models of a finished run."""

from copy import deepcopy
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.state import newest_state, prune, refuse_poison, write_state
from unmask.checkpoint.weights import empty
from unmask.model.factory import part_of
from unmask.model.network import Network, count_parameters
from unmask.objectives.base import Objective
from unmask.system.distributed import full_tensor, sharded_like
from unmask.system.errors import FolderError
from unmask.train.evaluator import METRIC, Position, metric_name
from unmask.train.ingredients import Ingredients
from unmask.train.optim.optimizers import mean, read_moments, write_moments
from unmask.train.recipe import Recipe
from unmask.train.run_folder import CHECKPOINTS, MODEL
from unmask.train.site import Site


class Checkpointer:
    """Writes and reads what a run must not lose, for the weights of all its processes."""

    def __init__(
        self, given: Ingredients, recipe: Recipe, site: Site, optimizer: Optimizer, *, shard: bool
    ) -> None:
        self.given, self.site, self.optimizer, self.shard = given, site, optimizer, shard
        self.settings, self.processes = recipe.loop, site.processes

    def save(self, position: Position) -> None:
        """Publish a checkpoint."""
        network, objective = self.trained(averaged=False)
        moments = {}
        for name, tensor in read_moments(self._modules(), self.optimizer).items():
            full = full_tensor(tensor)  # all processes must ask, and only the first keeps it
            if self.processes.first:
                moments[name] = full
        if self.processes.first:
            folder, name = self.site.folder.checkpoints, f"step-{position.step}"
            own = objective.state_dict()
            refuse_poison({**network.state_dict(), **own, **moments}, folder)
            self.site.folder.claim(f"{CHECKPOINTS}/{name}")
            numbers = count_parameters(network) + sum(t.numel() for t in moments.values())
            save_folder(
                folder / name,
                network,
                self.given.tokens.source,
                target=self.given.tokens.target,
                recipe=self.site.folder.recipe,
                provenance={**self.given.digest.provenance, "step": position.step},
                beside=partial(write_state, moments=moments, own=own, facts=asdict(position)),
                needed=4 * numbers + 2**20,
            )
            prune(folder, self.settings.keep)
        self.processes.wait()

    def restore(self) -> Position | None:
        """Take weights and moments from the newest checkpoint; None if there is none yet."""
        state = newest_state(self.site.folder.checkpoints, self.site.folder.say)
        found = -1 if state is None else state.facts["step"]
        self.processes.refuse_difference(found, "the newest checkpoint that each finds")
        if state is None:
            return None
        if self.processes.first:  # all have read theirs; a run that was killed may not have pruned
            prune(self.site.folder.checkpoints, self.settings.keep)
        stored = {self.given.network: state.network.state_dict(), self.given.objective: state.own}
        with torch.no_grad():
            for module, tensors in stored.items():
                for name, tensor in module.state_dict().items():
                    if name not in tensors:
                        raise FolderError(
                            f"{state.path}: holds no '{name}', which the objective learns; the run "
                            "was begun with another objective."
                        )
                    tensor.copy_(sharded_like(tensors[name], tensor))
        write_moments(self._modules(), self.optimizer, state.optimizer)
        return Position(**state.facts)

    def publish(self, position: Position) -> None:
        """Write the models of a finished run: of the best step, or else of the last."""
        network, _ = self.trained()  # gathers from all processes
        best = self.given.evaluator.best(position)
        if self.processes.first:
            if best.path is not None:
                network = load_folder(best.path).network
            for folder, names in self.given.publish.items():
                target = self.site.folder.path / folder
                if target.exists():
                    continue
                self.site.folder.claim(folder)
                head = names[0] if names and folder != MODEL else ""
                prefix = metric_name(head, "")
                scores = {
                    name.removeprefix(prefix): value
                    for name, value in best.scores.items()
                    if name.startswith(prefix) and name != METRIC
                }
                facts = {"scores": scores} if scores else {}
                save_folder(
                    target,
                    part_of(network, names) if names else network,
                    self.given.tokens.source,
                    target=self.given.tokens.target,
                    recipe=self.site.folder.recipe,
                    provenance={**self.given.digest.provenance, "step": best.step, **facts},
                    task=best.settings.get(head),
                )
                if names:
                    self.site.folder.say(f"the model for {', '.join(names)} is in {target}")
        self.processes.wait()

    def trained(self, *, averaged: bool = True) -> tuple[Network, Objective]:
        """Network and objective with all their weights in this process, or with running means."""
        network, objective = self.given.network, self.given.objective
        averaged = averaged and self.settings.average > 0
        if not self.shard and not averaged:
            return network, objective
        plain = empty(network.shape)
        plain.load_state_dict(self._whole(network, averaged=averaged), assign=True)
        own = self._whole(objective, averaged=averaged)
        if not own:
            return plain, objective
        copied = deepcopy(objective).cpu()
        copied.load_state_dict(own, assign=True)
        return plain, copied

    def _whole(self, module: nn.Module, *, averaged: bool) -> dict[str, Tensor]:
        """The tensors of a module, gathered from all processes."""
        state: dict[str, Tensor] = dict(module.state_dict())
        if averaged:
            state |= {n: mean(p, self.optimizer) for n, p in module.named_parameters()}
        return {n: full_tensor(t.detach()).cpu() for n, t in state.items()}

    def _modules(self) -> dict[str, nn.Module]:
        """What is trained, with what the names of its parameters begin with."""
        return {"": self.given.network, "objective.": self.given.objective}
