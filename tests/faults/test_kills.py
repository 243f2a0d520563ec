"""A short version of `make faults`: each kind of fault a few times, on real processes."""

import os
import shutil

import pytest

from benchmarks.faults import full, kills, nans, saves
from benchmarks.faults.world import make_world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("faults"))


def test_a_run_killed_again_and_again_ends_with_the_same_bits(world):
    found = kills.random_kills(world, 12)
    assert found["kills"] >= 12
    assert found["lost"] == 0
    assert found["identical"] == found["runs"]


def test_a_signal_saves_and_stops_with_its_own_exit_code(world):
    found = kills.gentle_signals(world, 6)
    assert found["right"] == found["signals"]
    assert found["identical"] == found["runs"]
    assert found["slowest_seconds"] < 5


@pytest.mark.skipif(saves.STRACE is None, reason="strace is not installed")
def test_a_kill_at_any_system_call_of_a_save_leaves_the_old_state_or_the_new_one(world):
    found = saves.kill_at_every_call(world, every=4)
    assert found["calls"] > 10
    assert found["bad"] == 0
    assert found["before"] + found["after"] == found["calls"]
    assert found["before"] > 0


@pytest.mark.skipif(saves.STRACE is None, reason="strace is not installed")
def test_an_error_at_any_writing_call_leaves_a_whole_state_and_says_what_is_free(world):
    for error, found in saves.errors_at_every_call(world, every=9).items():
        assert found["calls"] > 3, error
        assert found["bad"] == 0, error
        assert any("bytes are free" in said for said in found["messages"]), error


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.skipif(shutil.which("mount") is None, reason="nothing to mount with")
def test_a_run_on_a_full_disk_goes_on_when_there_is_room(world):
    found = full.small_file_system(world, [150, 500])
    assert found["full"] == found["intact"] == found["named"] == found["identical"] == 2


def test_a_limit_on_file_sizes_is_a_full_disk_too(world):
    found = full.limited_files(world, [5000, 40_000])
    assert found["full"] == found["intact"] == found["identical"] == 2


def test_no_number_that_is_none_is_ever_saved(world):
    found = nans.injections(world, len(nans.KINDS))
    assert found["poisoned_checkpoints"] == 0
    assert found["left_out"] == len(nans.KINDS)
    assert found["finished"] == len(nans.KINDS) - 1  # a rate of 1e20 cannot end well
