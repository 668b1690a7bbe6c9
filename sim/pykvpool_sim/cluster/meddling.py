"""A client with a fault of its own: it speaks of puts and leases that are another's, and of keys with another size.

Clients are trusted not to be malicious, and they do mix up numbers. The master must refuse every such word, and nothing
may follow from it; what the checkers see must be what it would be without.
"""

from __future__ import annotations

from pykvpool.errors import PoolError
from pykvpool.model.commands import Command, PutEnd, PutRevoke, PutStart, Release, Renew
from pykvpool.model.ids import LeaseId, PutId
from pykvpool.model.replies import Done, PutGrant, PutStarted
from pykvpool.transport.control import ControlSession
from pykvpool_sim.checkers import Witness
from pykvpool_sim.checkers.ledger import Holding
from pykvpool_sim.cluster.cluster import open_session
from pykvpool_sim.cluster.turns import Turn

#: Words said in one turn, and numbers named in one of them: the newest, of which most are still in use.
_MAX_WORDS = 6
_MAX_NAMED = 4
#: One word's time.
_TIMEOUT_S = 2.0


async def meddle(turn: Turn) -> None:
    """One turn. Raises `PoolError` where the master cannot be reached."""
    session = await open_session(turn.host, f"meddler-{turn.name}")
    try:
        for _ in range(turn.draws.between(1, _MAX_WORDS)):
            await _say_one(turn, session)
    finally:
        await session.close()


async def _say_one(turn: Turn, session: ControlSession) -> None:
    witness = turn.cluster.witness
    if witness is None:
        return
    puts, leases = _puts(witness), tuple(witness.leases()[-_MAX_NAMED:])
    match turn.draws.between(0, 4):
        case 0 if puts:
            ends = PutEnd(puts, (0,) * len(puts), (1,) * len(puts))
            await _refused(turn, session, ends, puts)
        case 1 if puts:
            uncertain = (1,) * len(puts) if turn.draws.chance(0.5) else ()
            await _refused(turn, session, PutRevoke(puts, uncertain), puts)
        case 2 if leases:
            await _refused(turn, session, Renew(leases), leases)
        case 3 if leases:
            # One that is over may be released by anybody: no answer is wrong, but what follows from it would be.
            await session.call(Release(leases), _TIMEOUT_S)
        case 4 if witness.ledger.objects:
            await _another_size(turn, session, witness)
        case _:
            pass


def _puts(witness: Witness) -> tuple[PutId, ...]:
    """Of others, open, or objects; those in quarantine first, where a stranger's word could do most."""
    living = [(put_id, entry) for put_id, entry in reversed(witness.ledger.puts.items()) if entry.holdings]
    living.sort(key=lambda one: not one[1].extents(Holding.QUARANTINED))
    return tuple(put_id for put_id, _ in living[:_MAX_NAMED])


async def _refused(
    turn: Turn, session: ControlSession, command: Command, numbers: tuple[PutId, ...] | tuple[LeaseId, ...]
) -> None:
    """Every number is another's."""
    reply = await session.call(command, _TIMEOUT_S)
    if not isinstance(reply, Done):
        turn.cluster.verdicts.add("bug", f"{command} by a stranger was answered {reply}")
        return
    for number, error in zip(numbers, reply.errors or (None,) * len(numbers), strict=True):
        if error is None:
            put_id = number if isinstance(command, PutEnd | PutRevoke) else None
            turn.cluster.verdicts.add(
                "P1",
                f"{command} by a stranger was taken for {number}",
                put_id=None if put_id is None else PutId(put_id),
            )


async def _another_size(turn: Turn, session: ControlSession, witness: Witness) -> None:
    """A key that there is, with a byte more. Where it went meanwhile that is granted, and given back: nothing was
    written."""
    scope, hash_ = turn.draws.choice(list(witness.ledger.objects))
    turn.cluster.doubtful.add(hash_)
    size = witness.ledger.puts[witness.ledger.objects[scope, hash_]].fact.size_bytes
    try:
        reply = await session.call(PutStart(scope, (hash_,), (size + 1,), wait_ms=0), _TIMEOUT_S)
    except PoolError:
        return  # whatever was granted ends with the session
    if isinstance(reply, PutStarted):
        grants = tuple(entry.put_id for entry in reply.entries if isinstance(entry, PutGrant))
        if grants:
            await session.call(PutRevoke(grants), _TIMEOUT_S)
