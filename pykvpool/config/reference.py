"""Writes docs/configuration.md from the schema, so that the page cannot differ from the code."""

from __future__ import annotations

import inspect
import json

from pykvpool.config.load import FILE_VARIABLE, MOONCAKE_VARIABLE
from pykvpool.config.quantities import TIME_UNITS_MS, Size
from pykvpool.config.schema import ENVIRONMENT_PREFIX, KEYS, SECTIONS, SHARED_SECTION, Key, section_keys

_INTRODUCTION = f"""# Configuration

*This page is written by `make reference` from `pykvpool/config/schema.py`.*

A value comes from, in rising order of weight: its default; a Mooncake Store file at `{MOONCAKE_VARIABLE}`; a file of
ours (`--config FILE` or `{FILE_VARIABLE}`, TOML or JSON by its name); an environment variable; a flag.
`pykvpool config --show` prints every value and where it came from. An unknown key, or a value that is not allowed, is
an error that names the key, where it stands, and what is allowed.

- A **size** is a number of bytes or text with a unit: `4096`, `"512MiB"`, `"80GB"`. Units are binary whatever their
  spelling (1 GB = 1 GiB = 1024^3 bytes), as in Mooncake's files.
- A **duration** is a number in the unit that ends the key's name, or text with a unit
  ({", ".join(f"`{unit}`" for unit in TIME_UNITS_MS)}).
- A **list** is an array in a file, joined by commas in a variable, and a flag that is repeated.
- A **switch** is true or false; on the command line it stands alone (`--replace`).
- An **address** is `tcp://host:7000`, `tcp://[::1]:7000` or `unix:///run/pykvpool.sock`; a **host:port** may also be
  a port alone, which is taken on 127.0.0.1.
- A key's **variable** is `{ENVIRONMENT_PREFIX}`, its section and its name in capitals: `[node] segment_size` is
  `{KEYS["node.segment_size"].variable}`. The keys of `[{SHARED_SECTION}]` go without their section:
  `{KEYS["pool.master"].variable}`.
- Where the column **flag** is empty no command has one; each command takes the flags that concern it (see `--help`).

```toml
[pool]
master = ["tcp://10.0.0.1:7000"]
token_file = "/etc/pykvpool/token"

[node]
segment_size = "80GB"
data_listen = "tcp://10.0.0.2:0"
```
"""

_MOONCAKE = f"""## Mooncake's file

Where `{MOONCAKE_VARIABLE}` names a file, these of its keys are understood:

| key | meaning here |
|---|---|
| `master_server_address` | `[pool] master`; several are separated by `;` |
| `global_segment_size` | `[node] segment_size`; 0 leaves it alone |
| `protocol` | `tcp`; `rdma` adds that to `fabrics` of nodes and clients; others are refused |
| `device_name` | `[rdma] devices` |
| `tenant_id` | `[client] namespace` |
| `local_hostname` | `[node] advertise` |
| `mode`, `enable_offload`, `local_buffer_size`, `metadata_server` | checked, \
and named in a warning where they ask for something |

Any other key is ignored with a warning.
"""


def configuration_markdown() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(section) for section in SECTIONS), _MOONCAKE])


def _section(section: str) -> str:
    lines = [
        f"## [{section}]",
        "",
        inspect.cleandoc(SECTIONS[section].__doc__ or ""),
        "",
        "| key | kind | allowed | default | meaning | flag |",
        "|---|---|---|---|---|---|",
        *(_row(key) for key in section_keys(section)),
        "",
    ]
    return "\n".join(lines)


def _row(key: Key) -> str:
    cells = (
        f"`{key.name}`",
        key.kind.name,
        key.kind.bounds,
        f"`{default_text(key)}`",
        key.meaning,
        f"`{key.flag}`" if key.flag else "",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def default_text(key: Key) -> str:
    """As in a TOML file; sizes with their unit where that is shorter."""
    if isinstance(key.kind, Size) and isinstance(key.default, int):
        for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
            if key.default and key.default % factor == 0:
                return f'"{key.default // factor}{unit}"'
    return json.dumps(key.default)
