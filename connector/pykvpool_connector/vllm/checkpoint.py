"""What tells one checkpoint from another: a digest of its files, the same wherever they lie.

Names do not identify weights: two folders of one name differ, one folder is found under two paths, and two fine-tunings
of one model agree in every name, shape and size. So the digest covers the configuration, the index, every shard's name,
size and header, and samples of the bytes of tensors all over the checkpoint. Reading samples takes a second where
reading everything would take minutes; who changes a few single numbers of a checkpoint in place says so with
`model_id`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from pykvpool.errors import ConfigError

#: Small files that change what the weights compute.
_CONFIGURATION = ("config.json", "params.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json")
#: In the order in which a folder's weights are looked for: the formats that it does not load are not its identity.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.tensors")
#: Bytes read at each sampled place: one disk page costs as much as one byte.
_SAMPLE_BYTES = 1024
#: Places sampled in a whole checkpoint; 4,096 random reads are a second on the slowest disks that serve models.
_SAMPLES = 4096
#: Longest safetensors header that is believed (the format's own limit).
_MAX_HEADER_BYTES = 100_000_000


def checkpoint_digest(model: str, revision: str | None = None, download_dir: str | None = None) -> str:
    """Digest of the checkpoint that vLLM loads as `model`, in 32 hexadecimal digits.

    Args:
        model: a folder, a file, or a name on the Hugging Face hub, whose local copy is read; nothing is downloaded.
        revision: of a hub's model.
        download_dir: where the hub's copy lies, if not in the default place.

    Raises:
        ConfigError: no local files that could be read; the message says what to do.
    """
    path = Path(model)
    if not path.exists():
        path = _hub_copy(model, revision, download_dir)
    try:
        return digest_files(path)
    except OSError as error:
        raise _unknown(model, str(error)) from None


def digest_files(path: Path) -> str:
    """Digest of one file, or of the configuration and weights in a folder. Raises `OSError`, `ConfigError`."""
    configuration, weights = ([], [path]) if path.is_file() else _files(path)
    if not weights:
        raise _unknown(str(path), "there are no weights in it")
    stamps = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in (*configuration, *weights))
    return _digest(tuple(configuration), tuple(weights), stamps)


@lru_cache(maxsize=16)
def _digest(configuration: tuple[Path, ...], weights: tuple[Path, ...], _stamps: object) -> str:
    """The work of `digest_files`, once per process for files that have not changed since."""
    digest = hashlib.sha256(b"pykvpool checkpoint 1")
    for file in configuration:
        _add(digest, file.name.encode(), file.read_bytes())
    samples = max(1, _SAMPLES // len(weights))
    for file in weights:
        size = file.stat().st_size
        _add(digest, file.name.encode(), struct.pack("<Q", size))
        with file.open("rb") as opened:
            header, places = _header(opened, size) if file.suffix == ".safetensors" else (b"", ())
            _add(digest, header)
            for at in _spread(list(places) or list(range(0, size, max(1, size // samples))), samples):
                opened.seek(at)
                _add(digest, opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def _files(folder: Path) -> tuple[list[Path], list[Path]]:
    configuration = [folder / name for name in _CONFIGURATION if (folder / name).is_file()]
    configuration += sorted(folder.glob("*.index.json"))
    for pattern in _WEIGHTS:
        weights = sorted(file for file in folder.glob(pattern) if file.is_file())
        if weights:
            return configuration, weights
    return configuration, []


def _header(file: BinaryIO, size: int) -> tuple[bytes, Iterator[int]]:
    """A safetensors header, and the middle of every tensor."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(size, _MAX_HEADER_BYTES):
        return b"", iter(())
    header = file.read(length)
    try:
        described = json.loads(header)
        spans = sorted(tuple(tensor["data_offsets"]) for name, tensor in described.items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError, AttributeError):
        return header, iter(())
    return header, (8 + length + (begin + end) // 2 for begin, end in spans)


def _spread(places: list[int], most: int) -> Iterable[int]:
    """At most `most` of the places, evenly."""
    return places if len(places) <= most else [places[at * len(places) // most] for at in range(most)]


def _add(digest: Any, *parts: bytes) -> None:
    for part in parts:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)


def _hub_copy(model: str, revision: str | None, download_dir: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise _unknown(model, "there is no such folder") from None
    try:
        return Path(snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True))
    except (OSError, ValueError) as error:
        raise _unknown(model, str(error).splitlines()[0]) from None


def _unknown(model: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the weights of {model} cannot be identified ({reason}): engines share blocks only of the same weights. Set "
        '"model_id" in kv_connector_extra_config to a text that names exactly these weights',
        model=model,
    )
