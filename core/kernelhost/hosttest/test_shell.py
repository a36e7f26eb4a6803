"""Shell cells, in bash and in sh."""
import os
import shutil
import tempfile
import unittest

from client import SOON, HostProcess


class ShellCells(unittest.TestCase):
    env = None
    exit_trap_output = "bye\n"

    @classmethod
    def setUpClass(cls):
        cls.host = HostProcess()

    @classmethod
    def tearDownClass(cls):
        cls.host.close()

    def setUp(self):
        self.client = self.host.client()
        self.addCleanup(self.client.close)
        self.kernel = self.client.open("bash", env=self.env)

    def check(self, code, stdout="", status=0, **options):
        cell = self.client.run(self.kernel, code, **options)
        got = cell.end["outcome"], cell.end["exit_code"], cell.stdout, cell.end["value"]
        self.assertEqual(got, ("error" if status else "ok", status or None, stdout, None), (code, cell.stderr, cell.end))
        self.assertEqual((cell.end["error"] or {}).get("type"), "ExitStatus" if status else None)
        return cell

    def test_state(self):
        self.check("cd /usr; x=1; export Y=2; f() { echo f$1; }")
        self.check("pwd; echo $x; f 3; sh -c 'echo $Y'", "/usr\n1\nf3\n2\n")
        self.check("false", status=1)
        self.check("exec 5>/dev/null; (exit 42)", status=42)
        self.check("echo $x", "1\n")
        self.check("cat <<EOF\na 'b' \"c\" $x\nEOF", "a 'b' \"c\" 1\n")
        self.check("return 3", status=3)
        self.check("")
        self.check("# only a comment")
        self.check("set -- a b; echo $# $1", "2 a\n")

    def test_output(self):
        cell = self.check("echo out; echo err >&2; printf 'no newline'", "out\nno newline")
        self.assertEqual(cell.stderr, "err\n")
        self.check("cat; read x || echo eof", "eof\n")
        self.assertEqual(self.check("head -c 3000000 /dev/zero | tr '\\0' x | wc -c", "3000000\n").end["out"], 8)
        self.check("echo '0 7' >&9 2>/dev/null || echo closed", "closed\n")

    def test_syntax_error(self):
        cell = self.client.run(self.kernel, "x=1\nif then")
        self.assertEqual((cell.end["outcome"], cell.end["kernel_alive"]), ("error", True))
        self.assertIn("yntax error", cell.stderr)
        self.check("echo $((1+1))", "2\n")
        cell = self.client.run(self.kernel, "echo 'unterminated")
        self.assertEqual((cell.end["outcome"], cell.end["kernel_alive"]), ("error", True))
        self.check("set -u; set +u; echo ok", "ok\n")

    def test_exit(self):
        end = self.client.run(self.kernel, "exit 3").end
        self.assertEqual((end["outcome"], end["exit_code"], end["kernel_alive"], end["lost"]), ("exit", 3, False, "died"))
        kernel = self.client.open("bash", env=self.env)
        cell = self.client.run(kernel, "trap 'echo bye' EXIT; exit")
        self.assertEqual((cell.end["exit_code"], cell.stdout, cell.stderr), (0, self.exit_trap_output, ""))
        kernel = self.client.open("bash", env=self.env)
        end = self.client.run(kernel, "kill -9 $$").end
        self.assertEqual((end["outcome"], end["signal"]), ("lost", "SIGKILL"))
        kernel = self.client.open("bash", env=self.env)
        end = self.client.run(kernel, "exec sh -c 'exit 6'").end
        self.assertEqual((end["outcome"], end["exit_code"]), ("exit", 6))

    def test_orphans_are_reaped(self):  # a zombie can still be signalled
        self.check("p=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); n=0; while kill -0 $p 2>/dev/null && [ $n -lt 100 ]; do n=$((n+1)); sleep 0.05; done; kill -0 $p 2>/dev/null || echo gone", "gone\n")

    def test_background(self):
        cell = self.check("sleep 300 & (setsid sleep 301 &) ; echo done", "done\n")
        self.assertEqual(cell.stderr, "")
        self.assertLess(cell.end["ms"], 1000 * SOON)
        self.check("(sleep 0.2; echo late) &")
        self.check("echo mine", "mine\n")
        while not self.client.events:
            self.client.step()
        self.assertEqual(self.client.events[0]["data"], b"late\n")

    def test_interrupt(self):
        self.check("x=kept")
        for code in ("echo on; sleep 60; echo not reached", "echo on; while :; do :; done", "echo on; f() { sleep 60; }; f; echo not reached"):
            ch = self.client.submit(self.kernel, code)
            self.client.wait_output(ch, "on")
            self.client.request("interrupt", kernel=self.kernel)
            cell = self.client.wait(ch)
            self.assertEqual((cell.end["outcome"], cell.end["kernel_alive"], cell.stdout), ("interrupted", True, "on\n"), code)
            self.assertLess(cell.end["ms"], 1000 * SOON)
            self.check("echo $x", "kept\n")

    def test_timeout(self):
        end = self.client.run(self.kernel, "sleep 60", timeout=0.2).end
        self.assertEqual((end["outcome"], end["kernel_alive"]), ("timeout", True))
        self.check("trap '' INT", "")
        end = self.client.run(self.kernel, "sleep 60", timeout=0.2).end
        self.assertEqual((end["outcome"], end["kernel_alive"], end["lost"]), ("timeout", False, "timeout"))

    def test_no_descriptor_of_ours(self):
        cell = self.client.run(self.kernel, "ls -l /proc/self/fd | sed -n 's/.* //p' | sort -u")
        self.assertFalse([line for line in cell.stdout.split() if line.startswith("socket") or "memfd" in line], cell.stdout)

    def test_environment(self):
        kernel = self.client.open("bash", env={**(self.env or {}), "GREETING": "hi there"}, dir="/usr")
        cell = self.client.run(kernel, "echo $GREETING; pwd; umask; echo ${HISTFILE-none}; echo ${ENV-none}")
        self.assertEqual(cell.stdout, "hi there\n/usr\n0022\nnone\nnone\n")


class PlainShellCells(ShellCells):
    """The same in dash, where bash is not on PATH."""

    exit_trap_output = ""  # dash undoes a sourced file's redirections before it runs the trap

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bin = tempfile.mkdtemp(prefix="hb")
        for name in ("sh", "sleep", "cat", "head", "tr", "wc", "ls", "sed", "sort", "setsid"):
            os.symlink("/bin/" + name if os.path.exists("/bin/" + name) else "/usr/bin/" + name, os.path.join(cls.bin, name))
        cls.env = {"PATH": cls.bin}

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        shutil.rmtree(cls.bin)

    def test_which_shell(self):
        self.check("echo ${BASH_VERSION-none}", "none\n")


if __name__ == "__main__":
    unittest.main()
