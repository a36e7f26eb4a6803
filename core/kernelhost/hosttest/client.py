"""A client of the kernel host for its tests: starts real hosts and speaks their frames."""
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
from hashlib import sha256

HERE = os.path.dirname(os.path.abspath(__file__))
ROOM = os.path.dirname(HERE)

SOON = 20  # seconds: tells what comes soon, on a busy machine too, from what waits for a sleep of 60


def read(name):
    with open(os.path.join(ROOM, name), "rb") as file:
        return file.read()


LOADER = read("loader.py").decode()
# One that nobody has stored: /tmp/hermes-<uid> may hold the real one, from a program without a home directory.
SOURCE = read("host.py") + b"# %s\n" % os.urandom(8).hex().encode()


def load_host():
    """host.py as a module, for its codec."""
    loader = types.ModuleType("hermes_loader")
    loader.bases = loader.fail = loader.private = loader.to_store = None
    loader.sha256 = sha256
    sys.modules["hermes_loader"] = loader
    module = types.ModuleType("hermes_host")
    exec(compile(SOURCE, "<hermes host>", "exec", 0, True), module.__dict__)
    return module


codec = load_host()
NO_END = {  # what an end says where it leaves a field out
    "value": None, "error": None, "exit_code": None, "signal": "", "ms": 0, "out": 0, "err": 0,
    "reason": "", "msg": "", "kernel_alive": False, "lost": "", "cells": 0, "queued_ms": 0,
}  # fmt: skip
PYTHON = os.environ.get("HERMES_TEST_PYTHON", sys.executable)


def command(op, config, source=SOURCE, env=None, python=PYTHON, **options):
    """Runs one command of the host to its end; the process' status and standard output."""
    config = codec.pack(config)
    head = "hermes1 %s %d %d\n" % (sha256(SOURCE).hexdigest(), len(source), len(config))
    done = subprocess.run(
        [python, "-c", LOADER, "hermes-kernel-host", op],
        input=head.encode() + source + config, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, timeout=30, **options
    )
    return done.returncode, done.stdout


def answer(output):
    """The marker and the map of a command's answer."""
    for line in output.decode().splitlines():
        marker, _, rest = line.partition(" ")
        if marker in ("hermes-ready", "hermes-error"):
            return marker, codec.unpack(bytes.fromhex(rest))
    raise AssertionError("no answer in %r" % output)


class Home:
    """A scratch home directory and the environment that points to it."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="hh")
        os.chmod(self.path, 0o755)
        self.env = {"HOME": self.path, "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HERMES_TEST_MARK": self.path}

    def processes(self):
        """The processes that carry this home in their environment."""
        found = []
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                try:
                    with open("/proc/%s/environ" % pid, "rb") as file:
                        if ("HERMES_TEST_MARK=" + self.path).encode() in file.read().split(b"\0"):
                            found.append(int(pid))
                except OSError:
                    pass
        return found

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


class HostProcess:
    """A started kernel host."""

    def __init__(self, home=None, python=PYTHON, env=None, **config):
        self.home = home or Home()
        self.own_home = home is None
        self.config = {"token": os.urandom(32), "named": False, "linger": 10.0, "idle": 1800.0, "remote": False, "fresh": False, **config}
        status, output = command("start", self.config, env={**self.home.env, **(env or {})}, python=python)
        marker, self.ready = answer(output)
        if marker != "hermes-ready":
            raise AssertionError(self.ready)
        self.token = self.config["token"]

    def client(self, **options):
        return Client(self.ready["sock"], self.token, **options)

    def close(self):
        try:
            client = self.client()
            client.request("shutdown")
            client.close()
        except (OSError, EOFError):
            pass
        wait_for(lambda: not os.path.exists("/proc/%d" % self.ready["pid"]) , "the host to leave")
        if self.own_home:
            self.home.remove()


def wait_for(condition, what, seconds=10):
    """Waits for what cannot be awaited otherwise: processes that are nobody's child."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("waited in vain for " + what)
        time.sleep(0.01)


class Cell:
    """What a client saw of one cell."""

    def __init__(self):
        self.out = {1: bytearray(), 2: bytearray()}
        self.gaps = []
        self.messages = []
        self.end = None

    stdout = property(lambda self: bytes(self.out[1]).decode())
    stderr = property(lambda self: bytes(self.out[2]).decode())


