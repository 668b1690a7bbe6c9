"""Every object there is: rows in columns, so that millions of them fit and the garbage collector never sees one.

A row is one of: RESIDENT (readable: only these are in the index, so that a lookup is one dict access per hash),
LINGERING (its key is gone, but readers hold leases on its bytes), GHOST (no object: it stands for a missing parent), or
FREE. Unfinished writes are not here; they are in `puts`.

Chains. A resident row may have a parent row and is in its parent's list of children; the parent is resident or a ghost.
A block whose parent is a ghost is an *orphan*. A parent that is removed while it has children becomes a ghost in place,
and one that comes (back) takes over the ghost's row and with it the children: neither touches a child. `depth` is how
many ancestors were known when the object was put; it orders, nothing depends on its exactness.

The catalog knows nothing of segments' space, of sessions or of time. `leases` is here as a column because eviction and
removal ask for it; `pykvpool.core.leases` alone writes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from pykvpool.core.put_index import PutIndex
from pykvpool.core.replicas import ReplicaTable
from pykvpool.errors import invariant
from pykvpool.model.objects import Extent, Pin

NONE = -1
FREE, RESIDENT, LINGERING, GHOST = 0, 1, 2, 3
#: Every column of a row but its hash, with the type of its array.
_COLUMNS = {
    "state": "B", "pin": "B", "summed": "B", "scope": "I", "size": "Q", "put_id": "Q", "owner": "I", "checksum": "Q",
    "depth": "I", "parent": "i", "first_child": "i", "next_sibling": "i", "prev_sibling": "i", "children": "I",
    "leases": "I", "replica": "i",
}  # fmt: skip
_LINKS = ("parent", "first_child", "next_sibling", "prev_sibling", "replica")


class Catalog:
    """Objects by row. Sizes in bytes."""

    __slots__ = (*_COLUMNS, "_columns", "_free", "by_put", "count", "ghosts", "hashes", "index", "not_tails",
                 "not_tails_bytes", "replicas", "resident_bytes")  # fmt: skip

    state: array[int]  #: FREE, RESIDENT, LINGERING or GHOST.
    pin: array[int]  #: `Pin`.
    summed: array[int]  #: 1: `checksum` counts, 0: committed unsummed and not hashed yet.
    scope: array[int]
    size: array[int]
    put_id: array[int]
    owner: array[int]  #: Session that put it.
    checksum: array[int]
    depth: array[int]
    parent: array[int]  #: Row of the parent (resident or ghost), NONE for the first of a chain.
    first_child: array[int]
    next_sibling: array[int]
    prev_sibling: array[int]
    children: array[int]  #: Length of the list at `first_child`; all of them resident.
    leases: array[int]  #: Leases that cover the row now.
    replica: array[int]  #: First replica row.

    def __init__(self) -> None:
        self._columns = tuple(array(kind) for kind in _COLUMNS.values())
        for name, column in zip(_COLUMNS, self._columns, strict=True):
            setattr(self, name, column)
        #: The block hash of each row; shares the bytes object with the index. None in free rows.
        self.hashes: list[bytes | None] = []
        #: By scope id: hash -> row of the resident object.
        self.index: list[dict[bytes, int]] = []
        #: By scope id: hash -> row of the ghost.
        self.ghosts: list[dict[bytes, int]] = []
        #: put_id -> row, of resident and lingering objects.
        self.by_put = PutIndex()
        self.replicas = ReplicaTable()
        self._free = array("i")
        #: Resident objects and their bytes; of these, the ones with children.
        self.count = 0
        self.resident_bytes = 0
        self.not_tails = 0
        self.not_tails_bytes = 0

    def __len__(self) -> int:
        """Rows, used or not: every row number is below this."""
        return len(self.hashes)

    def add_scope(self) -> None:
        self.index.append({})
        self.ghosts.append({})

    def find(self, scope: int, hash_: bytes) -> int:
        """Row of the resident object, or NONE."""
        return self.index[scope].get(hash_, NONE)

    def extents(self, row: int) -> tuple[Extent, ...]:
        """Where its copies are, in the order of the put's grant."""
        table, size = self.replicas, self.size[row]
        return tuple(
            Extent(table.segment[r], table.offset[r], size)  # type: ignore[arg-type]
            for r in table.of_object(self.replica[row])
        )

    def add(
        self, scope: int, hash_: bytes, put_id: int, owner: int, size: int, checksum: int | None, parent: bytes | None,
        depth: int, pin: Pin, extents: tuple[Extent, ...],
    ) -> int:  # fmt: skip
        """A new resident object under a key that has none; adopts the children that waited for it. Returns its row."""
        invariant(hash_ not in self.index[scope], "a key names one readable object")
        row = self.ghosts[scope].pop(hash_, NONE)
        if row == NONE:
            row = self._new_row(scope, hash_)
        self.state[row] = RESIDENT
        self.pin[row] = pin
        self.summed[row] = checksum is not None
        self.size[row] = size
        self.put_id[row] = put_id
        self.owner[row] = owner
        self.checksum[row] = checksum or 0
        self.depth[row] = depth
        self.index[scope][hash_] = row
        self.by_put.add(put_id, row)
        self.count += 1
        self.resident_bytes += size
        if self.children[row]:
            self.not_tails += 1
            self.not_tails_bytes += size
        if parent is not None:
            self._link(row, scope, parent)
        for extent in reversed(extents):
            self.replica[row] = self.replicas.add(row, extent.segment, extent.offset, self.replica[row])
        return row

    def unlink(self, row: int, lingering: bool) -> int:
        """The key of a resident object is gone. Returns the row of its former parent, or NONE.

        Its replicas must be gone before, unless it is `lingering`: then they stay with the row until `bury`.
        """
        invariant(self.state[row] == RESIDENT, "only a resident object is unlinked")
        scope, hash_ = self.scope[row], self.hash_of(row)
        del self.index[scope][hash_]
        self.count -= 1
        self.resident_bytes -= self.size[row]
        if self.children[row]:
            self.not_tails -= 1
            self.not_tails_bytes -= self.size[row]
        parent = self._cut(row)
        if lingering:
            self.state[row] = LINGERING
            self._leave_children(row, scope, hash_)
        else:
            self._forget_put(row)
            if self.children[row]:
                self.state[row] = GHOST
                self.ghosts[scope][hash_] = row
            else:
                self._release(row)
        return parent

    def bury(self, row: int) -> None:
        """The last lease on a lingering object ended, and its replicas are gone: the row is free."""
        invariant(self.state[row] == LINGERING, "only a lingering object is buried")
        self._forget_put(row)
        self._release(row)

    def remove_replica(self, replica: int) -> None:
        row = self.replicas.object_row[replica]
        self.replica[row] = self.replicas.remove(replica, self.replica[row])

    def is_orphan(self, row: int) -> bool:
        parent = self.parent[row]
        return parent != NONE and self.state[parent] == GHOST

    def resident_rows(self) -> Iterator[int]:
        for index in self.index:
            yield from index.values()

    def hash_of(self, row: int) -> bytes:
        hash_ = self.hashes[row]
        if hash_ is None:
            raise ValueError(f"row {row} is free")
        return hash_

    # -- rows and chains ---------------------------------------------------------------------------------------------

    def _new_row(self, scope: int, hash_: bytes) -> int:
        if self._free:
            row = self._free.pop()
            self.hashes[row] = hash_
        else:
            row = len(self.hashes)
            self.hashes.append(hash_)
            for column in self._columns:
                column.append(0)
        for name in _LINKS:
            getattr(self, name)[row] = NONE
        self.children[row] = 0
        self.depth[row] = 0
        self.leases[row] = 0
        self.scope[row] = scope
        return row

    def _release(self, row: int) -> None:
        invariant(self.replica[row] == NONE and not self.leases[row], "a freed row has neither replicas nor leases")
        self.state[row] = FREE
        self.hashes[row] = None
        self._free.append(row)

    def _forget_put(self, row: int) -> None:
        invariant(self.replica[row] == NONE, "an object without replicas is forgotten")
        self.by_put.remove(self.put_id[row])

    def _link(self, row: int, scope: int, parent_hash: bytes) -> None:
        parent = self.index[scope].get(parent_hash, NONE)
        if parent == NONE:
            parent = self.ghosts[scope].get(parent_hash, NONE)
        if parent == NONE:
            parent = self._new_row(scope, parent_hash)
            self.state[parent] = GHOST
            self.ghosts[scope][parent_hash] = parent
        elif self._descends(parent, row):
            # Chained hashes cannot form a circle; a client that says so anyway must not make blocks unevictable.
            return
        self._adopt(parent, row)

    def _descends(self, row: int, ancestor: int) -> bool:
        if not self.children[ancestor]:
            return False
        while row not in (NONE, ancestor):
            row = self.parent[row]
        return row == ancestor

    def _adopt(self, parent: int, row: int) -> None:
        head = self.first_child[parent]
        self.parent[row] = parent
        self.next_sibling[row] = head
        self.prev_sibling[row] = NONE
        if head != NONE:
            self.prev_sibling[head] = row
        self.first_child[parent] = row
        if not self.children[parent] and self.state[parent] == RESIDENT:
            self.not_tails += 1
            self.not_tails_bytes += self.size[parent]
        self.children[parent] += 1

    def _cut(self, row: int) -> int:
        """Take a row out of its parent's children; a ghost without children goes. Returns the parent if it stays."""
        parent = self.parent[row]
        if parent == NONE:
            return NONE
        before, after = self.prev_sibling[row], self.next_sibling[row]
        if after != NONE:
            self.prev_sibling[after] = before
        if before != NONE:
            self.next_sibling[before] = after
        else:
            self.first_child[parent] = after
        self.parent[row] = self.next_sibling[row] = self.prev_sibling[row] = NONE
        self.children[parent] -= 1
        if self.children[parent]:
            return parent
        if self.state[parent] == RESIDENT:
            self.not_tails -= 1
            self.not_tails_bytes -= self.size[parent]
            return parent
        del self.ghosts[self.scope[parent]][self.hash_of(parent)]
        self._release(parent)
        return NONE

    def _leave_children(self, row: int, scope: int, hash_: bytes) -> None:
        """Move the children of a row that keeps its bytes a while to a ghost of their own. O(children), and rare."""
        if not self.children[row]:
            return
        ghost = self._new_row(scope, hash_)
        self.state[ghost] = GHOST
        self.depth[ghost] = self.depth[row]
        self.ghosts[scope][hash_] = ghost
        self.first_child[ghost], self.children[ghost] = self.first_child[row], self.children[row]
        self.first_child[row], self.children[row] = NONE, 0
        child = self.first_child[ghost]
        while child != NONE:
            self.parent[child] = ghost
            child = self.next_sibling[child]
