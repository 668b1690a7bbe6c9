"""unpack_kernel.py BZIMAGE OUT: the kernel proper (an ELF file, which qemu boots by its PVH entry) out of a bzImage.

The offsets are those of the x86 boot protocol, version 2.08 and later: Documentation/arch/x86/boot.rst in the kernel.
"""

import lzma
import struct
import subprocess
import sys
from pathlib import Path

SECTOR_BYTES = 512
SETUP_SECTORS_AT = 0x1F1
PAYLOAD_AT = 0x248


def unpack(image: bytes) -> bytes:
    setup_sectors = image[SETUP_SECTORS_AT] or 4
    offset, length = struct.unpack_from("<II", image, PAYLOAD_AT)
    payload = image[(setup_sectors + 1) * SECTOR_BYTES + offset :][:length]
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        # Four bytes behind the data state its length.
        return subprocess.run(["zstd", "-dc"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
    raise SystemExit(f"a kernel compressed in a way this does not know: {payload[:6]!r}")


if __name__ == "__main__":
    kernel = unpack(Path(sys.argv[1]).read_bytes())
    if not kernel.startswith(b"\x7fELF"):
        raise SystemExit("what was unpacked is no ELF file")
    Path(sys.argv[2]).write_bytes(kernel)
