"""One end of a numbered link, by the vectors that the engine's end follows, too."""
import json
import os
import socket
import unittest

from client import ROOM, SOON, HostProcess, codec


class Numbers(unittest.TestCase):
    def play(self, numbers, step):
        """What one step does to a link's end, as the vector describes it."""
        got = {key: step[key] for key in ("op", "body", "number", "heard") if key in step}
        try:
            if step["op"] == "send":
                got["frame"] = numbers.send(codec.pack({"t": step["body"]})).hex()
            elif step["op"] == "take":
                if numbers.take(step["number"], step["heard"]):
                    got["fresh"] = True
            elif step["op"] == "heard":
                numbers.acknowledge(step["heard"])
            elif not numbers.can_resume(step["heard"]):
                got["fails"] = True
            else:
                again = [frame.hex() for frame in numbers.resume(step["heard"])]
                got.update({"again": again} if again else {})
        except codec.Malformed:
            got["fails"] = True
        return got

    def test_vectors(self):
        with open(os.path.join(ROOM, "..", "kernel", "testdata", "link.json")) as file:
            vectors = json.load(file)
        for vector in vectors:
            numbers = codec.Numbers()
            for i, step in enumerate(vector["steps"]):
                with self.subTest(vector["name"], step=i):
                    self.assertEqual(self.play(numbers, step), step)
            self.assertEqual(numbers.size, sum(map(len, numbers.kept)))


class Numbered:
    """A connection of a numbered link: what it hears it keeps, and acknowledges only when it is told to."""

    def __init__(self, host, link, numbers):
        self.numbers = numbers
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SOON)
        self.sock.connect(host.ready["sock"])
        self.reader = codec.FrameReader()
        self.output = b""
        nonce = os.urandom(32)
        self.sock.sendall(codec.frame({"t": "hello", "v": [1, 2], "nonce": nonce}))
        hello = self.receive()
        proof = codec.hmac_sha256(host.token, b"hermes client v1" + hello["nonce"] + nonce)
        self.sock.sendall(codec.frame({"t": "proof", "proof": proof, "client": "test", "remote": False, "link": link, "heard": numbers.heard}))
        self.welcome = self.receive()

    def receive(self):
        """The next message or output that is new."""
        while True:
            found = self.reader.next()
            if found is None:
                data = self.sock.recv(1 << 18)
                if not data:
                    raise EOFError
                self.reader.feed(data)
                continue
            kind, body = found
            if kind != 0x43:
                return codec.parse_frame(kind, body)
            if self.numbers.take(int.from_bytes(body[:8], "big"), int.from_bytes(body[8:16], "big")):
                return codec.parse_frame(0x4D, body[16:])

    def send(self, **message):
        self.sock.sendall(self.numbers.send(codec.pack(message)))

    def ask(self, kind, **fields):
        self.send(t=kind, req=1, **fields)

    def reply(self, kind):
        while True:
            message = self.receive()
            if message["t"] == kind:
                return message

    def close(self):
        self.sock.close()


class Links(unittest.TestCase):
    """Numbered links with a real host."""

    def setUp(self):
        self.host = HostProcess()
        self.link, self.numbers = os.urandom(16), codec.Numbers()

    def tearDown(self):
        self.host.close()

    def connect(self):
        conn = Numbered(self.host, self.link, self.numbers)
        self.addCleanup(conn.close)
        return conn

    def kernels(self):
        client = self.host.client()
        self.addCleanup(client.close)
        return client.request("list")["kernels"]

    def go_on(self, *chs):
        conn = self.connect()
        self.assertTrue(conn.welcome["resumed"])
        conn.sock.sendall(codec.frame({"t": "resume", "chs": [list(ch) for ch in chs]}))
        for data in self.numbers.resume(conn.welcome["heard"]):
            conn.sock.sendall(data)
        return conn

    def open(self, conn):
        conn.ask("open", lang="python", session="", owner="", dir="", env={})
        return conn

    def test_an_answer_that_got_lost(self):
        self.open(self.connect()).close()
        conn = self.go_on()
        self.assertTrue(conn.reply("kernel")["created"])
        self.assertEqual(len(self.kernels()), 1)

    def test_what_comes_twice_is_done_once(self):
        conn = self.connect()
        asked = self.numbers.send(codec.pack({"t": "open", "req": 1, "lang": "python", "session": "", "owner": "", "dir": "", "env": {}}))
        conn.sock.sendall(asked + asked)
        conn.reply("kernel")
        conn.close()
        conn = self.go_on()
        conn.sock.sendall(asked)
        conn.ask("list")
        self.assertEqual(len(conn.reply("kernels")["kernels"]), 1)

    def test_a_link_that_nobody_knows(self):
        self.numbers.heard = 7
        self.assertFalse(self.connect().welcome["resumed"])

    def test_a_client_that_has_forgotten(self):
        conn = self.open(self.connect())
        conn.reply("kernel")
        conn.ask("list")
        conn.reply("kernels")
        conn.close()
        self.numbers.heard = 0  # it said that it heard the first answer
        self.assertFalse(self.connect().welcome["resumed"])

    def test_a_missing_message_ends_the_connection(self):
        conn = self.connect()
        self.numbers.sent = 4
        conn.ask("list")
        with self.assertRaises(EOFError):
            conn.receive()

    def test_the_new_connection_ends_the_old_one(self):
        old = self.connect()
        new = self.go_on()
        with self.assertRaises(EOFError):
            old.receive()
        new.ask("list")
        self.assertEqual(new.reply("kernels")["kernels"], [])

    def test_a_cell_goes_on_while_nobody_is_there(self):
        conn = self.open(self.connect())
        kernel = conn.reply("kernel")["kernel"]
        code = "import time\nfor i in range(5): print(i)\ntime.sleep(0.3)\nfor i in range(5): print(i)"
        conn.send(t="submit", cell="c", kernel=kernel, ch=1, code=code, digest=b"d", timeout_ms=0, last=True)
        output = b""
        while len(output) < 10:
            message = conn.receive()
            output += message["data"] if message["t"] == "O" else b""
        conn.close()
        conn = self.go_on((1, 4, 0))  # it has lost some of it, too
        output = output[:4]
        while True:
            message = conn.receive()
            if message["t"] == "O":
                self.assertEqual(message["offset"], len(output))
                output += message["data"]
            elif message["t"] == "end":
                break
        self.assertEqual((output, message["outcome"]), (b"0\n1\n2\n3\n4\n" * 2, "ok"))

    def test_a_client_that_hears_nothing_is_forgotten(self):
        conn = self.open(self.connect())
        kernel = conn.reply("kernel")["kernel"]
        conn.send(t="submit", cell="c", kernel=kernel, ch=1, code="print('x' * 300000)", digest=b"d", timeout_ms=0, last=True)
        conn.reply("end")
        deaf = codec.Numbers()
        deaf.sent, deaf.heard = self.numbers.sent, 0  # never more than the first messages, which it heard
        conn.numbers = deaf
        with self.assertRaises((EOFError, ConnectionError)):
            for _ in range(200):
                deaf.heard = 0
                conn.ask("fetch", cell="c", stream=1, **{"from": 0, "to": 262144})
                deaf.heard = 1 << 40  # so that nothing is taken for new
                self.drain(conn)
        self.assertFalse(self.connect().welcome["resumed"])

    @staticmethod
    def drain(conn):
        """Reads one answer, whatever its number."""
        while True:
            found = conn.reader.next()
            if found is not None:
                if len(found[1]) > 200000:
                    return
                continue
            data = conn.sock.recv(1 << 20)
            if not data:
                raise EOFError
            conn.reader.feed(data)
