"""The host's node as the place of I/O: engines attach to it, and hand it their jobs and, through a ring, their bytes.

    engine process                                   node process
    ┌──────────────────────────────┐  UNIX socket   ┌──────────────────────────────┐
    │ engine's thread ─► AgentPort │◄── messages ──►│ Attachment ─► Client ─► pool │
    │         Rank (a small thread)│                │      (one for the host)      │
    │ tensors ◄── copies ──► ring  │◄─ shared memory ─►  ring                     │
    └──────────────────────────────┘                └──────────────────────────────┘

Read `wire` (what is said), `ring` (where bytes pass), then the engine's end: `port`, `attaching`, `rank`, `under_way`,
`asked`; and the node's: `server`, `attachment`.

The node never touches an engine's memory: only the rank's own thread copies between the ring and the tensors. So a node
that hangs or dies can be abandoned at once, its jobs fail, and nothing can land late.
"""
