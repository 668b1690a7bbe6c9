"""The node: a process that lends memory to the pool."""

from pykvpool.node.node import Node, NodeSettings

__all__ = ["Node", "NodeSettings"]
