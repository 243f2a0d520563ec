"""What each job reads of a recipe, and what can be refused before its data is read. Needs no torch.

The job itself has its scope as an attribute; the command line takes it from here, so that mistakes
are reported before torch is imported.
"""

from typing import Any

from unmask.errors import SettingsError
from unmask.train.compose import Scope
from unmask.train.recipe import AUTO, Recipe

SHAPE = "size width layers heads inner_width max_length segments activation gated norm "
SHAPE += "norm_epsilon dropout attention_dropout init_std positions reach buckets rotary_base "
SHAPE += "cell causal window"
LOOP = "micro_tokens micro_batches precision compile ahead average log_steps save_minutes "
LOOP += "save_steps keep bad_steps"
ADAM = "kind rate momentum factor beta1 beta2 epsilon decay clip"
RATES = "schedule.kind schedule.warmup schedule.floor schedule.steps schedule.minutes".split()
TUNED = [
    "seed",
    "model.frozen",
    "tokenizer.max_length",
    *(f"optimizer.{name}" for name in f"{ADAM} layer_decay head_factor".split()),
    *RATES,
    "schedule.epochs",
    *(f"loop.{name}" for name in f"{LOOP} batch_size".split()),
    "evaluate.times",
    "evaluate.patience",
]
DEFAULTS: dict[str, Any] = {
    "optimizer": {"rate": 5e-5},
    "schedule": {"warmup": 0.1, "epochs": 3.0},
}
VOCABULARY = 2**15  # a size that any network can have, where the real one is not known yet

PRETRAIN = Scope(
    "pretrain",
    reads=[
        "seed",
        *(f"model.{name}" for name in SHAPE.split()),
        *(f"data.{name}" for name in "pairs short_share copies held_out".split()),
        "objective",
        *(f"optimizer.{name}" for name in ADAM.split()),
        *RATES,
        "schedule.phases",
        *(f"loop.{name}" for name in LOOP.split()),
        "evaluate.times",
        "evaluate.tokens",
    ],
    defaults={"model": {"size": "base"}, "objective": {"name": "mlm"}},
)
FINETUNE = Scope(
    "finetune",
    reads=[*TUNED, "task", "model.head_layers"],
    defaults=DEFAULTS,
    folder="finetune",
    called="task",
)
SEVERAL = Scope("finetune multi", [*TUNED, "tasks", "data.temperature"], DEFAULTS)
TRANSLATE = Scope(
    "translate",
    reads=[
        *TUNED,
        *(f"model.{name}" for name in SHAPE.split()),
        "model.decoder",
        "tokenizer",
        "task",
        "evaluate.tokens",
    ],
    defaults={**DEFAULTS, "task": {"name": "translate"}},
    folder="translate",
)


def check_network(recipe: Recipe) -> None:
    """Refuse a network to pre-train that cannot be, or that cannot read the longest sequences."""
    if recipe.model.size == AUTO:
        return
    longest = max(phase.length for phase in recipe.schedule.phases)
    most = recipe.model.config(VOCABULARY).max_length
    if longest > most:
        raise SettingsError(
            f"recipe [[schedule.phases]]: sequences of {longest} tokens; the network reads at most "
            f"{most}. Lower length, or raise model.max_length."
        )
