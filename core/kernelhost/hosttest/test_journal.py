"""The journal: what a host that is gone still tells of its cells."""
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import types
import unittest
from hashlib import sha256

from client import LOADER, NO_END, PYTHON, SOON, SOURCE, Cell, Home, HostProcess, answer, codec, command, wait_for


def recover(ready, cell, journal=None, inc=None):
    """The answer of the recover command."""
    config = {"journal": journal or ready["journal"], "inc": inc or ready["inc"], "cell": cell}
    return answer(command("recover", config)[1])


def bodies(path):
    """The records of a journal, decoded."""
    with open(path, "rb") as file:
        return [codec.unpack(body) for body in codec.records(file.read())]


def write_journal(path, entries):
    with open(path, "wb") as file:
        os.chmod(path, 0o600)
        file.write(b"".join(codec.record(codec.pack(entry)) for entry in entries))


def nonce(n):
    return "%032x" % n


class Killed(unittest.TestCase):
    """A host that is killed with SIGKILL."""

    def setUp(self):
        self.home = Home()
        self.addCleanup(self.home.remove)
        self.host = HostProcess(self.home)
        self.client = self.host.client()
        self.addCleanup(self.client.close)
        self.kernel = self.client.open()

    def kill(self, wait=True):
        os.kill(self.host.ready["pid"], signal.SIGKILL)
        if wait:
            wait_for(lambda: not self.home.processes(), "the host's processes to end")

    def recover(self, cell, **more):
        marker, found = recover(self.host.ready, cell, **more)
        self.assertEqual(marker, "hermes-ready", found)
        return found

    def test_a_cell_of_each_state(self):
        ok = self.client.run(self.kernel, "import sys; print('out'); print('err', file=sys.stderr); 6 * 7")
        bad = self.client.run(self.kernel, "1/0")
        busy = self.client.submit(self.kernel, "print('on', flush=True)\nwhile True: pass")
        self.client.wait_output(busy, "on")
        queued = self.client.submit(self.kernel, "print('never')")
        self.client.request("revoke", cell="late")
        self.assertEqual(recover(self.host.ready, ok.id)[1]["code"], "conflict")
        self.kill(wait=False)
        lost = self.recover(self.client.cells[busy].id)
        self.assertEqual(lost["state"], "started")
        self.assertEqual(self.home.processes(), [], "a cell is lost only when its processes are gone")
        found = self.recover(ok.id)
        self.assertEqual((found["state"], found["end"]["outcome"], found["end"]["value"]), ("finished", "ok", "42"))
        self.assertEqual((found["out"], found["err"]), ([[0, b"out\n"]], [[0, b"err\n"]]))
        self.assertEqual((found["end"]["out"], found["end"]["err"]), (4, 4))
        self.assertEqual(self.recover(bad.id)["end"]["error"]["type"], "ZeroDivisionError")
        self.assertEqual(self.recover(self.client.cells[queued].id)["state"], "accepted")
        self.assertEqual(self.recover("late")["state"], "revoked")
        self.assertEqual(self.recover("other")["state"], "none")
        self.assertEqual(recover(self.host.ready, ok.id, inc="0" * 32)[1]["code"], "not_found")
        self.assertEqual(recover(self.host.ready, ok.id, journal=self.host.ready["journal"] + "x")[1]["code"], "not_found")

    def test_large_results(self):
        cell = self.client.run(self.kernel, "for i in range(300000): print('%07d' % i)\n'v' * 40000")
        self.kill()
        found = self.recover(cell.id)
        (head_at, head), (tail_at, tail) = found["out"]
        whole = b"".join(b"%07d\n" % i for i in range(300000))
        self.assertEqual((head_at, len(head), tail_at + len(tail), len(head) + len(tail)), (0, codec.HEAD, len(whole), codec.RETAIN))
        self.assertEqual((head, tail), (whole[: codec.HEAD], whole[tail_at:]))
        self.assertEqual((found["end"]["out"], len(found["end"]["value"])), (len(whole), 40002))
        base, name = os.path.split(self.host.ready["journal"])
        files = sorted(entry for entry in os.listdir(base) if entry.startswith("journal-"))
        self.assertEqual(files, [name, name + ".1"])
        for entry in files:
            self.assertEqual(stat.S_IMODE(os.lstat(os.path.join(base, entry)).st_mode), 0o600)
        with open(os.path.join(base, name + ".1"), "r+b") as file:
            file.write(b"x")
        self.assertEqual(recover(self.host.ready, cell.id)[1]["code"], "internal")
        os.unlink(os.path.join(base, name + ".1"))
        self.assertEqual(self.recover(cell.id)["state"], "expired")

    def test_code_and_environment_are_not_in_it(self):
        kernel = self.client.open(env={"VARIABLE": "secret-of-the-environment"})
        self.client.run(kernel, "code = 'secret-of-the-code'; 1")
        with open(self.host.ready["journal"], "rb") as file:
            data = file.read()
        for secret in (self.host.token, b"secret-of-the"):
            self.assertNotIn(secret, data)

    def test_two_readers(self):
        cell = self.client.run(self.kernel, "7")
        self.kill()
        config = codec.pack({"journal": self.host.ready["journal"], "inc": self.host.ready["inc"], "cell": cell.id})
        head = ("hermes1 %s %d %d\n" % (sha256(SOURCE).hexdigest(), len(SOURCE), len(config))).encode()
        readers = [
            subprocess.Popen([PYTHON, "-c", LOADER, "hermes-kernel-host", "recover"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
        ]
        for reader in readers:
            reader.stdin.write(head + SOURCE + config)
            reader.stdin.close()
        for reader in readers:
            self.assertEqual(answer(reader.stdout.read())[1]["end"]["value"], "7")
            reader.stdout.close()
            reader.wait()

    def test_a_tree_that_does_not_end(self):
        busy = self.client.submit(self.kernel, "print('on', flush=True)\nwhile True: pass")
        self.client.wait_output(busy, "on")
        nursery = int(open("/proc/%d/task/%d/children" % (self.host.ready["pid"], self.host.ready["pid"])).read().split()[0])
        os.kill(nursery, signal.SIGSTOP)
        self.kill(wait=False)
        self.assertEqual(recover(self.host.ready, self.client.cells[busy].id)[1]["code"], "unavailable")
        os.kill(nursery, signal.SIGCONT)
        self.assertEqual(self.recover(self.client.cells[busy].id)["state"], "started")

    def test_host_and_nursery_are_killed(self):
        """Where nothing ends a kernel that cannot end by itself, the reader does."""
        blocked = os.path.join(self.home.path, "blocked")
        os.mkdir(blocked)
        with open(os.path.join(blocked, "sitecustomize.py"), "w") as file:
            file.write("import sys\nsys.modules['ctypes'] = None\n")
        host = HostProcess(self.home, env={"PYTHONPATH": blocked})
        client = host.client()
        self.addCleanup(client.close)
        busy = client.submit(client.open(), "import subprocess; p = subprocess.Popen(['sleep', '300']); print('on', flush=True)\nwhile True: pass")
        client.wait_output(busy, "on")
        kernel = client.request("list")["kernels"][0]["pid"]
        nursery = int(open("/proc/%d/task/%d/children" % (host.ready["pid"], host.ready["pid"])).read().split()[0])
        os.kill(kernel, signal.SIGSTOP)
        os.kill(host.ready["pid"], signal.SIGSTOP)  # both at once: neither learns of the other's end
        for pid in (nursery, host.ready["pid"]):
            os.kill(pid, signal.SIGKILL)
        members = codec.session_members(kernel)
        self.assertEqual(len(members), 2)
        marker, found = recover(host.ready, client.cells[busy].id)
        self.assertEqual((marker, found.get("state")), ("hermes-ready", "started"), found)
        self.assertFalse([pid for pid in members if codec.is_running(pid)])
        self.kill()


class Reading(unittest.TestCase):
    """Journals that no host could be made to write."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.path = os.path.join(self.dir, "journal-i")
        self.header = {
            "t": "journal", "inc": "i", "boot": codec.first_line("/proc/sys/kernel/random/boot_id"), "pid1": codec.start_time(1),
            "pid": 1, "start": 1, "nursery": 1, "nursery_start": 1,
        }  # fmt: skip
        self.life = [
            {"t": "accepted", "cell": "a", "digest": b"d", "kernel": "k"}, {"t": "started", "cell": "a", "pid": 1 << 22, "start": 1},
            {"t": "finished", "cell": "a", "end": {"outcome": "ok"}, "out": [], "err": []},
        ]  # fmt: skip

    def verdict(self, entries, cell="a", **header):
        write_journal(self.path, [{**self.header, **header}, *entries])
        return self.read(cell)

    def read(self, cell="a"):
        """What recover answers, without the time that starting Python takes."""
        found = {}

        class Answered(Exception):
            pass

        def told(_, message):
            found.update(message)
            raise Answered

        def failed(code, msg, hint):
            found.update(state=code, msg=msg)
            raise Answered

        codec.answer, codec.fail = told, failed
        codec.Recovery.PATIENCE = codec.Recovery.TREE = 0.05
        try:
            codec.Recovery({"journal": self.path, "inc": "i", "cell": cell}).run()
        except Answered:
            return found["state"]

    def test_lives(self):
        for n, state in enumerate(("none", "accepted", "started", "finished")):
            self.assertEqual(self.verdict(self.life[:n]), state)
        degraded = {"t": "degraded", "cell": "a"}
        self.assertEqual(self.verdict([*self.life[:2], {**degraded, "cell": "b"}]), "started")
        self.assertEqual(self.verdict([*self.life[:2], degraded]), "unknown")
        self.assertEqual(self.verdict([*self.life, degraded]), "finished")
        self.assertEqual(self.verdict([{"t": "revoked", "cell": "a"}]), "revoked")
        self.assertEqual(self.verdict([self.life[0], {"t": "revoked", "cell": "a"}, self.life[2]]), "revoked")
        self.assertEqual(self.verdict([{"t": "past", "cell": "a", "state": "finished", "digest": b"d"}]), "expired")
        self.assertEqual(self.verdict([{"t": "past", "cell": "a", "state": "revoked", "digest": b""}]), "revoked")

    def test_marks(self):
        mark = {"t": "mark", "submitter": nonce(5), "n": 7}
        for cell, state in ((nonce(5) + "-7", "expired"), (nonce(5) + "-8", "none"), (nonce(6) + "-7", "none"), (nonce(5), "none")):
            self.assertEqual(self.verdict([mark], cell), state, cell)
        self.assertEqual(self.verdict([mark, {**self.life[0], "cell": nonce(5) + "-3"}], nonce(5) + "-3"), "accepted")

    def test_restarts(self):
        for n, state in enumerate(("unknown", "unknown", "started", "finished")):
            self.assertEqual(self.verdict(self.life[:n], boot="another"), state)
        for n, state in enumerate(("none", "accepted", "started", "finished")):
            self.assertEqual(self.verdict(self.life[:n], pid1=1, nursery=os.getpid(), nursery_start=codec.start_time(os.getpid())), state)
        self.assertEqual(self.verdict(self.life[:2], nursery=os.getpid(), nursery_start=codec.start_time(os.getpid())), "unavailable")
        self.assertEqual(self.verdict(self.life[:2], nursery_start=0), "unavailable")

    def test_torn_writes(self):
        for kept in (2, 3, 4):
            entries = [self.header, *self.life][:kept]
            write_journal(self.path, entries)
            sizes = [len(codec.record(codec.pack(entry))) for entry in entries]
            with open(self.path, "rb") as file:
                whole = file.read()
            for size in range(len(whole) - sum(sizes[-2:]), len(whole) + 1):
                with open(self.path, "r+b") as file:
                    file.truncate(size)
                    file.seek(0)
                    file.write(whole[:size])
                left = sum(sum(sizes[: n + 1]) <= size for n in range(kept))
                self.assertEqual(self.read(), ("not_found", "none", "accepted", "started", "finished")[left], (kept, size))

    def test_damage(self):
        write_journal(self.path, [self.header, *self.life])
        with open(self.path, "rb") as file:
            whole = file.read()
        for at in range(len(whole)):
            with open(self.path, "wb") as file:
                file.write(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            last = len(codec.record(codec.pack(self.life[-1])))
            torn = at in (len(whole) - last + 2, len(whole) - last + 3)  # its length says more than is there
            self.assertEqual(self.read(), "started" if torn else "internal", at)

    def test_files_that_are_not_ours(self):
        write_journal(self.path, [self.header])
        os.chmod(self.path, 0o640)
        self.assertEqual(self.read(), "permission")
        os.chmod(self.path, 0o600)
        os.rename(self.path, self.path + "x")
        os.symlink(self.path + "x", self.path)
        self.assertEqual(self.read(), "permission")
        os.unlink(self.path)
        os.mkdir(self.path, 0o600)
        self.assertEqual(self.read(), "permission")
        os.rmdir(self.path)
        if os.geteuid() == 0:
            write_journal(self.path, [self.header])
            os.chown(self.path, 12345, 12345)
            self.assertEqual(self.read(), "permission")

    def test_locked(self):
        write_journal(self.path, [self.header])
        with open(self.path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.assertEqual(self.read(), "conflict")

    def test_written_anew_while_somebody_opens_it(self):
        """The lock on a file that is not at its path any more says nothing."""
        write_journal(self.path, [self.header])
        write_journal(self.path + ".new", [self.header, *self.life])

        def flock(fd, how):
            if os.path.exists(self.path + ".new"):
                os.rename(self.path + ".new", self.path)
            fcntl.flock(fd, how)

        self.addCleanup(setattr, codec, "fcntl", fcntl)
        codec.fcntl = types.SimpleNamespace(flock=flock, LOCK_SH=fcntl.LOCK_SH, LOCK_NB=fcntl.LOCK_NB)
        self.assertEqual(self.read(), "finished")


class Writing(unittest.TestCase):
    def setUp(self):
        self.home = Home()
        self.addCleanup(self.home.remove)
        self.base = os.path.join(self.home.path, ".cache", "hermes")

    def start(self, **options):
        host = HostProcess(self.home, **options)
        client = host.client()
        self.addCleanup(host.close)
        self.addCleanup(client.close)
        return host, client, client.open()

    def journals(self):
        return sorted(name for name in os.listdir(self.base) if name.startswith("journal-"))

    def test_records(self):
        host, client, kernel = self.start()
        cell = client.run(kernel, "5", cell="one")
        client.send(t="ack", cell="one")
        client.run(kernel, "6", cell="two")
        found = bodies(host.ready["journal"])
        self.assertEqual([entry["t"] for entry in found], "journal accepted started finished acked accepted started finished".split())
        self.assertEqual([entry.get("cell") for entry in found[1:]], ["one"] * 4 + ["two"] * 3)
        pid = client.request("list")["kernels"][0]["pid"]
        self.assertEqual((found[2]["pid"], found[2]["start"]), (pid, codec.start_time(pid)))
        self.assertEqual(found[3]["end"]["value"], "5")
        self.assertEqual({key: found[0][key] for key in ("inc", "boot", "pid1", "pid", "start")}, {key: host.ready[key] for key in ("inc", "boot", "pid1", "pid", "start")})
        self.assertEqual(found[0]["nursery_start"], codec.start_time(found[0]["nursery"]))
        self.assertEqual(stat.S_IMODE(os.lstat(host.ready["journal"]).st_mode), 0o600)
        for process in (pid, found[0]["nursery"]):
            self.assertFalse([fd for fd in os.listdir("/proc/%d/fd" % process) if "journal" in os.readlink("/proc/%d/fd/%s" % (process, fd))])
        self.assertEqual(cell.end["value"], "5")

    def test_a_clean_leave(self):
        for named, acked, left in ((False, False, 0), (True, True, 0), (True, False, 2)):
            host, client, kernel = self.start(named=named)
            cell = client.run(kernel, "print('x' * 100000)")
            if acked:
                client.send(t="ack", cell=cell.id)
            self.assertEqual(len(self.journals()), 2)
            host.close()
            self.assertEqual(len(self.journals()), left)
            if left:
                self.assertEqual(recover(host.ready, cell.id)[1]["end"]["outcome"], "ok")

    def test_old_journals_are_swept(self):
        host, client, kernel = self.start()
        old = time.time() - codec.RESULT_AGE - 60
        names = ["journal-dead", "journal-dead.1", "journal-gone.7", "journal-dead.new"]
        for name in [*names, "journal-read", "journal-young", "journal-young.1"]:
            with open(os.path.join(self.base, name), "w") as file:
                os.chmod(file.name, 0o600)
            if "young" not in name:
                os.utime(file.name, (old, old))
        os.utime(host.ready["journal"], (old, old))
        read = open(os.path.join(self.base, "journal-read"))
        self.addCleanup(read.close)
        fcntl.flock(read, fcntl.LOCK_SH)
        other = HostProcess(self.home)
        self.addCleanup(other.close)
        wait_for(lambda: not set(names) & set(self.journals()), "the old journals to be removed")
        expected = [os.path.basename(h.ready["journal"]) for h in (host, other)] + ["journal-read", "journal-young", "journal-young.1"]
        self.assertEqual(self.journals(), sorted(expected))

    def limit(self, host, room):
        """Lets the host's files grow by so many bytes, as a full disk would."""
        size = os.stat(host.ready["journal"]).st_size
        resource.prlimit(host.ready["pid"], resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))

    def unlimit(self, host):
        resource.prlimit(host.ready["pid"], resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def sizes(self):
        """The sizes of the records of a cell with an id of one letter."""
        return [len(codec.record(codec.pack(entry))) for entry in (
            {"t": "accepted", "cell": "a", "digest": bytes(32), "kernel": "k" + "0" * 12, "session": "", "lang": "python"},
            {"t": "started", "cell": "a", "pid": 1 << 20, "start": 1 << 20},
        )]  # fmt: skip

    def test_a_file_that_cannot_grow(self):  # case 38
        host, client, kernel = self.start()
        client.run(kernel, "x = 41")
        accepted, _ = self.sizes()
        for room in (0, accepted - 1, accepted, accepted + 9):
            before = bodies(host.ready["journal"])
            self.limit(host, room)
            end = client.run(kernel, "x = 0", cell=chr(ord("a") + room % 26)).end
            self.assertEqual((end["outcome"], end["reason"], end["kernel_alive"]), ("refused", "journal", True), room)
            self.assertIn("ulimit -f", end["msg"])
            self.unlimit(host)
            after = bodies(host.ready["journal"])
            self.assertEqual(after[: len(before)], before)
            self.assertNotIn("started", [entry["t"] for entry in after[len(before) :]])
        self.assertEqual(client.run(kernel, "x + 1").end["value"], "42")

    def test_a_result_that_cannot_be_written(self):
        host, client, kernel = self.start()
        client.run(kernel, "x = 41")
        accepted, started = self.sizes()
        self.limit(host, accepted + started + 9)
        self.assertEqual(client.run(kernel, "x += 1; x", cell="a").end["value"], "42")
        other = host.client()
        self.assertTrue(other.welcome["degraded"])
        other.close()
        self.assertEqual([entry["t"] for entry in bodies(host.ready["journal"])][-1], "started")
        self.unlimit(host)
        client.request("revoke", cell="z")
        self.assertEqual([entry["t"] for entry in bodies(host.ready["journal"])][-2:], ["degraded", "revoked"])
        client.run(kernel, "x")  # then it is written anew from memory
        wait_for(lambda: [e["end"]["value"] for e in bodies(host.ready["journal"]) if e["t"] == "finished" and e["cell"] == "a"] == ["42"], "the result in the journal")
        other = host.client()
        self.assertFalse(other.welcome["degraded"])
        other.close()

    def test_a_full_disk(self):  # case 38
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", self.home.path], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("root: nobody else can mount a small disk")
        self.addCleanup(subprocess.run, ["umount", self.home.path])
        host, client, kernel = self.start()
        client.run(kernel, "x = 41")
        filler = os.path.join(self.home.path, "filler")
        try:
            with open(filler, "wb", 0) as file:
                while file.write(b"x" * 1024):
                    pass
        except OSError:
            pass
        end = {"reason": ""}
        for n in range(100):  # a page of its own may have room
            end = client.run(kernel, "x = x", cell="f%d" % n).end
            if end["outcome"] != "ok":
                break
        self.assertEqual((end["outcome"], end["reason"]), ("refused", "journal"))
        self.assertIn("the disk is full", end["msg"])
        os.unlink(filler)
        self.assertEqual(client.run(kernel, "x + 1").end["value"], "42")

    def test_revoke(self):
        host, client, kernel = self.start()
        revoke = lambda cell: client.request("revoke", cell=cell)["state"]
        self.assertEqual(revoke("early"), "revoked")
        end = client.run(kernel, "print('early')", cell="early").end
        self.assertEqual((end["outcome"], end["reason"]), ("refused", "revoked"))
        busy = client.submit(kernel, "print('on', flush=True); import time; time.sleep(60)", cell="busy")
        client.wait_output(busy, "on")
        queued = client.submit(kernel, "print('queued')", cell="queued")
        self.assertEqual((revoke("busy"), revoke("queued"), revoke("queued")), ("running", "revoked", "revoked"))
        self.assertEqual(client.wait(queued).end["reason"], "revoked")
        self.assertEqual(client.wait(client.follow("queued")).end["reason"], "revoked")
        self.assertEqual(client.wait(client.follow("early")).end["reason"], "revoked")
        self.assertEqual(client.run(kernel, "print('queued')", cell="queued").end["reason"], "revoked")
        self.assertEqual([client.request("state", cell=cell)["state"] for cell in ("early", "queued", "busy")], ["revoked", "revoked", "running"])
        client.request("cancel", cell="busy")
        self.assertEqual((client.wait(busy).end["outcome"], revoke("busy")), ("interrupted", "finished"))
        self.assertEqual([e["cell"] for e in bodies(host.ready["journal"]) if e["t"] == "revoked"], ["early", "queued"])
        self.assertEqual(client.request("revoke", cell="x" * 1001)["code"], "invalid")
        self.assertEqual(client.run(kernel, "6 * 7").end["value"], "42")

    def test_revoke_races_the_start(self):
        """Both in one write, in either order: the first wins."""
        host, client, kernel = self.start()
        for first in ("submit", "revoke"):
            cell, code = first, "print(%r); 1" % first
            frames = {
                "submit": {"t": "submit", "cell": cell, "kernel": kernel, "ch": 900, "code": code, "digest": sha256(code.encode()).digest()},
                "revoke": {"t": "revoke", "cell": cell, "req": 900},
            }
            seen = client.cells[900] = Cell()
            seen.start, seen.seen, seen.id = {1: 0, 2: 0}, True, cell
            order = [first, *(kind for kind in frames if kind != first)]
            client.sock.sendall(b"".join(codec.frame(frames[kind]) for kind in order))
            state = client.reply(900)["state"]
            end = {**NO_END, **client.wait(900).end}
            want = ("running", "ok", "submit\n") if first == "submit" else ("revoked", "refused", "")
            self.assertEqual((state, end["outcome"], seen.stdout), want)

    def test_marks(self):
        host, client, kernel = self.start()
        code = "0"
        count = codec.FORGOTTEN + 40
        sizes = "print('y' * (1 << 20))"
        for n in range(1, 9):
            cell = client.run(kernel, sizes, cell="%s-%d" % (nonce(1), n))
            client.send(t="ack", cell=cell.id)
        end = client.run(kernel, sizes, cell=nonce(1) + "-1").end
        self.assertEqual((end["outcome"], end["reason"]), ("refused", "expired"))
        self.assertEqual(client.run(kernel, code, cell=nonce(1) + "-1").end["reason"], "conflict", "a recent one is still known")
        for n in range(count):
            client.ask("revoke", cell="%s-%d" % (nonce(2), 2 * n + 1))
        client.request("revoke", cell="chosen")
        for cell, reason in ((nonce(1) + "-2", "expired"), (nonce(2) + "-1", "expired"), (nonce(2) + "-2", "expired"), (nonce(2) + "-%d" % (2 * count - 1), "revoked"), ("chosen", "revoked")):
            self.assertEqual(client.run(kernel, code, cell=cell).end["reason"], reason, cell)
            self.assertIn(client.request("state", cell=cell)["state"], ("expired", "revoked"))
        for cell in (nonce(2) + "-%d" % (2 * count - 2), nonce(1) + "-9", nonce(3) + "-1", nonce(5) + "-0", nonce(2) + "-01x"):
            self.assertEqual(client.run(kernel, code, cell=cell).end["outcome"], "ok", cell)
        with open("/proc/%d/status" % host.ready["pid"]) as file:
            rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        self.assertLess(rss, 60_000)

    def test_rewriting(self):
        host, client, kernel = self.start()
        kept = client.run(kernel, "print('kept'); 1", cell="kept")
        large = client.run(kernel, "print('l' * 200000); 2", cell="large")
        client.request("revoke", cell="early")
        busy = client.submit(client.open(), "print('on', flush=True); import time; time.sleep(60)", cell="busy")
        client.wait_output(busy, "on")
        inode = os.stat(host.ready["journal"]).st_ino
        for n in range(200):  # results of 30 kB, each forgotten when it is acknowledged and 4 MiB more have come
            cell = client.run(kernel, "'%03d' + 'v' * 30000" % n, cell="%s-%d" % (nonce(4), n + 1))
            client.send(t="ack", cell=cell.id)
        wait_for(lambda: os.stat(host.ready["journal"]).st_ino != inode, "the journal to be written anew")
        self.assertLess(os.stat(host.ready["journal"]).st_size, codec.JOURNAL_LIMIT + (2 << 20))
        self.assertEqual([name for name in self.journals() if name.endswith(".new")], [])
        self.assertEqual(recover(host.ready, "kept")[1]["code"], "conflict", "the new file is locked too")
        os.kill(host.ready["pid"], signal.SIGKILL)
        wait_for(lambda: not self.home.processes(), "the host's processes to end", SOON)
        found = {cell: recover(host.ready, cell)[1] for cell in ("kept", "large", "early", "busy", nonce(4) + "-1", nonce(4) + "-200", nonce(4) + "-201")}
        self.assertEqual([entry["state"] for entry in found.values()], ["finished", "finished", "revoked", "started", "expired", "finished", "none"])
        self.assertEqual((found["kept"]["out"], found["kept"]["end"]["value"]), ([[0, b"kept\n"]], kept.end["value"]))
        self.assertEqual((len(found["large"]["out"][0][1]), found["large"]["end"]["value"]), (200001, large.end["value"]))


if __name__ == "__main__":
    unittest.main()
