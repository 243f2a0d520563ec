"""What is kept grows by what is put behind it, and nobody's part of it changes."""

from dataclasses import replace

import torch

from unmask.model.kept import LEAST, Kept, Room


def tokens(first, count):
    """Keys that tell their number, values that tell a hundred more.  -> [2, 2, 3, count, 4]"""
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    both = torch.stack([numbers, numbers + 100])
    return both[None, :, None, :, None].expand(2, 2, 3, count, 4).contiguous()


def nothing():
    return Kept(Room(tokens(0, 0)))


def test_token_by_token_is_all_at_once_and_moves_only_when_the_room_is_full():
    kept, rooms = nothing(), []
    for at in range(3 * LEAST):
        kept.add(tokens(at, 1))
        assert torch.equal(kept.tokens, tokens(0, at + 1))
        if not any(kept.room is room for room in rooms):
            rooms.append(kept.room)
    assert [len(room.places[0, 0, 0]) for room in rooms] == [16, 34, 70]


def test_two_ways_to_go_on_do_not_write_over_each_other():
    start = nothing()
    start.add(tokens(0, 2))
    one, two = replace(start), replace(start)
    one.add(tokens(7, 1))
    two.add(tokens(8, 2))
    assert one.room is start.room
    assert two.room is not start.room
    assert torch.equal(one.tokens, torch.cat([tokens(0, 2), tokens(7, 1)], dim=3))
    assert torch.equal(two.tokens, torch.cat([tokens(0, 2), tokens(8, 2)], dim=3))
    assert torch.equal(start.tokens, tokens(0, 2))


def test_a_selection_has_its_own_room_of_the_same_size():
    known = nothing()
    known.add(tokens(0, 2) + torch.tensor([0.0, 1000.0])[:, None, None, None, None])  # by rows
    before = known.tokens.clone()
    chosen = known.select(torch.tensor([1, 1, 0]))
    assert chosen.room.places.shape == (3, 2, 3, LEAST, 4)
    chosen.add(tokens(9, 1)[[0, 1, 1]])
    known.add(tokens(5, 1))
    assert torch.equal(known.tokens, torch.cat([before, tokens(5, 1)], dim=3))
    assert torch.equal(chosen.tokens[2], torch.cat([before, tokens(9, 1)], dim=3)[0])
    assert torch.equal(chosen.tokens[:2], torch.cat([before, tokens(9, 1)], dim=3)[[1, 1]])
