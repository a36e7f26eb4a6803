"""The kernel host of Hermes: it keeps interpreters (kernels) alive and runs cells of code in them.

Three kinds of process run this file. The *host* is a single-threaded loop that owns the socket, the token and
all output. The *nursery* is its first child, forked before the host reads its config, so no kernel can find a secret in
its own memory; it forks, reaps and kills kernels. *Kernels* are forks of the nursery and run the users' code. What they
say to the engine is specified in docs/protocol.md. The loader (loader.py) runs this file. Only modules of Debian's
python3-minimal are needed; others are used where they exist.
"""
from __future__ import annotations

import binascii
import errno
import fcntl
import gc
import heapq
import io
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections import OrderedDict, deque

from hermes_loader import bases, fail, private, sha256, to_store

FRAMES = [1, 2]  # versions of the frame protocol that this file speaks; from 2 on messages are numbered
MAX_FRAME = 16 << 20
MAX_HELLO = 4 << 10  # a frame's size until the peer has proved who it is
MAX_CODE = 8 << 20
MAX_DEPTH = 32
MAX_TEXT = 50_000  # a value, a message or a traceback in a result
MAX_QUEUE = 1000
MAX_ID = 1000  # characters of a cell's id
MAX_LISTED = 2000  # cells in one answer
CHUNK = 64 << 10  # bytes of one output frame
RETAIN = 1 << 20  # bytes kept of each stream of a cell: the head's 40 % and the tail's 60 %
HEAD = RETAIN * 4 // 10
WINDOW = 1 << 20  # how far a client may be behind what it was sent
SEND_LIMIT = 512 << 10  # unsent bytes of one connection, beyond which no more output is queued for it
RESULTS = 64 << 20  # bytes of finished cells that are kept
ACKED = 4 << 20  # of them, bytes of acknowledged cells
RESULT_AGE = 24 * 3600.0
JOURNAL_LIMIT = 4 << 20  # bytes of a journal, from which on it is written anew without what nobody needs
RECORD_LIMIT = 64 << 10  # bytes of a result in the journal; a larger one gets a file
FORGOTTEN = 4096  # cells whose result is gone, of which each id is known; of older ones it is a number for each submitter
SUBMITTERS = 10_000
GRACE = 2.0  # from the polite signal to KILL
HELLO_TIME = 10.0
LAZY = 0.001  # how long the word that a cell was accepted or started may wait for company
HEARTBEAT = 10.0
READABLE, WRITABLE = select.POLLIN, select.POLLOUT  # the same for poll and epoll
SILENCE = 30.0
LINK_KEPT = 120.0  # how long a numbered link waits for its client to come back
LINKS_AWAY = 64  # of them at a time
TELL = 32  # messages of the peer after which it is told that they were heard, should nothing else be said
STALL = 5.0  # how long the end of a cell waits for a client that reads no output
BEHIND = 256 << 10  # output a client was not sent yet, from which on the cell's pipes are not read
PATIENCE = 0.5  # for how long, without any progress of the client
LATE_LIMIT = 4 << 10  # bytes a second of output that belongs to no cell
LATE_PIPES = 64
HIGH_FD = 200  # descriptors of ours in kernels live from here on, out of the way of code that closes the low ones
EXHAUSTED = {  # errors that say that something is used up: in which words, and what to do
    errno.EAGAIN: ("no process can be started: this user's process limit is reached", "end some of its processes, or raise the limit (ulimit -u)"),
    errno.EMFILE: ("no file descriptor is free", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("the machine has no file descriptor left, or this user no pipe", "end some programs"),
    errno.ENOMEM: ("no memory is free", "end some programs"),
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EFBIG: ("this user's limit for the size of files is reached", "raise the limit (ulimit -f)"),
    errno.EDQUOT: ("the disk quota is reached", "free some space"),
}
MISSING = "install its complete standard library (Debian, Ubuntu: apt-get install libpython3-stdlib)"


# ---------------------------------------------------------------- msgpack and frames


class Malformed(Exception):
    """Bytes that are no frame of the protocol."""


def pack(value: object) -> bytes:
    """Encodes a value in msgpack, each part in its shortest form."""
    out: list = []
    _pack(value, out.append)
    return b"".join(out)


_TINY = [bytes((n,)) for n in range(256)]
_KEYS: dict = {}  # the encodings of keys, most of which are the protocol's own


def _pack_str(text: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # lone surrogates
        raw = text.encode("utf-8", "backslashreplace")
    n = len(raw)
    return (_TINY[0xA0 | n] if n < 32 else _size(n, 0xD9, 0xDA, 0xDB)) + raw


def _pack_map(value: dict, put: object) -> None:
    """Most values are small and flat: one loop without a call for each is twice as fast."""
    n = len(value)
    put(_TINY[0x80 | n] if n < 16 else _size(n, None, 0xDE, 0xDF))
    for key, item in value.items():
        name = _KEYS.get(key)
        if name is None:
            name = _pack_str(key)
            if len(_KEYS) < 256:
                _KEYS[key] = name
        put(name)
        kind = type(item)
        if kind is str:
            put(_pack_str(item))
        elif kind is int and 0 <= item < 128:
            put(_TINY[item])
        else:
            _pack(item, put)


def _pack(value: object, put: object) -> None:
    kind = type(value)
    if kind is str:
        put(_pack_str(value))
    elif kind is int:
        put(_pack_int(value))
    elif kind is dict:
        _pack_map(value, put)
    elif value is None:
        put(b"\xc0")
    elif kind is bool:
        put(b"\xc3" if value else b"\xc2")
    elif kind is float:
        put(struct.pack(">Bd", 0xCB, value))
    elif kind in (bytes, bytearray, memoryview):
        put(_size(len(value), 0xC4, 0xC5, 0xC6))
        put(bytes(value))
    elif kind in (list, tuple):
        n = len(value)
        put(bytes((0x90 | n,)) if n < 16 else _size(n, None, 0xDC, 0xDD))
        for item in value:
            _pack(item, put)
    else:
        raise TypeError("cannot pack %s" % kind.__name__)


def _size(n: int, tag8: int | None, tag16: int, tag32: int) -> bytes:
    if tag8 is not None and n < 0x100:
        return bytes((tag8, n))
    return struct.pack(">BH", tag16, n) if n < 0x10000 else struct.pack(">BI", tag32, n)


def _pack_int(n: int) -> bytes:
    if -32 <= n < 128:
        return struct.pack("b", n)
    if n > 0:
        for tag, code, limit in ((0xCC, "B", 1 << 8), (0xCD, "H", 1 << 16), (0xCE, "I", 1 << 32), (0xCF, "Q", 1 << 63)):
            if n < limit:
                return struct.pack(">B" + code, tag, n)
    else:
        for tag, code, limit in ((0xD0, "b", 1 << 7), (0xD1, "h", 1 << 15), (0xD2, "i", 1 << 31), (0xD3, "q", 1 << 63)):
            if n >= -limit:
                return struct.pack(">B" + code, tag, n)
    raise OverflowError("integer too large for int64")


_FIXED = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_SIZED = {  # tag: (kind, how its length is written)
    0xC4: ("bin", ">B"), 0xC5: ("bin", ">H"), 0xC6: ("bin", ">I"), 0xD9: ("str", ">B"), 0xDA: ("str", ">H"), 0xDB: ("str", ">I"),
    0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip


def unpack(data: bytes) -> object:
    """Decodes exactly one msgpack value; raises Malformed for anything else."""
    try:
        value, end = _unpack(data, 0, MAX_DEPTH)
    except (IndexError, struct.error, UnicodeDecodeError) as e:
        raise Malformed(str(e)) from None
    if end != len(data):
        raise Malformed("%d bytes after the value" % (len(data) - end))
    return value


def _unpack(data: bytes, at: int, depth: int) -> tuple:
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag >= 0xC0:
        if tag in _FIXED:
            (value,) = struct.unpack_from(_FIXED[tag], data, at)
            if tag == 0xCF and value >= 1 << 63:
                raise Malformed("integer over int64")
            return value, at + struct.calcsize(_FIXED[tag])
        if tag < 0xC4 and tag != 0xC1:
            return (None, None, False, True)[tag - 0xC0], at
        if tag not in _SIZED:
            raise Malformed("tag %#x" % tag)
        kind, code = _SIZED[tag]
        (n,) = struct.unpack_from(code, data, at)
        at += struct.calcsize(code)
    else:
        kind, n = ("map", tag & 15) if tag < 0x90 else ("array", tag & 15) if tag < 0xA0 else ("str", tag & 31)
    if kind == "str" or kind == "bin":
        if at + n > len(data):
            raise Malformed("text longer than its frame")
        raw = data[at : at + n]
        return (str(raw, "utf-8") if kind == "str" else bytes(raw)), at + n
    return _unpack_many(data, at, kind, n, depth - 1)


def _unpack_many(data: bytes, at: int, kind: str, n: int, depth: int) -> tuple:
    if depth < 0:
        raise Malformed("nested too deeply")
    if n > len(data) - at:  # each item is a byte at least
        raise Malformed("more items than bytes")
    if kind == "array":
        items = []
        for _ in range(n):
            item, at = _unpack(data, at, depth)
            items.append(item)
        return items, at
    found = {}
    for _ in range(n):
        tag = data[at]
        if 0xA0 <= tag < 0xC0:  # as nearly all keys are
            after = at + 1 + (tag & 31)
            key, at = str(data[at + 1 : after], "utf-8"), after
        else:
            key, at = _unpack(data, at, depth)
            if type(key) is not str:
                raise Malformed("a key that is no string")
        tag = data[at]
        if tag < 0x80:
            found[key], at = tag, at + 1
        else:
            found[key], at = _unpack(data, at, depth)
    return found, at


def frame(message: dict) -> bytes:
    """The bytes of a message ('M') frame."""
    body = pack(message)
    if len(body) >= MAX_FRAME:
        raise Malformed("a frame over 16 MiB")
    return struct.pack(">IB", len(body) + 1, 0x4D) + body


OUTPUT_HEADER = struct.Struct(">IBIBQ")  # length, 'O', channel, stream, offset


def output_header(ch: int, stream: int, offset: int, size: int) -> bytes:
    """What precedes the bytes of an output ('O') frame."""
    return OUTPUT_HEADER.pack(size + 14, 0x4F, ch, stream, offset)


NUMBERED = struct.Struct(">IBQQ")  # length, 'C', number, the last number that was heard


class Numbers:
    """One end of a numbered link, its state and nothing else: core/kernel/numbers.go is the other, testdata/link.json there drives both.

    Messages are kept until the peer has said that it heard them, and sent again when a link goes on over another connection.
    """

    LIMIT = 16 << 20  # bytes that are kept for a peer that hears nothing

    def __init__(self):
        self.sent = 0  # the number of our last message
        self.kept: deque = deque()  # the last of them, as frames: those that were not heard
        self.size = 0
        self.heard = 0  # the number of the peer's last message
        self.told = 0  # what the peer knows of that

    def send(self, body: bytes) -> bytes:
        """The frame of our next message."""
        self.sent += 1
        self.told = self.heard
        data = NUMBERED.pack(len(body) + 17, 0x43, self.sent, self.heard) + body
        self.kept.append(data)
        self.size += len(data)
        return data

    def take(self, number: int, heard: int) -> bool:
        """Whether a message that has come is to be handled: not if it came before."""
        self.acknowledge(heard)
        if number > self.heard + 1 or number < 1:
            raise Malformed("message %d after message %d" % (number, self.heard))
        if number <= self.heard:
            return False
        self.heard = number
        return True

    def acknowledge(self, heard: int) -> None:
        """Lets go of what the peer has heard."""
        if heard > self.sent:
            raise Malformed("message %d was heard, of %d" % (heard, self.sent))
        for _ in range(heard - (self.sent - len(self.kept))):
            self.size -= len(self.kept.popleft())

    def can_resume(self, heard: int) -> bool:
        """Whether a peer that heard so much can be told the rest."""
        return self.sent - len(self.kept) <= heard <= self.sent

    def resume(self, heard: int) -> list:
        """The frames to send again."""
        self.acknowledge(heard)
        return list(self.kept)


def parse_frame(kind: int, body: bytes) -> dict:
    """Decodes the part of a frame after its length; an output frame comes back as a map of kind "O"."""
    if kind == 0x4D:
        message = unpack(body)
        if type(message) is not dict or type(message.get("t")) is not str:
            raise Malformed("a message that is no map with a kind")
        return message
    if kind != 0x4F or len(body) < 13 or len(body) > 13 + CHUNK:
        raise Malformed("frame type %#x of %d bytes" % (kind, len(body)))
    ch, stream, offset = struct.unpack_from(">IBQ", body)
    if stream not in (1, 2) or offset >= 1 << 63:
        raise Malformed("stream %d, offset %d" % (stream, offset))
    return {"t": "O", "ch": ch, "stream": stream, "offset": offset, "data": bytes(body[13:])}


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self, limit: int = MAX_FRAME):
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> tuple | None:
        """The next frame's type and body, or None until more bytes are there."""
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if size < 1 or size > self.limit:
            raise Malformed("a frame of %d bytes" % size)
        if len(self._buffer) < 4 + size:
            return None
        kind, body = self._buffer[4], bytes(self._buffer[5 : 4 + size])
        del self._buffer[: 4 + size]
        return kind, body


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 for keys of at most 64 bytes; python3-minimal has no hmac module."""
    key = key.ljust(64, b"\0")
    inner = sha256(bytes(b ^ 0x36 for b in key) + message).digest()
    return sha256(bytes(b ^ 0x5C for b in key) + inner).digest()


def same_bytes(a: bytes, b: bytes) -> bool:
    """Compares without telling by its time where the difference is."""
    different = len(a) ^ len(b)
    for x, y in zip(a, b):
        different |= x ^ y
    return different == 0


class Channel:
    """Messages with descriptors between our own processes: a length, a msgpack map, descriptors by SCM_RIGHTS."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.backlog: deque = deque()  # of (bytes, descriptors of ours)
        self._buffer = bytearray()
        self._fds: list = []

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict, fds: tuple = ()) -> None:
        """Sends it; what a non-blocking socket does not take stays in backlog, for flush."""
        if fds:
            message["fds"] = len(fds)
        body = pack(message)
        data = memoryview(struct.pack(">I", len(body)) + body)
        if not self.backlog:
            sent = self._try(data, fds)
            if sent == len(data):
                return
            data, fds = data[sent:], () if sent else fds
        self.backlog.append((data, tuple(os.dup(fd) for fd in fds)))  # the caller closes its own

    def _try(self, data: memoryview, fds: tuple) -> int:
        """How much of data a full socket took. Descriptors go with the first byte."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("%di" % len(fds), *fds))] if fds else []
        try:
            return self.sock.sendmsg([data], rights)
        except BlockingIOError:
            return 0

    def flush(self) -> bool:
        """Sends more of the backlog; true when nothing is left."""
        while self.backlog:
            data, fds = self.backlog[0]
            sent = self._try(data, fds)
            if sent == 0:
                return False
            for fd in fds:
                os.close(fd)
            if sent == len(data):
                self.backlog.popleft()
            else:
                self.backlog[0] = data[sent:], ()
        return True

    def receive(self) -> bool:
        """Reads what is there, once; false at end-of-file."""
        data, rights, _, _ = self.sock.recvmsg(CHUNK, socket.CMSG_SPACE(32), getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        for level, kind, raw in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += struct.unpack("%di" % (len(raw) // 4), raw[: len(raw) // 4 * 4])
        self._buffer += data
        return bool(data)

    def next(self) -> tuple | None:
        """The next complete message and its descriptors."""
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if len(self._buffer) < 4 + size:
            if size > MAX_FRAME:
                raise Malformed("a message of %d bytes" % size)
            return None
        message = unpack(bytes(self._buffer[4 : 4 + size]))
        if type(message) is not dict:
            raise Malformed("a message that is no map")
        del self._buffer[: 4 + size]
        count = message.get("fds", 0)
        fds, self._fds = self._fds[:count], self._fds[count:]
        return message, fds

    def wait(self) -> tuple:
        """Blocks for the next message; raises EOFError when the other side is gone."""
        while True:
            found = self.next()
            if found is not None:
                return found
            if not self.receive():
                raise EOFError


# ---------------------------------------------------------------- processes and descriptors


class Prctl:
    """The calls of Linux's prctl that Hermes uses; each does nothing where there is no ctypes or no prctl."""

    PDEATHSIG, DUMPABLE, SUBREAPER = 1, 4, 36

    def __init__(self):
        self.call = None
        self.problem = ""
        try:
            import ctypes

            self.call = ctypes.CDLL(None).prctl
        except (ImportError, OSError, AttributeError) as e:
            self.problem = "no prctl (%s): processes that a cell detached may outlive their kernel; %s" % (e, MISSING)

    def __call__(self, option: int, value: int) -> bool:
        return self.call is not None and self.call(option, value, 0, 0, 0) == 0


class Limits:
    """The environment's umask and descriptor limit, which are raised for the host and given back to kernels."""

    def __init__(self):
        self.umask = os.umask(0o077)
        self._nofile = None
        try:
            import resource

            self._resource = resource
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            self._nofile = soft, hard
        except (ImportError, ValueError, OSError):
            pass

    def restore(self) -> None:
        os.umask(self.umask)
        if self._nofile:
            self._resource.setrlimit(self._resource.RLIMIT_NOFILE, self._nofile)


def raise_fd(fd: int) -> int:
    """Moves a descriptor of ours out of the way of code that closes or guesses low ones."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:  # the environment's limit is below it
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return high


def close_inherited(keep: tuple = ()) -> None:
    """Closes every descriptor but 0, 1, 2 and those to keep."""
    try:
        fds = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        fds = range(3, 4096)
    for fd in fds:
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass


def silence(*fds: int) -> None:
    """Replaces descriptors by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    if null not in fds:
        os.close(null)


def first_line(path: str) -> str:
    """The first line of a file of /proc, empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.readline().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def proc_stat(pid: object) -> list:
    """The fields of /proc/PID/stat from the third on (state, ppid, pgrp, session, …); empty if there is no such process."""
    return first_line("/proc/%s/stat" % pid).rpartition(")")[2].split()


def start_time(pid: object) -> int:
    """When a process started, in clock ticks since boot; with its pid it identifies the process."""
    fields = proc_stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def processes_with(field: int, value: int) -> list:
    """The processes with a value in one of the fields of proc_stat."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    return [pid for pid in pids if proc_stat(pid)[field : field + 1] == [str(value)]]


def session_members(sid: int) -> list:
    """The processes of one session."""
    return processes_with(3, sid)


def own_children() -> list:
    """The children of this process, adopted ones too, dead ones until they are waited for."""
    try:
        with open("/proc/self/task/%d/children" % os.getpid(), "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file
        return processes_with(1, os.getpid())


def kill_quietly(pid: int, sig: int, group: bool = False) -> None:
    try:
        (os.killpg if group else os.kill)(pid, sig)
    except OSError:
        pass


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "SIG%d" % number


def explain(e: OSError) -> str:
    """An error's words, and what to do about it where that is known."""
    return "; ".join(EXHAUSTED[e.errno]) if e.errno in EXHAUSTED else e.strerror or str(e)


def give_up(e: Exception, code: str) -> None:
    """Tells the launcher why nothing could be started, and ends."""
    if isinstance(e, OSError) and e.errno in EXHAUSTED:
        fail("exhausted", *EXHAUSTED[e.errno])
    fail(code, "%s: %s" % (type(e).__name__, e), "")


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Text of at most about limit characters: its beginning and its end, with a note between them."""
    if len(text) <= limit:
        return text
    head, tail = limit * 4 // 10, limit * 6 // 10
    return "%s\n… [%d characters left out] …\n%s" % (text[:head], len(text) - head - tail, text[-tail:])


# ---------------------------------------------------------------- nursery


class Nursery:
    """The process that forks, reaps and kills kernels. It holds no secret and runs no user's code."""

    NEEDED = ("_ast", "__future__")  # by the first cell
    PRELOAD = ("linecache", "ast", "traceback", "tokenize", "subprocess", "asyncio", "json", "concurrent.futures.thread")

    def __init__(self, channel: Channel, lifeline: int, prctl: Prctl, limits: Limits):
        self.channel = channel
        self.lifeline = lifeline
        self.prctl = prctl
        self.limits = limits
        self.pid = os.getpid()
        self.kernels: dict = {}  # pid → kernel id
        self.dying: dict = {}  # kernel id → (wait status, when to give up waiting for its tree)
        self.preload = list(self.PRELOAD)
        self.spare = 0, None  # pid and channel of a fork that waits to become a kernel
        self.base = ""  # where the host's directory is
        self.serving = True

    def run(self) -> None:
        """Serves the host until it is gone, then ends every kernel."""
        gc.disable()
        gc.freeze()
        for name in self.NEEDED:
            __import__(name)
        self.adopts = self.prctl(Prctl.SUBREAPER, 1)
        self.wake, wake_writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        self._fork_spare()  # for the first kernel, which is mostly wanted at once
        while self.serving:
            for fd, _ in poll.poll(10 if self.dying else 20 if self.preload else 5 if not self.spare[0] else None):
                if fd == self.wake:
                    self._clear_wake()
                else:
                    self._serve()
                break
            else:
                self._work_ahead()
            self._reap()
        self._end_all()

    def _clear_wake(self) -> None:
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            pass

    def _work_ahead(self) -> None:
        """Imports, while idle, what kernels are likely to want; then forks the next kernel's process."""
        if self.dying:
            return
        if self.preload:
            try:
                __import__(self.preload.pop(0))
            except ImportError:
                pass
            gc.freeze()
            if not self.preload:
                self._drop_spare()  # it was forked before
        elif not self.spare[0]:
            self._fork_spare()

    def _fork_spare(self) -> None:
        try:
            self.spare = self._fork()
        except OSError:
            self.spare = -1, None  # not again before somebody asks for a kernel

    def _drop_spare(self) -> None:
        (_, channel), self.spare = self.spare, (0, None)
        if channel is not None:
            channel.sock.close()  # it ends by that

    def _serve(self) -> None:
        try:
            self.serving = self.channel.receive()
            for message, fds in iter(self.channel.next, None):
                getattr(self, "_on_" + message["t"])(message, fds)
        except OSError:
            self.serving = False

    def _on_base(self, message: dict, fds: list) -> None:
        self.base = message["base"]

    def _on_fork(self, message: dict, fds: list) -> None:
        """Makes the waiting fork, or a new one, a kernel."""
        try:
            pid = self._hand_over({"lang": message["lang"]}, tuple(fds))
            self.kernels[pid] = message["kernel"]
            self.channel.send({"t": "forked", "kernel": message["kernel"], "pid": pid})
        except OSError as e:
            self.channel.send({"t": "exited", "kernel": message["kernel"], "failed": "a kernel: %s" % explain(e)})
        for fd in fds:
            os.close(fd)

    def _hand_over(self, message: dict, fds: tuple) -> int:
        (pid, channel), self.spare = self.spare, (0, None)
        if channel is not None:
            try:
                with channel.sock:
                    channel.send(message, fds)
                return pid
            except OSError:  # somebody killed it
                pass
        pid, channel = self._fork()
        with channel.sock:
            channel.send(message, fds)
        return pid

    def _fork(self) -> tuple:
        """A process that waits to be told which kernel it is, and the channel to tell it."""
        ours, theirs = socket.socketpair()
        waiting = theirs.detach()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            os.close(waiting)
            raise
        if pid == 0:
            self._become_kernel(waiting)
        os.close(waiting)
        return pid, Channel(ours)

    def _on_signal(self, message: dict, _: list) -> None:
        """Signals a kernel's process group and says so; only this process knows that the pid is still the kernel's."""
        pid = message["pid"]
        if pid in self.kernels:
            kill_quietly(pid, message["signal"], group=True)
        self.channel.send({"t": "signalled", "kernel": message["kernel"]})

    def _on_kill(self, message: dict, _: list) -> None:
        if message["pid"] in self.kernels:
            self._kill(message["pid"])

    def _kill(self, pid: int) -> None:
        members = [] if self.adopts else session_members(pid)
        kill_quietly(pid, signal.SIGKILL)  # before its group: a dead parent's children fall to us
        kill_quietly(pid, signal.SIGKILL, group=True)
        for member in members:
            kill_quietly(member, signal.SIGKILL)

    def _reap(self) -> None:
        """Collects the dead, kills what they left behind, reports kernels whose tree is gone."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.spare[0]:
                self.spare = 0, None
            if pid in self.kernels:
                self.dying[self.kernels.pop(pid)] = status, time.monotonic() + GRACE
                self._kill_leftovers(pid)
        strays = self._strays() if self.adopts or self.dying else []
        for pid in strays:
            kill_quietly(pid, signal.SIGKILL)
        now = time.monotonic()
        for kernel, (status, until) in list(self.dying.items()):
            if not strays or now > until:
                del self.dying[kernel]
                self._tell_exit(kernel, status)

    def _tell_exit(self, kernel: str, status: int) -> None:
        if not self.serving:
            return
        try:
            self.channel.send({"t": "exited", "kernel": kernel, "status": status})
        except OSError:  # the host is gone, which the channel has not said yet: the other kernels must still be ended
            self.serving = False

    def _kill_leftovers(self, pid: int) -> None:
        kill_quietly(pid, signal.SIGKILL, group=True)
        if not self.adopts:
            for member in session_members(pid):
                kill_quietly(member, signal.SIGKILL)

    def _strays(self) -> list:
        """Children of this process that are no kernels: the orphans of kernels that died."""
        return [pid for pid in own_children() if pid not in self.kernels and pid != self.spare[0]]

    def _end_all(self) -> None:
        self.spare = 0, None
        for pid in list(self.kernels):
            self._kill(pid)
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            self._reap()
            if not self.kernels and not self._strays():
                break
            select.select([self.wake], [], [], 0.01)
            self._clear_wake()
        if self.base:
            self._bury_host()
        os._exit(0)

    def _bury_host(self) -> None:
        """Removes the directory of a host that was killed: its lock is free then."""
        try:
            sweep(self.base, "")
            if self.base.startswith(LAST_RESORT):
                os.rmdir(self.base)
        except OSError:  # it left as it should, or others live there
            pass

    def _become_kernel(self, waiting: int) -> None:
        """Turns a fresh fork into a kernel. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            lifeline = self._tie_to_host()
            close_inherited((waiting, lifeline))
            self.prctl(Prctl.SUBREAPER, 1)
            kernel: KernelProcess = PythonKernel(lifeline)  # most are; a shell's takes its place
            kernel.rehearse()
            message, fds = Channel(socket.socket(fileno=waiting)).wait()
            control, idle = raise_fd(fds[0]), raise_fd(fds[1])
            self.limits.restore()
            if message["lang"] == "bash":
                kernel = ShellKernel(lifeline)
            kernel.adopt(Channel(socket.socket(fileno=control)), idle)
            kernel.main()
        except EOFError:  # the nursery is gone
            os._exit(0)
        except BaseException:  # for instance: a cell closed our descriptors
            sys.__excepthook__(*sys.exc_info())
        finally:  # by a signal, for the host must not take this for the cell's own exit
            os.kill(os.getpid(), signal.SIGKILL)

    def _tie_to_host(self) -> int:
        """Makes the host's death this process' death, even in a busy loop: the lifeline's other end is only the host's."""
        self.prctl(Prctl.PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.pid:
            os._exit(70)
        try:  # a description of its own: O_ASYNC and its owner belong to the description
            own = raise_fd(os.open("/proc/self/fd/%d" % self.lifeline, os.O_RDONLY | os.O_NONBLOCK))
            fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(own, fcntl.F_SETFL, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_ASYNC", 0o20000))
            if select.select([own], [], [], 0)[0]:
                os._exit(70)
            return own
        except OSError:
            return self.lifeline


# ---------------------------------------------------------------- kernels


class Refused(Exception):
    """A request that is answered with an error: a code of the protocol and a sentence."""

    def __init__(self, code: str, msg: str):
        super().__init__(msg)
        self.code = code


class NotWritten(Exception):
    """The journal cannot be written, so nobody could tell later what became of a cell."""

    def __init__(self, e: OSError):
        super().__init__("the cell was not started: its kernel host cannot write its journal: %s" % explain(e))


class KernelProcess:
    """What kernels of both languages share: the conversation with the host."""

    def __init__(self, lifeline: int):
        self.channel: Channel | None = None
        self.lifeline = lifeline
        self.pid = os.getpid()
        self.null = raise_fd(os.open(os.devnull, os.O_RDWR))
        self.idle = raise_fd(os.dup(self.null))  # where output goes between cells

    def adopt(self, channel: Channel, idle: int) -> None:
        """Makes a process that waited the kernel at the other end of channel."""
        self.channel = channel
        os.dup2(idle, self.idle, False)
        os.close(idle)

    def main(self) -> None:
        """Serves cells until the host is gone. Never returns."""
        try:
            self._redirect(self.idle, self.idle)
            os.dup2(self.null, 0)
            message, _ = self.channel.wait()
            try:
                self._enter(message["env"], message["dir"])
                self.prepare()
            except OSError as e:
                self.channel.send({"t": "failed", "msg": "%s: %s" % (e.filename or "kernel", explain(e))})
                os._exit(1)
            self.channel.send({"t": "ready", "dir": os.getcwd()})
            while True:
                self.serve(*self.receive())
        except EOFError:
            os._exit(0)

    def _enter(self, env: dict, directory: str) -> None:
        os.chdir(directory)
        os.environ.update(env)
        os.environ["PWD"] = directory
        os.environ.pop("OLDPWD", None)
        if "TZ" in env:
            time.tzset()

    @staticmethod
    def _redirect(out: int, err: int) -> None:
        os.dup2(out, 1)
        os.dup2(err, 2)

    def receive(self) -> tuple:
        """The next message of the host."""
        return self.channel.wait()

    def prepare(self) -> None:
        raise NotImplementedError

    def serve(self, message: dict, fds: list) -> None:
        raise NotImplementedError


class Sources:
    """The lines of cells, for tracebacks. They belong into linecache, whose import a kernel in a cold environment puts off."""

    def __init__(self):
        self.cache: dict = {}
        self.shared = False
        if "linecache" in sys.modules:
            self.share()

    def share(self) -> None:
        if not self.shared:
            import linecache

            linecache.cache.update(self.cache)
            self.cache = linecache.cache
            self.shared = True


class PythonKernel(KernelProcess):
    """Runs Python cells in one namespace, __main__."""

    MAX_SOURCES = 2000  # cells whose source is kept for tracebacks

    def rehearse(self) -> None:
        """Does what can be done, and runs a first cell, before anybody waits for it: in a fork the first touch of memory costs."""
        import _ast

        self.ast = _ast  # kept: a cell may spoil sys.modules. The module ast takes longer to import than all the rest of a kernel's start
        self.sources = Sources()
        self.serial = 0
        self.armed = False  # whether a SIGINT may raise KeyboardInterrupt
        self.future = 0  # the __future__ flags of earlier cells
        self.future_mask = future_flags()
        self.loop = None
        self.outputs = Outputs(self.idle)
        signal.signal(signal.SIGINT, self._on_sigint)
        os.register_at_fork(after_in_child=self._in_child)
        sys.stdin = sys.__stdin__ = open(0, "r", encoding="utf-8", closefd=False)
        sys.stdout = sys.__stdout__ = CellOutput(self.outputs, 1)
        sys.stderr = sys.__stderr__ = CellOutput(self.outputs, 2)
        self._make_main()
        self.outputs.begin(raise_fd(os.dup(self.null)), raise_fd(os.dup(self.null)))
        pack(self._run("1", True))
        self.outputs.end()
        self.sources.cache.clear()

    def adopt(self, channel: Channel, idle: int) -> None:
        super().adopt(channel, idle)
        for fd in self.outputs.idle:
            os.dup2(self.idle, fd, False)

    def prepare(self) -> None:
        gc.enable()
        self._make_main()
        self._set_path()

    def _make_main(self) -> None:
        self.main_module = type(sys)("__main__")
        self.names = self.main_module.__dict__
        self.names["__builtins__"] = sys.modules["builtins"]
        sys.modules["__main__"] = self.main_module
        sys.argv = [""]

    @staticmethod
    def _set_path() -> None:
        extra = os.environ.get("PYTHONPATH")
        wanted = [os.path.abspath(path) for path in extra.split(os.pathsep)] if extra else []
        sys.path[:] = ["", *wanted, *(path for path in sys.path if path not in wanted)]

    def _on_sigint(self, *_: object) -> None:
        if self.armed:
            raise KeyboardInterrupt

    def _in_child(self) -> None:
        """In a fork made by a cell: it must not speak for the kernel."""
        self.outputs.thread_became_main()
        if self.channel is not None and os.getpid() != self.pid:
            self.channel.sock.close()
            self.channel = None
            try:
                os.close(self.lifeline)
            except OSError:
                pass

    def serve(self, message: dict, fds: list) -> None:
        self.serial += 1
        out, err = raise_fd(fds[0]), raise_fd(fds[1])
        self._redirect(out, err)
        self.outputs.begin(out, err)
        result = self._run(message["code"], message["last"])
        streams = self.outputs.current  # closed after the answer is sent: their end need not wake the host before that
        self.outputs.end()
        self._redirect(self.idle, self.idle)
        result["t"] = "end"
        result["n"] = message["n"]
        self.channel.send(result)
        del streams
        self.sources.share()  # while nobody waits

    def _run(self, code: str, last: bool) -> dict:
        """Runs one cell and describes its end. Leaves the process for SystemExit and in forks."""
        try:
            try:
                self.armed = True
                value = self._evaluate(code, "<cell %d>" % self.serial, last)
                text = None if value is None else clip(repr(value))
                del value
            finally:
                self.armed = False
        except SystemExit as e:
            self._leave(e.code)
        except BaseException as e:
            return self._failure(e)
        if os.getpid() != self.pid:
            self._leave(0)
        return {"outcome": "ok", "value": text, "error": None}

    def _failure(self, e: BaseException) -> dict:
        error = None
        try:
            self.armed = True
            self.sources.share()
            error = describe_exception(e)
        except BaseException:
            pass
        self.armed = False
        if error is None:
            error = {"type": type(e).__name__, "message": "", "traceback": "%s: (it cannot be shown)\n" % type(e).__name__}
        if os.getpid() != self.pid:
            os.write(2, error["traceback"].encode("utf-8", "backslashreplace"))
            self._leave(1)
        return {"outcome": "error", "value": None, "error": error}

    def _leave(self, code: object) -> None:
        """Ends the process with the status that Python gives for SystemExit(code)."""
        status = 1
        try:
            self.armed = True
            if code is None or isinstance(code, int):
                status = (code or 0) & 0xFF
            else:
                print(code, file=sys.stderr)
            if os.getpid() == self.pid:
                import atexit

                atexit._run_exitfuncs()
        except BaseException:
            pass
        self.armed = False
        self.outputs.flush()
        os._exit(status)

    def _evaluate(self, code: str, name: str, last: bool) -> object:
        """Runs a cell; its value is that of a last expression, unless a semicolon follows it."""
        ast, cache = self.ast, self.sources.cache
        lines = io.StringIO(code, None).readlines()
        cache[name] = len(code), None, lines, name
        cache.pop("<cell %d>" % (self.serial - self.MAX_SOURCES), None)
        if "import" in code:  # perhaps of something that shows tracebacks
            self.sources.share()
        flags = self.future | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST, True)
        if last and tree.body and isinstance(tree.body[-1], ast.Expr) and not ends_with_semicolon(lines, tree.body[-1]):
            expression = tree.body[-1]
            where = {name: getattr(expression, name) for name in expression._attributes}
            tree.body[-1] = ast.Assign([ast.Name("_hermes_value", ast.Store(), **where)], expression.value, **where)
        compiled = compile(tree, name, "exec", flags, True)
        self.future |= compiled.co_flags & self.future_mask
        if compiled.co_flags & 0x80:  # CO_COROUTINE: there is an await at the top level
            self._run_coroutine(eval(compiled, self.names))
        else:
            exec(compiled, self.names)
        return self.names.pop("_hermes_value", None)

    def _run_coroutine(self, coroutine: object) -> None:
        """Runs it on the kernel's one loop; an interrupt cancels it and leaves the loop usable."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        try:
            task = self.loop.create_task(coroutine)
            self.loop.run_until_complete(task)
        except BaseException as e:
            if isinstance(e, OSError) and e.errno == errno.EBADF:
                self.loop = None  # the cell closed the loop's own descriptors
            elif not task.done():
                self.armed = False
                task.cancel()
                self.loop.run_until_complete(asyncio.wait([task], timeout=GRACE / 2))
            raise


class Outputs:
    """Which streams a thread writes to: those of the cell that started it."""

    def __init__(self, idle: int):
        self.idle = raise_fd(os.dup(idle)), raise_fd(os.dup(idle))
        self.between = self.current = CellStreams(*self.idle)
        self._of_thread = threading.local()
        self._main = threading.get_ident()
        start, outputs = threading.Thread.start, self

        def start_in_cell(thread: threading.Thread) -> None:
            thread._hermes_streams = outputs.here()
            start(thread)

        threading.Thread.start = start_in_cell

    def here(self) -> CellStreams:
        """The calling thread's streams."""
        if threading.get_ident() == self._main:
            return self.current
        streams = getattr(self._of_thread, "streams", None)
        if streams is None:
            thread = threading._active.get(threading.get_ident())
            streams = self._of_thread.streams = getattr(thread, "_hermes_streams", self.current)
        return streams

    def begin(self, out: int, err: int) -> None:
        self.current = CellStreams(out, err)

    def end(self) -> None:
        self.flush()
        self.current = self.between

    def flush(self) -> None:
        self.current.flush()

    def thread_became_main(self) -> None:
        """After a fork the forking thread is the only one."""
        self.current = self.here()
        self._main = threading.get_ident()


class OwnedFd:
    """A descriptor that is closed when it is forgotten."""

    def __init__(self, fd: int):
        self.fd = fd

    def __del__(self, close: object = os.close):
        close(self.fd)


class OwnedFile(io.FileIO):
    """A raw file that keeps its descriptor, without the warning about an unclosed file. Two on one descriptor do no harm."""

    def __init__(self, owned: OwnedFd):
        super().__init__(owned.fd, "w", closefd=False)
        self.owned = owned


class CellStreams:
    """A cell's stdout and stderr on descriptors of their own, made when they are needed, closed when nobody writes there any more."""

    def __init__(self, out: int, err: int):
        self._files = [OwnedFd(out), OwnedFd(err)]
        self._made: list = [None, None]

    def stream(self, number: int) -> io.TextIOWrapper:
        made = self._made[number - 1]
        if made is None:
            raw = OwnedFile(self._files[number - 1])
            made = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "surrogateescape", "", write_through=True)
            self._made[number - 1] = made
        return made

    def flush(self) -> None:
        for stream in self._made:
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):
                pass


class CellOutput(io.TextIOBase):
    """sys.stdout or sys.stderr: passes each write at once to the stream of the calling thread's cell."""

    def __init__(self, outputs: Outputs, number: int):
        self._outputs = outputs
        self._number = number
        self.name = "<stdout>" if number == 1 else "<stderr>"
        self.mode = "w"

    def _stream(self) -> io.TextIOWrapper:
        return self._outputs.here().stream(self._number)

    encoding = property(lambda self: self._stream().encoding)
    errors = property(lambda self: self._stream().errors)
    buffer = property(lambda self: self._stream().buffer)
    newlines = None
    line_buffering = True

    def write(self, text: str) -> int:
        stream = self._outputs.here().stream(self._number)
        count = stream.write(text)
        stream.flush()
        return count

    def flush(self) -> None:
        self._stream().flush()

    def writable(self) -> bool:
        return True

    def reconfigure(self, **options: object) -> None:
        self._stream().reconfigure(**options)

    def fileno(self) -> int:
        return self._number if self._outputs.here() is self._outputs.current else self._stream().fileno()

    def close(self) -> None:
        """Only flushes: the next cell needs it."""
        self.flush()


def future_flags() -> int:
    """The compiler flags of `from __future__ import …`, which hold for later cells too."""
    import __future__

    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    return flags & ~0x10  # the flag of nested_scopes means something else today


def ends_with_semicolon(lines: list, node: object) -> bool:
    """Whether a semicolon follows the last statement; only brackets, blanks and comments can stand between."""
    rest = [lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode("utf-8", "replace"), *lines[node.end_lineno :]]
    return "".join(line.partition("#")[0] for line in rest).lstrip(" \t\f\r\n\\)").startswith(";")


def describe_exception(e: BaseException) -> dict:
    """An exception as a result shows it; the frames of this file are left out."""
    import traceback

    try:
        message = str(e)
    except Exception:
        message = "(its __str__ failed)"
    shown = traceback.TracebackException(type(e), e, e.__traceback__)
    hide_host_frames(shown, set())
    return {"type": type(e).__name__, "message": clip(message), "traceback": clip("".join(shown.format()))}


def hide_host_frames(shown: object, seen: set) -> None:
    """Removes what lies between this file and the cell, in chained exceptions too."""
    if shown is None or id(shown) in seen:
        return
    seen.add(id(shown))
    if shown.stack:
        first = next((i for i, entry in enumerate(shown.stack) if entry.filename.startswith("<cell ")), 0)
        if shown.stack[0].filename != "<hermes host>":
            first = 0
        shown.stack[:] = [entry for entry in shown.stack[first:] if entry.filename != "<hermes host>"]
    for other in [shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())]:
        hide_host_frames(other, seen)


