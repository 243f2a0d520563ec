"""Ingredients of a run -> a refusal, a warning or a go-ahead, before the first step.

Three checks: the vocabulary fits the network, the loss of the untrained network is near chance, and
the network can overfit a single batch.
"""

import copy

import torch

from unmask.system.distributed import Processes
from unmask.system.errors import UserError
from unmask.train.ingredients import Ingredients
from unmask.train.site import Site
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepSite, TrainingModule
from unmask.train.steps.summed import Summed

OVERFIT_STEPS, OVERFIT_EXAMPLES = 30, 4
LEARNING_RATE = 1e-3


class PreflightError(UserError):
    """A check before the first step found that the run cannot succeed."""


def preflight(ingredients: Ingredients, site: Site) -> None:
    """Check a run before its first step.

    Where the loss at chance is known, a run that cannot succeed is refused. Otherwise there is only
    a warning.
    """
    vocabulary = ingredients.tokens.source.vocabulary
    if ingredients.network.config.vocab_size < len(vocabulary):
        raise PreflightError(
            f"preflight: the tokenizer has {len(vocabulary):,} tokens, but the network has "
            f"embeddings for only {ingredients.network.config.vocab_size:,}. Use the model's own "
            "tokenizer."
        )
    first, last = overfit_one_batch(ingredients)
    chance, unigram = ingredients.objective.chance, ingredients.evaluator.plain_loss
    baselines = {} if chance is None else {"ln V": chance}
    if baselines and unigram:
        baselines["unigram"] = unigram
    listing = ", ".join(f"{name} {loss:.2f}" for name, loss in baselines.items())
    listing = f" ({listing})" if listing else ""
    site.folder.say(
        f"preflight: loss before training {first:.2f}{listing}; memorising one batch lowers it to "
        f"{last:.2f}"
    )
    # A head that starts from token frequencies begins near the unigram loss, below ln V. A loss far
    # above ln V means confident wrong predictions, as from initial weights that are too large.
    if chance is not None and not 0.75 * min(baselines.values()) <= first <= 1.25 * chance:
        raise PreflightError(
            f"preflight: the untrained network has a loss of {first:.2f}; expected about ln V = "
            f"{chance:.2f}. Check model.init_std and the initial weights."
        )
    if last < 0.7 * first:
        return
    problem = (
        f"preflight: {OVERFIT_STEPS} steps on one batch lowered its loss only from {first:.2f} "
        f"to {last:.2f}; need less than {0.7 * first:.2f} to show that the network can learn. "
        "Check the model settings, or skip this check with --no-preflight."
    )
    if chance is not None:
        raise PreflightError(problem)
    site.folder.say(f"warning: {problem}")


def overfit_one_batch(ingredients: Ingredients) -> tuple[float, float]:
    """Overfit a copy of the network to one small batch; return its main loss before and after."""
    # A copy, so that checking changes nothing of the run. Evaluation mode, as dropout adds noise.
    network, objective = copy.deepcopy((ingredients.network, ingredients.objective))
    training_module = TrainingModule(network, objective, ingredients.companions).cpu().eval()
    parameters = [p for p in training_module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    micro_batches = [MicroBatch(ingredients.source.sample(OVERFIT_EXAMPLES), 0)]
    main = objective.terms[0]  # `chance` is the loss of this term alone
    step = step_for(objective)
    if isinstance(step, Summed):  # other terms would hide how well the main one is learned
        step.terms = [main]
    losses = []
    for _ in range(OVERFIT_STEPS + 1):
        result = step(training_module, micro_batches, StepSite(Processes()))
        assert result is not None
        if result.taken:
            optimizer.step()
        losses.append(result.losses[main])
    return losses[0], losses[-1]
