"""The pre-training job: a corpus folder -> a model."""

from pathlib import Path
from typing import ClassVar

from unmask.data.corpus.corpus import Corpus, open_corpus
from unmask.evaluation.held_out import HeldOutText
from unmask.jobs.budget import choose_size, filled_in
from unmask.jobs.inputs.corpus import CorpusSource, CorpusStatistics, check_corpus, objective_for
from unmask.jobs.inputs.learner import learner_of
from unmask.jobs.settings_read import PRETRAIN, check_network
from unmask.jobs.summary import MASKED
from unmask.model.shape import TOKENS, Shape
from unmask.text.tokens import Tokenizers
from unmask.train.compose import Scope
from unmask.train.ingredients import Digest, Ingredients
from unmask.train.recipe import Recipe
from unmask.train.run_folder import MODEL
from unmask.train.site import Site

BATCH_TOKENS = 32_768  # default batch size without a time budget: BERT's, 256 x 128


class Pretrain:
    """Pre-train a network on a prepared corpus."""

    scope: ClassVar[Scope] = PRETRAIN

    def __init__(self, corpus: Path) -> None:
        self.path = corpus
        self.corpus: Corpus | None = None
        self.fills = False  # whether the model predicts masked tokens

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Choose the size and batch size that are left open, and fill in the whole shape."""
        corpus = self._open_corpus(site)
        recipe = filled_in(choose_size(recipe, corpus, site), {}, BATCH_TOKENS)
        check_network(recipe)
        config = recipe.model.config(len(corpus.tokenizer.vocabulary))
        # In full, so that the stored recipe means the same under the defaults of later versions.
        return recipe.model_copy(update={"model": recipe.model.spelled_out(config)})

    def main_metrics(self) -> list[str]:
        """Return no score: the last step is published."""
        return []

    def next_command(self, run: Path) -> list[str]:
        """Return a command that uses the model of a finished run."""
        model = str(run / MODEL)
        return ["unmask", "fill", model, MASKED] if self.fills else ["unmask", "info", model]

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Open the corpus, and make the network, objective, source and evaluator for it."""
        corpus = self._open_corpus(site)
        vocabulary = corpus.tokenizer.vocabulary
        objective = objective_for(recipe, vocabulary)
        shape = Shape.of(recipe.model.config(len(vocabulary)))
        learner = learner_of(objective, shape, recipe.seed, statistics=CorpusStatistics(corpus))
        network = learner.network
        source = CorpusSource(corpus, recipe, objective)
        self.fills = TOKENS in network.heads and not network.config.causal
        provenance = {"corpus": corpus.path.name, "corpus sha256": corpus.digest}
        provenance |= {f"{name} sha256": sha256 for name, sha256 in learner.digests.items()}
        digest = "".join([corpus.digest, *learner.digests.values()])
        phase = recipe.schedule.phases[0]
        site.folder.say(
            f"corpus of {corpus.size:,} tokens; batch size {phase.rows * phase.length:,} tokens"
        )
        if site.check and site.stored is None and site.processes.first:
            check_corpus(source, site.folder.say)
        return Ingredients(
            tokens=Tokenizers(corpus.tokenizer, network.config.max_length),
            network=network,
            objective=objective,
            source=source,
            companions=learner.companions,
            evaluator=HeldOutText(site, corpus, recipe, objective, network, learner.companions),
            digest=Digest("corpus", digest, provenance),
            publish=objective.publish(),
        )

    def _open_corpus(self, site: Site) -> Corpus:
        """Open the corpus at the first call; only the first process verifies its digests."""
        if self.corpus is None:
            checked = 0

            def report(tokens: int) -> None:
                nonlocal checked
                checked += tokens
                site.console.progress("checking the corpus", "tokens", checked)

            first = site.processes.first
            # Verifying reads every byte, which one process does for all.
            self.corpus = open_corpus(self.path, check=first, progress=report if first else None)
            site.processes.refuse_difference(self.corpus.digest, "the corpus")
        return self.corpus
