"""``rdma://``: block bytes by one-sided reads and writes of the network card, the owner's CPU not asked.

Two sorts of things travel. Bytes go by RDMA between two *queue pairs*. What it takes to connect those (numbers, GIDs,
memory keys), and the owner's word that it destroyed one, goes over a *line*: a TCP connection that begins with the
handshake of every data connection (`pykvpool.fabric.handshake`), and whose end is the end of all its queue pairs.

Read in this order: `wire` (what is said on the line), `rails` and `gids` (which devices, ports and addresses),
`registration` and `staging` (memory the card may touch), `slices` (operations cut into work requests), `lane` (one
queue pair), `link` (all lanes to one mount, and what happens when one breaks), then the two ends: `client`, `server`.
Nothing here imports a binding: `pykvpool.fabric.verbs` is the seam.
"""
