"""State of a run <-> disk: checkpoints to resume from, and the models that a run publishes."""

from copy import deepcopy
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.state import newest_state, prune, refuse_non_finite, write_state
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
    """Saves, restores and publishes a run, whether its weights are copied or sharded."""

    def __init__(
        self,
        ingredients: Ingredients,
        recipe: Recipe,
        site: Site,
        optimizer: Optimizer,
        *,
        shard: bool,
    ) -> None:
        self.ingredients, self.site = ingredients, site
        self.optimizer, self.shard = optimizer, shard
        self.settings, self.processes = recipe.loop, site.processes

    def save(self, position: Position) -> None:
        """Write a checkpoint of weights, optimizer state and position."""
        # The raw weights; their running mean is among the optimizer's tensors.
        network, objective = self.trained(averaged=False)
        moments = {}
        for name, tensor in read_moments(self._modules(), self.optimizer).items():
            full = full_tensor(tensor)  # a collective call
            if self.processes.first:  # only one process pays for the memory of all of them
                moments[name] = full
        if self.processes.first:
            folder, name = self.site.folder.checkpoints, f"step-{position.step}"
            objective_tensors = objective.state_dict()
            # A NaN on disk would become the state that every later resume starts from.
            refuse_non_finite({**network.state_dict(), **objective_tensors, **moments}, folder)
            # Listed before it is written, so that a half-written folder still counts as the run's.
            self.site.folder.claim(f"{CHECKPOINTS}/{name}")
            numbers = count_parameters(network) + sum(tensor.numel() for tensor in moments.values())
            save_folder(
                folder / name,
                network,
                self.ingredients.tokens.source,
                target=self.ingredients.tokens.target,
                recipe=self.site.folder.recipe,
                provenance={**self.ingredients.digest.provenance, "step": position.step},
                beside=partial(
                    write_state, moments=moments, own=objective_tensors, facts=asdict(position)
                ),
                needed=4 * numbers + 2**20,  # fp32, and a megabyte for the tokenizer's files
            )
            # Only after the new checkpoint is complete.
            prune(folder, self.settings.keep_checkpoints)
        self.processes.wait()

    def restore(self) -> Position | None:
        """Load the newest intact checkpoint into modules and optimizer; return None without one."""
        state = newest_state(self.site.folder.checkpoints, self.site.folder.say)
        newest_step = -1 if state is None else state.facts["step"]
        # Machines that do not share a disk would silently resume from different steps.
        self.processes.refuse_difference(newest_step, "the newest checkpoint")
        if state is None:
            return None
        # A killed run may not have pruned. No process still reads: the comparison above waited.
        if self.processes.first:
            prune(self.site.folder.checkpoints, self.settings.keep_checkpoints)
        stored = {
            self.ingredients.network: state.network.state_dict(),
            self.ingredients.objective: state.own,
        }
        with torch.no_grad():
            for module, tensors in stored.items():
                for name, tensor in module.state_dict().items():
                    if name not in tensors:
                        raise FolderError(
                            f"{state.path}: has no tensor '{name}', which the objective trains; "
                            "the run was started with another objective. Resume it with that one."
                        )
                    # In place, because the optimizer and the wrappers hold these tensors.
                    tensor.copy_(sharded_like(tensors[name], tensor))
        write_moments(self._modules(), self.optimizer, state.optimizer)
        return Position(**state.facts)

    def publish(self, position: Position) -> None:
        """Publish the models of a finished run, from its best step or else its last."""
        network, _ = self.trained()  # a collective call where weights are sharded
        best = self.ingredients.evaluator.best(position)
        if self.processes.first:
            if best.path is not None:
                network = load_folder(best.path).network
            for folder, names in self.ingredients.publish.items():
                target = self.site.folder.path / folder
                if target.exists():
                    continue  # resumed after its end: what is published stays
                self.site.folder.claim(folder)
                # The folder of one task out of several carries that task's scores alone.
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
                    self.ingredients.tokens.source,
                    target=self.ingredients.tokens.target,
                    recipe=self.site.folder.recipe,
                    provenance={**self.ingredients.digest.provenance, "step": best.step, **facts},
                    task=best.settings.get(head),
                )
                if names:
                    self.site.folder.say(f"the model for {', '.join(names)} is in {target}")
        self.processes.wait()

    def trained(self, *, averaged: bool = True) -> tuple[Network, Objective]:
        """Return network and objective with complete weights, or with their running means.

        The modules in training themselves, unless weights are sharded or averaged; then copies.
        """
        network, objective = self.ingredients.network, self.ingredients.objective
        averaged = averaged and self.settings.weight_average > 0
        if not self.shard and not averaged:
            return network, objective
        # A network without memory, because all its tensors are assigned in the next line.
        complete = empty(network.shape)
        complete.load_state_dict(self._full_state(network, averaged=averaged), assign=True)
        objective_tensors = self._full_state(objective, averaged=averaged)
        if not objective_tensors:
            return complete, objective
        copied = deepcopy(objective).cpu()
        copied.load_state_dict(objective_tensors, assign=True)
        return complete, copied

    def _full_state(self, module: nn.Module, *, averaged: bool) -> dict[str, Tensor]:
        """Return the tensors of a module by name, gathered from all processes onto the CPU."""
        state: dict[str, Tensor] = dict(module.state_dict())
        if averaged:
            state |= {
                name: mean(parameter, self.optimizer)
                for name, parameter in module.named_parameters()
            }
        return {name: full_tensor(tensor.detach()).cpu() for name, tensor in state.items()}

    def _modules(self) -> dict[str, nn.Module]:
        """Return the trained modules by the prefix of their names in the optimizer state."""
        return {"": self.ingredients.network, "objective.": self.ingredients.objective}