class Client:
    """One authenticated connection."""

    def __init__(self, path, token, prove=True):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(path)
        self.reader = codec.FrameReader()
        self.events = []
        self.cells = {}
        self.replies = {}
        self.number = 0
        self.reads = True
        if prove:
            self.prove(token)

    def prove(self, token):
        nonce = os.urandom(32)
        self.send(t="hello", v=[1], nonce=nonce)
        hello = self.receive()
        assert hello["proof"] == codec.hmac_sha256(token, b"hermes host v1" + nonce + hello["nonce"])
        self.send(t="proof", proof=codec.hmac_sha256(token, b"hermes client v1" + hello["nonce"] + nonce), client="test", remote=False)
        self.welcome = self.receive()

    def close(self):
        self.sock.close()

    def send(self, **message):
        self.sock.sendall(codec.frame(message))

    def receive(self):
        while True:
            found = self.reader.next()
            if found is not None:
                return codec.parse_frame(*found)
            data = self.sock.recv(1 << 18)
            if not data:
                raise EOFError
            self.reader.feed(data)

    def quiet(self, seconds):
        """Whether nothing arrives for so long."""
        return self.reader.next() is None and not select.select([self.sock], [], [], seconds)[0]

    def step(self):
        """Receives one frame and files it."""
        m = self.receive()
        if m["t"] == "O":
            cell = self.cells[m["ch"]]
            out = cell.out[m["stream"]]
            cell.messages.append(m["t"])
            skipped = sum(g["to"] - g["from"] for g in cell.gaps if g["stream"] == m["stream"])
            assert m["offset"] == cell.start[m["stream"]] + len(out) + skipped, (m["offset"], len(out), skipped)
            before = len(out)
            out += m["data"]
            if cell.seen and before >> 18 != len(out) >> 18:
                at = {n: cell.start[n] + len(cell.out[n]) + sum(g["to"] - g["from"] for g in cell.gaps if g["stream"] == n) for n in (1, 2)}
                self.send(t="seen", ch=m["ch"], out=at[1], err=at[2])
        elif m["t"] == "event":
            self.events.append(m)
        elif m["t"] == "ping":
            self.send(t="pong", req=m["req"])
        elif "req" in m:
            self.replies[m["req"]] = m
        elif "ch" in m:
            cell = self.cells[m["ch"]]
            cell.messages.append(m["t"])
            if m["t"] == "gap":
                cell.gaps.append(m)
            elif m["t"] == "end":
                assert cell.end is None, "two ends"
                cell.end = {**NO_END, **m}
            elif m["t"] == "error":
                cell.end = m
        return m

    def ask(self, kind, **fields):
        """Sends a request and returns its number."""
        self.number += 1
        self.send(t=kind, req=self.number, **fields)
        return self.number

    def reply(self, number):
        while number not in self.replies:
            self.step()
        return self.replies.pop(number)

    def request(self, kind, **fields):
        return self.reply(self.ask(kind, **fields))

    def open(self, lang="python", session="", dir="", env=None, **fields):
        reply = self.request("open", lang=lang, session=session, owner="", dir=dir, env=env or {}, **fields)
        assert reply["t"] == "kernel", reply
        return reply["kernel"]

    def submit(self, kernel, code, timeout=0.0, cell=None, digest=None, last=True, seen=True):
        """Sends a cell and returns its channel."""
        self.number += 1
        ch = self.number
        self.cells[ch] = found = Cell()
        found.start = {1: 0, 2: 0}
        found.seen = seen
        found.id = cell or os.urandom(8).hex()
        self.send(
            t="submit", cell=found.id, kernel=kernel, ch=ch, code=code, digest=digest or sha256(code.encode()).digest(),
            timeout_ms=int(timeout * 1000), last=last
        )
        return ch

    def follow(self, cell, out=0, err=0, seen=True):
        self.number += 1
        self.cells[self.number] = found = Cell()
        found.start = {1: out, 2: err}
        found.seen = seen
        found.id = cell
        self.send(t="follow", cell=cell, ch=self.number, out=out, err=err)
        return self.number

    def wait(self, ch):
        cell = self.cells[ch]
        while cell.end is None:
            self.step()
        return cell

    def wait_output(self, ch, text, stream=1):
        while text not in bytes(self.cells[ch].out[stream]).decode():
            assert self.cells[ch].end is None, self.cells[ch].end
            self.step()

    def run(self, kernel, code, **options):
        return self.wait(self.submit(kernel, code, **options))
