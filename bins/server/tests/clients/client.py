"""Calls each RPC with stubs made from the published .proto: client.py HOST:PORT"""

import sys
import threading
import time

import grpc

from inferencecache.v1alpha1 import inferencecache_pb2 as pb
from inferencecache.v1alpha1 import inferencecache_pb2_grpc as rpc

KEYS = {"tenant_id": "python", "model_id": "m", "hash_scheme": "vllm"}
calls = 0


def check(what, have, want):
    global calls
    calls += 1
    if have != want:
        sys.exit(f"{what}: {have!r} instead of {want!r}")


def fails(what, call, code):
    try:
        call()
    except grpc.RpcError as why:
        check(what, why.code(), code)
    else:
        sys.exit(f"{what} was answered")


def cancelled_report(stub, lookup):
    """server:86: what was sent before a cancel stays, and the caller reads CANCELLED and no Ack."""
    ended = threading.Event()

    def updates():
        entry = pb.PrefixEntry(prefix_hash=b"before the cancel", token_count=128)
        yield pb.CacheStateUpdate(replica_id="r3", prefixes=[entry], **KEYS)
        ended.wait(20)

    call = stub.ReportCacheState.future(updates(), timeout=20)
    deadline = time.monotonic() + 20
    while lookup(prefix_hash=b"before the cancel").reason_code != "PREFIX_MATCH":
        if time.monotonic() > deadline:
            sys.exit("an update of an open report was not applied")
    call.cancel()
    ended.set()
    check("cancelled", (call.cancelled(), call.code()), (True, grpc.StatusCode.CANCELLED))
    hint = lookup(prefix_hash=b"before the cancel")
    check("after a cancel", [s.replica_id for s in hint.replica_scores], ["r3"])
    clear = pb.CacheEvent(type=pb.CacheEvent.ALL_CLEARED, replica_id="r3", tenant_id="python", model_id="m")
    check("cleared after a cancel", stub.PublishEvent(clear, timeout=20), pb.Ack(accepted=True))


def main(address):
    with grpc.insecure_channel(address) as channel:
        stub = rpc.InferenceCacheStub(channel)

        def lookup(**request):
            return stub.LookupRoute(pb.LookupRouteRequest(**{**KEYS, **request}), timeout=20)

        check("empty lookup", lookup(prefix_hash=b"p").reason_code, "NO_HINT")
        blocks = [bytes([n]) * 8 for n in range(4)]
        updates = [
            pb.CacheStateUpdate(
                replica_id=replica,
                prefixes=[pb.PrefixEntry(block_hashes=blocks[:held], block_token_counts=[16] * held)],
                stats=pb.ReplicaStats(hit_rate=0.5, cache_memory_bytes=2**40),
                **KEYS,
            )
            for replica, held in (("r1", 4), ("r2", 2))
        ]
        check("report", stub.ReportCacheState(iter(updates), timeout=20), pb.Ack(accepted=True))
        hint = lookup(block_hashes=blocks, block_token_counts=[16] * 4)
        check("lookup", hint.reason_code, "PREFIX_MATCH")
        check("tokens", [(s.replica_id, s.matched_tokens) for s in hint.replica_scores][:1], [("r1", 64)])
        check("tier", hint.replica_scores[0].tier, pb.CACHE_TIER_T1)
        state = stub.GetCacheState(pb.GetCacheStateRequest(tenant_id="python", model_id="m"), timeout=20)
        check("state", ([r.replica_id for r in state.replicas], state.summary.total_prefixes), (["r1", "r2"], 4))
        check("memory", state.replicas[0].cache_memory_bytes, 2**40)
        for replica in ("r1", "r2"):
            clear = pb.CacheEvent(type=pb.CacheEvent.ALL_CLEARED, replica_id=replica, tenant_id="python", model_id="m")
            check("event", stub.PublishEvent(clear, timeout=20), pb.Ack(accepted=True))
        state = stub.GetCacheState(pb.GetCacheStateRequest(tenant_id="python", model_id="m"), timeout=20)
        check("cleared", (len(state.replicas), state.summary.total_prefixes), (0, 0))
        cancelled_report(stub, lookup)
        rendered = stub.RenderTemplate(pb.RenderTemplateRequest(variables={"a": "b"}), timeout=20)
        check("template", rendered, pb.RenderTemplateResponse(reason_code="OK"))
        pd = stub.LookupPDRoute(pb.LookupPDRouteRequest(model_id="m"), timeout=20)
        check("pd", pd, pb.LookupPDRouteResponse(reason_code="NO_HINT"))
        check("events", list(stub.StreamCacheEvents(pb.StreamEventsRequest(), timeout=20)), [])
        check("metrics", list(stub.StreamMetrics(pb.StreamMetricsRequest(), timeout=20)), [])
        large = pb.LookupRouteRequest(token_ids=[2**32 - 1] * 1_000_000, **KEYS)
        fails("large", lambda: stub.LookupRoute(large, timeout=20), grpc.StatusCode.RESOURCE_EXHAUSTED)
        raw = channel.unary_unary("/inferencecache.v1alpha1.InferenceCache/LookupRoute")
        fails("no protobuf", lambda: raw(b"\xff\xff", timeout=20), grpc.StatusCode.INTERNAL)
        zipped = channel.unary_unary("/inferencecache.v1alpha1.InferenceCache/Nothing")
        fails("no such method", lambda: zipped(b"", timeout=20), grpc.StatusCode.UNIMPLEMENTED)
        check("afterwards", lookup(prefix_hash=b"p").reason_code, "NO_HINT")
    print(f"Python: {calls} answers of all eight methods as published")


main(sys.argv[1])