class ShellKernel(KernelProcess):
    """Feeds cells to one persistent shell and learns their ends over a descriptor that is closed inside them.

    The shell is an interactive one, because only that goes back to its next command after a SIGINT; a sourced file is
    nevertheless run without prompts and messages about jobs. The shell opens each cell's pipes under /proc.
    """

    INIT = "PS1= PS2= PS4='+ '; unset HISTFILE PROMPT_COMMAND; set +m\n"
    STATUS = 9  # the one descriptor of ours in the shell; dash knows single digits only

    def prepare(self) -> None:
        self.current = 0
        self.interrupted = False
        self.nudge_at = 0.0  # when to repeat a SIGINT: one that meets the shell's fork before its exec is lost
        self.wake, wake_writer = (raise_fd(fd) for fd in os.pipe())
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        commands, self.commands = (raise_fd(fd) for fd in os.pipe())
        self.statuses, status = (raise_fd(fd) for fd in os.pipe())
        self.status_text = b""
        self.shell = os.fork()
        if self.shell == 0:
            self._become_shell(commands, status)
        os.close(commands)
        os.close(status)
        self.poll = select.poll()
        for fd in (self.wake, self.statuses, self.channel.fileno()):
            self.poll.register(fd, select.POLLIN)
        self._command(self.INIT + ("set +o history\n" if self._find_shell()[0] == "bash" else "") + self._status_line())
        self._wait_for_status()

    @staticmethod
    def _find_shell() -> tuple:
        for name, options in (("bash", ["--norc", "--noprofile", "--noediting", "-i"]), ("sh", ["-i"])):
            for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
                path = os.path.join(directory or ".", name)
                if os.access(path, os.X_OK) and os.path.isfile(path):
                    return name, path, options
        raise FileNotFoundError(errno.ENOENT, "neither bash nor sh is on PATH", "kernel")

    def _become_shell(self, commands: int, status: int) -> None:
        try:
            name, path, options = self._find_shell()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(commands, 0)
            os.dup2(self.null, 1)
            os.dup2(self.null, 2)
            os.dup2(status, self.STATUS)
            env = {k: v for k, v in os.environ.items() if k not in ("ENV", "BASH_ENV", "PROMPT_COMMAND")}
            env["HISTFILE"] = os.devnull
            os.execve(path, [name, *options], env)
        finally:
            os._exit(127)

    def _command(self, text: str) -> None:
        try:
            write_all(self.commands, text.encode())
        except BrokenPipeError:  # the shell has ended, which its SIGCHLD tells
            pass

    def _until_read(self) -> None:
        """Waits until the shell has taken the command: dash throws away, after an error, whatever else it had read with it."""
        unread = bytearray(4)
        for _ in range(1000):
            fcntl.ioctl(self.commands, 0x541B, unread)  # FIONREAD, which only termios has
            if not any(unread):
                return
            time.sleep(0.0002)

    def _status_line(self) -> str:
        """Without quotes: what a SIGINT leaves of a half-read line must not swallow the next one."""
        return "command echo %d $? >&%d\n" % (self.current, self.STATUS)

    def receive(self) -> tuple:
        while True:
            found = self.channel.next()
            if found is not None:
                return found
            self._poll(idle=True)

    def serve(self, message: dict, fds: list) -> None:
        self._on_signals(idle=True)
        if self.interrupted:
            self._settle()
        self.current += 1
        script = self._script(message["code"])
        files = [script, *fds]
        here = "/proc/%d/fd/" % self.pid
        paths = [here + str(fd) for fd in files]
        self._command(". %s </dev/null >|%s 2>|%s %d>&-\n" % (*paths, self.STATUS))
        self._until_read()
        self._command(self._status_line())
        status = self._wait_for_status()
        for fd in files:
            os.close(fd)
        error = {"type": "ExitStatus", "message": "exit status %d" % status, "traceback": "", "status": status} if status else None
        self.channel.send({"t": "end", "n": message["n"], "outcome": "error" if status else "ok", "value": None, "error": error})

    @staticmethod
    def _script(code: str) -> int:
        """A descriptor of an unnamed file with the cell."""
        try:
            fd = os.memfd_create("cell")
        except (AttributeError, OSError):
            import tempfile

            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        data = code.encode() + b"\n"
        while data:
            data = data[os.write(fd, data) :]
        return fd

    def _settle(self) -> None:
        """After a SIGINT: repeats it, for a command that the shell was just forking misses it, and waits for the shell to answer.

        A signal that the shell has not met yet would spoil its next command; a command that is left would hold it.
        """
        status = None
        while status is None:
            os.killpg(0, signal.SIGINT)
            self.current += 1
            self._command(self._status_line())
            status = self._wait_for_status(time.monotonic() + 0.2)
        self._on_signals(idle=True)
        self.interrupted = False
        self.nudge_at = 0.0

    def _wait_for_status(self, until: float | None = None) -> int | None:
        """The status of the current command; None if time is up."""
        while until is None or time.monotonic() < until:
            line, newline, rest = self.status_text.partition(b"\n")
            if not newline:
                self._poll(idle=False, until=until)
                continue
            self.status_text = rest
            number, status = line.split()
            if int(number) == self.current:
                self.nudge_at = 0.0
                return int(status)
        return None

    def _poll(self, idle: bool, until: float | None = None) -> None:
        until = until or self.nudge_at or None  # None: however long it takes
        ready = self.poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000)
        if self.nudge_at and time.monotonic() >= self.nudge_at:
            self.nudge_at = 0.0
            os.killpg(0, signal.SIGINT)
        for fd, _ in ready:
            if fd == self.wake:
                self._on_signals(idle)
            elif fd == self.statuses:
                self.status_text += os.read(self.statuses, 4096)
                if idle:
                    self.status_text = b""
            elif not self.channel.receive():
                raise EOFError

    def _reap(self) -> tuple:
        """Takes the status of everybody who has ended; returns the shell's, if it is among them. The others are orphans of cells."""
        found = 0, 0
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if not pid:
                return found
            if pid == self.shell:
                found = pid, status

    def _on_signals(self, idle: bool) -> None:
        """Ends as the shell ended; after a SIGINT asks for the status again, for dash forgets the commands it had read."""
        try:
            numbers = os.read(self.wake, 4096)
        except BlockingIOError:
            return
        self.interrupted = self.interrupted or signal.SIGINT in numbers
        pid, status = self._reap()
        if pid and os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
            os.kill(self.pid, os.WTERMSIG(status))
        elif pid:
            os._exit(os.WEXITSTATUS(status))
        if signal.SIGINT in numbers and not idle:
            self.nudge_at = time.monotonic() + GRACE / 2
            self._command(self._status_line())


