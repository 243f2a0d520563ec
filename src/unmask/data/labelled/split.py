"""Labelled records -> training records and dev records, where no dev data are given.

The choice depends on the seed and on the records alone, and not on their order, on the machine or
on the number of processes. Records of one group, such as the questions about one passage, stay
together. Each label keeps its share of the records, as far as its groups can be divided.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.data.corpus.statistics import Keyed

DEV_SHARE = 0.1  # of the records, unless a setting says otherwise


@dataclass(frozen=True)
class DevSplit:
    """The places of the training and the dev records among all records, in their order."""

    train: Sequence[int]
    dev: Sequence[int]
    repeated: int = 0  # records that are in neither part, because training has the same text
    groups: int = 0
    strata: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the manifest of the model

    def described(self) -> str:
        """Describe the split in a few words."""
        share, seed = self.facts["share"], self.facts["seed"]
        count = len(self.train) + len(self.dev) + self.repeated
        details = [f"data.dev_share {share:g}, data.dev_seed {seed}"]
        details += ["stratified by label"] if self.strata > 1 else []
        details += [f"{self.groups:,} groups are kept whole"] if self.groups < count else []
        again = f"; {self.repeated:,} more are skipped, because training has the same text"
        return (
            f"{len(self.train):,} for training, {len(self.dev):,} held out "
            f"({'; '.join(details)}){again if self.repeated else ''}"
        )


def split_records(
    records: Sequence[Keyed],
    groups: Sequence[Hashable],
    strata: Sequence[Hashable],
    *,
    share: float,
    seed: int,
    only_training: Collection[int] = (),
) -> DevSplit | None:
    """Choose about this share of the records as dev data, at least one; None if that cannot be.

    `groups` and `strata` have an entry for each record: a text, a number or a tuple of these.
    Groups with a record in `only_training` are not chosen.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        members[group].append(place)
    layers: dict[Hashable, list[Hashable]] = defaultdict(list)
    barred = {groups[place] for place in only_training}
    # By a hash, so that a record keeps its place when others are added, moved or removed.
    for group in sorted(members, key=lambda group: _rank(seed, group)):
        layers[strata[members[group][0]]].append(group)
    sizes = {name: sum(len(members[g]) for g in layer) for name, layer in layers.items()}
    quotas = _quotas(sizes, max(1, round(share * len(records))), seed)
    # A label that training never sees could not be predicted: its last group stays there.
    free = {name: [g for g in layer[:-1] if g not in barred] for name, layer in layers.items()}
    chosen = [g for name, layer in free.items() for g in _chosen(layer, members, quotas[name])]
    rest = [group for layer in free.values() for group in layer]
    if not chosen and rest:  # every group is larger than what is wanted
        chosen = [min(rest, key=lambda group: (len(members[group]), _rank(seed, group)))]
    taken = {place for group in chosen for place in members[group]}
    train = [place for place in range(len(records)) if place not in taken]
    seen = {records[place].key for place in train}
    # Groups may share a text, as two documents may share a sentence.
    dev = [place for place in sorted(taken) if records[place].key not in seen]
    if not dev:
        return None
    facts = {"train": len(train), "dev": len(dev), "share": share, "seed": seed}
    return DevSplit(train, dev, len(taken) - len(dev), len(members), len(layers), facts)


def _chosen(
    groups: Sequence[Hashable], members: Mapping[Hashable, Sequence[int]], wanted: int
) -> list[Hashable]:
    """Choose groups, in order, with about as many records as wanted."""
    chosen: list[Hashable] = []
    for group in groups:
        if len(members[group]) <= 2 * wanted:  # with it, the number is nearer than without
            chosen.append(group)
            wanted -= len(members[group])
        if wanted <= 0:
            break
    return chosen


def _quotas(sizes: Mapping[Hashable, int], wanted: int, seed: int) -> dict[Hashable, int]:
    """Divide a number in proportion to sizes, by the method of the largest remainders.

    >>> _quotas({"a": 70, "b": 24, "c": 6}, 10, seed=0)
    {'a': 7, 'b': 2, 'c': 1}
    """
    total = sum(sizes.values())
    quotas = {name: wanted * size // total for name, size in sizes.items()}

    def first(name: Hashable) -> tuple[int, bytes]:
        return -(wanted * sizes[name] % total), _rank(seed, name)

    for name in sorted(sizes, key=first)[: wanted - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _rank(seed: int, name: Hashable) -> bytes:
    """Return where a group stands in an order that a seed decides."""
    text = repr((seed, name)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
