"""Starting, finding and leaving hosts; the link; idempotent cells; relay and call."""
import json
import os
import resource
import socket
import subprocess
import tempfile
import unittest
from hashlib import sha256

from client import LOADER, PYTHON, ROOM, SOURCE, Client, Home, HostProcess, answer, codec, command, wait_for


def decoded(value):
    """A value of the vectors' tagged form."""
    kind, content = next(iter(value.items()))
    if kind in ("nil", "bool", "str"):
        return content
    if kind == "int":
        return int(content)
    if kind == "float":
        return float(content)
    if kind == "bin":
        return bytes.fromhex(content)
    if kind == "array":
        return [decoded(item) for item in content]
    return {key: decoded(item) for key, item in content}


class Vectors(unittest.TestCase):
    """The vectors that the Go codec reads too."""

    def load(self, name):
        with open(os.path.join(ROOM, "..", "cell", "testdata", "frames", name)) as file:
            return json.load(file)

    def parse(self, data):
        reader = codec.FrameReader()
        reader.feed(data)
        found = reader.next()
        if found is None:
            raise codec.Malformed("cut short")
        return codec.parse_frame(*found)

    def test_valid(self):
        for vector in self.load("valid.json"):
            want, data = decoded(vector["value"]), bytes.fromhex(vector["frame"])
            self.assertEqual(self.parse(data), want, vector["name"])
            if vector["shortest"]:
                self.assertEqual(codec.frame(want).hex(), vector["frame"], vector["name"])

    def test_invalid(self):
        for vector in self.load("invalid.json"):
            with self.assertRaises(codec.Malformed, msg=vector["name"]):
                self.parse(bytes.fromhex(vector["frame"]))

    def test_cut_and_spoilt(self):
        for vector in self.load("valid.json"):
            data = bytearray.fromhex(vector["frame"])
            for at in range(4, len(data)):
                for spoilt in (data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :], data[:at]):
                    try:
                        self.parse(bytes(spoilt))
                    except codec.Malformed:
                        pass

    def test_hmac(self):
        import hmac

        for size in (0, 32, 64):
            self.assertEqual(codec.hmac_sha256(b"k" * size, b"m"), hmac.new(b"k" * size, b"m", sha256).digest())


class Channels(unittest.TestCase):
    """Messages between our own processes, when the socket is full."""

    def test_everything_arrives_with_its_descriptors(self):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        sender, receiver = codec.Channel(ours), codec.Channel(theirs)
        null = os.open(os.devnull, os.O_RDONLY)
        want = 3000
        for number in range(want):  # far more than a socket holds
            sender.send({"t": "n", "number": number}, (null,) if number % 7 == 0 else ())
        os.close(null)
        self.assertTrue(sender.backlog)
        number = 0
        while number < want:
            sender.flush()
            self.assertTrue(receiver.receive())
            for message, fds in iter(receiver.next, None):
                self.assertEqual((message["number"], len(fds)), (number, number % 7 == 0))
                for fd in fds:
                    os.close(fd)
                number += 1
        self.assertFalse(sender.backlog)
        ours.close()
        theirs.close()


