"""Speaks to a master with nothing but `socket` and `msgpack`: what a client in another language has to do.

python examples/raw_wire.py HOST PORT        (a master without a token; docs/wire.md has the rest)
"""

import os
import socket
import struct
import sys

import msgpack


def send(sock, message):
    body = msgpack.packb(message)
    sock.sendall(struct.pack("<I", len(body)) + body)


def receive(stream):
    (length,) = struct.unpack("<I", stream.read(4))
    return msgpack.unpackb(stream.read(length))


def main(host, port):
    with socket.create_connection((host, int(port))) as sock, sock.makefile("rb") as stream:
        send(sock, ["hello", "pykvpool", 1, "", "raw-wire", "client", 42, os.urandom(16)])
        print(receive(stream)[0])  # challenge
        send(sock, ["proof", b""])
        accepted = receive(stream)
        print(accepted[0], "session", accepted[2][1])
        send(sock, ["request", 1, 0, ["intern", [["default", "", "", 0]]]])
        _, _, (_, (scope,)) = receive(stream)  # ["reply", 1, ["interned", [scope]]]
        send(sock, ["request", 2, 1, ["exists", scope, [b"some-key"]]])
        _, _, (_, flags) = receive(stream)  # ["reply", 2, ["flags", one byte per key]]
        print("some-key is", "there" if flags[0] else "not there")
        send(sock, ["request", 3, 2, ["goodbye"]])
        print(receive(stream)[2][0])  # done


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/raw_wire.py HOST PORT")
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"no master at {sys.argv[1]} port {sys.argv[2]}: {error}")
