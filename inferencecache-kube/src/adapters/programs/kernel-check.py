import ctypes
import importlib
import importlib.util
import os
import sys

LOG = "/dev/termination-log"


def check():
    # Importing the package would run the shim that hides what is being looked for.
    found = importlib.util.find_spec("lmcache")
    folders = list(found.submodule_search_locations or []) if found else []
    if not folders:
        return "FAIL: package lmcache is not installed"
    libraries = sorted(
        os.path.join(folder, name)
        for folder in folders
        for name in os.listdir(folder)
        if name.startswith("c_ops") and name.endswith(".so")
    )
    if not libraries:
        return f"FAIL: no native library c_ops*.so in {folders[0]}"
    # The library needs the symbols of PyTorch, so that comes first.
    importlib.import_module("torch")
    ctypes.CDLL(libraries[0])
    for core in ("vllm._C_stable_libtorch", "vllm._C"):
        if importlib.util.find_spec("vllm") and importlib.util.find_spec(core):
            importlib.import_module(core)
            return "OK"
    return "FAIL: vLLM has no native core (vllm._C_stable_libtorch, vllm._C)"


try:
    verdict = check()
except BaseException as error:
    verdict = f"FAIL: {type(error).__name__}: {error!r}"
verdict = " ".join(verdict.split())[:3500]
print(verdict, flush=True)
try:
    with open(LOG, "w", encoding="utf-8") as out:
        out.write(verdict)
except OSError:
    pass
sys.exit(1 if verdict != "OK" and os.environ.get("KERNEL_CHECK_STRICT") == "1" else 0)
