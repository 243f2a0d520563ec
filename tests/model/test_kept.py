"""What is kept grows by what is put behind it, and nobody's part of it changes."""

import torch

from unmask.model.kept import LEAST, Growing, kept


def tokens(first, count):
    """Tokens that tell their number.  -> [2, 3, count, 4]"""
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    return numbers[None, None, :, None].expand(2, 3, count, 4).contiguous()


def test_token_by_token_is_all_at_once_and_moves_only_when_the_room_is_full():
    growing, rooms = Growing(tokens(0, 0)), []
    for at in range(3 * LEAST):
        growing = growing.and_then(tokens(at, 1))
        assert torch.equal(growing.tensor, tokens(0, at + 1))
        if growing.room not in rooms:
            rooms.append(growing.room)
    assert [len(room.places[0, 0]) for room in rooms] == [16, 34, 70]


def test_two_ways_to_go_on_do_not_write_over_each_other():
    start = Growing(tokens(0, 0)).and_then(tokens(0, 2))
    one, two = start.and_then(tokens(7, 1)), start.and_then(tokens(8, 2))
    assert one.room is start.room
    assert two.room is not start.room
    assert torch.equal(one.tensor, torch.cat([tokens(0, 2), tokens(7, 1)], dim=2))
    assert torch.equal(two.tensor, torch.cat([tokens(0, 2), tokens(8, 2)], dim=2))
    assert torch.equal(start.tensor, tokens(0, 2))


def test_a_selection_has_its_own_room_of_the_same_size():
    index = torch.arange(2).expand(2, 2)
    known = kept(tokens(0, 0), tokens(0, 0), index[:, :0])
    known = known.and_then(tokens(0, 2), tokens(2, 2), index)
    chosen = known.select(torch.tensor([1, 1, 0]))
    assert chosen.growing_keys.room.places.shape == (3, 3, LEAST, 4)
    chosen = chosen.and_then(*(x[[0, 1, 1]] for x in (tokens(9, 1), tokens(9, 1), index[:, :1])))
    known = known.and_then(tokens(5, 1), tokens(6, 1), index[:, :1])
    assert torch.equal(known.keys, torch.cat([tokens(0, 2), tokens(5, 1)], dim=2))
    assert torch.equal(known.values, torch.cat([tokens(2, 2), tokens(6, 1)], dim=2))
    assert torch.equal(chosen.keys[2], torch.cat([tokens(0, 2), tokens(9, 1)], dim=2)[0])
    assert chosen.index.shape == (3, 3)
