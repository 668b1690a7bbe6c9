"""ReplicateConfig, pins, descriptors, and the tiers that a store may not have, with one node."""

from mooncake.store import ObjectDataType, ReplicaStatus, ReplicateConfig, SoftPinAction
from observe import attempt, note, open_store

store = open_store()
store.remove_all(True)


def config(**attributes):
    made = ReplicateConfig()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


fresh = ReplicateConfig()
note(
    "defaults",
    (
        fresh.replica_num,
        fresh.with_hard_pin,
        fresh.preferred_segment,
        fresh.preferred_segments,
        fresh.group_ids,
        fresh.soft_pin_action.name,
        fresh.soft_pin_ttl_ms,
        fresh.prefer_alloc_in_same_node,
        fresh.data_type.name,
    ),
)
note("put with a config", store.put("a", b"x", config(replica_num=1)))
note("put with the config as a keyword", store.put("a2", b"x", config=config()))
note("put with None for a config", attempt(lambda: store.put("a3", b"x", None)))
note("put_parts with a config", store.put_parts("a4", b"x", b"y", config=config()))
note("put_batch with a config", store.put_batch(["a5", "a6"], [b"x", b"y"], config()))
note("no replicas", (store.put("r0", b"x", config(replica_num=0)), store.is_exist("r0")))
note("more replicas than nodes", (store.put("r2", b"x", config(replica_num=2)), len(store.get_replica_desc("r2"))))
note("a thousand replicas", (store.put("r1000", b"x", config(replica_num=1000)), store.is_exist("r1000")))
note("a hard pin", store.put("hard", b"x", config(with_hard_pin=True)))
note("remove of what is pinned hard", store.remove("hard"))
note("a soft pin", store.put("soft", b"x", config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=60_000)))
note("remove of what is pinned softly", store.remove("soft"))
note("the older soft pin", attempt(lambda: store.put("older", b"x", config(with_soft_pin=True))))
note("a preferred segment", (store.put("p1", b"x", config(preferred_segment=store.get_hostname())), store.get("p1")))
note("a preferred segment that is not there", store.put("p2", b"x", config(preferred_segment="nowhere:1")))
note("preferred segments", store.put("p3", b"x", config(preferred_segments=[store.get_hostname()])))
note("a group id for a key", store.put("g1", b"x", config(group_ids=["g"])))
note("group ids for a batch", store.put_batch(["g2", "g3"], [b"x", b"y"], config(group_ids=["g", "h"])))
note("too few group ids", store.put_batch(["g4", "g5"], [b"x", b"y"], config(group_ids=["g"])))
note("a data type", store.put("t1", b"x", config(data_type=ObjectDataType.KVCACHE)))
note("a copy over NVMe-oF", (store.put("nof", b"x", config(nof_replica_num=1)), store.is_exist("nof")))
note("a copy in a file system", (store.put("dfs", b"x", config(dfs_replica_num=1)) < 0, store.is_exist("dfs")))
note("prefer_alloc_in_same_node with put", store.put("same", b"x", config(prefer_alloc_in_same_node=True)))

store.put("d", b"described")
[replica] = store.get_replica_desc("d")
note("a replica's status", replica.status == ReplicaStatus.COMPLETE)
note("a replica's kind", (replica.is_memory_replica(), replica.is_disk_replica(), replica.is_local_disk_replica()))
where = replica.get_memory_descriptor().buffer_descriptor
note("a replica's size and node", (where.size, where.transport_endpoint == store.get_hostname()))
note("the disk descriptor of a memory replica", attempt(replica.get_disk_descriptor))
note("get_replica_desc of a missing key", store.get_replica_desc("nobody"))
described = store.batch_get_replica_desc(["d", "nobody", "a"])
note("batch_get_replica_desc", sorted((key, len(found)) for key, found in described.items()))
store.put("c1", b"x")
note("batch_replica_clear", (store.batch_replica_clear(["c1", "nobody"]), store.is_exist("c1")))
store.put("c2", b"x")
store.is_exist("c2")
note("batch_replica_clear of a leased key", store.batch_replica_clear(["c2"]))
note("batch_replica_clear in another segment", store.batch_replica_clear(["c2"], "nowhere:1"))
note("batch_replica_clear of nothing", store.batch_replica_clear([]))

mounted = store.allocate_and_mount_segment(16 << 20)
note("allocate_and_mount_segment", (mounted["ret"], len(mounted["segment_ids"]), mounted["allocated_size"]))
note("unmount_and_free_segment", store.unmount_and_free_segment(mounted["segment_ids"]))
note("unmount_and_free_segment of another", store.unmount_and_free_segment(["nothing"]) < 0)
note("mount_segment of a file that is not there", store.mount_segment("/nowhere/at/all", 16 << 20)["ret"] < 0)
note("create_copy_task to nowhere", store.create_copy_task("d", ["nowhere:1"])[0])
note("query_task of no task", store.query_task((1, 2)))
note("get_offload_rpc_read_count", store.get_offload_rpc_read_count())
store.close()
