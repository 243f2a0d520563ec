"""Whatever `unmask` writes has the permissions that the user's umask asks for."""

import stat

import pytest

from tests.cli.test_training import SMALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Texts to learn from, and rows with labels."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = [f"the cat {'sat on the mat ' * (i % 4)}number {i}." for i in range(200)]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    rows = [f"the {('cat', 'dog')[i % 2]} sat\t{('meow', 'wuff')[i % 2]}" for i in range(20)]
    (folder / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


def write_everything(run, inputs, tiny, out):
    """Make one of each thing that is kept: vocabulary, corpus, run, model, vectors."""
    texts, rows = inputs / "texts.txt", inputs / "rows.tsv"
    run("vocab", "learn", texts, "--size", 80, "--out", out / "vocabulary")
    run("prepare", texts, "--tokenizer", out / "vocabulary", "--out", out / "corpus")
    plain = ["--set", "train.precision=fp32"]
    run("pretrain", out / "corpus", "--out", out / "pretrained", "--steps", 2, *SMALL, *plain)
    given = ["--train", rows, "--dev", rows, "--epochs", 1, "--threads", 1, *plain]
    run("finetune", "classify", tiny, *given, "--out", out / "tuned", "--seeds", 2)
    for ending in ("npy", "parquet"):
        run("embed", tiny, texts, "--out", out / f"vectors.{ending}")
    run("convert", tiny, "--out", out / "converted")


@pytest.mark.parametrize("umask", [0o077, 0o022], ids="{:03o}".format)
def test_files_and_folders_have_the_permissions_that_the_umask_leaves(
    unmask, inputs, tiny, tmp_path, umask
):
    def run(*arguments):
        done = unmask(*arguments, umask=umask)
        assert done.returncode == 0, done.stderr

    write_everything(run, inputs, tiny, tmp_path)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    names = {path.name for path in found}
    assert {"model.safetensors", "metrics.jsonl", "vocab.txt", "vectors.npy", ".lock"} <= names
    wrong = {
        f"{path.relative_to(tmp_path)} {mode:03o}"
        for path, mode in found.items()
        if mode != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert wrong == set()