# ---------------------------------------------------------------- output of cells


class Stream:
    """What is retained of one stream of a cell: its head and its tail, by offset."""

    def __init__(self):
        self.total = 0
        self._head = bytearray()
        self._tail: deque = deque()
        self._tail_start = 0
        self._tail_size = 0
        self._tail_limit = 2 * RETAIN  # until the cell has ended, so that a client that keeps up misses nothing

    def append(self, data: bytes) -> None:
        self.total += len(data)
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
            self._tail_start = len(self._head)
        if not data:
            return
        if self._tail and type(self._tail[-1]) is bytearray and len(self._tail[-1]) + len(data) <= CHUNK // 4:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data) if len(data) < CHUNK // 8 else data)
        self._tail_size += len(data)
        self._trim()

    def _trim(self) -> None:
        while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_limit:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._tail_start += gone

    def finish(self) -> None:
        """Keeps, from now on, exactly the head and the tail of a result."""
        self._tail_limit = RETAIN - HEAD
        self._trim()
        over = self._tail_size - self._tail_limit
        if over > 0:
            self._tail[0] = self._tail[0][over:]
            self._tail_size -= over
            self._tail_start += over

    def parts(self) -> list:
        """The head and the tail of a result, each with its offset."""
        if not self.total:
            return []
        head, tail = bytes(self._head), b"".join(self._tail)
        start = max(self._tail_start, self.total - (RETAIN - HEAD))
        tail = tail[len(tail) - (self.total - start) :] if tail else b""
        return [[0, head + tail]] if start <= len(head) else [[0, head], [start, tail]]

    def gap(self, at: int) -> int:
        """The offset of the first retained byte from at on: at itself, unless it lies between head and tail."""
        return at if at < len(self._head) or at >= self._tail_start else self._tail_start

    def read(self, at: int, limit: int) -> bytes:
        """At most limit bytes from at on; at must not lie in the gap."""
        if at < len(self._head):
            return bytes(self._head[at : at + limit])
        start = self.total
        for chunk in reversed(self._tail):
            start -= len(chunk)
            if at >= start:
                return chunk if at == start and len(chunk) <= limit and type(chunk) is bytes else bytes(chunk[at - start : at - start + limit])
        return b""


def two_pipes() -> tuple:
    """Two pipes, reader and writer of each; both or none."""
    first = os.pipe()
    try:
        return first + os.pipe()
    except OSError:
        os.close(first[0])
        os.close(first[1])
        raise


class Pipe:
    """The host's end of a pipe that a cell, or what a cell left behind, writes to."""

    GROWN = 1 << 20
    SMALL = 4 << 10
    GATHER = 0.002

    def __init__(self, host: Host, kernel: Kernel, cell: Cell | None, number: int, fd: int):
        self.host = host
        self.kernel = kernel
        self.cell = cell  # None: what comes is an event of the kernel
        self.number = number
        self.fd = fd
        self.capacity = CHUNK
        self.holds: set = set()  # why it is not read for now
        self.last = 0.0
        os.set_blocking(fd, False)
        host.watch(fd, self.on_event)

    def on_event(self, _: int) -> None:
        for _ in range(4):
            if self.fd < 0 or self.holds or not self._read():
                return

    def hold(self, why: str) -> None:
        """Stops reading until every reason to do so is gone."""
        if not self.holds and self.fd >= 0:
            self.host.unwatch(self.fd)
        self.holds.add(why)

    def release(self, why: str) -> None:
        if why in self.holds:
            self.holds.remove(why)
            if not self.holds and self.fd >= 0:
                self.host.watch(self.fd, self.on_event)

    def _read(self) -> bool:
        """Reads once; false when there is nothing more for now."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
        elif self.cell:
            self.cell.output(self.number, data)
        else:
            self.kernel.late_output(self.number, data)
        if len(data) == CHUNK and self.capacity == CHUNK:
            self._grow()
        if len(data) < self.SMALL:
            self._gather()
        return len(data) == CHUNK

    def _gather(self) -> None:
        """Lets many small writes come together, instead of waking up for each."""
        now = time.monotonic()
        if now - self.last < self.GATHER:
            self.hold("gather")
            self.host.after(self.GATHER, lambda: self.release("gather"))
        self.last = now

    def _grow(self) -> None:
        """A cell that fills pipes gets a larger one: fewer turns for the same bytes."""
        try:
            self.capacity = fcntl.fcntl(self.fd, 1031, self.GROWN)  # F_SETPIPE_SZ, in fcntl from 3.10 on
        except OSError:
            self.capacity += 1

    def detach(self) -> None:
        """The cell has ended: takes what is in the pipe, at most its capacity; what comes later is not the cell's."""
        left = max(self.capacity, CHUNK)
        while left > 0 and self.fd >= 0:
            left -= CHUNK
            try:
                data = os.read(self.fd, CHUNK)
            except BlockingIOError:
                break
            if not data:
                self.close()
                return
            self.cell.output(self.number, data)
        self.cell = None
        self.release("client")
        if self.fd >= 0:
            self.kernel.keep_pipe(self)

    def close(self) -> None:
        if self.fd >= 0:
            self.host.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1
            self.kernel.forget_pipe(self)


