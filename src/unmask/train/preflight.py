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


def preflight(given: Ingredients, site: Site) -> None:
    """Check a run before its first step.

    Where the loss at chance is known, a run that cannot succeed is refused. Otherwise there is only
    a warning.
    """
    vocabulary = given.tokens.source.vocabulary
    if given.network.config.vocab_size < len(vocabulary):
        raise PreflightError(
            f"preflight: ids up to {len(vocabulary) - 1:,} and a network of "
            f"{given.network.config.vocab_size:,} tokens; need one for each. Use the tokenizer "
            "of the model."
        )
    first, last = overfit_one_batch(given)
    expected, plain = given.objective.chance, given.evaluator.plain_loss
    known = {} if expected is None else {"ln V": expected}
    if known and plain:
        known["unigram"] = plain
    shown = ", ".join(f"{name} {loss:.2f}" for name, loss in known.items())
    shown = f" ({shown})" if shown else ""
    site.folder.say(
        f"preflight: loss before training {first:.2f}{shown}; one batch learned by heart to "
        f"{last:.2f}"
    )
    # A head that starts from token frequencies begins near the unigram loss, below ln V. A loss far
    # above ln V means confident wrong predictions, as from initial weights that are too large.
    if expected is not None and not 0.75 * min(known.values()) <= first <= 1.25 * expected:
        raise PreflightError(
            f"preflight: an untrained network has a loss of {first:.2f}; need about ln V = "
            f"{expected:.2f}. Check model.init_std and the weights it starts from."
        )
    if last < 0.7 * first:
        return
    problem = (
        f"preflight: {OVERFIT_STEPS} steps on one batch lowered its loss only from {first:.2f} "
        f"to {last:.2f}; need less than {0.7 * first:.2f}: it cannot learn. Check the model "
        "settings; --no-preflight starts all the same."
    )
    if expected is not None:
        raise PreflightError(problem)
    site.folder.say(f"warning: {problem}")


def overfit_one_batch(given: Ingredients) -> tuple[float, float]:
    """Overfit a copy of the network to one small batch; return its main loss before and after."""
    # A copy, so that checking changes nothing of the run. Evaluation mode, as dropout adds noise.
    network, objective = copy.deepcopy((given.network, given.objective))
    learner = TrainingModule(network, objective, given.companions).cpu().eval()
    parameters = [p for p in learner.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    pieces = [MicroBatch(given.source.sample(OVERFIT_EXAMPLES), 0)]
    main = objective.terms[0]  # `chance` is the loss of this term alone
    step = step_for(objective)
    if isinstance(step, Summed):  # other terms would hide how well the main one is learned
        step.terms = [main]
    losses = []
    for _ in range(OVERFIT_STEPS + 1):
        result = step(learner, pieces, StepSite(Processes()))
        assert result is not None
        if result.taken:
            optimizer.step()
        losses.append(result.losses[main])
    return losses[0], losses[-1]
