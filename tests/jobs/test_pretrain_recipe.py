"""The recipe of a pre-training run: its name, settings of all phases, and runs to resume."""

import pytest

from tests.data.conftest import prose
from unmask.data.corpus.prepare import PrepareSettings, prepare
from unmask.jobs.pretrain_recipe import pretrain_recipe
from unmask.system.errors import FolderError, SettingsError, UserError


@pytest.fixture
def corpus(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text(prose(30))
    out = tmp_path / "corpus"
    prepare([str(tmp_path / "a.txt")], tokenizer, out, PrepareSettings())
    return out


def phases(corpus, out, **phase):
    recipe = pretrain_recipe(corpus, None, [], phase, out)
    return [(own.share, own.length, own.batch_tokens) for own in recipe.schedule.phases]


def test_settings_of_a_phase_hold_for_all_of_them(corpus, tmp_path):
    out = tmp_path / "run"
    assert phases(corpus, out) == [(0.9, 128, 32768), (0.1, 512, 131072)]
    assert phases(corpus, out, batch_tokens=4096) == [(0.9, 128, 4096), (0.1, 512, 4096)]
    assert phases(corpus, out, batch_size=8) == [(0.9, 128, 1024), (0.1, 512, 4096)]


def test_with_a_length_there_is_one_phase(corpus, tmp_path):
    assert phases(corpus, tmp_path, length=64) == [(1.0, 64, 32768)]
    assert phases(corpus, tmp_path, length=64, batch_size=4) == [(1.0, 64, 256)]


def test_a_change_of_a_single_phase_comes_after_those_of_all(corpus, tmp_path):
    changes = ["schedule.phases.1.batch_tokens=512"]
    recipe = pretrain_recipe(corpus, "bert", changes, {"batch_tokens": 4096}, tmp_path / "run")
    assert [phase.batch_tokens for phase in recipe.schedule.phases] == [4096, 512]


def test_a_time_limit_means_the_recipe_for_one(corpus, tmp_path):
    recipe = pretrain_recipe(corpus, None, ["schedule.minutes=2"], {}, tmp_path)
    assert recipe.model.size == "auto"
    named = pretrain_recipe(corpus, "bert", ["schedule.minutes=2"], {}, tmp_path)
    assert named.model.size == "base"


def test_a_resumed_run_continues_with_its_own_recipe(corpus, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(UserError, match="run: no run to resume"):
        pretrain_recipe(corpus, None, [], {}, out, resume=True)
    out.mkdir()
    (out / "recipe.toml").write_text("")
    assert pretrain_recipe(corpus, None, [], {}, out, resume=True) is None
    assert pretrain_recipe(corpus, None, ["seed=1"], {}, out, resume=True) is not None


def test_what_cannot_be_is_refused(corpus, tmp_path):
    with pytest.raises(FolderError, match="nowhere"):
        pretrain_recipe(tmp_path / "nowhere", None, [], {}, tmp_path)
    with pytest.raises(SettingsError, match="1024 tokens, but the network reads at most"):
        pretrain_recipe(corpus, None, [], {"length": 1024}, tmp_path)
    with pytest.raises(SettingsError, match="--shard: Muon"):
        pretrain_recipe(corpus, None, ["optimizer.kind=muon"], {}, tmp_path, shard=True)