class Follower:
    """One client's view of one cell: sends output as the client keeps up, then the end."""

    def __init__(self, client: Client, ch: int, cell: Cell, out: int, err: int):
        self.client = client
        self.ch = ch
        self.cell = cell
        self.at = [0, out, err]  # sent so far
        self.seen = [0, out, err]
        self.slow = False  # it made no progress for too long: the cell does not wait for it until it has caught up
        self.timer = None

    def pump(self) -> None:
        """Sends what it may of what is there."""
        before = self.at[:]
        done = self.client.listens and all([self._pump_stream(number, self.cell.streams[number]) for number in (1, 2)])
        if done:
            self.slow = False
        if self.at != before:
            self.cell.progress = True
            self._stop_timer()
        if self.cell.result is None:
            return
        if done:
            self._end()
            return
        if self.timer is None:  # the end is not lost because a client stopped reading
            self.timer = self.client.host.after(STALL, self._give_up)

    def _pump_stream(self, number: int, stream: Stream) -> bool:
        at = self.at[number]
        while at < stream.total:
            start = stream.gap(at)
            if start > at:
                if at - self.seen[number] > WINDOW // 2:
                    break  # one gap when the client has caught up, instead of one for each piece that it misses
                self._gap(number, at, start)
                at = start
                continue
            limit = min(CHUNK, self.seen[number] + WINDOW - at)
            if limit <= 0 or self.client.wire.unsent > SEND_LIMIT:
                break
            data = stream.read(at, limit)
            self.client.wire.send_output(self.ch, number, at, data)
            at += len(data)
        self.at[number] = max(at, self.at[number])
        return at >= stream.total

    def behind(self) -> bool:
        """Whether the cell should wait for this client."""
        return self.client.listens and not self.slow and any(self.cell.streams[number].total - self.at[number] > BEHIND for number in (1, 2))

    def _gap(self, number: int, start: int, end: int) -> None:
        self.client.send_loose({"t": "gap", "ch": self.ch, "stream": number, "from": start, "to": end})

    def on_seen(self, out: int, err: int) -> None:
        self.seen = [0, max(out, self.seen[1]), max(err, self.seen[2])]
        self._stop_timer()
        self.cell.progress = True
        self.pump()
        self.cell.regulate()

    def go_on(self, out: int, err: int) -> None:
        """The client is back and has so much."""
        self.at = [0, min(max(out, 0), self.cell.streams[1].total), min(max(err, 0), self.cell.streams[2].total)]
        self.seen = self.at[:]
        self._stop_timer()
        self.pump()

    def _give_up(self) -> None:
        for number in (1, 2):
            total = self.cell.streams[number].total
            if self.at[number] < total:
                self._gap(number, self.at[number], total)
        self._end()

    def _end(self) -> None:
        self.detach()
        told = {key: value for key, value in self.cell.result.items() if value or key == "exit_code" and value is not None}
        self.client.send({**told, "t": "end", "cell": self.cell.id, "ch": self.ch})

    def detach(self) -> None:
        self._stop_timer()
        self.client.channels.pop(self.ch, None)
        if self in self.cell.followers:
            self.cell.followers.remove(self)
            self.cell.regulate()

    def _stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None


# ---------------------------------------------------------------- the journal


RECORD = struct.Struct(">II")  # length and CRC-32 of the body that follows


def record(body: bytes) -> bytes:
    """The bytes of one record of a journal."""
    return RECORD.pack(len(body), binascii.crc32(body)) + body


def made_by_engine(cell_id: str) -> tuple | None:
    """The submitter and the number of an id that an engine counted; None for any other, which somebody chose."""
    nonce, _, number = cell_id.partition("-")
    if len(nonce) != 32 or not 0 < len(number) < 19 or not number.isdigit() or not number.isascii() or nonce.strip("0123456789abcdef"):
        return None
    return nonce, int(number)


class Journal:
    """What became of each cell, for whoever asks when this process is gone: docs/protocol.md, section 1.1.

    A record is one write and no fsync: what was written survives the death of this process, by whatever signal, and costs a
    few microseconds. It need not survive the machine's; a reader knows by the boot id that the machine was started anew.
    """

    def __init__(self, path: str, header: dict):
        self.path = path
        self.header = pack({**header, "t": "journal"})
        self.late: list = []  # records that wait for company: that a result was acknowledged is news that can get lost
        self.degraded: list = []  # cells whose end could not be written, and that a reader must not take for lost
        self.files: dict = {}  # cell id → path of its result and the record that names it
        self.file_count = 0
        self.rewrite_at = JOURNAL_LIMIT
        self.fd, self.size = self._create(path, record(self.header))

    @staticmethod
    def _create(path: str, data: bytes) -> tuple:
        """A new file that is ours from the moment it exists, locked, with data in it."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(fd, data)
        except OSError:
            unlink_quietly(path)
            os.close(fd)
            raise
        return fd, len(data)

    def _append(self, body: bytes) -> None:
        """Writes a record whole; after an OSError the file is as it was."""
        late, self.late = self.late, []
        for cell_id in self.degraded:
            late.append(pack({"t": "degraded", "cell": cell_id}))
        data = b"".join(map(record, [*late, body])) if late else record(body)
        try:
            written = os.write(self.fd, data)
            if written < len(data):
                written += os.write(self.fd, data[written:])  # says why
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.late = late[: len(late) - len(self.degraded)][-1000:]
            os.ftruncate(self.fd, self.size)
            raise
        self.size += len(data)
        if self.degraded:
            self.degraded = []
            self.rewrite_at = 0  # the results that are missing are still in memory

    def accepted(self, cell_id: str, digest: bytes, kernel: Kernel) -> None:
        self._append(self._accepted(cell_id, digest, kernel))

    @staticmethod
    def _accepted(cell_id: str, digest: bytes, kernel: Kernel) -> bytes:
        return pack({"t": "accepted", "cell": cell_id, "digest": digest, "kernel": kernel.id, "session": kernel.session, "lang": kernel.lang})

    def started(self, cell: Cell) -> None:
        self._append(pack({"t": "started", "cell": cell.id, "pid": cell.kernel.pid, "start": cell.kernel.start_time}))

    def revoked(self, cell_id: str) -> None:
        self._append(pack({"t": "revoked", "cell": cell_id}))

    def acknowledged(self, cell_id: str) -> None:
        self.late.append(pack({"t": "acked", "cell": cell_id}))

    def finished(self, cell: Cell, started: bool) -> None:
        """Keeps a result. If that cannot be done it is in memory only, which matters if the cell was started."""
        try:
            body = self._result(cell)
            if len(body) > RECORD_LIMIT:
                body = self._apart(cell, body)
            self._append(body)
        except OSError:
            if started:
                self.degraded.append(cell.id)

    @staticmethod
    def _result(cell: Cell) -> bytes:
        end = {key: value for key, value in cell.result.items() if value or key == "exit_code" and value is not None}
        return pack({"t": "finished", "cell": cell.id, "end": end, "out": cell.streams[1].parts(), "err": cell.streams[2].parts()})

    def _apart(self, cell: Cell, body: bytes) -> bytes:
        """Writes a large result into a file of its own; returns the record that names it."""
        self.file_count += 1
        path = "%s.%d" % (self.path, self.file_count)
        write_private(path, body)
        named = pack({"t": "finished", "cell": cell.id, "file": os.path.basename(path), "size": len(body), "crc": binascii.crc32(body)})
        self.files[cell.id] = path, named
        return named

    def forget(self, cell_id: str) -> None:
        """The result may go; its record does when the journal is written anew."""
        path, _ = self.files.pop(cell_id, ("", b""))
        if path:
            unlink_quietly(path)

    def rewrite(self, host: Host) -> None:
        """Writes it anew from what the host knows, so that it grows with what is kept and not with what was run."""
        bodies = [self.header]
        bodies += [pack({"t": "mark", "submitter": nonce, "n": n}) for nonce, n in host.marks.items()]
        for known in (host.past, host.chosen):
            bodies += [pack({"t": "past", "cell": cell_id, "state": state, "digest": digest}) for cell_id, (state, digest, _) in known.items()]
        for cell in host.cells.values():
            bodies += self._life(cell, cell.id in host.acked)
        new = self.path + ".new"
        try:
            fd, size = self._create(new, b"".join(map(record, bodies)))
            os.rename(new, self.path)  # a reader that got the old one's lock sees that it is not there any more
        except OSError:  # the old one is whole
            unlink_quietly(new)
            self.rewrite_at = self.size + JOURNAL_LIMIT
            return
        os.close(self.fd)
        self.fd, self.size, self.late, self.degraded = fd, size, [], []
        self.rewrite_at = max(JOURNAL_LIMIT, 2 * size)

    def _life(self, cell: Cell, acked: bool) -> list:
        """The records of a cell that is still known."""
        bodies = [self._accepted(cell.id, cell.digest, cell.kernel)]
        if cell.state == "running":
            bodies.append(pack({"t": "started", "cell": cell.id, "pid": cell.kernel.pid, "start": cell.kernel.start_time}))
        if cell.result is not None:
            if cell.result["reason"] == "revoked":
                bodies.append(pack({"t": "revoked", "cell": cell.id}))
            bodies.append(self.files[cell.id][1] if cell.id in self.files else self._result(cell))
        if acked:
            bodies.append(pack({"t": "acked", "cell": cell.id}))
        return bodies

    def leave(self, keep: bool) -> None:
        """Lets go of it, for whoever comes after this host if there is something to keep."""
        if not keep:
            for cell_id in list(self.files):
                self.forget(cell_id)
            unlink_quietly(self.path)
        os.close(self.fd)
        self.fd = -1


def unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def open_private(path: str) -> int:
    """Opens a file of ours that nobody else can read or write, to read it."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o600:
        os.close(fd)
        raise OSError(errno.EPERM, "it is not a file of ours with mode 0600")
    return fd


