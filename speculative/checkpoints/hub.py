"""Downloads from the Hugging Face hub: only the files that a conversion needs.

They go to huggingface_hub's own cache. We download weights ourselves: since version 2, hf_hub_download discards an
interrupted file, and t5-11b is a single file of 45 GB.
"""

import errno
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speculative.checkpoints.folder import ADAPTER, check_kind, is_adapter, weight_files
from speculative.common.errors import InputError, first_line
from speculative.common.files import lock
from speculative.common.reporting import gb, reporter

CONFIG = "config.json"
# Endings of the files beside the weights: settings, vocabularies, chat templates
SMALL = {".json", ".jinja", ".model", ".spm", ".txt", ".tiktoken"}
# start(folder with the config.json, bytes to download) -> bytes of the converted model; None: do not download it
Start = Callable[[Path, int], int | None]


def fetch(
    model: str, revision: str | None = None, output: Path = Path(), start: Start | None = None
) -> Path:
    """The folder of a local checkpoint or adapter, or of a repository's files, downloaded to be converted to `output`."""
    if Path(model).is_dir():
        if revision:
            raise InputError(f"{model} is a local folder; --revision is for models on the hub")
        check_kind(model, [path.name for path in Path(model).iterdir()])
        return Path(model)
    check_kind(model, [model])
    if Path(model).exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise InputError(f"{model} is neither a folder nor a name on the Hugging Face hub")
    from huggingface_hub import HfApi, constants, errors
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # each retry would print two lines
    limit = constants.HF_HUB_ETAG_TIMEOUT
    try:
        try:
            info = HfApi().model_info(model, revision=revision, timeout=limit, files_metadata=True)
        except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:
            answered = isinstance(error, errors.HfHubHTTPError) and error.response.status_code < 500
            folder = None if answered else cached(model, revision)
            if folder is None:
                raise
            return folder
        return _download(model, revision, info, output, start)
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:
        # The client wraps the error that kept it from requesting a file.
        wrapped = isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__
        raise InputError(f"{model} {_reason(wrapped or error, revision)}") from None


def _reason(error: BaseException, revision: str | None) -> str:
    from huggingface_hub import constants, errors

    cache = constants.HF_HUB_CACHE
    match error:
        case errors.GatedRepoError():
            return "is gated: accept its terms on the hub, then run `hf auth login`"
        case errors.RepositoryNotFoundError() | errors.HFValidationError():
            return "is neither a folder nor on the Hugging Face hub (if it is private, run `hf auth login`)"
        case errors.RevisionNotFoundError():
            return f"has no revision {revision} on the Hugging Face hub"
        case errors.OfflineModeIsEnabled():
            return f"is not a folder, not complete in the cache {cache}, and HF_HUB_OFFLINE is set"
        case OSError(errno=errno.ENOSPC):
            return f"fills the disk of {cache}: free some space or set HF_HOME, then run it again"
    return f"cannot be downloaded from the Hugging Face hub: {first_line(error)}"


def cached(model: str, revision: str | None = None) -> Path | None:
    """The cached folder of an earlier download, if its weights are complete."""
    from huggingface_hub import try_to_load_from_cache

    for name in (CONFIG, ADAPTER):
        file = try_to_load_from_cache(model, name, revision=revision)
        if isinstance(file, str):
            folder = Path(file).parent
            if weight_files({p.name for p in folder.iterdir() if p.exists()}, folder.joinpath):
                return folder
    return None


def _download(model: str, revision: str | None, info, output: Path, start: Start | None) -> Path:
    """Download what is not in the cache, weights last: if they are there, so is everything else."""
    from huggingface_hub import constants, hf_hub_download, hf_hub_url

    def get(name: str) -> Path:
        return Path(hf_hub_download(model, name, revision=info.sha))

    top = re.compile(r"(additional_chat_templates/)?[^/]+")
    files = {f.rfilename: f for f in info.siblings or [] if top.fullmatch(f.rfilename)}
    check_kind(model, files)
    settings = ADAPTER if is_adapter(files) else CONFIG
    if settings not in files:
        raise InputError(f"{model} has no {CONFIG}, so it is not a Hugging Face model")
    folder = get(settings).parent
    blobs = folder.parents[1] / "blobs"
    try:
        weights = weight_files(files, get)
        beside = [name for name in files if not name.endswith(".index.json")]
        small = [name for name in beside if Path(name).suffix in SMALL]
        missing = [files[name] for name in (*small, *weights) if not (folder / name).exists()]
        download = sum(_remaining(blobs, file) for file in missing)
        converted = start(folder, download) if start and settings == CONFIG else 0
    except InputError as error:
        raise InputError(str(error).replace(str(folder), model)) from None
    if not weights:
        raise InputError(f"{model} has no complete safetensors or pytorch_model.bin weights")
    if converted is None:
        return folder
    _announce(model, download, output, converted)
    for file in missing:
        if file.lfs and file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            url = hf_hub_url(model, file.rfilename, revision=info.sha)
            _fetch_blob(f"{model}: {file.rfilename}", url, blobs / file.lfs.sha256, file.size)
        get(file.rfilename)
    # Remember the commit of the branch or tag for when the hub cannot be reached.
    ref = folder.parents[1] / "refs" / (revision or "main")
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(info.sha)
    return folder


def _remaining(blobs: Path, file) -> int:
    """Bytes of a repository's file that are missing from the cache."""
    name = file.lfs.sha256 if file.lfs else file.blob_id
    started = [path for path in (blobs / name, blobs / f"{name}.incomplete") if path.exists()]
    return file.size - (started[0].stat().st_size if started else 0)


def _announce(model: str, download: int, output: Path, converted: int) -> None:
    """Report what a download and its conversion will take, if anything. InputError for more than the disk has."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    beside = output.absolute().parent
    needed = {beside: converted, cache: download}
    if cache.stat().st_dev == beside.stat().st_dev:
        needed[cache] = download + converted
    for folder, size in needed.items():
        free = shutil.disk_usage(folder).free
        if size > free:
            raise InputError(
                f"{model} needs {gb(download)} for the download and {gb(converted)} converted, but "
                f"{folder} has {gb(free)} free (move the cache with HF_HOME, the result with --mlx-path)"
            )
    if download:
        result = f", and {gb(converted)} converted to {output}" if converted else ""
        reporter.note(f"{model}: downloading {gb(download)} to {cache}{result}")


def _fetch_blob(name: str, url: str, blob: Path, size: int) -> None:
    """Download `url` to the cache's `blob`, named by its SHA-256, resuming an earlier run's file."""
    from huggingface_hub import errors
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    partial = blob.with_name(f"{blob.name}.incomplete")
    blob.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, "ab+") as file:
        lock(file, partial, wait=True)  # another process may download the same file
        if not blob.exists():
            sizes: dict[str, Any] = dict(resume_size=file.seek(0, 2), expected_size=size)
            try:
                http_get(url, file, headers=headers, displayed_filename=name, **sizes)
            except errors.HfHubHTTPError:
                raise
            except errors.HTTPError:
                lost = f"the connection was lost after {gb(file.seek(0, 2))} of {gb(size)}"
                raise InputError(f"{name}: {lost}; run the same command to resume") from None
            except OSError as error:
                if error.errno is not None:  # None: the size is not the announced one
                    raise
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() != blob.name:
                partial.unlink()
                raise InputError(f"{name} arrived damaged; run the same command again")
            partial.rename(blob)
    partial.unlink(missing_ok=True)
