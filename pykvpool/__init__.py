"""pykvpool: a pool of KV-cache blocks for LLM inference, shared by every engine of a cluster."""

__version__ = "0.1.0"