def read_whole(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read()


class Damaged(Exception):
    """A journal that is not as its host wrote it."""


def records(data: bytes) -> object:
    """The bodies of the records of a journal. A last one whose writer died while it wrote is none."""
    at = 0
    while at < len(data):
        body = whole_record(data, at)
        if body is None:
            break
        yield body
        at += RECORD.size + len(body)
    if any(whole_record(data, later, False) for later in range(at + 1, len(data) - RECORD.size)):
        raise Damaged("records follow one that is cut short")


def whole_record(data: bytes, at: int, strict: bool = True) -> bytes | None:
    """The body of the record at an offset, None if it is cut short."""
    if len(data) - at < RECORD.size:
        return None
    size, crc = RECORD.unpack_from(data, at)
    if not 0 < size <= 2 * RECORD_LIMIT:
        if strict:
            raise Damaged("a record of %d bytes at %d" % (size, at))
        return None
    body = data[at + RECORD.size : at + RECORD.size + size]
    if len(body) < size:
        return None
    if binascii.crc32(body) != crc:
        if strict:
            raise Damaged("a wrong checksum at %d" % at)
        return None
    return body


class Recovery:
    """The recover command: what the journal of a host that is gone says of one cell."""

    PATIENCE = 2.0  # for a host that is just dying, or for somebody who looks whether it is dead
    TREE = 5.0

    def __init__(self, config: dict):
        self.path, self.inc, self.cell = config["journal"], config["inc"], config["cell"]
        self.found: dict = {"state": "none"}
        self.started: dict = {}

    def run(self) -> None:
        """Answers and ends."""
        try:
            data = self._read()
            found = self._verdict(list(records(data)))
        except FileNotFoundError:
            fail("not_found", "there is no journal %s" % self.path, "")
        except (Damaged, Malformed) as e:
            fail("internal", "the journal %s is damaged: %s" % (self.path, e), "")
        except OSError as e:
            fail("permission" if e.errno in (errno.EPERM, errno.EACCES, errno.ELOOP) else "unavailable", "the journal %s: %s" % (self.path, e.strerror), "")
        answer("hermes-ready", found)
        os._exit(0)

    def _read(self) -> bytes:
        """The journal, once its host is dead: a lock that readers share and a host does not. The descriptor is left to the process' end."""
        until = time.monotonic() + self.PATIENCE
        while True:
            fd = open_private(self.path)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.fstat(fd).st_ino == os.stat(self.path).st_ino:  # else it has been written anew
                    return read_whole(fd)
            except BlockingIOError:
                if time.monotonic() > until:
                    fail("conflict", "the kernel host of the journal %s lives" % self.path, "")
            os.close(fd)
            time.sleep(0.02)

    def _verdict(self, bodies: list) -> dict:
        header = unpack(bodies[0]) if bodies else {}
        if type(header) is not dict or header.get("t") != "journal" or header.get("inc") != self.inc:
            fail("not_found", "%s is the journal of another kernel host" % self.path, "")
        made = made_by_engine(self.cell)
        wanted = (made[0] if made else self.cell).encode("utf-8", "backslashreplace")
        for body in bodies[1:]:
            if wanted in body:
                self._take(unpack(body), made)
        state = self.found["state"]
        rebooted = header.get("boot") != first_line("/proc/sys/kernel/random/boot_id")
        restarted = rebooted or header.get("pid1") != start_time(1)  # a container: its processes ended, its files did not
        if rebooted and state in ("none", "accepted"):  # what was written last may not have reached the disk
            self.found["state"] = "unknown"
        elif state == "finished":
            self._load()
        elif state == "started" and not restarted:
            self._see_to_the_tree(header)
        return {key: value for key, value in self.found.items() if key not in ("t", "cell")}

    def _take(self, entry: dict, made: tuple | None) -> None:
        kind, found = entry.get("t"), self.found
        if kind == "mark" and made and entry["submitter"] == made[0] and made[1] <= entry["n"]:
            found["state"] = "expired"
        if entry.get("cell") != self.cell or found["state"] == "revoked":
            return
        if kind in ("accepted", "started"):
            self.started = entry if kind == "started" else {}
            found.update({key: entry[key] for key in ("digest", "kernel", "session", "lang") if key in entry}, state=kind)
        elif kind == "finished":
            found.update(entry, state="finished")
        elif kind == "past":
            found.update(digest=entry["digest"], state="revoked" if entry["state"] == "revoked" else "expired")
        elif kind == "revoked":
            found["state"] = "revoked"
        elif kind == "degraded" and found["state"] == "started":
            found["state"] = "unknown"

    def _load(self) -> None:
        """Reads a result that has a file of its own."""
        name = self.found.pop("file", "")
        if not name:
            return
        try:
            body = read_whole(open_private(os.path.join(os.path.dirname(self.path), name)))
        except FileNotFoundError:  # it was forgotten
            self.found["state"] = "expired"
            return
        if (len(body), binascii.crc32(body)) != (self.found.pop("size"), self.found.pop("crc")):
            raise Damaged("its file %s has other bytes" % name)
        self.found.update(unpack(body))

    def _see_to_the_tree(self, header: dict) -> None:
        """Returns when nothing is left of a cell's processes. The nursery ends them; only what certainly is the kernel is killed here."""
        pid, start = self.started["pid"], self.started["start"]
        until = time.monotonic() + self.TREE
        while header["nursery_start"] and start:
            leader = start_time(pid)
            left = [pid for pid in session_members(pid) if is_running(pid)] if leader in (0, start) else []
            if not is_running(header["nursery"], header["nursery_start"]):
                if not left:
                    return
                for member in left if leader else []:  # without its leader a session might be another's of that number
                    kill_quietly(member, signal.SIGKILL)
            if time.monotonic() > until:
                break
            time.sleep(0.01)
        fail("unavailable", "processes of the cell may still run: the kernel host is gone, and what it left behind has not ended", "")


def is_running(pid: int, start: int = 0) -> bool:
    """Whether the process (that began then, if that is given) is there and no zombie."""
    fields = proc_stat(pid)
    return len(fields) > 19 and fields[0] not in ("Z", "X") and start in (0, int(fields[19]))


# ---------------------------------------------------------------- cells and kernels, as the host sees them


class Cell:
    """A submitted cell: queued, running or finished."""

    def __init__(self, message: dict, kernel: Kernel):
        self.id = message["cell"]
        self.digest = message["digest"]
        self.code = message["code"]
        self.last = message.get("last", True)
        self.timeout = message.get("timeout_ms", 0) / 1000
        self.kernel = kernel
        self.state = "queued"
        self.streams = (None, Stream(), Stream())
        self.pipes: list = []
        self.followers: list = []
        self.result = None
        self.ladder = ""  # why it is being stopped: timeout, interrupt
        self.timer = None
        self.patience: Timer | None = None  # runs while the pipes are not read
        self.progress = False  # of a client, since it was set
        self.queued_at = self.started_at = time.monotonic()
        self.finished_at = 0.0
        self.size = 0

    def describe(self) -> dict:
        ago = time.time() - time.monotonic()
        result = self.result or {}
        ran = self.started_at > self.queued_at
        return {
            "cell": self.id, "session": self.kernel.session, "kernel": self.kernel.id, "lang": self.kernel.lang, "state": self.state,
            "outcome": result.get("outcome", ""), "submitted": ago + self.queued_at, "started": ago + self.started_at if ran else 0.0,
            "finished": ago + self.finished_at if result else 0.0, "out": self.streams[1].total, "err": self.streams[2].total,
            "acked": self.id in self.kernel.host.acked,
        }  # fmt: skip

    def output(self, number: int, data: bytes) -> None:
        self.streams[number].append(data)
        for follower in self.followers[:]:
            follower.pump()
        self.regulate()

    def regulate(self) -> None:
        """Reads the pipes only while every client keeps up, but never waits long for one."""
        if self.result is not None:
            if not self.followers:
                for stream in self.streams[1:]:
                    stream.finish()
            return
        behind = any(follower.behind() for follower in self.followers)
        if behind == (self.patience is not None):
            return
        if behind:
            self.progress = False
            self.patience = self.kernel.host.after(PATIENCE, self._lose_patience)
        else:
            self.patience.cancel()
            self.patience = None
        for pipe in self.pipes:
            pipe.hold("client") if behind else pipe.release("client")

    def _lose_patience(self) -> None:
        if self.progress:
            self.progress = False
            self.patience = self.kernel.host.after(PATIENCE, self._lose_patience)
            return
        for follower in self.followers:
            follower.slow = follower.behind()
        self.regulate()

    def tell(self, message: dict) -> None:
        for follower in self.followers:
            follower.client.send_lazily({**message, "cell": self.id, "ch": follower.ch})

    def stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def finish(self, outcome: str, **fields: object) -> None:
        """Makes the result and sends it to everybody who follows."""
        now = time.monotonic()
        self.stop_timer()
        self.code = ""
        pipes, self.pipes = self.pipes, []
        for pipe in pipes:
            pipe.detach()
        if self.patience:
            self.patience.cancel()
        ran = self.state == "running"
        started = self.started_at if ran else now
        self.state = "finished"
        self.finished_at = now
        self.result = {
            "outcome": outcome, "value": None, "error": None, "exit_code": None, "signal": "", "ms": (now - started) * 1000,
            "out": self.streams[1].total, "err": self.streams[2].total, "reason": "", "msg": "", "kernel_alive": True, "lost": "",
            "cells": self.kernel.cells, "queued_ms": (started - self.queued_at) * 1000, **fields,
        }  # fmt: skip
        self.size = 1000 + sum(min(stream.total, RETAIN) for stream in self.streams[1:]) + len(self.result["value"] or "")
        self.kernel.host.journal.finished(self, ran)  # before anybody is told
        for follower in self.followers[:]:
            follower.pump()
        self.regulate()


class Kernel:
    """A kernel process, its queue and its conversation with the host."""

    def __init__(self, host: Host, request: dict, directory: str):
        self.host = host
        self.id = "k" + os.urandom(6).hex()
        self.session = request.get("session", "")
        self.owner = request.get("owner", "")
        self.opened_by = request.get("key", "")  # names the request that it was made for
        self.lost_before = ""  # what that request was told
        self.lang = request["lang"]
        self.dir = directory
        self.env = request.get("env") or {}
        self.pid = self.start_time = 0
        self.state = "starting"  # idle, busy, ending, gone
        self.cells = 0
        self.started = self.last_used = time.time()
        self.idle_since = time.monotonic()
        self.current: Cell | None = None
        self.queue: deque = deque()
        self.signals = 0  # sent to the nursery and not yet known to be delivered
        self.lost = "died"  # what its session is told when it is gone
        self.killed_for = ""  # the reason that its cells get when it is ended on request
        self.failure: Refused | None = None
        self.when_ready: list = []
        self.when_gone: list = []
        self.watchers: set = set()  # clients that are told its events
        self.pipes: list = []  # of cells that ended
        self.serial = 0
        self.late_until = 0.0
        self.late_left = 0

    def start(self) -> None:
        """Asks the nursery for the process. OSError: descriptors are used up."""
        ours, theirs = socket.socketpair()
        try:
            reader, writer = os.pipe()
        except OSError:
            ours.close()
            theirs.close()
            raise
        try:
            fcntl.fcntl(reader, 1031, 4096)  # rarely used, and a user's pipes share one budget
        except OSError:
            pass
        ours.setblocking(False)
        self.channel = Channel(ours)
        self.host.watch(ours.fileno(), self._on_channel)
        self.pipes.append(Pipe(self.host, self, None, 1, reader))
        self.host.tell_nursery({"t": "fork", "kernel": self.id, "lang": self.lang}, (theirs.fileno(), writer))
        theirs.close()
        os.close(writer)
        self._send({"t": "init", "env": self.env, "dir": self.dir})
        self.env = {}

    def _send(self, message: dict, fds: tuple = ()) -> None:
        self.channel.send(message, fds)
        if self.channel.backlog:
            self.host.rewatch(self.channel.fileno(), self._on_channel, READABLE | WRITABLE)

    def _on_channel(self, mask: int) -> None:
        if self.state == "gone":
            return
        try:
            if mask & WRITABLE and self.channel.flush():
                self.host.rewatch(self.channel.fileno(), self._on_channel, READABLE)
            if mask & READABLE:
                if not self.channel.receive():
                    self.host.unwatch(self.channel.fileno())  # the nursery will say how it ended
                    return
                for message, fds in iter(self.channel.next, None):
                    for fd in fds:
                        os.close(fd)
                    self._on_message(message)
        except (OSError, Malformed):
            self.host.unwatch(self.channel.fileno())
            self.end()

    def _on_message(self, message: dict) -> None:
        kind = message.get("t")
        if kind == "ready" and self.state == "starting":
            self.dir = message.get("dir", self.dir)
            self._become_idle()
            for tell in self.when_ready:
                tell(None)
            self.when_ready = []
            self.advance()
        elif kind == "failed" and self.state == "starting":
            self.failure = Refused("not_found", str(message.get("msg")))
        elif kind == "end" and self.current and message.get("n") == self.serial:
            self._on_end(message)

    def _become_idle(self) -> None:
        self.state = "idle"
        self.last_used = time.time()
        self.idle_since = time.monotonic()

    def _on_end(self, message: dict) -> None:
        cell, self.current = self.current, None
        self.cells += 1
        outcome = message.get("outcome")
        outcome = {"timeout": "timeout", "interrupt": "interrupted"}.get(cell.ladder) or (outcome if outcome in ("ok", "error") else "error")
        value, error = message.get("value"), message.get("error")
        if type(error) is not dict:
            error = None
        exit_code = error.pop("status", None) if error else None
        self._become_idle()
        cell.finish(outcome, value=value if type(value) is str else None, error=error, exit_code=exit_code)
        self.host.finished(cell)
        self.advance()

    def submit(self, cell: Cell) -> None:
        self.queue.append(cell)
        self.advance()

    def advance(self) -> None:
        """Gives the kernel its next cell, if it can have one. Not before every signal meant for an earlier cell was delivered."""
        while self.queue and self.state == "idle" and not self.signals:
            cell = self.queue.popleft()
            try:
                self._give(cell)
            except NotWritten as e:
                cell.finish("refused", reason="journal", msg=str(e))
                self.host.finished(cell)
            except OSError as e:
                cell.finish("refused", reason="exhausted", msg="the cell was not started: %s" % explain(e))
                self.host.finished(cell)

    def _give(self, cell: Cell) -> None:
        pipes = out_reader, out, err_reader, err = self.host.take_pipes()
        try:
            self.host.journal.started(cell)
        except OSError as e:
            self.host.spare_pipes = pipes
            raise NotWritten(e) from None
        self.serial += 1
        self.state = "busy"
        self.current = cell
        cell.state = "running"
        cell.started_at = time.monotonic()
        try:
            self._send({"t": "cell", "n": self.serial, "code": cell.code, "last": cell.last}, (out, err))
        except OSError:  # it has just died; the nursery will say how
            pass
        cell.pipes = [Pipe(self.host, self, cell, 1, out_reader), Pipe(self.host, self, cell, 2, err_reader)]
        os.close(out)
        os.close(err)
        cell.tell({"t": "started", "kernel": self.id, "pid": self.pid})
        if cell.timeout > 0:
            cell.timer = self.host.after(cell.timeout, lambda: self.stop_cell(cell, "timeout"))

    def stop_cell(self, cell: Cell, why: str) -> None:
        """The ladder: SIGINT to the kernel's group, then, a grace later, the end of the kernel."""
        if cell is not self.current or cell.ladder:
            return
        cell.ladder = why
        cell.stop_timer()
        self.signals += 1
        self.host.tell_nursery({"t": "signal", "kernel": self.id, "pid": self.pid, "signal": int(signal.SIGINT)})
        cell.timer = self.host.after(GRACE, self.end)

    def on_signalled(self) -> None:
        self.signals -= 1
        self.advance()

    def end(self, reason: str = "", lost: str = "died") -> None:
        """Ends the process and its whole tree. reason is what its cells are told; lost what its session is told."""
        if self.state in ("ending", "gone"):
            return
        self.killed_for = reason
        self.lost = lost
        self.state = "ending"
        if self.pid:
            self.host.tell_nursery({"t": "kill", "kernel": self.id, "pid": self.pid})

    def on_forked(self, pid: int) -> None:
        self.pid, self.start_time = pid, start_time(pid)
        if self.state == "ending":
            self.host.tell_nursery({"t": "kill", "kernel": self.id, "pid": pid})

    def on_exited(self, status: int, failed: str) -> None:
        """The process and its tree are gone."""
        starting = bool(self.when_ready)
        asked = self.state == "ending"
        self.state = "gone"
        self.host.unwatch(self.channel.fileno())
        self.channel.sock.close()
        died_of = signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ""
        if self.current:
            self._lose_current(status, died_of, asked)
        elif not asked and not starting:
            what = "killed by " + died_of if died_of else "ended with status %d" % os.WEXITSTATUS(status)
            self.event({"kind": "exit", "stream": 0, "data": b"", "signal": died_of, "msg": "the kernel was " + what if died_of else "the kernel " + what})
        for pipe in self.pipes[:]:
            pipe.close()
        for cell in self.queue:
            reason = self.killed_for or ("killed" if asked else "no_kernel")
            cell.finish("refused", reason=reason, msg="its kernel ended before the cell started", kernel_alive=False)
            self.host.finished(cell)
        self.queue.clear()
        if failed:
            self.failure = Refused("exhausted", failed)
        elif starting and not self.failure:
            self.failure = Refused("internal", "the kernel died while it started" + (" of " + died_of if died_of else ""))
        for tell in self.when_ready:
            tell(self.failure)
        self.host.forget_kernel(self, "" if starting else self.lost)
        for call in self.when_gone:
            call()

    def _lose_current(self, status: int, died_of: str, asked: bool) -> None:
        cell, self.current = self.current, None
        self.cells += 1
        fields = {"kernel_alive": False, "lost": "died", "signal": died_of}
        if cell.ladder == "timeout":
            self.lost = fields["lost"] = "timeout"
        if not died_of:
            fields["exit_code"] = os.WEXITSTATUS(status)
        if cell.ladder and not self.killed_for:
            outcome = "timeout" if cell.ladder == "timeout" else "interrupted"
        elif asked or died_of:
            outcome, fields["reason"] = "lost", self.killed_for
            fields["msg"] = "the kernel was ended while the cell ran" if asked else "the kernel was killed by " + died_of
        else:
            outcome = "exit"
        cell.finish(outcome, **fields)
        self.host.finished(cell)

    def keep_pipe(self, pipe: Pipe) -> None:
        self.pipes.append(pipe)
        if len(self.pipes) > LATE_PIPES:
            self.pipes[1].close()  # the first is the kernel's own

    def forget_pipe(self, pipe: Pipe) -> None:
        if pipe in self.pipes:
            self.pipes.remove(pipe)

    def late_output(self, number: int, data: bytes) -> None:
        """Output of what an earlier cell left behind: an event, the first few KiB of each second."""
        now = time.monotonic()
        if now >= self.late_until:
            self.late_until, self.late_left = now + 1, LATE_LIMIT
        data = data[: self.late_left]
        self.late_left -= len(data)
        if data:
            self.event({"kind": "output", "stream": number, "data": data, "signal": "", "msg": ""})

    def event(self, fields: dict) -> None:
        for client in list(self.watchers):
            client.send({"t": "event", "kernel": self.id, **fields})

    def describe(self) -> dict:
        return {
            "kernel": self.id, "session": self.session, "owner": self.owner, "lang": self.lang, "dir": self.dir, "pid": self.pid,
            "state": self.state if self.state in ("idle", "starting") else "busy", "cells": self.cells, "queued": len(self.queue),
            "started": self.started, "last_used": self.last_used,
        }  # fmt: skip


# ---------------------------------------------------------------- clients


class Wire:
    """One connection: who is at its other end, what is still to be sent over it."""

    def __init__(self, host: Host, sock: socket.socket):
        self.host = host
        self.sock = sock
        self.client: Client | None = None  # from the proof on
        self.open = True
        self.stage = self._on_hello
        self.reader = FrameReader(MAX_HELLO)
        self.out: deque = deque()
        self.unsent = 0
        self.due = False  # whether the loop flushes it at the end of this turn
        self.blocked = False
        self.heard = time.monotonic()
        self.pings = 0
        self.timer = host.after(HELLO_TIME, self.close)
        sock.setblocking(False)
        host.watch(sock.fileno(), self._on_event)

    def close(self) -> None:
        """Ends the connection; the client's cells go on."""
        if not self.open:
            return
        self.open = False
        self.timer.cancel()
        self.host.unwatch(self.sock.fileno())
        self.sock.close()
        self.out.clear()
        if self.client:
            self.client.disconnected(self)

    # sending

    def send(self, message: dict) -> None:
        self.queue(frame(message))

    def queue_lazily(self, data: bytes) -> None:
        """Sends it with what follows, or a moment later: to one wake-up of the client less a short cell owes much of its speed."""
        if self.due or self.blocked or not self.open:
            self.queue(data)
            return
        self.out.append(data)
        self.unsent += len(data)
        self.host.flush_soon(self)

    def send_output(self, ch: int, stream: int, offset: int, data: bytes) -> None:
        self.queue(output_header(ch, stream, offset, len(data)))
        self.queue(data)

    def queue(self, data: bytes) -> None:
        if not self.open:
            return
        if not self.due and not self.blocked:
            self.due = True
            self.host.unflushed.append(self)
        self.out.append(data)
        self.unsent += len(data)

    def flush(self) -> None:
        """Sends as much as the socket takes; the loop calls it once a turn for whoever has something."""
        self.due = False
        try:
            while self.out:
                sent = self.sock.sendmsg([self.out[i] for i in range(min(len(self.out), 64))])
                self.unsent -= sent
                while sent:
                    first = self.out.popleft()
                    if sent < len(first):
                        self.out.appendleft(memoryview(first)[sent:])
                        break
                    sent -= len(first)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if bool(self.out) != self.blocked:
            self.blocked = not self.blocked
            mask = READABLE | (WRITABLE if self.blocked else 0)
            self.host.rewatch(self.sock.fileno(), self._on_event, mask)

    # receiving

    def _on_event(self, mask: int) -> None:
        if self.open and mask & WRITABLE:
            self.flush()
            if self.client:
                self.client.pump()
            if self.open and self.out:
                self.flush()
        if self.open and mask & READABLE:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self.sock.recv(CHUNK)  # more would cost a mapping each time
            self.reader.feed(data)
            self.heard = time.monotonic()
            for kind, body in iter(self.reader.next, None):
                if kind == 0x43:
                    self._on_numbered(body)
                else:
                    self.stage(parse_frame(kind, body))
                if not self.open:
                    return
            if not data:
                self.close()
        except BlockingIOError:
            pass
        except (OSError, Malformed):
            self.close()

    def _on_numbered(self, body: bytes) -> None:
        if self.client is None or self.client.numbers is None or len(body) < 16:
            raise Malformed("a numbered message on a link without numbers")
        if self.client.numbers.take(int.from_bytes(body[:8], "big"), int.from_bytes(body[8:16], "big")):
            self.stage(parse_frame(0x4D, body[16:]))
            self.client.tell_heard(TELL)

    # proving who it is

    def _on_hello(self, message: dict) -> None:
        versions, nonce = message.get("v"), message.get("nonce")
        if message["t"] != "hello" or type(versions) is not list or type(nonce) is not bytes or len(nonce) != 32:
            raise Malformed("no hello")
        common = set(FRAMES) & {v for v in versions if type(v) is int}
        if not common:
            self.send({"t": "error", "code": "version", "v": FRAMES, "msg": "no common version of the frame protocol"})
            self.flush()
            self.close()
            return
        self.version = max(common)
        self.nonces = nonce, os.urandom(32)
        proof = hmac_sha256(self.host.token, b"hermes host v1" + nonce + self.nonces[1])
        self.send({"t": "hello", "v": self.version, "nonce": self.nonces[1], "proof": proof, "inc": self.host.facts["inc"]})
        self.stage = self._on_proof

    def _on_proof(self, message: dict) -> None:
        proof = message.get("proof")
        want = hmac_sha256(self.host.token, b"hermes client v1" + self.nonces[1] + self.nonces[0])
        if message["t"] != "proof" or type(proof) is not bytes or not same_bytes(proof, want):
            raise Malformed("wrong proof")
        link, heard = message.get("link", b""), message.get("heard", 0)
        if self.version > 1 and (type(link) is not bytes or len(link) != 16 or type(heard) is not int):
            raise Malformed("a proof without a link")
        self.reader.limit = MAX_FRAME
        self.timer.cancel()
        self.timer = self.host.after(HEARTBEAT, self._heartbeat)
        keys = ("inc", "boot", "pid1", "pid", "start", "python", "exe", "hostname", "dir")
        welcome = {"t": "welcome", "now": time.time(), "degraded": bool(self.host.journal.degraded), **{key: self.host.facts[key] for key in keys}}
        if self.version == 1:
            self.client = Client(self.host, b"")
            self.send(welcome)
        else:
            self.client, resumed = self.host.link(link, heard)
            heard = heard if resumed else 0
            self.send({**welcome, "resumed": resumed, "heard": self.client.numbers.heard})
        self.stage = self.client.on_message
        self.client.connected(self, heard)

    def _heartbeat(self) -> None:
        silent = time.monotonic() - self.heard
        if silent >= SILENCE:
            self.close()
            return
        if silent >= HEARTBEAT:
            self.pings += 1
            self.client.send_loose({"t": "ping", "req": self.pings, **self.client.hearing()})
        self.timer = self.host.after(HEARTBEAT - silent if silent < HEARTBEAT else HEARTBEAT, self._heartbeat)


class Client:
    """One client: what it asked for, what it is still to be told. Over a numbered link it outlives its connections for a while."""

    def __init__(self, host: Host, link: bytes):
        self.host = host
        self.link = link  # the client's name for it; empty: messages have no numbers
        self.numbers = Numbers() if link else None
        self.wire: Wire | None = None
        self.open = True
        self.listens = False  # whether output may be sent: somebody is there, and has said how far it has read
        self.channels: dict = {}  # ch → Follower
        self.timer: Timer | None = None  # runs while nobody is there

    def connected(self, wire: Wire, heard: int) -> None:
        """Goes on over a new connection with a peer that heard so much."""
        old, self.wire = self.wire, wire
        if old:
            old.close()
        if self.timer:
            self.timer.cancel()
            self.timer = None
        self.host.connected(self)
        self.listens = not (self.numbers and self.numbers.sent)  # it says first how far it has read
        for data in self.numbers.resume(heard) if self.numbers else ():
            wire.queue(data)

    def disconnected(self, wire: Wire) -> None:
        if wire is not self.wire:
            return
        self.wire = None
        self.listens = False
        self.host.disconnected(self)
        if self.numbers is None:
            self.end()
            return
        self.timer = self.host.after(LINK_KEPT, self.end)
        for follower in list(self.channels.values()):
            follower.cell.regulate()
        self.host.limit_links()

    def end(self) -> None:
        """Forgets the client; its cells go on."""
        if not self.open:
            return
        self.open = False
        self.host.forget_client(self)
        if self.timer:
            self.timer.cancel()
        for follower in list(self.channels.values()):
            follower.detach()
        if self.wire:
            self.wire.close()

    def pump(self) -> None:
        for follower in list(self.channels.values()):
            follower.pump()
            follower.cell.regulate()

    # sending

    def send(self, message: dict) -> None:
        if self.open:
            data = self._encode(message)
            if self.wire:
                self.wire.queue(data)

    def send_lazily(self, message: dict) -> None:
        if self.open:
            data = self._encode(message)
            if self.wire:
                self.wire.queue_lazily(data)

    def send_loose(self, message: dict) -> None:
        """Sends what need not arrive: without a number."""
        if self.wire:
            self.wire.send(message)

    def _encode(self, message: dict) -> bytes:
        if self.numbers is None:
            return frame(message)
        body = pack(message)
        if len(body) >= MAX_FRAME - 17:
            raise Malformed("a frame over 16 MiB")
        data = self.numbers.send(body)
        if self.numbers.size > Numbers.LIMIT:
            self.host.after(0, self.end)  # it hears nothing: its memory ends here
        return data

    def tell_heard(self, at_least: int) -> None:
        if self.numbers and self.numbers.heard - self.numbers.told >= at_least:
            self.send_loose({"t": "heard", **self.hearing()})

    def hearing(self) -> dict:
        """How far the peer was heard, for messages without a number of their own."""
        if self.numbers is None:
            return {}
        self.numbers.told = self.numbers.heard
        return {"heard": self.numbers.heard}

    # requests

    def on_message(self, message: dict) -> None:
        kind = message["t"]
        handler = self._HANDLERS.get(kind)
        try:
            if handler is None:
                raise Refused("invalid", "unknown kind of message: %s" % kind[:40])
            name, fields = handler
            for key, want in fields.items():
                if type(message.get(key)) is not want:
                    raise Refused("invalid", "%s: %s must be %s" % (kind, key, want.__name__))
            getattr(self, name)(message)
        except Refused as e:
            self.refuse(message, e)
        except Exception as e:  # a mistake in here must not end everybody's kernels
            self.refuse(message, Refused("internal", "%s: %s: %s" % (kind[:40], type(e).__name__, e)))

    def refuse(self, message: dict, e: Refused) -> None:
        reply = {"t": "error", "code": e.code, "msg": str(e)}
        self.send({**{key: message[key] for key in ("req", "cell", "ch") if key in message}, **reply})

    def reply(self, message: dict, kind: str, **fields: object) -> None:
        self.send({"t": kind, "req": message["req"], **fields})

    def _open(self, m: dict) -> None:
        if m["lang"] not in ("python", "bash"):
            raise Refused("unsupported", "no kernels for the language %s" % m["lang"][:40])
        env = m.get("env") or {}
        if type(env) is not dict or not all(type(v) is str and "\0" not in k + v and k and "=" not in k for k, v in env.items()):
            raise Refused("invalid", "open: env must map names to strings")
        key = m.get("key", "")
        if type(key) is not str or len(key) > MAX_ID:
            raise Refused("invalid", "open: key must be a string of at most %d characters" % MAX_ID)
        self.host.open_kernel(self, m)

    def _state(self, m: dict) -> None:
        state, digest, kernel = self.host.cell_state(m["cell"])
        self.reply(m, "state", cell=m["cell"], state=state, digest=digest, kernel=kernel)

    def _cancel(self, m: dict) -> None:
        cell = self.host.cells.get(m["cell"])
        state = self.host.cell_state(m["cell"])[0]
        self.reply(m, "ok", state=state)
        if cell and state == "queued":
            cell.kernel.queue.remove(cell)
            cell.finish("refused", reason="cancelled", msg="cancelled before it started")
            self.host.finished(cell)
        elif cell and state == "running":
            cell.kernel.stop_cell(cell, "interrupt")

    def _revoke(self, m: dict) -> None:
        """Sees to it that a cell never starts, if it has not."""
        cell_id, state = m["cell"], self.host.cell_state(m["cell"])[0]
        if len(cell_id) > MAX_ID:
            raise Refused("invalid", "revoke: the cell's id has over %d characters" % MAX_ID)
        if state in ("none", "queued"):
            try:
                self.host.revoke(cell_id)
            except OSError as e:
                raise Refused("exhausted", "the journal cannot be written: %s" % explain(e)) from None
            state = "revoked"
        self.reply(m, "ok", state=state)

    def _kernel(self, m: dict) -> Kernel:
        kernel = self.host.kernels.get(m["kernel"])
        if kernel is None:
            raise Refused("not_found", "no kernel %s" % m["kernel"][:40])
        return kernel

    def _interrupt(self, m: dict) -> None:
        kernel = self._kernel(m)
        self.reply(m, "ok", state="running" if kernel.current else "idle")
        if kernel.current:
            kernel.stop_cell(kernel.current, "interrupt")

    def _kill(self, m: dict) -> None:
        kernel = self._kernel(m)
        reason = m.get("reason", "died")
        kernel.when_gone.append(lambda: self.reply(m, "ok"))
        kernel.end("killed", reason if type(reason) is str else "died")

    def _list(self, m: dict) -> None:
        self.reply(m, "kernels", kernels=[kernel.describe() for kernel in self.host.kernels.values()])

    def _cells(self, m: dict) -> None:
        cells = self.host.cells
        self.host.expire()
        chosen = [cells[m["cell"]]] if m.get("cell") in cells else [] if m.get("cell") else list(cells.values())[-MAX_LISTED:]
        self.reply(m, "cells", cells=[cell.describe() for cell in chosen])

    def _fetch(self, m: dict) -> None:
        cell = self.host.cells.get(m["cell"])
        if cell is None:
            raise Refused("not_found", "no cell %s" % m["cell"][:80])
        start, end = m["from"], m["to"]
        if m["stream"] not in (1, 2) or start < 0 or end < start:
            raise Refused("invalid", "fetch: stream %d from %d to %d" % (m["stream"], start, end))
        stream = cell.streams[m["stream"]]
        at = stream.gap(start)
        gap_to = at if at > start else 0
        parts = []
        end = min(end, at + (256 << 10), stream.total)
        while at < end and stream.gap(at) == at:
            parts.append(stream.read(at, end - at))
            at += len(parts[-1])
        self.reply(m, "data", cell=m["cell"], stream=m["stream"], **{"from": start}, data=b"".join(parts), gap_to=gap_to)

    def _shutdown(self, m: dict) -> None:
        self.host.leave("closed", lambda: self.reply(m, "ok"))

    def _ping(self, m: dict) -> None:
        self._heard(m)
        self.send_loose({"t": "pong", **({"req": m["req"]} if "req" in m else {}), **self.hearing()})

    def _heard(self, m: dict) -> None:
        try:
            if self.numbers and type(m.get("heard")) is int:
                self.numbers.acknowledge(m["heard"])
        except Malformed:
            self.wire.close()

    def _resume(self, m: dict) -> None:
        """The client is back and says which channels it follows, and how far it has read."""
        if self.numbers is None or not all(type(at) is list and len(at) == 3 and {type(n) for n in at} == {int} for at in m["chs"]):
            raise Refused("invalid", "resume: chs must be a list of [ch, out, err], on a numbered link")
        asked = {ch: (out, err) for ch, out, err in m["chs"]}
        for ch, follower in list(self.channels.items()):
            if ch not in asked:
                follower.detach()
        self.send_loose({"t": "resumed", "chs": list(self.channels)})
        self.listens = True
        for ch, follower in list(self.channels.items()):
            follower.go_on(*asked[ch])
            follower.cell.regulate()

    def _channel(self, m: dict) -> int:
        if m["ch"] <= 0 or m["ch"] > 0xFFFFFFFF or m["ch"] in self.channels:
            raise Refused("invalid", "channel %d is in use or out of range" % m["ch"])
        return m["ch"]

    def _refuse_cell(self, m: dict, reason: str, msg: str) -> None:
        """The end of a submit or follow that starts nothing."""
        self.send({
            "t": "end", "cell": m["cell"], "ch": m["ch"], "outcome": "refused", "value": None, "error": None, "exit_code": None, "signal": "",
            "ms": 0.0, "out": 0, "err": 0, "reason": reason, "msg": msg, "kernel_alive": m.get("kernel") in self.host.kernels, "lost": "",
            "cells": 0, "queued_ms": 0.0,
        })  # fmt: skip

    def _submit(self, m: dict) -> None:
        ch = self._channel(m)
        if max(len(m["cell"]), len(m["digest"])) > MAX_ID:
            raise Refused("invalid", "submit: the cell's id or digest has over %d characters" % MAX_ID)
        if type(m.get("timeout_ms", 0)) is not int or type(m.get("last", True)) is not bool:
            raise Refused("invalid", "submit: timeout_ms must be int, last bool")
        state, digest, _ = self.host.cell_state(m["cell"])
        if state != "none":
            if state in ("revoked", "expired"):
                self._refuse_cell(m, state, self._NEVER[state])
            elif not same_bytes(digest, m["digest"]):
                self._refuse_cell(m, "conflict", "another cell has this id")
            elif m["cell"] not in self.host.cells:
                self._refuse_cell(m, "expired", self._NEVER["expired"])
            else:
                self.send({"t": "accepted", "cell": m["cell"], "ch": ch, "again": True, "state": state})
                self._join(ch, self.host.cells[m["cell"]], 0, 0)
            return
        kernel = self.host.kernels.get(m["kernel"])
        if self.host.leaving:
            self._refuse_cell(m, "closed", "the kernel host is leaving")
        elif kernel is None or kernel.state in ("ending", "gone"):
            self._refuse_cell(m, "no_kernel", "there is no kernel %s" % m["kernel"][:40])
        elif len(m["code"]) > MAX_CODE:
            self._refuse_cell(m, "too_large", "the code is over 8 MiB")
        elif len(kernel.queue) >= MAX_QUEUE or sum(len(cell.code) for cell in kernel.queue) > 4 * MAX_CODE:
            self._refuse_cell(m, "exhausted", "the kernel's queue is full")
        else:
            try:
                self.host.journal.accepted(m["cell"], m["digest"], kernel)
            except OSError as e:
                self._refuse_cell(m, "journal", str(NotWritten(e)))
                return
            cell = self.host.cells[m["cell"]] = Cell(m, kernel)
            kernel.watchers.add(self)
            self.send_lazily({"t": "accepted", "cell": cell.id, "ch": ch, "again": False, "state": "queued"})
            self._join(ch, cell, 0, 0)
            kernel.submit(cell)

    def _follow(self, m: dict) -> None:
        ch = self._channel(m)
        cell = self.host.cells.get(m["cell"])
        if cell is None:
            state = self.host.cell_state(m["cell"])[0]
            reason = {"none": "no_cell", "revoked": "revoked"}.get(state, "expired")
            self._refuse_cell(m, reason, self._NEVER[reason])
            return
        cell.kernel.watchers.add(self)
        self._join(ch, cell, max(m["out"], 0), max(m["err"], 0))

    def _join(self, ch: int, cell: Cell, out: int, err: int) -> None:
        follower = self.channels[ch] = Follower(self, ch, cell, out, err)
        cell.followers.append(follower)
        if cell.state == "running":
            self.send({"t": "started", "cell": cell.id, "ch": ch, "kernel": cell.kernel.id, "pid": cell.kernel.pid})
        follower.pump()

    def _ack(self, m: dict) -> None:
        self.host.acknowledge(m["cell"])

    def _seen(self, m: dict) -> None:
        if m["ch"] in self.channels:
            self.channels[m["ch"]].on_seen(m["out"], m["err"])

    _NEVER = {  # reasons why a cell that is not there does not run
        "no_cell": "there is no such cell",
        "expired": "its result is no longer kept",
        "revoked": "it was revoked before it started",
    }
    _HANDLERS = {  # kind: (method, fields that must be there)
        "open": ("_open", {"req": int, "lang": str, "session": str, "dir": str}),
        "state": ("_state", {"req": int, "cell": str}),
        "cancel": ("_cancel", {"req": int, "cell": str}),
        "revoke": ("_revoke", {"req": int, "cell": str}),
        "interrupt": ("_interrupt", {"req": int, "kernel": str}),
        "kill": ("_kill", {"req": int, "kernel": str}),
        "list": ("_list", {"req": int}),
        "cells": ("_cells", {"req": int}),
        "fetch": ("_fetch", {"req": int, "cell": str, "stream": int, "from": int, "to": int}),
        "shutdown": ("_shutdown", {"req": int}),
        "ping": ("_ping", {}),
        "pong": ("_heard", {}),
        "heard": ("_heard", {}),
        "resume": ("_resume", {"chs": list}),
        "submit": ("_submit", {"cell": str, "kernel": str, "ch": int, "code": str, "digest": bytes}),
        "follow": ("_follow", {"cell": str, "ch": int, "out": int, "err": int}),
        "ack": ("_ack", {"cell": str}),
        "seen": ("_seen", {"ch": int, "out": int, "err": int}),
    }


# ---------------------------------------------------------------- host


class Timer:
    """Something to do later, unless it is cancelled."""

    def __init__(self, do: object):
        self.do = do

    def cancel(self) -> None:
        self.do = None


class Poller:
    """Waits for descriptors and calls who watches them: selectors does the same in twice the time, and a cell needs many of its steps."""

    def __init__(self):
        self._epoll = hasattr(select, "epoll")
        self._poll = select.epoll() if self._epoll else select.poll()
        self._calls: dict = {}

    def watch(self, fd: int, call: object, mask: int = READABLE) -> None:
        (self._poll.modify if fd in self._calls else self._poll.register)(fd, mask)
        self._calls[fd] = call

    def forget(self, fd: int) -> None:
        if self._calls.pop(fd, None):
            self._poll.unregister(fd)

    def wait(self, timeout: float | None) -> None:
        """Handles what happens next. An earlier event of a batch may close a later one's descriptor, and even open it anew: handlers never block."""
        if timeout is not None and not self._epoll:
            timeout *= 1000
        for fd, events in self._poll.poll(timeout):
            call = self._calls.get(fd)
            if call:  # an error or a hang-up is for readers and writers
                call((READABLE if events & ~WRITABLE else 0) | (WRITABLE if events & ~READABLE else 0))


class Host:
    """The loop, and what it keeps: kernels, cells, clients."""

    def __init__(self, nursery: Channel, config: dict):
        self.nursery = nursery
        self.token = config["token"]
        self.named = bool(config.get("named"))
        self.keeps_results = self.named  # that nobody has acknowledged, in the journal, when it leaves
        self.linger = float(config.get("linger") or 10.0)
        self.idle = float(config.get("idle") or 1800.0)
        self.facts: dict = {}
        self.kernels: dict = {}
        self.sessions: dict = {}  # (session, lang) → Kernel
        self.opened: dict = {}  # key of an open request → the Kernel that was made for it
        self.lost: dict = {}  # (session, lang) → why its kernel is gone, until somebody was told
        self.cells: dict = {}
        self.past: OrderedDict = OrderedDict()  # id → (state, digest, kernel id) of cells that are forgotten otherwise, oldest first
        self.chosen: dict = {}  # the same of ids that no engine counted, for this host's life
        self.marks: OrderedDict = OrderedDict()  # submitter → the highest number that was in past and is not any more
        self.results: OrderedDict = OrderedDict()  # finished cells by id, oldest first
        self.acked: OrderedDict = OrderedDict()  # those of them that were acknowledged
        self.results_size = self.acked_size = 0
        self.clients: set = set()  # those that are connected
        self.links: OrderedDict = OrderedDict()  # name → client of a numbered link, also while nobody is there
        self.unflushed: list = []
        self.lazy: list = []  # connections that can wait until lazy_until
        self.lazy_until = 0.0
        self.spare_pipes: tuple = ()
        self.leaving = False
        self.running = True
        self.when_left: list = []
        self._poller = Poller()
        self._timers: list = []
        self._timer_count = 0
        self._leave_timer: Timer | None = None
        self._spare_fd = os.open(os.devnull, os.O_RDONLY)

    # the loop

    def watch(self, fd: int, call: object) -> None:
        self._poller.watch(fd, call)

    def rewatch(self, fd: int, call: object, mask: int) -> None:
        self._poller.watch(fd, call, mask)

    def unwatch(self, fd: int) -> None:
        self._poller.forget(fd)

    def after(self, seconds: float, do: object) -> Timer:
        timer = Timer(do)
        self._timer_count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._timer_count, timer))
        if len(self._timers) > 1000 and self._timer_count % 1000 == 0:  # short cells with long time limits
            self._timers = [entry for entry in self._timers if entry[2].do]
            heapq.heapify(self._timers)
        return timer

    def _run_timers(self) -> float | None:
        """Does what is due and returns the seconds until the next, None if there is none."""
        while self._timers:
            when, _, timer = self._timers[0]
            left = when - time.monotonic()
            if timer.do and left > 0:
                return left
            heapq.heappop(self._timers)
            if timer.do:
                do, timer.do = timer.do, None
                do()
        return None

    def run(self, listener: socket.socket) -> None:
        """Serves until it is time to leave. Handlers know themselves whether an earlier event of a batch closed them."""
        self.listener = listener
        self.nursery.sock.setblocking(False)
        self.watch(listener.fileno(), self._on_connect)
        self.watch(self.nursery.fileno(), self._on_nursery)
        self._consider_leaving(max(self.linger, 10.0))
        while self.running:
            timeout = self._run_timers()
            self._flush()
            if not self.running:
                break
            self._stock_pipes()
            if self.lazy:
                timeout = min(timeout or LAZY, LAZY)
            self._poller.wait(timeout)
            self._flush()

    def take_pipes(self) -> tuple:
        """Two pipes for a cell: reader and writer, twice."""
        pipes, self.spare_pipes = self.spare_pipes or two_pipes(), ()
        return pipes

    def _stock_pipes(self) -> None:
        """Makes the next cell's pipes while this one's runs."""
        if not self.spare_pipes and self.kernels and not self.leaving:
            try:
                self.spare_pipes = two_pipes()
            except OSError:
                pass  # the next cell will say so

    def flush_soon(self, wire: Wire) -> None:
        if not self.lazy:
            self.lazy_until = time.monotonic() + LAZY
        self.lazy.append(wire)

    def _flush(self) -> None:
        if self.lazy and time.monotonic() >= self.lazy_until:
            self.unflushed += [wire for wire in self.lazy if wire.out and not wire.blocked]
            self.lazy = []
        while self.unflushed:
            wires, self.unflushed = self.unflushed, []
            for wire in wires:
                if wire.open:
                    wire.flush()

    # clients

    def _on_connect(self, _: int) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away()
            return
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12) if hasattr(socket, "SO_PEERCRED") else None
        if peer and struct.unpack("3i", peer)[1] not in (os.geteuid(), 0):
            sock.close()
            return
        Wire(self, sock)

    def _turn_away(self) -> None:
        """Without a free descriptor a client would wait for ever, and the loop would spin."""
        os.close(self._spare_fd)
        try:
            self.listener.accept()[0].close()
        except OSError:
            pass
        self._spare_fd = os.open(os.devnull, os.O_RDONLY)

    def connected(self, client: Client) -> None:
        self.clients.add(client)
        self._consider_leaving()

    def disconnected(self, client: Client) -> None:
        self.clients.discard(client)
        self._consider_leaving()

    def link(self, name: bytes, heard: int) -> tuple:
        """The client of a link, and whether it goes on: else what was said before is forgotten."""
        client = self.links.get(name)
        if client and client.numbers.can_resume(heard):
            return client, True
        if client:
            client.end()
        client = self.links[name] = Client(self, name)
        return client, False

    def limit_links(self) -> None:
        """Forgets those of the clients that are away who were made first, if they are too many."""
        away = [client for client in self.links.values() if client.wire is None]
        for client in away[: max(0, len(away) - LINKS_AWAY)]:
            client.end()

    def forget_client(self, client: Client) -> None:
        if self.links.get(client.link) is client:
            del self.links[client.link]
        for kernel in self.kernels.values():
            kernel.watchers.discard(client)

    # leaving

    def _consider_leaving(self, at_least: float = 0.0) -> None:
        """Sets the timer anew: an unnamed host outlives its last client by its linger, a named one its last kernel not at all."""
        if self._leave_timer:
            self._leave_timer.cancel()
            self._leave_timer = None
        if self.clients or self.leaving or (self.named and self.kernels):
            return
        seconds = 0.0 if self.named else self.linger
        self._leave_timer = self.after(max(seconds, at_least), lambda: self.leave("closed"))

    def leave(self, reason: str, then: object = None) -> None:
        """Ends every kernel, then the loop."""
        if then:
            self.when_left.append(then)
        self.leaving = True
        for kernel in list(self.kernels.values()):
            kernel.end(reason)
        self.after(2 * GRACE, self._left)
        if not self.kernels:
            self._left()

    def _left(self) -> None:
        if self.running:
            self.running = False
            self.listener.close()
            self.journal.leave(keep=self.keeps_results and len(self.acked) < len(self.results))
            self.directory.remove()
            for call in self.when_left:
                call()
            self._flush()

    # kernels

    def tell_nursery(self, message: dict, fds: tuple = ()) -> None:
        self.nursery.send(message, fds)
        if self.nursery.backlog:
            self.rewatch(self.nursery.fileno(), self._on_nursery, READABLE | WRITABLE)

    def _on_nursery(self, mask: int) -> None:
        try:
            if mask & WRITABLE and self.nursery.flush():
                self.rewatch(self.nursery.fileno(), self._on_nursery, READABLE)
            if not mask & READABLE:
                return
            alive = self.nursery.receive()
            for message, _ in iter(self.nursery.next, None):
                self._on_nursery_message(message)
        except OSError:
            alive = False
        if not alive and self.running:  # kernels die with it; we adopted their orphans
            self.leaving = self.keeps_results = True
            for kernel in list(self.kernels.values()):
                kernel.on_exited(int(signal.SIGKILL), "")
            self._left()

    def _on_nursery_message(self, message: dict) -> None:
        kernel = self.kernels.get(message["kernel"])
        if kernel is None:
            return
        if message["t"] == "forked":
            kernel.on_forked(message["pid"])
        elif message["t"] == "signalled":
            kernel.on_signalled()
        elif message["t"] == "exited":
            kernel.on_exited(message.get("status", 0), message.get("failed", ""))

    def open_kernel(self, client: Client, m: dict) -> None:
        """Answers an open request, now or when the kernel is ready."""
        key = m["session"], m["lang"]
        kernel = self.sessions.get(key) if m["session"] else None
        if self.leaving:
            raise Refused("closed", "the kernel host is leaving")
        again = self.opened.get(m["key"]) if m.get("key") else None
        if again and again.state != "ending":
            self._answer_open(client, m, again, True, again.lost_before)
            return
        if kernel and m.get("reset") and not m.get("was_reset"):
            m["was_reset"] = True
            kernel.end("killed")
            kernel.lost = ""
        if kernel and kernel.state == "ending":
            kernel.when_gone.append(lambda: self._open_again(client, m))
            return
        created = kernel is None
        if kernel is None:
            kernel = self._start_kernel(key, m)
        lost = self.lost.pop(key, "") if created else ""
        lost = "" if m.get("reset") else lost
        if created:
            kernel.lost_before = lost
        self._answer_open(client, m, kernel, created, lost)

    def _answer_open(self, client: Client, m: dict, kernel: Kernel, created: bool, lost: str) -> None:
        """Answers when the kernel is ready."""

        def answer(failure: Refused | None) -> None:
            if failure:
                if lost:
                    self.lost[kernel.session, kernel.lang] = lost
                client.refuse(m, failure)
                return
            kernel.watchers.add(client)
            client.reply(
                m, "kernel", kernel=kernel.id, pid=kernel.pid, session=kernel.session, lang=kernel.lang, dir=kernel.dir,
                created=created, cells=kernel.cells, lost=lost, reset=bool(m.get("reset")),
            )  # fmt: skip

        if kernel.state == "starting":
            kernel.when_ready.append(answer)
        else:
            answer(None)

    def _open_again(self, client: Client, m: dict) -> None:
        try:
            if client.open:
                self.open_kernel(client, m)
        except Refused as e:
            client.refuse(m, e)

    def _start_kernel(self, key: tuple, m: dict) -> Kernel:
        cap = m.get("cap", 0)
        if type(cap) is int and 0 < cap <= len(self.kernels):
            raise Refused("exhausted", "%d kernels are running, the limit is %d" % (len(self.kernels), cap))
        directory = m["dir"] or os.path.expanduser("~")
        if not m["dir"] and not os.path.isdir(directory):
            directory = "/"
        if not os.path.isabs(directory):
            raise Refused("invalid", "the working directory %s is not absolute" % directory)
        if not os.path.isdir(directory) or not os.access(directory, os.X_OK):
            raise Refused("not_found", "the working directory %s does not exist or cannot be entered" % directory)
        kernel = Kernel(self, m, directory)
        try:
            kernel.start()
        except OSError as e:
            raise Refused("exhausted", "a kernel: %s" % explain(e)) from None
        self.kernels[kernel.id] = kernel
        if kernel.opened_by:
            self.opened[kernel.opened_by] = kernel
        if key[0]:
            self.sessions[key] = kernel
        if self.named:
            self.after(self.idle, lambda: self._reap_idle(kernel))
        return kernel

    def _reap_idle(self, kernel: Kernel) -> None:
        """Ends a kernel of a named host that ran nothing for the idle time; comes back later for another."""
        if kernel.state in ("ending", "gone"):
            return
        left = self.idle - (time.monotonic() - kernel.idle_since)
        if kernel.state == "idle" and left <= 0:
            kernel.end("closed", "idle")
        else:
            self.after(left if left > 0 else self.idle, lambda: self._reap_idle(kernel))

    def forget_kernel(self, kernel: Kernel, lost: str) -> None:
        """The kernel is gone; lost is what its session is told."""
        self.kernels.pop(kernel.id, None)
        if self.opened.get(kernel.opened_by) is kernel:
            del self.opened[kernel.opened_by]
        key = kernel.session, kernel.lang
        if self.sessions.get(key) is kernel:
            del self.sessions[key]
            if lost:
                self.lost[key] = lost
        self._consider_leaving()
        if self.leaving and not self.kernels:
            self._left()

    # results

    def cell_state(self, cell_id: str) -> tuple:
        """A cell's state, digest and kernel."""
        self.expire()
        if cell_id in self.cells:
            cell = self.cells[cell_id]
            revoked = cell.result is not None and cell.result["reason"] == "revoked"
            return "revoked" if revoked else cell.state, cell.digest, cell.kernel.id
        known = self.past.get(cell_id) or self.chosen.get(cell_id)
        if known:
            return known
        made = made_by_engine(cell_id)
        return "expired" if made and made[1] <= self.marks.get(made[0], -1) else "none", b"", ""

    def revoke(self, cell_id: str) -> None:
        """Refuses a cell that has not started, now or when it comes. OSError: that could not be written, and nothing has changed."""
        self.journal.revoked(cell_id)
        cell = self.cells.get(cell_id)
        if cell is None:
            self._remember(cell_id, "revoked", b"", "")
            return
        cell.kernel.queue.remove(cell)
        cell.finish("refused", reason="revoked", msg="it was revoked before it started")
        self.finished(cell)

    def _remember(self, cell_id: str, state: str, digest: bytes, kernel: str) -> None:
        """Keeps an id from running (again): itself while it is recent or was chosen, else by its submitter's mark."""
        known = self.past if made_by_engine(cell_id) else self.chosen
        known[cell_id] = state, digest, kernel
        while len(self.past) > FORGOTTEN:
            nonce, number = made_by_engine(self.past.popitem(last=False)[0])
            self.marks[nonce] = max(number, self.marks.get(nonce, -1))
            self.marks.move_to_end(nonce)
            if len(self.marks) > SUBMITTERS:
                self.marks.popitem(last=False)

    def finished(self, cell: Cell) -> None:
        """Keeps a result, and lets go of others if it must."""
        self.results[cell.id] = cell
        self.results_size += cell.size
        self.expire()
        if self.journal.size > self.journal.rewrite_at:
            self.after(0, self._rewrite_journal)

    def _rewrite_journal(self) -> None:
        if self.running and self.journal.size > self.journal.rewrite_at:
            self.journal.rewrite(self)

    def acknowledge(self, cell_id: str) -> None:
        cell = self.results.get(cell_id)
        if cell and cell_id not in self.acked:
            self.acked[cell_id] = cell
            self.acked_size += cell.size
            self.journal.acknowledged(cell_id)
            self.expire()

    def expire(self) -> None:
        old = time.monotonic() - RESULT_AGE
        while self.acked and (self.acked_size > ACKED or self.results_size > RESULTS):
            self._forget_cell(next(iter(self.acked.values())))
        while self.results:
            cell = next(iter(self.results.values()))
            if self.results_size <= RESULTS and cell.finished_at > old:
                break
            self._forget_cell(cell)

    def _forget_cell(self, cell: Cell) -> None:
        self._remember(cell.id, "revoked" if cell.result["reason"] == "revoked" else "finished", cell.digest, cell.kernel.id)
        self.journal.forget(cell.id)
        del self.cells[cell.id], self.results[cell.id]
        self.results_size -= cell.size
        if self.acked.pop(cell.id, None):
            self.acked_size -= cell.size


