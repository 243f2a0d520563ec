"""What is kept grows by what is put behind it, and nobody's part of it changes."""

from dataclasses import replace

import torch

from unmask.model.decoding.cache import MIN_CAPACITY, KVCache, KVStorage


def tokens(first, count):
    """Tokens that tell their number.  -> [2, 3, count, 4]"""
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    return numbers[None, None, :, None].expand(2, 3, count, 4).contiguous()


def nothing():
    return KVCache(KVStorage(tokens(0, 0), tokens(0, 0)))


def add(kept, first, count):
    """Keys that tell their number, values that tell a hundred more."""
    kept.add(tokens(first, count), tokens(first + 100, count))


def holds(kept, *parts):
    """Are these all that is kept, each told by its first number and their count?"""
    keys = torch.cat([tokens(first, count) for first, count in parts], dim=2)
    values = torch.cat([tokens(first + 100, count) for first, count in parts], dim=2)
    return torch.equal(kept.keys, keys) and torch.equal(kept.values, values)


def test_token_by_token_is_all_at_once_and_moves_only_when_the_room_is_full():
    kept, rooms = nothing(), []
    for at in range(3 * MIN_CAPACITY):
        add(kept, at, 1)
        assert holds(kept, (0, at + 1))
        if not any(kept.storage is room for room in rooms):
            rooms.append(kept.storage)
    assert [len(room.keys[0, 0]) for room in rooms] == [16, 34, 70]
    assert [len(room.values[0, 0]) for room in rooms] == [16, 34, 70]


def test_two_ways_to_go_on_do_not_write_over_each_other():
    start = nothing()
    add(start, 0, 2)
    one, two = replace(start), replace(start)
    add(one, 7, 1)
    add(two, 8, 2)
    assert one.storage is start.storage
    assert two.storage is not start.storage
    assert holds(one, (0, 2), (7, 1))
    assert holds(two, (0, 2), (8, 2))
    assert holds(start, (0, 2))


def test_a_selection_has_its_own_room_of_the_same_size():
    known = nothing()
    rows = torch.tensor([0.0, 1000.0])[:, None, None, None]
    known.add(tokens(0, 2) + rows, tokens(2, 2) + rows)
    keys, values = known.keys.clone(), known.values.clone()
    chosen = known.select(torch.tensor([1, 1, 0]))
    assert chosen.storage.keys.shape == chosen.storage.values.shape == (3, 3, MIN_CAPACITY, 4)
    chosen.add(*(tokens(first, 1)[[0, 1, 1]] for first in (9, 19)))
    known.add(tokens(5, 1), tokens(6, 1))
    assert torch.equal(known.keys, torch.cat([keys, tokens(5, 1)], dim=2))
    assert torch.equal(known.values, torch.cat([values, tokens(6, 1)], dim=2))
    assert torch.equal(chosen.keys[2], torch.cat([keys, tokens(9, 1)], dim=2)[0])
    assert torch.equal(chosen.values[:2], torch.cat([values, tokens(19, 1)], dim=2)[[1, 1]])
