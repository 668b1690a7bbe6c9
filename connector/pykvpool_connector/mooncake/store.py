"""`MooncakeDistributedStore`: Mooncake Store's class on this pool, put together from its parts.

    store = MooncakeDistributedStore()
    store.setup("localhost", "P2PHANDSHAKE", 512 << 20, 128 << 20, "tcp", "", "127.0.0.1:7000")
    store.put("key", b"bytes")

The methods, by file: `copying_puts`, `gets`, `zero_copy`, `ranges`, `objects`, `sessions`, `segments`, `tensors`,
`tensor_parallel`, `parallel`, `not_offered`. Here is the life of a store. docs/mooncake.md says for every method what
is the same, what is better, and what is not offered.
"""

from __future__ import annotations

import weakref

from pykvpool.errors import Closed, PoolError
from pykvpool_connector.mooncake import settings
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.calls import OK, code
from pykvpool_connector.mooncake.copying_puts import CopyingPuts
from pykvpool_connector.mooncake.not_offered import NotOffered
from pykvpool_connector.mooncake.parallel import ParallelTensors
from pykvpool_connector.mooncake.ranges import Ranges
from pykvpool_connector.mooncake.segments import Segments
from pykvpool_connector.mooncake.sessions import Sessions
from pykvpool_connector.mooncake.zero_copy import ZeroCopy

#: `health_check`: not set up, or closed.
NOT_SET_UP = 1
#: `health_check`: the master does not answer.
MASTER_UNREACHABLE = 2
#: Seconds that `health_check` waits for the master.
HEALTH_TIMEOUT_S = 2.0


class MooncakeDistributedStore(CopyingPuts, ZeroCopy, Ranges, Sessions, Segments, ParallelTensors, NotOffered):
    """A client of the pool, and a node of it where a segment is lent. Any thread may call any method."""

    def __init__(self) -> None:
        super().__init__()
        #: Ends the attachment when the store is forgotten, or at the end of the interpreter.
        self._finalizer: weakref.finalize[[], MooncakeDistributedStore] | None = None

    @code
    def setup(
        self,
        local_hostname: str | dict[str, object],
        metadata_server: str | None = None,
        global_segment_size: int | str | None = None,
        local_buffer_size: int | str | None = None,
        protocol: str | None = None,
        rdma_devices: str | None = None,
        master_server_addr: str | None = None,
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int:
        """Connect to the master, and lend `global_segment_size` bytes to the pool (0: lend nothing).

        Also ``setup(dict)``. A store that is set up already is closed first. 0, or a code within seconds.

        Args:
            local_hostname: host under which others reach this one; with a port, the node's name and data port.
            metadata_server, rdma_devices, engine: taken, not needed.
            local_buffer_size: most bytes that one call of put, put_parts or put_batch may put.
            protocol: "tcp" or "rdma"; either way the cheapest fabric that reaches is taken.
            master_server_addr: "host:port" of the pool's master; several joined by ";".
            tenant_id: namespace of the keys.
        """
        if isinstance(local_hostname, dict):
            wanted = settings.from_dict(local_hostname)
        else:
            given = (
                metadata_server,
                global_segment_size,
                local_buffer_size,
                protocol,
                rdma_devices,
                master_server_addr,
            )
            if any(each is None for each in given):
                raise TypeError(
                    "setup takes (local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, "
                    "rdma_devices, master_server_addr) or one dict"
                )
            wanted = settings.from_arguments(
                local_hostname,
                global_segment_size,
                local_buffer_size,
                protocol,
                master_server_addr,
                tenant_id,
                enable_ssd_offload=enable_ssd_offload,
                enable_client_http_server=enable_client_http_server,
            )
        with self._changing:
            self._detach()
            attachment = Attachment.open(wanted)
            self._finalizer = weakref.finalize(self, attachment.abandon)
            self._attachment = attachment
        return OK

    @code
    def close(self) -> int:
        """Leave the pool: transfers end, the lent memory and what was stored there alone is gone. Harmless twice."""
        with self._changing:
            self._detach()
        return OK

    def _detach(self) -> None:
        attachment, self._attachment = self._attachment, None
        self._end_sessions()
        if attachment is not None:
            attachment.close()
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None

    def get_hostname(self) -> str:
        """Name of this process's node ("host:port"), for `preferred_segment`; "" before `setup`."""
        attachment = self._attachment
        return attachment.hostname if attachment is not None else ""

    def health_check(self) -> int:
        """0: the master answers; 1: not set up, or closed; 2: the master does not answer."""
        try:
            self._run(lambda attachment: attachment.client.exists([b"health"], timeout_s=HEALTH_TIMEOUT_S))
        except Closed:
            return NOT_SET_UP
        except PoolError as error:
            self.failed("health_check", error)
            return MASTER_UNREACHABLE
        return OK