# ---------------------------------------------------------------- directories

LAST_RESORT = "/tmp/hermes-%d-" % os.geteuid()  # and a random number: where a host goes that finds no other place


class Existing(Exception):
    """Another process already is, or is becoming, this named host; holds its readiness."""


class HostDirectory:
    """The directory of one kernel host: its lock, its socket, its readiness."""

    def __init__(self, base: str, name: str):
        self.path = os.path.join(base, name)
        self.sock = os.path.join(self.path, "sock")
        self.lock = -1
        self.base = base
        self.alone = False  # in a base made for this host only, which goes with it
        if len(self.sock.encode()) > 100:
            raise OSError(errno.ENAMETOOLONG, "too long for a socket's path")

    def claim(self, named: bool) -> None:
        """Makes the directory and takes its lock; raises Existing with the readiness of whoever has it."""
        until = time.monotonic() + 10
        while True:
            make_private(self.path, named)
            self.lock = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(self.path) and os.stat(os.path.join(self.path, "lock")).st_ino == os.fstat(self.lock).st_ino:
                    return
            except FileNotFoundError:
                pass
            except BlockingIOError:
                ready = self._ready()
                if ready:
                    raise Existing(ready) from None
            os.close(self.lock)
            self.lock = -1
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, "locked by a kernel host that does not answer")
            time.sleep(0.01)

    def _ready(self) -> dict | None:
        """The readiness of the host that has the lock, if its socket answers."""
        try:
            with open(os.path.join(self.path, "ready"), "rb") as file:
                ready = unpack(bytes.fromhex(file.read().decode("ascii")))
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.sock)
            return ready
        except (OSError, ValueError, Malformed):
            return None

    def listen(self) -> socket.socket:
        for name in ("sock", "ready"):  # a dead host's
            try:
                os.unlink(os.path.join(self.path, name))
            except FileNotFoundError:
                pass
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.sock)
        os.chmod(self.sock, 0o600)
        listener.listen(128)
        listener.setblocking(False)
        return listener

    def remove(self) -> None:
        for name in ("sock", "ready", "lock"):
            try:
                os.unlink(os.path.join(self.path, name))
            except OSError:
                pass
        for path in [self.path, *([self.base] if self.alone else [])]:
            try:
                os.rmdir(path)
            except OSError:
                pass


