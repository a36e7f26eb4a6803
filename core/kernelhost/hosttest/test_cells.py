"""Python cells: values, output, errors, exits."""
import os
import resource
import time
import unittest

from client import SOON, HostProcess


def occurrences(pid, needle):
    """How often bytes are in a process' writable memory."""
    count = 0
    with open("/proc/%d/maps" % pid) as maps, open("/proc/%d/mem" % pid, "rb", 0) as memory:
        for line in maps:
            bounds, mode = line.split()[:2]
            if mode.startswith("rw"):
                start, end = (int(number, 16) for number in bounds.split("-"))
                memory.seek(start)
                count += memory.read(end - start).count(needle)
    return count


class PythonCells(unittest.TestCase):
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

    def run_cell(self, code, **options):
        return self.client.run(self.kernel, code, **options)

    def check(self, code, value=None, stdout="", stderr="", outcome="ok", **options):
        cell = self.run_cell(code, **options)
        got = cell.end["outcome"], cell.end["value"], cell.stdout, cell.stderr
        self.assertEqual(got, (outcome, value, stdout, stderr), (code, cell.end))
        return cell

    def test_values(self):
        for code, value in (
            ("6*7", "42"), ("x = 1", None), ("None", None), ("1;", None), ("(1);", None), ("1 # no ; here", "1"), ("'a;'", "'a;'"),
            ("(1\n # a comment\n)  ; # quiet", None), ("x = 2\nx", "2"), ("def f():\n  return 1\nf()", "1"), ("", None), ("# nothing", None),
            ("'''doc'''", "'doc'"), ("for i in range(3): i", None), ("'\\ud800'", "'\\ud800'"), ("1\n\n\n", "1"), ("x = '\u2028'; len(x)", "1"),
        ):  # fmt: skip
            self.check(code, value)
        self.check("41", None, last=False)
        self.assertEqual(self.run_cell("'_hermes_value' in globals()").end["value"], "False")

    def test_an_open_with_the_same_key_is_the_same(self):
        other = self.host.client()
        self.addCleanup(other.close)
        ask = {"lang": "python", "session": "", "owner": "", "dir": "", "env": {}}
        replies = [client.request("open", key="a key", **ask) for client in (self.client, other, self.client)]
        for reply in replies:
            del reply["req"]
        self.assertTrue(replies[0]["created"])
        self.assertEqual(replies[1:], replies[:1] * 2)
        self.assertNotEqual(self.client.open(key="another"), replies[0]["kernel"])
        self.assertNotEqual(self.client.open(key=""), self.client.open(key=""))
        self.client.request("kill", kernel=replies[0]["kernel"])
        again = other.request("open", key="a key", **ask)
        self.assertTrue(again["created"])
        self.assertNotEqual(again["kernel"], replies[0]["kernel"])
        for key in (1, "k" * 1001):
            self.assertEqual(self.client.request("open", key=key, **ask)["code"], "invalid")

    def test_the_key_of_a_reset_ends_no_kernel_twice(self):
        ask = {"lang": "python", "session": "keyed", "owner": "", "dir": "", "env": {}, "reset": True, "key": "a reset"}
        self.client.open(session="keyed")
        kernel = self.client.request("open", **ask)["kernel"]
        self.client.run(kernel, "x = 5")
        self.assertEqual(self.client.request("open", **ask)["kernel"], kernel)
        self.assertEqual(self.client.run(kernel, "x").end["value"], "5")

    def test_state_is_kept(self):
        self.check("a = 41")
        self.check("import os\ndef f(): return a + 1")
        self.check("f()", "42")
        self.check("from __future__ import annotations")
        self.check("def g(x: undefined_name): pass\ng.__annotations__", "{'x': 'undefined_name'}")
        self.check("__name__", "'__main__'")

    def test_long_value_is_cut(self):
        value = self.run_cell("'x' * 200_000").end["value"]
        self.assertLess(len(value), 51_000)
        self.assertIn("150002 characters left out", value)

    def test_output_order(self):  # case 12
        self.check("import os\nr = os.system('echo from-child'); print('from-python')", stdout="from-child\nfrom-python\n")
        self.check("print('a', end=''); r = os.system('echo b')", stdout="ab\n")

    def test_bytes(self):  # case 13
        cell = self.run_cell("import os\nn = os.write(1, bytes([0xff, 0xfe, 10])); r = os.system('echo later')")
        self.assertEqual(bytes(cell.out[1]), b"\xff\xfe\nlater\n")

    def test_stderr(self):
        self.check("import sys; n = sys.stderr.write('oops\\n')", stderr="oops\n")
        self.check("import warnings; warnings.warn('careful')", stderr="<cell 2>:1: UserWarning: careful\n  import warnings; warnings.warn('careful')\n")

    def test_errors(self):
        self.check("def broken():\n    return undefined_thing\n")  # case 17
        error = self.check("\n\nbroken()", outcome="error").end["error"]
        self.assertEqual((error["type"], error["message"]), ("NameError", "name 'undefined_thing' is not defined"))
        self.assertIn('File "<cell 1>", line 2, in broken\n    return undefined_thing\n', error["traceback"])
        self.assertIn('File "<cell 2>", line 3, in <module>\n    broken()\n', error["traceback"])
        self.assertNotIn("hermes host", error["traceback"])
        error = self.check("try:\n  1/0\nexcept ZeroDivisionError:\n  raise KeyError('k')", outcome="error").end["error"]
        self.assertIn("During handling of the above exception", error["traceback"])
        self.assertNotIn("hermes host", error["traceback"])
        error = self.check("if", outcome="error").end["error"]
        self.assertEqual(error["type"], "SyntaxError")
        self.assertNotIn("hermes host", error["traceback"])
        self.check("alive = 1\nalive", "1")

    def test_errors_that_cannot_be_shown(self):
        cell = self.check("class E(Exception):\n  def __str__(self): raise ValueError\n  __repr__ = __str__\nraise E()", outcome="error")
        self.assertEqual(cell.end["error"]["type"], "E")
        self.check("class B(Exception):\n  def __str__(self): raise SystemExit\nraise B()", outcome="error")
        self.check("class R:\n  def __repr__(self): raise RuntimeError('no')\nR()", outcome="error")
        self.check("def f(n): return f(n+1)\nf(0)", outcome="error")
        cell = self.check("def g(n): return h(n+1)\ndef h(n): return g(n+1)\ng(0)", outcome="error")
        self.assertLess(len(cell.end["error"]["traceback"]), 60_000)
        cell = self.check("raise Exception('x' * 1_000_000)", outcome="error")
        self.assertLess(len(cell.end["error"]["message"]), 60_000)
        self.check("raise BaseException('base')", outcome="error")
        self.check("raise KeyboardInterrupt", outcome="error")
        self.check("l = []\nfor i in range(100000): l = [l]\nl", outcome="error")
        self.check("1 + 1", "2")

    def test_exits(self):  # case 15
        for code, status, stderr in (
            ("raise SystemExit(3)", 3, ""), ("exit()", 0, ""), ("quit(5)", 5, ""), ("import sys; sys.exit('why')", 1, "why\n"),
            ("import os; os._exit(7)", 7, ""), ("import sys; sys.exit(-1)", 255, ""), ("import sys; sys.exit(None)", 0, ""),
            ("import atexit; atexit.register(print, 'bye', file=__import__('sys').stderr); exit(2)", 2, "bye\n"),
        ):  # fmt: skip
            kernel = self.client.open()
            cell = self.client.run(kernel, code)
            end = cell.end
            self.assertEqual((end["outcome"], end["exit_code"], end["signal"], end["kernel_alive"], end["lost"]), ("exit", status, "", False, "died"), code)
            self.assertEqual(cell.stderr, stderr)
            self.assertLess(end["ms"], 1000 * SOON)
            self.assertEqual(self.client.run(kernel, "1").end["reason"], "no_kernel")

    def test_signals(self):
        for code, name in (("os.kill(os.getpid(), 11)", "SIGSEGV"), ("os.kill(os.getpid(), 9)", "SIGKILL"), ("os.abort()", "SIGABRT")):
            kernel = self.client.open()
            end = self.client.run(kernel, "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); " + code).end
            self.assertEqual((end["outcome"], end["signal"], end["kernel_alive"], end["lost"]), ("lost", name, False, "died"))
            self.assertLess(end["ms"], 1000 * SOON)

    def test_input(self):  # case 16
        cell = self.check("input('name? ')", outcome="error", stdout="name? ")
        self.assertEqual(cell.end["error"]["type"], "EOFError")

    def test_await(self):
        self.check("import asyncio\nawait asyncio.sleep(0.01)\n7", "7")
        self.check("await asyncio.sleep(0, 'x')", "'x'")
        self.check("async def f():\n  return 1/0")
        self.assertIn('File "<cell 3>", line 2, in f', self.check("await f()", outcome="error").end["error"]["traceback"])
        self.check("q = asyncio.Queue(); q.put_nowait(5)")
        self.check("await q.get()", "5")
        self.check("asyncio.run(asyncio.sleep(0, 'run'))", "'run'")
        self.check("await asyncio.sleep(0, 'again')", "'again'")

    def test_await_interrupted(self):  # case 34
        ch = self.client.submit(self.kernel, "import asyncio\nkept = 1\nprint('on', flush=True)\nawait asyncio.sleep(60)")
        self.client.wait_output(ch, "on")
        started = time.monotonic()
        self.client.request("interrupt", kernel=self.kernel)
        end = self.client.wait(ch).end
        self.assertEqual((end["outcome"], end["kernel_alive"]), ("interrupted", True))
        self.assertLess(time.monotonic() - started, SOON)
        self.check("await asyncio.sleep(0, kept)", "1")
        self.check("len(asyncio.all_tasks(asyncio.get_event_loop_policy().get_event_loop()))", "0")

    def test_late_output(self):  # case 18
        self.check("import threading, time, sys\ngo = threading.Event()\ndef late():\n  go.wait(); print('late'); sys.stderr.write('x\\n')\nt = threading.Thread(target=late); t.start()")
        self.check("go.set(); t.join(); print('mine')", stdout="mine\n")
        while sum(len(e["data"]) for e in self.client.events) < len("late\nx\n"):
            self.client.step()
        late = {number: b"".join(e["data"] for e in self.client.events if e["stream"] == number) for number in (1, 2)}
        self.assertEqual(late, {1: b"late\n", 2: b"x\n"})
        self.check("import subprocess; p = subprocess.Popen('read x; echo child', shell=True, stdin=subprocess.PIPE)")
        self.check("p.stdin.write(b'x\\n'); p.stdin.flush(); p.wait()", "0")
        while not self.client.events[-1]["data"].endswith(b"child\n"):
            self.client.step()

    def test_late_output_is_limited(self):
        self.check("import threading, time\ngo = threading.Event()\ndef late():\n  go.wait(); print('x' * 1000000)\nt = threading.Thread(target=late); t.start()")
        self.check("go.set(); t.join(); 1", "1")
        while not self.client.events:
            self.client.step()
        self.client.request("ping")
        self.assertLessEqual(sum(len(e["data"]) for e in self.client.events), 100_000)

    def test_order_of_cells(self):  # case 19
        other = self.host.client()
        self.addCleanup(other.close)
        first = self.client.submit(self.kernel, "import time\nfor i in range(3): print('a', flush=True); time.sleep(0.05)")
        self.client.wait_output(first, "a")
        second = other.submit(self.kernel, "print('b')")
        self.assertEqual(self.client.wait(first).stdout, "a\na\na\n")
        self.assertEqual(other.wait(second).stdout, "b\n")

    def test_fork(self):  # case 33
        self.check("import os\npid = os.fork()\nif pid == 0: print('child'); raise SystemExit(4)\nos.waitpid(pid, 0)[1] >> 8", "4", stdout="child\n")
        cell = self.run_cell("pid = os.fork()\nif pid: w = os.waitpid(pid, 0)[1]\nprint(pid > 0)\npid > 0 and w")
        self.assertEqual((cell.stdout, cell.end["value"]), ("False\nTrue\n", "0"))
        cell = self.run_cell("pid = os.fork()\nif not pid: 1/0\nos.waitpid(pid, 0)[1] >> 8")
        self.assertEqual(cell.end["value"], "1")
        self.assertIn("ZeroDivisionError", cell.stderr)
        self.check("pid > 0", "True")

    def test_processes_and_threads(self):  # case 35
        self.check("def f(x): return x * x")
        self.check("import multiprocessing as m\nwith m.get_context('fork').Pool(4) as p: r = p.map(f, range(8))\nr", "[0, 1, 4, 9, 16, 25, 36, 49]")
        self.check("with m.get_context('spawn').Pool(2) as p: r = p.map(abs, [-1, -2])\nr", "[1, 2]")
        self.check("from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor(4).map(f, range(4)))", "[0, 1, 4, 9]")
        self.check("import subprocess; len(subprocess.run(['cat'], input=b'x' * 100_000_000, stdout=subprocess.PIPE).stdout)", "100000000")
        self.check("import pickle; pickle.loads(pickle.dumps(f)) is f", "True")
        self.check("from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2, mp_context=m.get_context('fork')) as p: r = list(p.map(f, range(3)))\nr", "[0, 1, 4]")

    def test_hostile_code(self):
        self.check("import os, sys\nos.close(1); os.close(2)")
        self.check("print('still')", stdout="still\n")
        self.check("os.closerange(3, 100)")
        self.check("print('there'); r = os.system('echo and here')", stdout="there\nand here\n")
        self.check("import io; sys.stdout.close(); sys.stdout = io.StringIO(); print('hidden')")
        self.check("sys.stdout = sys.__stdout__; print('back')", stdout="back\n")
        self.check("import threading; t = threading.Thread(target=sys.exit); t.start(); t.join()")
        self.check("for fd in range(3, 64):\n  try: n = os.write(fd, b'\\0\\0\\0\\x10' + b'forged ' * 9)\n  except OSError: pass")
        self.check("del sys.stdout, sys.stderr")
        self.check("sys.stdout = None; 5", "5")
        self.check("sys.modules.clear()", outcome="ok")
        self.check("1", "1")

    def test_environment(self):
        kernel = self.client.open(env={"PYTHONPATH": "/somewhere:/else", "SECRET": "s3", "TZ": "Asia/Tokyo"}, dir="/usr")
        run = lambda code: self.client.run(kernel, code).end["value"]
        self.assertEqual(run("import os, sys; os.environ['SECRET'], os.getcwd(), sys.path[:3]"), "('s3', '/usr', ['', '/somewhere', '/else'])")
        self.assertEqual(run("import time; time.tzname[0]"), "'JST'")
        self.assertEqual(run("oct(os.umask(0))"), "'0o22'")
        self.assertEqual(run("os.getpid() == os.getsid(0) == os.getpgid(0), sys.argv, sys.stdin.fileno()"), "(True, [''], 0)")
        self.assertEqual(self.run_cell("import os; 'SECRET' in os.environ, os.environ['HOME'] == os.getcwd()").end["value"], "(False, True)")

    def test_no_secret_in_a_kernel(self):
        self.client.run(self.client.open(env={"SECRET": "env-secret-of-another"}), "code = 'code-secret-of-another'")
        pid = int(self.client.run(self.client.open(), "import os; os.getpid()").end["value"])
        self.assertGreater(occurrences(pid, b"PATH"), 0)
        for secret in (self.host.token, b"env-secret-of-another", b"code-secret-of-another"):
            self.assertEqual(occurrences(pid, secret), 0, secret)
        open_files = {os.readlink("/proc/%d/fd/%s" % (pid, fd)).split(":")[0] for fd in os.listdir("/proc/%d/fd" % pid)}
        self.assertEqual(open_files, {"/dev/null", "pipe", "socket"})

    def test_limits_are_given_back(self):
        with open("/proc/%d/limits" % self.host.ready["pid"]) as file:
            line = next(line for line in file if line.startswith("Max open files"))
        self.assertEqual(line.split()[3], line.split()[4])
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.assertEqual(self.run_cell("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]").end["value"], str(soft))


if __name__ == "__main__":
    unittest.main()
