"""`MooncakeConfig`: the settings of Mooncake's own programs, from a JSON file or from ``MOONCAKE_*`` variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pykvpool.config import parse_size

#: Mooncake's defaults.
DEFAULT_GLOBAL_SEGMENT_SIZE = 3_355_443_200
DEFAULT_LOCAL_BUFFER_SIZE = 1_073_741_824
CONFIG_PATH_VARIABLE = "MOONCAKE_CONFIG_PATH"
MASTER_VARIABLE = "MOONCAKE_MASTER"
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")
#: Key of the file -> variable, for programs that have no file.
_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": MASTER_VARIABLE,
    "tenant_id": "MOONCAKE_TENANT_ID",
}


@dataclass(slots=True)
class MooncakeConfig:
    """What a program passes on to `setup`."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    tenant_id: str = "default"

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        """Read a JSON file. Raises `ValueError` for what is missing or malformed, `OSError`."""
        table = json.loads(Path(file_path).read_text("utf-8"))
        missing = [name for name in _REQUIRED if not table.get(name)]
        if missing:
            raise ValueError(f"{file_path}: {', '.join(missing)} missing")
        return _from_table(table)

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """From the file that MOONCAKE_CONFIG_PATH names, else from the variables; `ValueError` where neither is set."""
        path = os.environ.get(CONFIG_PATH_VARIABLE)
        if path:
            return MooncakeConfig.from_file(path)
        if not os.environ.get(MASTER_VARIABLE):
            raise ValueError(f"neither {CONFIG_PATH_VARIABLE} nor {MASTER_VARIABLE} is set")
        found = {key: os.environ[variable] for key, variable in _VARIABLES.items() if variable in os.environ}
        return _from_table({"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **found})


def _from_table(table: Mapping[str, object]) -> MooncakeConfig:
    def text(name: str, default: str) -> str:
        value = table.get(name)
        return default if value is None else str(value)

    def size(name: str, default: int) -> int:
        value = table.get(name, default)
        return value if isinstance(value, int) else parse_size(str(value))

    return MooncakeConfig(
        local_hostname=text("local_hostname", "localhost"),
        metadata_server=text("metadata_server", "P2PHANDSHAKE"),
        global_segment_size=size("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE),
        local_buffer_size=size("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE),
        protocol=text("protocol", "tcp").strip().lower(),
        device_name=text("device_name", ""),
        master_server_address=text("master_server_address", ""),
        tenant_id=text("tenant_id", "default"),
    )