def make_private(path: str, may_exist: bool = True) -> None:
    """Makes a 0700 directory; one that is there must be ours, 0700, a directory and no link."""
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # a set-group-id parent gave it more
    except FileExistsError:
        if not may_exist:
            raise
    if not private(path):
        raise OSError(errno.EPERM, "it is there, but is not a directory of ours with mode 0700")


def make_base(path: str) -> None:
    """Makes a private base directory, and ~/.cache above it if the home directory is ours."""
    home = os.environ.get("HOME", "")
    if home and os.path.dirname(path) == os.path.join(home, ".cache") and os.stat(home).st_uid == os.geteuid():
        try:
            os.mkdir(os.path.join(home, ".cache"), 0o700)
        except FileExistsError:
            pass
    make_private(path)


def write_private(path: str, data: bytes) -> None:
    """Writes a 0600 file, whole or not at all."""
    temporary = "%s.%d" % (path, os.getpid())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def claim_directory(name: str, named: bool) -> tuple:
    """The host's directory and listening socket, in the first base directory that works."""
    problems, full = [], False
    last_resort = LAST_RESORT + os.urandom(6).hex()
    for base in [*bases(), last_resort]:
        try:
            make_base(base)
            directory = HostDirectory(base, name)
            directory.alone = base == last_resort
            directory.claim(named)
            try:
                listener = directory.listen()
                write_private(os.path.join(directory.path, "probe"), b"\0" * 4096)  # a full disk is found out now
                os.unlink(os.path.join(directory.path, "probe"))
                return directory, listener
            except OSError:
                directory.remove()
                raise
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # no other place would help
                raise
            full = full or e.errno in EXHAUSTED
            problems.append("%s: %s" % (base, e.strerror))
    try:
        os.rmdir(last_resort)
    except OSError:
        pass
    fail(
        "exhausted" if full else "permission",
        "no private directory for the kernel host: " + "; ".join(problems),
        "free space in one of these places or make it writable, or set XDG_RUNTIME_DIR to a directory of yours with a short path",
    )


