"""Many threads on one store: each puts, gets, checks and removes objects of its own, and all share some."""

import threading

from observe import note, open_store, pattern, registered

store = open_store()
store.remove_all(True)
block, at = registered(store, 16 * 8192)
wrong = []


def work(number):
    mine = at + number * 8192
    for turn in range(20):
        key = f"t{number}-{turn}"
        value = pattern(1000 + number, turn)
        if store.put(key, value) != 0 or store.get(key) != value:
            wrong.append((key, "put and get"))
        if store.put(f"shared-{turn}", pattern(500, turn)) != 0 or store.get(f"shared-{turn}") != pattern(500, turn):
            wrong.append((key, "shared"))
        block[number * 8192 : number * 8192 + 4096] = pattern(4096, turn)
        if store.batch_put_from([f"{key}-z"], [mine], [4096]) != [0]:
            wrong.append((key, "put_from"))
        if store.get_into(f"{key}-z", mine + 4096, 4096) != 4096:
            wrong.append((key, "get_into"))
        if bytes(block[number * 8192 + 4096 : number * 8192 + 8192]) != pattern(4096, turn):
            wrong.append((key, "bytes"))
        if store.remove(key, True) != 0 or store.batch_is_exist([key, f"{key}-z"]) != [0, 1]:
            wrong.append((key, "remove"))


threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
note("eight threads on one store", wrong)
note("what they left", store.remove_all(True))
store.close()
