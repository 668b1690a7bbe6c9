"""The shortest pool: put, get, list, remove. Everything runs in this process; no server is needed.

python examples/hello.py
"""

import pykvpool

with pykvpool.connect("inproc://") as pool:
    stored = pool.put("greeting", b"hello, pool")
    print(f"stored {stored.size_bytes} bytes over {stored.scheme}")
    print(pool.get("greeting").decode())

    # Keys are names of their bytes: storing the same again moves nothing.
    print("was there already:", pool.put("greeting", b"hello, pool").existed)

    for listed in pool.list_keys("greet*"):
        print(listed.key.decode(), listed.size_bytes)
    pool.remove("greeting")
    print("still there:", pool.exists(["greeting"])[0])
