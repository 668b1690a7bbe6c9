"""What a CUDA device has to reach before blocks in its memory may be moved.

When the engine hands out an order, the kernels that write a block, or zero it for a load, are enqueued and may not
have run. An event behind them on the engine's stream says when they have; the port's thread waits for it, the engine's
never does.
"""

from __future__ import annotations

from pykvpool.host.port import DeviceOrder


def cuda_order() -> DeviceOrder:
    """Record an event on the stream that this thread's engine works on. Needs torch with CUDA."""
    import torch

    event = torch.cuda.Event()
    event.record()
    return DeviceOrder(int(event.cuda_event), event)