def sweep_last_resorts() -> None:
    """Removes what is left of hosts that went to a place of their own and are dead."""
    parent, prefix = os.path.split(LAST_RESORT)
    for name in os.listdir(parent):
        base = os.path.join(parent, name)
        try:
            if name.startswith(prefix) and private(base) and time.time() - os.lstat(base).st_mtime > 60:
                sweep(base, "")
                os.rmdir(base)
        except OSError:  # a host lives there
            pass


def sweep_journals(base: str) -> None:
    """Removes the journals of hosts that are dead for so long that nobody will ask for their results, and what belongs to none."""
    names = sorted(name for name in os.listdir(base) if name.startswith("journal-"))
    old = time.time() - RESULT_AGE
    for name in names:
        path = os.path.join(base, name)
        try:
            if "." in name:
                if name.partition(".")[0] not in names and os.lstat(path).st_mtime < old:
                    os.unlink(path)
            elif os.lstat(path).st_mtime < old:
                fd = open_private(path)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    for part in names:
                        if part.partition(".")[0] == name:
                            os.unlink(os.path.join(base, part))
                finally:
                    os.close(fd)
        except OSError:  # its host lives, or somebody reads it
            pass


def sweep(base: str, own: str) -> None:
    """Removes the directories of hosts that are dead: those whose lock is free."""
    sweep_journals(base)
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if path == own or not name.startswith(("k-", "named-")) or not private(path):
            continue
        dead = HostDirectory(base, name)
        try:
            fd = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:  # a host may be about to make it
            if time.time() - os.lstat(path).st_mtime > 60:
                dead.remove()
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            dead.remove()
        except BlockingIOError:
            pass
        finally:
            os.close(fd)


# ---------------------------------------------------------------- commands


def read_config(size: int) -> dict:
    """The config that follows the source on standard input."""
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            raise Malformed("standard input ended early")
        data += chunk
    config = unpack(data)
    if type(config) is not dict:
        raise Malformed("the config is no map")
    return config


def answer(marker: str, message: dict) -> None:
    write_all(1, ("%s %s\n" % (marker, pack(message).hex())).encode("ascii"))


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def interpreter() -> str:
    """The interpreter's real path; a virtual environment's is its own."""
    return os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else os.path.abspath(sys.executable)


def start(config_size: int) -> None:
    """The start command: leaves a kernel host behind and ends when that is ready."""
    close_inherited()
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            silence(fd)
    limits, prctl = Limits(), Prctl()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            become_host(config_size, limits, prctl, writer)
        except Exception as e:
            give_up(e, "internal")
        finally:
            os._exit(1)
    os.close(writer)
    if os.read(reader, 1):
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        fail("internal", "the kernel host was killed by %s while it started" % signal_name(os.WTERMSIG(status)), "")
    os._exit(1)


def become_host(config_size: int, limits: Limits, prctl: Prctl, ready_fd: int) -> None:
    """The detached process: forks the nursery, only then reads the token, then serves."""
    os.setsid()
    os.chdir("/")
    ours, theirs = socket.socketpair()
    lifeline, held = os.pipe()
    nursery_pid = os.fork()
    if nursery_pid == 0:
        try:
            for fd in (ours.fileno(), held, ready_fd):
                os.close(fd)
            silence(0, 1, 2)
            Nursery(Channel(theirs), lifeline, prctl, limits).run()
        finally:
            os._exit(1)
    theirs.close()
    os.close(lifeline)
    prctl(Prctl.DUMPABLE, 0)
    prctl(Prctl.SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config = read_config(config_size)
    if type(config.get("token")) is not bytes or len(config["token"]) != 32:
        raise Malformed("the token must be 32 bytes")
    host = Host(Channel(ours), config)
    listener = announce(host, config, prctl, nursery_pid)
    host.tell_nursery({"t": "base", "base": host.directory.base})
    os.write(ready_fd, b"0")
    os.close(ready_fd)
    silence(0, 1, 2)
    host.after(0.05, lambda: keep_house(host.directory))
    end_on_sigterm(host)
    host.run(listener)
    host.nursery.sock.close()
    bury(nursery_pid)
    bury_engine(config.get("engine") or "")
    os._exit(0)


def announce(host: Host, config: dict, prctl: Prctl, nursery_pid: int) -> socket.socket:
    """Takes a directory and prints the readiness line; a second launcher of a named host prints the first's and ends."""
    exe = interpreter()
    shared = host.named and not config.get("fresh")
    inc = os.urandom(16).hex()
    name = "named-" + sha256(exe.encode("utf-8", "surrogateescape")).hexdigest()[:16] if shared else "k-" + inc
    try:
        host.directory, listener = claim_directory(name, shared)
    except Existing as e:
        answer("hermes-ready", {**e.args[0], "existing": True})
        os._exit(0)
    host.facts = {
        "frames": FRAMES, "inc": inc, "boot": first_line("/proc/sys/kernel/random/boot_id"), "pid1": start_time(1), "pid": os.getpid(),
        "start": start_time(os.getpid()), "dir": host.directory.path, "sock": host.directory.sock, "exe": exe,
        "python": "%d.%d.%d" % sys.version_info[:3], "hostname": os.uname().nodename, "uid": os.getuid(), "existing": False,
        "warnings": [prctl.problem] if prctl.problem else [], "journal": os.path.join(host.directory.base, "journal-" + inc),
    }  # fmt: skip
    begun = {key: host.facts[key] for key in ("inc", "boot", "pid1", "pid", "start")}
    try:
        host.journal = Journal(host.facts["journal"], {**begun, "nursery": nursery_pid, "nursery_start": start_time(nursery_pid)})
    except OSError:
        host.directory.remove()
        raise
    write_private(os.path.join(host.directory.path, "ready"), pack(host.facts).hex().encode("ascii"))
    answer("hermes-ready", host.facts)
    return listener


def bury_engine(path: str) -> None:
    """Removes the directory of an engine on this machine that was killed: it holds the lock on it as long as it lives."""
    try:
        if os.path.basename(path).startswith("hermes-engine-") and private(path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil = __import__("shutil")  # not needed otherwise, and not for nothing
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass


def keep_house(directory: HostDirectory) -> None:
    """What a start leaves for when it has answered: this file for the next start, the remains of dead hosts."""
    try:
        if not directory.alone:
            for name, data in to_store:
                write_private(os.path.join(directory.base, name), data)
    except OSError:
        pass
    try:
        sweep(directory.base, directory.path)
        sweep_last_resorts()
    except OSError:
        pass


def end_on_sigterm(host: Host) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda *_: None)
    host.watch(reader, lambda _: (os.read(reader, 64), host.leave("closed")))


def bury(nursery_pid: int) -> None:
    """Waits for the nursery, and ends what a nursery that was killed left to us."""
    until = time.monotonic() + 2 * GRACE
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for pid in own_children():
                    if pid != nursery_pid:
                        kill_quietly(pid, signal.SIGKILL)
                time.sleep(0.002)
        except ChildProcessError:
            return


def connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except OSError as e:
        gone = e.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)
        fail("not_found" if gone else "unavailable", "no kernel host answers at %s: %s" % (path, e.strerror), "")
    return sock


def relay(config_size: int) -> None:
    """The relay command: standard input and output become the host's socket."""
    sock = connect(read_config(config_size)["sock"])
    write_all(1, b"hermes-relay\n")

    def upward() -> None:
        try:
            for data in iter(lambda: os.read(0, CHUNK), b""):
                sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            os._exit(0)

    threading.Thread(target=upward, daemon=True).start()
    try:
        for data in iter(lambda: sock.recv(CHUNK), b""):
            write_all(1, data)
    except OSError:
        pass
    os._exit(0)


class Call:
    """The call command: one turn with the host for backends that can only run commands."""

    SEEN_EVERY = 256 << 10

    def __init__(self, config: dict):
        self.until = time.monotonic() + float(config.get("poll") or 0)
        self.reader = FrameReader()
        self.requests: set = set()
        self.channels: dict = {}  # ch → how far each stream was read
        self.sock = connect(config["sock"])
        self._prove(config["token"])
        self._count(config["frames"])
        self.sock.sendall(config["frames"])

    def _send(self, message: dict) -> None:
        self.sock.sendall(frame(message))

    def _next(self) -> tuple | None:
        """The next frame, None when time is up or the host is gone."""
        while True:
            found = self.reader.next()
            left = self.until - time.monotonic()
            if found is not None or left <= 0:
                return found
            self.sock.settimeout(left)
            try:
                data = self.sock.recv(CHUNK)
            except (socket.timeout, ConnectionError):
                return None
            finally:
                self.sock.settimeout(None)
            if not data:
                return None
            self.reader.feed(data)

    def _prove(self, token: bytes) -> None:
        nonce = os.urandom(32)
        until, self.until = self.until, time.monotonic() + HELLO_TIME
        self._send({"t": "hello", "v": [1], "nonce": nonce})
        hello = parse_frame(*(self._next() or (0, b"")))
        if not same_bytes(hello.get("proof", b""), hmac_sha256(token, b"hermes host v1" + nonce + hello.get("nonce", b""))):
            fail("permission", "the kernel host does not have this session's token", "")
        proof = hmac_sha256(token, b"hermes client v1" + hello["nonce"] + nonce)
        self._send({"t": "proof", "proof": proof, "client": "call", "remote": True})
        self.welcome = self._next()
        self.until = until
        if self.welcome is None:
            fail("permission", "the kernel host did not accept the token", "")

    def _count(self, frames: bytes) -> None:
        """Finds what the client's frames want answers to."""
        reader = FrameReader()
        reader.feed(frames)
        for kind, body in iter(reader.next, None):
            message = parse_frame(kind, body)
            if message["t"] in ("submit", "follow"):
                self.channels[message.get("ch")] = [0, message.get("out", 0), message.get("err", 0)]
            elif "req" in message:
                self.requests.add(message["req"])

    def run(self) -> None:
        write_all(1, b"hermes-call\n")
        found = self.welcome
        while found is not None:
            self._pass_on(*found)
            found = self._next() if self.requests or self.channels else None
        os._exit(0)

    def _pass_on(self, kind: int, body: bytes) -> None:
        message = parse_frame(kind, body)
        if message["t"] == "ping":
            self._send({"t": "pong", "req": message.get("req")})
            return
        write_all(1, struct.pack(">IB", len(body) + 1, kind) + body)
        if message["t"] == "O":
            self._read_so_far(message)
        elif message["t"] in ("end", "error"):
            self.channels.pop(message.get("ch"), None)
        if "req" in message:
            self.requests.discard(message["req"])

    def _read_so_far(self, output: dict) -> None:
        at = self.channels.get(output["ch"])
        if at:
            before = at[output["stream"]]
            at[output["stream"]] = output["offset"] + len(output["data"])
            if before // self.SEEN_EVERY != at[output["stream"]] // self.SEEN_EVERY:
                self._send({"t": "seen", "ch": output["ch"], "out": at[1], "err": at[2]})


class Once:
    """The once command: one cell in a fresh kernel and nothing that stays, for an environment in which no kernel host can be had."""

    def __init__(self, config: dict):
        self.config = config
        self.totals = [0, 0, 0]
        self.pipes: dict = {}  # our end → number of the stream
        self.poll = select.poll()
        self.end: dict | None = None  # what the kernel says
        self.status: int | None = None  # of the kernel that ended
        self.why = ""  # it is being stopped: timeout, interrupt
        self.deadline = 0.0  # when it goes on to be stopped

    def run(self) -> None:
        """Runs the cell, says everything in frames on standard output, and ends with everything that the cell left."""
        close_inherited()
        limits, prctl = Limits(), Prctl()
        prctl(Prctl.SUBREAPER, 1)
        lifeline, self.held = os.pipe()
        self.pid, handover = Nursery(None, lifeline, prctl, limits)._fork()
        os.close(lifeline)
        self._watch_signals()
        ours, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDWR)
        handover.send({"lang": self.config["lang"]}, (theirs.fileno(), null))
        handover.sock.close()
        theirs.close()
        self.control = Channel(ours)
        self.poll.register(self.control, select.POLLIN)
        try:
            self._prepare()
            self._serve()
        finally:
            kill_quietly(self.pid, signal.SIGKILL, group=True)
            bury(-1)
        os._exit(0)

    def _watch_signals(self) -> None:
        self.wake, writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self.poll.register(self.wake, select.POLLIN)

    def _prepare(self) -> None:
        directory = self.config.get("dir") or os.path.expanduser("~")
        self.control.send({"t": "init", "env": self.config.get("env") or {}, "dir": directory})
        try:
            message, _ = self.control.wait()
        except (EOFError, OSError):
            bury(-1)
            fail("internal", "the interpreter died while it started", "")
        if message["t"] != "ready":
            bury(-1)
            fail("not_found", message["msg"], "")

    def _serve(self) -> None:
        out_reader, out, err_reader, err = two_pipes()
        self.pipes = {out_reader: 1, err_reader: 2}
        for fd in self.pipes:
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)
        write_all(1, b"hermes-once\n" + frame({"t": "started", "ch": 1, "pid": self.pid}))
        began = time.monotonic()
        if self.config.get("timeout_ms"):
            self.deadline = began + self.config["timeout_ms"] / 1000
        self.control.send({"t": "cell", "n": 1, "code": self.config["code"], "last": True}, (out, err))
        os.close(out)
        os.close(err)
        while self.end is None and self.status is None:
            self._wait()
        for fd in list(self.pipes):
            self._pass_on(fd, CHUNK * 2)
        result = self._result()
        result.update(t="end", ch=1, ms=(time.monotonic() - began) * 1000, out=self.totals[1], err=self.totals[2], cells=1)
        write_all(1, frame(result))

    def _wait(self) -> None:
        left = None if not self.deadline else max(0.0, self.deadline - time.monotonic()) * 1000
        for fd, _ in self.poll.poll(left):
            if fd in self.pipes:
                self._pass_on(fd, CHUNK)
            elif fd == self.wake:
                self._on_signals()
            elif not self.control.receive():
                self.poll.unregister(self.control)
            else:
                self.end = next((m for m, _ in iter(self.control.next, None) if m.get("t") == "end" and m.get("n") == 1), None)
        if self.deadline and time.monotonic() >= self.deadline and self.end is None:
            self._stop("timeout")

    def _on_signals(self) -> None:
        try:
            numbers = os.read(self.wake, 4096)
        except BlockingIOError:
            return
        if set(numbers) & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            self._stop("interrupt")
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.status = status

    def _stop(self, why: str) -> None:
        """The ladder: SIGINT, then KILL; quicker than the one above us, which ends us both."""
        if self.why:
            kill_quietly(self.pid, signal.SIGKILL, group=True)
            self.deadline = 0.0
        else:
            self.why = why
            kill_quietly(self.pid, signal.SIGINT, group=True)
            self.deadline = time.monotonic() + (GRACE if why == "timeout" else GRACE / 2)

    def _pass_on(self, fd: int, most: int) -> None:
        number = self.pipes[fd]
        while most > 0:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.poll.unregister(fd)
                os.close(fd)
                del self.pipes[fd]
                return
            write_all(1, output_header(1, number, self.totals[number], len(data)) + data)
            self.totals[number] += len(data)
            most -= len(data)

    def _result(self) -> dict:
        stopped = {"timeout": "timeout", "interrupt": "interrupted"}.get(self.why)
        if self.end is not None:
            error = self.end.get("error") or {}
            code = error.pop("status", None)
            return {"outcome": stopped or self.end["outcome"], "value": self.end.get("value"), "error": error or None, "exit_code": code}
        if os.WIFSIGNALED(self.status):
            name = signal_name(os.WTERMSIG(self.status))
            return {"outcome": stopped or "lost", "signal": name, "msg": "" if stopped else "the interpreter was killed by " + name}
        return {"outcome": stopped or "exit", "exit_code": os.WEXITSTATUS(self.status)}


def main(args: list, config_size: int) -> None:
    """Runs one of the commands. The loader calls it."""
    try:
        if args == ["start"]:
            start(config_size)
        elif args == ["relay"]:
            relay(config_size)
        elif args == ["call"]:
            Call(read_config(config_size)).run()
        elif args == ["recover"]:
            Recovery(read_config(config_size)).run()
        elif args == ["once"]:
            Once(read_config(config_size)).run()
        fail("invalid", "usage: hermes-kernel-host start|relay|call|recover|once", "")
    except (OSError, Malformed, KeyError, TypeError) as e:
        give_up(e, "invalid")
