"""Packing: which texts share a row."""

from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.packing import RowPlan, pack

lengths = st.lists(st.integers(1, 40), max_size=60)
limits = st.integers(1, 50)


def used(rows: RowPlan, of: list[int]) -> list[int]:
    return [sum(of[text] for text in texts) for texts in rows]


def fewest_rows(of: list[int], limit: int) -> int:
    """The best possible, by trying every row for every text."""

    def place(left: list[int], rooms: list[int]) -> int:
        if not left:
            return len(rooms)
        first, *rest = left
        tries = [place(rest, [*rooms, limit - first])]
        for i, room in enumerate(rooms):
            if room >= first:
                tries.append(place(rest, [*rooms[:i], room - first, *rooms[i + 1 :]]))
        return min(tries)

    return place(of, [])


def test_longest_first_into_the_fullest_row_with_room_by_hand():
    # 8 opens row 0; 4 opens row 1, which takes the other 4; 2 fills row 0; 1 and 1 fill row 1
    assert pack([4, 8, 1, 4, 2, 1], 10) == [[1, 4], [0, 3, 2, 5]]


def test_a_text_goes_into_the_fullest_row_not_the_first():
    # 6 and 7 have rows of their own; 3 fits both, and fills the row of the 7
    assert pack([6, 7, 3], 10) == [[1, 2], [0]]


def test_no_text_needs_no_row():
    assert pack([], 10) == []


def test_a_text_as_long_as_the_row_fills_it():
    assert pack([10, 1], 10) == [[0], [1]]


def test_a_text_longer_than_the_row_has_a_row_of_its_own():
    assert pack([1, 25, 1], 10) == [[1], [0, 2]]


def test_texts_of_equal_length_keep_their_order():
    assert pack([2, 2, 2, 2, 2], 4) == [[0, 1], [2, 3], [4]]


@settings(deadline=None)
@given(lengths, limits)
def test_every_text_is_in_exactly_one_row(of, limit):
    assert sorted(text for texts in pack(of, limit) for text in texts) == list(range(len(of)))


@settings(deadline=None)
@given(lengths, limits)
def test_no_row_is_over_the_limit_except_for_one_long_text(of, limit):
    rows = pack(of, limit)
    for texts, tokens in zip(rows, used(rows, of), strict=True):
        assert tokens <= limit or len(texts) == 1


@settings(deadline=None)
@given(lengths, limits)
def test_no_two_rows_could_have_been_one(of, limit):
    two_emptiest = sorted(used(pack(of, limit), of))[:2]
    assert len(two_emptiest) < 2 or sum(two_emptiest) > limit


@settings(deadline=None)
@given(lengths, limits)
def test_less_than_half_of_a_batch_is_padding_but_for_one_row(of, limit):
    fits = [length for length in of if length <= limit]
    assert len(pack(fits, limit)) <= 2 * sum(fits) / limit + 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 10), max_size=7), st.just(10))
def test_rows_are_at_most_eleven_ninths_of_the_best_possible(of, limit):
    # Johnson et al. 1974 for decreasing lengths; the 6 / 9 is Dosa 2007
    assert 9 * len(pack(of, limit)) <= 11 * fewest_rows(of, limit) + 6


@settings(deadline=None)
@given(lengths, limits)
def test_the_same_lengths_give_the_same_rows(of, limit):
    assert pack(of, limit) == pack(tuple(of), limit)
