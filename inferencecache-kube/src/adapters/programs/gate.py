import json
import os
import time
import urllib.request

want = os.environ
address = want["INFERENCECACHE_NODE_IP"]
host = f"[{address}]" if ":" in address else address
base = f"http://{host}:{want['EXPECTED_HTTP_PORT']}"
# A proxy for the cluster's traffic is none for the node's own.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Wait(Exception):
    pass


def get(path):
    with opener.open(base + path, timeout=2) as reply:
        return json.load(reply)


def equal(name, found, expected):
    if expected.isdigit() and not isinstance(found, bool):
        try:
            same = (int(found) if isinstance(found, str) else found) == int(expected)
        except ValueError:
            same = False
    else:
        same = found == expected
    if not same:
        raise Wait(f"{name} is {found!r}, not {expected!r}")


def prove():
    config = get("/config")
    mp = config["mp"]
    for name, variable in (
        ("instance_id", "EXPECTED_INSTANCE_ID"),
        ("shm_name", "EXPECTED_SHM_NAME"),
        ("port", "EXPECTED_MP_PORT"),
        ("chunk_size", "EXPECTED_CHUNK_SIZE"),
        ("max_gpu_workers", "EXPECTED_MAX_GPU_WORKERS"),
        ("max_cpu_workers", "EXPECTED_MAX_CPU_WORKERS"),
    ):
        equal("mp." + name, mp.get(name), want[variable])
    pool = config["storage_manager"]["l1_manager_config"]["memory_config"]
    equal("shm_name in use", pool.get("shm_name"), want["EXPECTED_SHM_NAME"])
    equal("http.http_port", config["http"].get("http_port"), want["EXPECTED_HTTP_PORT"])
    status = get("/healthcheck").get("status")
    if status != "healthy":
        raise Wait(f"status is {status!r}, not 'healthy'")


def write(path):
    text = f'chunk_size: {want["EXPECTED_CHUNK_SIZE"]}\nmp_host: "{address}"\nmp_port: {want["EXPECTED_MP_PORT"]}\n'
    with open(path + ".tmp", "w", encoding="utf-8") as out:
        out.write(text)
    os.rename(path + ".tmp", path)


while True:
    try:
        prove()
        if want.get("CLIENT_CONFIG_PATH"):
            write(want["CLIENT_CONFIG_PATH"])
        break
    except Exception as reason:
        kind = "" if isinstance(reason, Wait) else type(reason).__name__ + ": "
        print(f"waiting for the LMCache server of this node at {base}: {kind}{reason}", flush=True)
        time.sleep(2)
print(f"the LMCache server of this node at {base} is {want['EXPECTED_INSTANCE_ID']}", flush=True)