class Start(unittest.TestCase):
    def setUp(self):
        self.home = Home()
        self.addCleanup(self.home.remove)

    def start(self, **options):
        host = HostProcess(self.home, **options)
        self.addCleanup(host.close)
        return host

    def error(self, env=None, python=PYTHON, source=SOURCE, op="start", config=None, **options):
        status, output = command(op, config or {"token": bytes(32)}, source, {**self.home.env, **(env or {})}, python, **options)
        marker, found = answer(output)
        self.assertEqual((marker, status), ("hermes-error", 1))
        return found

    def test_files_are_private(self):
        for umask in (0o000, 0o077):
            old = os.umask(umask)
            try:
                host = self.start()
            finally:
                os.umask(old)
            for path, dirs, files in os.walk(os.path.join(self.home.path, ".cache")):
                for name in dirs + files:
                    mode = os.lstat(os.path.join(path, name)).st_mode
                    self.assertEqual(mode & 0o777, 0o700 if os.path.isdir(os.path.join(path, name)) else 0o600, name)
            client = host.client()
            self.assertEqual(client.run(client.open(), "import os; os.umask(0)").end["value"], str(umask))
            client.close()

    def test_source_is_kept(self):
        config = {"token": bytes(32), "linger": 0.01}
        status, output = command("start", config, b"", self.home.env)
        self.assertEqual((status, output), (3, b"hermes-need-source\n"))
        first = self.start()
        base = os.path.dirname(first.ready["dir"])
        wait_for(lambda: len([name for name in os.listdir(base) if name.startswith("host-")]) == 2, "the source to be stored")
        self.assertEqual(self.start_without_source(), "hermes-ready")
        for name in os.listdir(base):  # what is not exactly the source is not run
            if name.startswith("host-") and name.endswith(".py"):
                with open(os.path.join(base, name), "ab") as file:
                    file.write(b"#")
            elif name.startswith("host-"):
                os.chmod(os.path.join(base, name), 0o644)
        status, output = command("start", config, b"", self.home.env)
        self.assertEqual((status, output), (3, b"hermes-need-source\n"))

    def start_without_source(self):
        status, output = command("start", {"token": bytes(32)}, b"", self.home.env)
        marker, ready = answer(output)
        if marker == "hermes-ready":
            client = Client(ready["sock"], bytes(32))
            client.request("shutdown")
            client.close()
        return marker

    def test_named_host_is_shared(self):
        token = os.urandom(32)
        first = self.start(named=True, token=token)
        second = HostProcess(self.home, named=True, token=token)
        self.assertEqual((first.ready["existing"], second.ready["existing"]), (False, True))
        self.assertEqual(second.ready["inc"], first.ready["inc"])
        fresh = self.start(named=True, fresh=True)
        self.assertNotEqual(fresh.ready["inc"], first.ready["inc"])

    def test_many_launchers_one_host(self):  # case 1
        config = codec.pack({"token": bytes(32), "named": True})
        head = ("hermes1 %s %d %d\n" % (sha256(SOURCE).hexdigest(), len(SOURCE), len(config))).encode()
        launchers = [
            subprocess.Popen([PYTHON, "-c", LOADER, "hermes-kernel-host", "start"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.home.env)
            for _ in range(6)
        ]
        for launcher in launchers:
            launcher.stdin.write(head + SOURCE + config)
            launcher.stdin.close()
        found = []
        for launcher in launchers:
            found.append(answer(launcher.stdout.read())[1])
            launcher.stdout.close()
            launcher.wait()
        self.assertEqual(len({ready["inc"] for ready in found}), 1)
        self.assertEqual(sorted(ready["existing"] for ready in found), [False] + [True] * 5)
        client = Client(found[0]["sock"], bytes(32))
        client.request("shutdown")
        client.close()
        wait_for(lambda: not self.home.processes(), "the host to leave")

    def test_squatted_directories(self):  # case 39
        runtime = os.path.join(self.home.path, "run")
        os.mkdir(runtime)
        squat = os.path.join(runtime, "hermes")
        env = {"XDG_RUNTIME_DIR": runtime}
        for make in (
            lambda: os.mkdir(squat, 0o755), lambda: open(squat, "w").close(), lambda: os.symlink(tempfile.gettempdir(), squat),
            lambda: (os.mkdir(squat, 0o700), os.chown(squat, 12345, 12345) if os.geteuid() == 0 else os.chmod(squat, 0o750)),
        ):  # fmt: skip
            make()
            before = os.lstat(squat)
            host = HostProcess(self.home, env=env)
            self.assertTrue(host.ready["dir"].startswith(self.home.path + "/.cache/hermes/"), host.ready["dir"])
            self.assertEqual((os.lstat(squat).st_mode, os.lstat(squat).st_mtime), (before.st_mode, before.st_mtime))
            host.close()
            os.rmdir(squat) if os.path.isdir(squat) and not os.path.islink(squat) else os.unlink(squat)

    def test_long_path(self):
        deep = os.path.join(self.home.path, "d" * 100)
        os.mkdir(deep)
        host = HostProcess(self.home, env={"XDG_RUNTIME_DIR": deep})
        self.assertNotIn(deep, host.ready["dir"])
        host.close()

    def test_incompatible_python(self):
        blocked = os.path.join(self.home.path, "blocked")
        os.mkdir(blocked)
        with open(os.path.join(blocked, "sitecustomize.py"), "w") as file:
            file.write("import sys\nsys.modules['selectors'] = None\n")
        found = self.error({"PYTHONPATH": blocked})
        self.assertEqual(found["code"], "incompatible")
        self.assertIn("selectors", found["msg"])
        self.assertIn("apt-get install", found["hint"])

    def test_minimal_python(self):
        """What Debian's python3-minimal lacks is not needed."""
        blocked = os.path.join(self.home.path, "blocked")
        os.mkdir(blocked)
        with open(os.path.join(blocked, "sitecustomize.py"), "w") as file:
            file.write("import sys\nfor name in 'json queue ctypes asyncio hmac multiprocessing resource mmap termios concurrent logging'.split():\n  sys.modules[name] = None\n")
        host = self.start(env={"PYTHONPATH": blocked})
        self.assertIn("ctypes", host.ready["warnings"][0])
        client = host.client()
        kernel = client.open()
        self.assertEqual(client.run(kernel, "6*7").end["value"], "42")
        self.assertEqual(client.run(kernel, "1/0").end["error"]["type"], "ZeroDivisionError")
        end = client.run(kernel, "import subprocess; p = subprocess.Popen(['sleep', '300']); while_ = p.pid; while_").end
        client.request("kill", kernel=kernel)
        wait_for(lambda: not os.path.exists("/proc/%s/fd" % end["value"]) or "Z" in open("/proc/%s/stat" % end["value"]).read(), "the child to end")
        client.close()

    def test_modules_in_the_working_directory(self):
        for name in ("selectors.py", "socket.py", "ast.py", "hashlib.py"):
            with open(os.path.join(self.home.path, name), "w") as file:
                file.write("raise SystemExit(99)\n")
        status, output = command("start", {"token": bytes(32)}, env=self.home.env, cwd=self.home.path)
        marker, ready = answer(output)
        self.assertEqual(marker, "hermes-ready")
        client = Client(ready["sock"], bytes(32))
        self.assertEqual(client.run(client.open(dir=self.home.path), "import sys; sys.path[0]").end["value"], "''")
        client.request("shutdown")
        client.close()

    def test_bad_config(self):
        self.assertEqual(self.error(config={"token": b"short"})["code"], "internal")
        self.assertEqual(self.error(op="dance")["code"], "invalid")

    def test_leaving(self):
        host = HostProcess(self.home, linger=0.2)
        client = host.client()
        client.submit(client.open(), "import time; time.sleep(60)")
        client.request("ping")
        client.close()  # case 5
        wait_for(lambda: not self.home.processes(), "an unnamed host to leave")
        self.assertFalse(os.path.exists(host.ready["dir"]))
        host = HostProcess(self.home, named=True, idle=0.3)
        client = host.client()
        first = client.submit(client.open(session="s"), "import time; time.sleep(0.6); 5")
        client.request("ping")
        client.close()
        other = host.client()  # case 4: neither during the cell nor the moment it ends
        self.assertEqual(other.wait(other.follow(client.cells[first].id)).end["value"], "5")
        self.assertEqual(len(other.request("list")["kernels"]), 1)
        wait_for(lambda: not other.request("list")["kernels"], "the idle kernel to be reaped")
        reply = other.request("open", lang="python", session="s", owner="", dir="", env={})
        self.assertEqual((reply["created"], reply["lost"]), (True, "idle"))
        other.close()
        wait_for(lambda: not self.home.processes(), "a named host to leave")
        self.assertFalse(os.path.exists(host.ready["dir"]))


class Link(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.host = HostProcess()

    @classmethod
    def tearDownClass(cls):
        cls.host.close()

    def setUp(self):
        self.client = self.host.client()
        self.addCleanup(self.client.close)
        self.kernel = self.client.open()

    def test_hello(self):
        self.assertEqual(self.client.welcome["inc"], self.host.ready["inc"])
        stranger = Client(self.host.ready["sock"], b"", prove=False)
        stranger.send(t="hello", v=[1], nonce=bytes(32))
        self.assertEqual(stranger.receive()["proof"][:0], b"")
        stranger.send(t="proof", proof=bytes(32), client="x", remote=False)
        with self.assertRaises((EOFError, ConnectionError)):
            stranger.receive()
        stranger.close()
        stranger = Client(self.host.ready["sock"], b"", prove=False)
        stranger.send(t="hello", v=[99], nonce=bytes(32))
        self.assertEqual(stranger.receive()["code"], "version")
        stranger.close()
        for first in (b"\0\0\0\1X", b"\xff\xff\xff\xff", codec.frame({"t": "list", "req": 1})):
            stranger = Client(self.host.ready["sock"], b"", prove=False)
            stranger.sock.sendall(first)
            with self.assertRaises(EOFError):
                stranger.receive()
            stranger.close()

    def test_sessions(self):
        ask = lambda **more: self.client.request("open", **{"lang": "python", "session": "t", "owner": "", "dir": "", "env": {}, **more})
        one = ask()
        two = ask()
        self.assertEqual((one["created"], two["created"], two["kernel"]), (True, False, one["kernel"]))
        self.assertNotEqual(ask(lang="bash")["kernel"], one["kernel"])
        three = ask(reset=True)
        self.assertEqual((three["created"], three["reset"], three["lost"]), (True, True, ""))
        self.client.run(three["kernel"], "import os; os._exit(1)")
        self.assertEqual(ask()["lost"], "died")
        four = ask()
        self.assertEqual((four["created"], four["lost"]), (False, ""))
        numbers = [self.client.ask("open", lang="python", session="many", owner="", dir="", env={}) for _ in range(16)]
        replies = [self.client.reply(number) for number in numbers]
        self.assertEqual((len({reply["kernel"] for reply in replies}), sum(reply["created"] for reply in replies)), (1, 1))

    def test_refused_opens(self):
        ask = lambda **more: self.client.request("open", **{"lang": "python", "session": "", "owner": "", "dir": "", "env": {}, **more})
        self.assertEqual(ask(dir="/not/there")["code"], "not_found")
        self.assertEqual(ask(dir="relative")["code"], "invalid")
        self.assertEqual(ask(lang="cobol")["code"], "unsupported")
        self.assertEqual(ask(cap=1)["code"], "exhausted")
        self.assertEqual(ask(env={"A": 1})["code"], "invalid")
        self.assertEqual(self.client.request("dance")["code"], "invalid")
        self.assertEqual(self.client.request("kill")["code"], "invalid")

    def test_refused_submits(self):
        good = {"cell": "odd", "kernel": self.kernel, "ch": 900, "code": "1", "digest": b"x"}
        for bad in ({"timeout_ms": None}, {"timeout_ms": "1"}, {"last": 1}, {"code": b"1"}, {"ch": "1"}):
            self.assertEqual(self.client.request("submit", **{**good, **bad})["code"], "invalid", bad)
        self.assertEqual(self.client.run(self.kernel, "6 * 7").end["value"], "42")

    def test_heartbeat(self):
        self.assertEqual(self.client.request("ping")["t"], "pong")
        self.client.send(t="ping")
        kinds = iter(lambda: self.client.step()["t"], None)
        self.assertEqual(next(kind for kind in kinds if kind != "event"), "pong")

    def test_idempotent(self):
        code = "n = globals().get('n', 0) + 1; print(n); n"
        first = self.client.run(self.kernel, code, cell="once" + self.kernel)
        other = self.host.client()
        self.addCleanup(other.close)
        again = other.run(self.kernel, code, cell="once" + self.kernel)
        self.assertEqual((first.stdout, again.stdout, again.end["value"]), ("1\n", "1\n", "1"))
        conflict = other.run(self.kernel, "other", cell="once" + self.kernel)
        self.assertEqual((conflict.end["outcome"], conflict.end["reason"]), ("refused", "conflict"))
        state = other.request("state", cell="once" + self.kernel)
        self.assertEqual((state["state"], state["digest"]), ("finished", sha256(code.encode()).digest()))
        self.assertEqual(other.request("state", cell="never")["state"], "none")
        self.assertEqual(self.client.run(self.kernel, "n").end["value"], "1")
        self.assertEqual(other.wait(other.follow("never")).end["reason"], "no_cell")

    def test_follow_from_offsets(self):
        ch = self.client.submit(self.kernel, "import time; print('abc', flush=True); time.sleep(0.3); print('def')")
        self.client.wait_output(ch, "abc")
        other = self.host.client()
        self.addCleanup(other.close)
        cell = other.wait(other.follow(self.client.cells[ch].id, out=2))
        self.assertEqual((cell.stdout, cell.messages[0], cell.end["out"]), ("c\ndef\n", "started", 8))
        self.assertEqual(self.client.wait(ch).stdout, "abc\ndef\n")

    def test_much_output(self):  # case 14
        cell = self.client.run(self.kernel, "import sys\nfor _ in range(64): n = sys.stdout.write('x' * (1 << 20))")
        self.assertEqual((cell.end["out"], len(cell.out[1]), cell.gaps), (64 << 20, 64 << 20, []))
        whole = self.client.run(self.kernel, "for i in range(100000): print(i)")
        self.assertEqual(whole.stdout, "".join("%d\n" % i for i in range(100000)))

    def test_reader_that_does_not_read(self):
        cell = self.client.run(self.kernel, "import os\nfor i in range(1024): n = os.write(1, b'%07d\\n' % i * 8192)", seen=False)
        self.assertEqual(cell.end["out"], 64 << 20)
        self.assertEqual([(gap["from"], gap["to"]) for gap in cell.gaps], [(len(cell.out[1]), 64 << 20)])
        self.assertLessEqual(len(cell.out[1]), 1 << 20)
        with open("/proc/%d/status" % self.host.ready["pid"]) as file:
            rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        self.assertLess(rss, 60_000)
        data = self.client.request("fetch", cell=cell.id, stream=1, **{"from": (64 << 20) - 8, "to": 64 << 20})
        self.assertEqual(data["data"], b"0001023\n")
        data = self.client.request("fetch", cell=cell.id, stream=1, **{"from": 10 << 20, "to": 64 << 20})
        self.assertEqual(data["gap_to"], (64 << 20) - ((1 << 20) - (1 << 20) * 4 // 10))
        data = self.client.request("fetch", cell=cell.id, stream=1, **{"from": 0, "to": 100})
        self.assertEqual((data["data"][:8], data["gap_to"]), (b"0000000\n", 0))

    def test_acknowledged_results_are_bounded(self):
        for n in range(8):
            cell = self.client.run(self.kernel, "print('y' * (1 << 20))", cell="big%d%s" % (n, self.kernel))
            self.client.send(t="ack", cell=cell.id)
        self.assertEqual(self.client.request("state", cell="big0" + self.kernel)["state"], "finished")
        again = self.client.run(self.kernel, "print('y' * (1 << 20))", cell="big0" + self.kernel)
        self.assertEqual((again.end["outcome"], again.end["reason"]), ("refused", "expired"))

    def test_limits_of_a_submit(self):
        end = self.client.run(self.kernel, "x = '''" + "a" * (8 << 20) + "'''").end
        self.assertEqual((end["outcome"], end["reason"]), ("refused", "too_large"))
        end = self.client.run(self.kernel, "x = '''" + "a" * (7 << 20) + "'''; len(x)").end
        self.assertEqual(end["value"], str(7 << 20))

    def test_descriptors_used_up(self):  # case 38
        host = HostProcess()
        client = host.client()
        kernel = client.open()
        client.run(kernel, "x = 1")
        _, hard = resource.prlimit(host.ready["pid"], resource.RLIMIT_NOFILE)
        resource.prlimit(host.ready["pid"], resource.RLIMIT_NOFILE, (3, hard))  # no number is free below
        client.run(kernel, "x")  # may have had its pipes already
        self.assertEqual(client.run(kernel, "x").end["reason"], "exhausted")
        self.assertEqual(client.request("open", lang="python", session="", owner="", dir="", env={})["code"], "exhausted")
        resource.prlimit(host.ready["pid"], resource.RLIMIT_NOFILE, (hard, hard))
        self.assertEqual(client.run(kernel, "x").end["value"], "1")
        client.close()
        host.close()

    def test_relay(self):
        config = codec.pack({"sock": self.host.ready["sock"]})
        head = ("hermes1 %s %d %d\n" % (sha256(SOURCE).hexdigest(), len(SOURCE), len(config))).encode()
        relay = subprocess.Popen([PYTHON, "-c", LOADER, "hermes-kernel-host", "relay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.host.home.env)
        relay.stdin.write(head + SOURCE + config)
        relay.stdin.flush()
        self.assertEqual(relay.stdout.readline(), b"hermes-relay\n")
        relay.stdin.write(codec.frame({"t": "hello", "v": [1], "nonce": bytes(32)}))
        relay.stdin.flush()
        size = int.from_bytes(relay.stdout.read(4), "big")
        self.assertEqual(codec.parse_frame(relay.stdout.read(1)[0], relay.stdout.read(size - 1))["inc"], self.host.ready["inc"])
        relay.stdin.close()
        self.assertEqual(relay.wait(10), 0)
        relay.stdout.close()

    def test_call(self):
        code = "print('z' * 3000000); 7"
        submit = codec.frame({"t": "submit", "cell": "call" + self.kernel, "kernel": self.kernel, "ch": 5, "code": code, "digest": bytes(32), "timeout_ms": 0})
        config = {"sock": self.host.ready["sock"], "token": self.host.token, "poll": 20.0, "frames": codec.frame({"t": "list", "req": 3}) + submit}
        status, output = command("call", config, env=self.host.home.env)
        self.assertEqual(status, 0)
        marker, _, rest = output.partition(b"\n")
        self.assertEqual(marker, b"hermes-call")
        reader = codec.FrameReader()
        reader.feed(rest)
        messages = [codec.parse_frame(*found) for found in iter(reader.next, None)]
        self.assertEqual([messages[0]["t"], messages[-1]["t"], messages[-1]["value"]], ["welcome", "end", "7"])
        self.assertEqual(sum(len(m["data"]) for m in messages if m["t"] == "O"), 3000001)
        self.assertEqual([m["req"] for m in messages if m["t"] == "kernels"], [3])
        config["token"] = bytes(32)
        status, output = command("call", config, env=self.host.home.env)
        self.assertEqual((status, answer(output)[1]["code"]), (1, "permission"))


if __name__ == "__main__":
    unittest.main()
