"""Measures Jupyter for the bench program: one JSON request a line on stdin, one JSON answer a line on stdout."""

import json
import sys
import time

from jupyter_client.manager import start_new_kernel

CHUNK = 65536


def run(client, code):
    """Runs one cell; returns its seconds and the bytes of stdout that arrived."""
    received = 0
    begin = time.perf_counter()
    msg_id = client.execute(code)
    reply = client.get_shell_msg(timeout=120)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(reply["content"])
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != msg_id:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            received += len(content["text"])
        elif kind == "status" and content["execution_state"] == "idle":
            return time.perf_counter() - begin, received


def start():
    """Starts a kernel and runs a first cell in it; returns it, its client and the seconds."""
    begin = time.perf_counter()
    manager, client = start_new_kernel(kernel_name="python3")
    run(client, "1")
    return manager, client, time.perf_counter() - begin


def stop(manager, client):
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def pss(pid):
    with open("/proc/%d/smaps_rollup" % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pss:")) * 1024


def answer(request, warm):
    kind, count = request["measure"], request["count"]
    if kind == "cells":
        return [run(warm, "1")[0] for _ in range(count)]
    if kind == "starts":
        taken = []
        for _ in range(count):
            manager, client, seconds = start()
            taken.append(seconds)
            stop(manager, client)
        return taken
    if kind == "memory":
        kernels = [start()[:2] for _ in range(count)]
        sizes = [pss(manager.provisioner.process.pid) for manager, _ in kernels]
        for manager, client in kernels:
            stop(manager, client)
        return sizes
    if kind == "stdout":
        code = "import sys\nfor _ in range(%d): sys.stdout.write('x' * %d + '\\n')\nsys.stdout.flush()" % (count * 16, CHUNK - 1)
        seconds, received = run(warm, code)
        return [seconds, received]
    raise ValueError(kind)


def main():
    manager, warm, _ = start()
    try:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), warm)), flush=True)
    finally:
        stop(manager, warm)


main()
