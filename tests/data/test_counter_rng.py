"""Random numbers by counting: nothing but key and index decides them, and they look random."""

import numpy as np
import pytest

from unmask.data.counter_rng import below, key, permutation, random_bits, uniform

COUNT = 100_000
KEYS = [key(7, 0, 0), key(7, 0, 1), key(7, 1, 0), key(8, 0, 0)]


def test_the_mixing_is_that_of_splitmix64():
    """The first numbers of the published generator from the states 0 and 1234567."""
    assert key(0) == 0xE220A8397B1DCDAF
    assert key(1234567) == 6457827717110365317


def test_a_word_mixes_its_index_with_its_key():
    first = key(0)  # of index 0; the key that takes it away leaves 0 to be mixed again
    assert random_bits(first, [0]).tolist() == [first]


def test_the_same_key_and_index_give_the_same_number():
    assert np.array_equal(
        random_bits(KEYS[0], np.arange(1000)), random_bits(KEYS[0], np.arange(1000))
    )


def test_a_number_depends_on_its_index_alone_not_on_those_drawn_with_it():
    together = uniform(KEYS[0], np.arange(1000))
    backwards = uniform(KEYS[0], np.arange(999, -1, -1))
    alone = [uniform(KEYS[0], [i])[0] for i in (0, 1, 500, 999)]
    assert np.array_equal(together, backwards[::-1])
    assert alone == together[[0, 1, 500, 999]].tolist()


def test_the_last_of_a_billion_numbers_is_drawn_as_the_first():
    far = uniform(KEYS[0], [10**9, 2**63])
    assert len(set(far)) == 2
    assert ((far >= 0) & (far < 1)).all()


@pytest.mark.parametrize("kind", ["int32", "int64", "uint64"])
def test_the_type_of_an_index_does_not_matter(kind):
    index = np.arange(100)
    assert np.array_equal(random_bits(KEYS[0], index.astype(kind)), random_bits(KEYS[0], index))


@pytest.mark.parametrize("root", KEYS)
def test_numbers_are_spread_evenly_over_a_hundred_bins(root):
    draws = uniform(root, np.arange(COUNT))
    assert draws.min() >= 0
    assert draws.max() < 1
    expected = COUNT / 100
    found = np.bincount((draws * 100).astype(int), minlength=100)
    # of 99 degrees: 99 on average, above 149 once in a thousand times
    assert ((found - expected) ** 2 / expected).sum() < 149


@pytest.mark.parametrize("root", KEYS)
def test_every_bit_is_set_half_of_the_time(root):
    bits = np.unpackbits(random_bits(root, np.arange(COUNT)).view(np.uint8)).reshape(COUNT, 64)
    assert bits.mean(axis=0) == pytest.approx(0.5, abs=4.5 * 0.5 / COUNT**0.5)


def test_neighbours_know_nothing_of_each_other():
    draws = uniform(KEYS[0], np.arange(COUNT))
    for distance in (1, 2, 64, 1024):
        together = np.corrcoef(draws[:-distance], draws[distance:])[0, 1]
        assert abs(together) < 4.5 / COUNT**0.5


def test_keys_that_are_near_give_numbers_that_have_nothing_in_common():
    draws = [uniform(root, np.arange(COUNT)) for root in KEYS]
    others = np.corrcoef(draws)[~np.eye(len(KEYS), dtype=bool)]
    assert np.abs(others).max() < 4.5 / COUNT**0.5


def test_keys_differ_whenever_their_parts_do():
    parts = [(seed, epoch, at) for seed in range(20) for epoch in range(20) for at in range(25)]
    assert len({key(*some) for some in parts}) == len(parts)


def test_another_order_or_number_of_parts_is_another_key():
    assert len({key(1, 2), key(2, 1), key(1), key(2), key(1, 2, 0), key(0, 1, 2), key()}) == 7


def test_a_key_takes_numbers_of_any_size_and_sign():
    assert 0 <= key(-1) < 2**64
    assert key(-1) == key(2**64 - 1)


def test_draws_become_whole_numbers_below_a_bound():
    assert below(4, np.array([0.0, 0.24, 0.25, 0.5, 0.99])).tolist() == [0, 0, 1, 2, 3]


def test_every_draw_may_have_a_bound_of_its_own():
    assert below(np.array([1, 10, 1000]), np.array([0.5, 0.5, 0.5])).tolist() == [0, 5, 500]


def test_no_draw_reaches_the_bound_however_it_is_rounded():
    highest = np.array([1 - 2.0**-53])
    assert below(2**60, highest)[0] < 2**60
    assert below(3, highest)[0] == 2


def test_whole_numbers_are_spread_evenly():
    found = np.bincount(below(7, uniform(KEYS[0], np.arange(70_000))), minlength=7)
    assert ((found - 10_000) ** 2 / 10_000).sum() < 22.5  # once in a thousand times above


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_permutation_has_every_number_once(count):
    assert sorted(permutation(KEYS[0], count)) == list(range(count))


def test_a_permutation_is_another_one_for_another_key():
    orders = {tuple(permutation(root, 50)) for root in KEYS}
    assert len(orders) == len(KEYS)
    assert tuple(range(50)) not in orders


def test_every_order_of_three_is_as_likely_as_another():
    orders = [tuple(permutation(key(5, i), 3)) for i in range(6000)]
    found = np.array([orders.count(order) for order in sorted(set(orders))])
    assert len(found) == 6
    assert ((found - 1000) ** 2 / 1000).sum() < 20.5  # once in a thousand times above
