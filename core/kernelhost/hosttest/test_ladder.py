"""Time limits, interrupts, and what is left of a kernel and its processes afterwards."""
import os
import signal
import time
import unittest

from client import SOON, HostProcess, wait_for


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Ladder(unittest.TestCase):
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

    def test_timeout_keeps_state(self):  # case 9
        self.client.run(self.kernel, "x = 5")
        cell = self.client.run(self.kernel, "import time; print('so far', flush=True); time.sleep(60)", timeout=0.5)
        self.assertEqual((cell.end["outcome"], cell.end["kernel_alive"], cell.end["lost"], cell.stdout), ("timeout", True, "", "so far\n"))
        self.assertEqual(cell.end["error"]["type"], "KeyboardInterrupt")
        self.assertTrue(500 <= cell.end["ms"] < 2500, cell.end["ms"])
        self.assertEqual(self.client.run(self.kernel, "x").end["value"], "5")

    def check_killed(self, code, outcome="timeout", lost="timeout", **options):
        cell = self.client.run(self.kernel, code, **{"timeout": 0.2, **options})
        got = cell.end["outcome"], cell.end["kernel_alive"], cell.end["lost"], cell.end["signal"]
        self.assertEqual(got, (outcome, False, lost, "SIGKILL"))
        self.assertLess(cell.end["ms"], 1000 * SOON)

    def test_busy_loop_is_interrupted(self):  # case 10
        end = self.client.run(self.kernel, "while True: pass", timeout=0.2).end
        self.assertEqual((end["outcome"], end["kernel_alive"]), ("timeout", True))

    def test_swallowed_interrupt(self):  # case 10
        self.check_killed("import time\nwhile True:\n  try: time.sleep(60)\n  except KeyboardInterrupt: pass")

    def test_own_handler(self):
        self.check_killed("import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)")

    def test_stopped_kernel(self):
        self.check_killed("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")

    def test_str_that_hangs(self):
        code = "import time\nclass E(Exception):\n  def __str__(self): time.sleep(60)\nraise E"
        end = self.client.run(self.kernel, code, timeout=0.2).end
        self.assertEqual((end["outcome"], end["kernel_alive"]), ("timeout", True))

    def test_interrupt_and_cancel(self):
        for ask in (lambda cell: self.client.request("interrupt", kernel=self.kernel), lambda cell: self.client.request("cancel", cell=cell)):
            ch = self.client.submit(self.kernel, "import time; print('on', flush=True); time.sleep(60)")
            self.client.wait_output(ch, "on")
            self.assertEqual(ask(self.client.cells[ch].id)["state"], "running")
            self.assertEqual(self.client.wait(ch).end["outcome"], "interrupted")
        self.assertEqual(self.client.request("interrupt", kernel=self.kernel)["state"], "idle")
        self.assertEqual(self.client.run(self.kernel, "import time; time.sleep(0.05); 1").end["value"], "1")

    def test_interrupt_that_comes_late_hits_no_other_cell(self):
        for _ in range(30):
            cells = [self.client.submit(self.kernel, "1") for _ in range(3)]
            self.client.request("interrupt", kernel=self.kernel)
            for ch in cells[1:]:
                self.assertEqual(self.client.wait(ch).end["outcome"] in ("ok", "interrupted"), True)
            self.assertEqual(self.client.run(self.kernel, "2").end["value"], "2")

    def test_cancel_queued(self):
        first = self.client.submit(self.kernel, "import time; print('on', flush=True); time.sleep(60)")
        second = self.client.submit(self.kernel, "1")
        self.client.wait_output(first, "on")
        self.assertEqual(self.client.request("cancel", cell=self.client.cells[second].id)["state"], "queued")
        end = self.client.wait(second).end
        self.assertEqual((end["outcome"], end["reason"]), ("refused", "cancelled"))
        self.client.request("interrupt", kernel=self.kernel)
        self.client.wait(first)

    def test_timeout_of_a_queued_cell_counts_from_its_start(self):
        first = self.client.submit(self.kernel, "import time; time.sleep(3)")
        second = self.client.submit(self.kernel, "import time; time.sleep(0.2); 'done'", timeout=2)
        self.assertEqual(self.client.wait(second).end["value"], "'done'")
        self.assertGreaterEqual(self.client.cells[second].end["queued_ms"], 2000)
        self.assertEqual(self.client.cells[first].end["outcome"], "ok")

    def test_child_is_interrupted_too(self):
        end = self.client.run(self.kernel, "import subprocess; subprocess.run(['sleep', '60'])", timeout=0.2).end
        self.assertEqual((end["outcome"], end["kernel_alive"]), ("timeout", True))

    SPAWN = (  # children in each way that code can leave them behind; their pids are the value
        "import os, subprocess, sys\npids = [subprocess.Popen(['sleep', '300']).pid]\n"
        "pids.append(subprocess.Popen(['sleep', '301'], start_new_session=True).pid)\n"
        "pids.append(int(subprocess.run('setsid sleep 302 >/dev/null 2>&1 & echo $!', shell=True, stdout=subprocess.PIPE).stdout))\n"
        "daemon = 'import os, sys, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\nprint(os.getpid(), flush=True); os.close(1); time.sleep(303)'\n"
        "pids.append(int(subprocess.run([sys.executable, '-c', daemon], stdout=subprocess.PIPE).stdout))\n"
    )

    def spawn(self):
        pids = eval(self.client.run(self.kernel, self.SPAWN + "pids").end["value"])
        self.assertTrue(all(alive(pid) for pid in pids), pids)
        return pids

    def test_kill_ends_the_tree(self):  # case 11
        pids = self.spawn()
        ch = self.client.submit(self.kernel, "import time; print('on', flush=True); time.sleep(60)")
        queued = self.client.submit(self.kernel, "1")
        self.client.wait_output(ch, "on")
        self.assertEqual(self.client.request("kill", kernel=self.kernel)["t"], "ok")
        self.assertFalse([pid for pid in pids if alive(pid)])
        end = self.client.wait(ch).end
        self.assertEqual((end["outcome"], end["reason"], end["kernel_alive"]), ("lost", "killed", False))
        end = self.client.wait(queued).end
        self.assertEqual((end["outcome"], end["reason"]), ("refused", "killed"))
        self.assertEqual(self.client.request("kill", kernel=self.kernel)["code"], "not_found")

    def test_death_ends_the_tree_before_the_end(self):  # case 6
        pids = self.spawn()
        ch = self.client.submit(self.kernel, "import time; print('on', flush=True); time.sleep(60)")
        self.client.wait_output(ch, "on")
        pid = self.client.request("list")["kernels"]
        pid = next(kernel["pid"] for kernel in pid if kernel["kernel"] == self.kernel)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        end = self.client.wait(ch).end
        self.assertEqual((end["outcome"], end["signal"], end["lost"]), ("lost", "SIGKILL", "died"))
        self.assertLess(time.monotonic() - killed, SOON)
        self.assertFalse([pid for pid in pids if alive(pid)])

    def test_background_process_does_not_hold_the_cell(self):  # case 11
        end = self.client.run(self.kernel, "import os, subprocess; p = subprocess.Popen(['sleep', '300']); r = os.system('setsid sleep 300 &')").end
        self.assertLess(end["ms"], 1000 * SOON)
        self.client.request("kill", kernel=self.kernel)

    def test_death_of_an_idle_kernel_is_an_event(self):
        self.client.run(self.kernel, "import os, threading; threading.Timer(0.1, os.kill, (os.getpid(), 9)).start()")
        while not self.client.events:
            self.client.step()
        event = self.client.events[0]
        self.assertEqual((event["kernel"], event["kind"], event["signal"]), (self.kernel, "exit", "SIGKILL"))

    def test_shutdown_leaves_nothing(self):
        host = HostProcess()
        client = host.client()
        kernel = client.open()
        pids = eval(client.run(kernel, self.SPAWN + "pids").end["value"])
        running = client.submit(kernel, "import time; time.sleep(60)")
        self.assertEqual(client.request("shutdown")["t"], "ok")
        self.assertEqual(client.wait(running).end["reason"], "closed")
        self.assertFalse(os.path.exists(host.ready["dir"]))
        self.assertFalse([pid for pid in pids if alive(pid)])
        wait_for(lambda: not host.home.processes(), "the host's processes to end")
        host.home.remove()

    def leftovers(self, victim, sig):
        """Kills one of the host's processes while kernels are busy, and waits until all of them are gone."""
        host = HostProcess()
        client = host.client()
        kernel = client.open()
        client.run(kernel, self.SPAWN)
        busy = client.open()
        ch = client.submit(busy, "print('on', flush=True)\nwhile True: pass")
        client.wait_output(ch, "on")
        shell = client.open("bash")
        client.submit(shell, "sleep 300 & sleep 301")
        nursery = next(int(pid) for pid in open("/proc/%d/task/%d/children" % (host.ready["pid"], host.ready["pid"])).read().split())
        first = next(listed["pid"] for listed in client.request("list")["kernels"] if listed["kernel"] == kernel)
        os.kill(first, signal.SIGSTOP)  # it cannot end by itself, so somebody must
        os.kill({"host": host.ready["pid"], "nursery": nursery}[victim], sig)
        wait_for(lambda: not host.home.processes(), "every process to end after the %s was killed" % victim, SOON)
        return host, client, ch

    def test_host_is_killed(self):
        host, client, _ = self.leftovers("host", signal.SIGKILL)
        wait_for(lambda: not os.path.exists(host.ready["dir"]), "the nursery to remove the dead host's directory")
        host.home.remove()

    def test_nursery_is_killed(self):
        host, client, ch = self.leftovers("nursery", signal.SIGKILL)
        self.assertEqual(client.wait(ch).end["outcome"], "lost")
        self.assertFalse(os.path.exists(host.ready["dir"]))
        host.home.remove()

    def test_sigterm(self):
        host, client, ch = self.leftovers("host", signal.SIGTERM)
        self.assertEqual((client.wait(ch).end["outcome"], client.cells[ch].end["reason"]), ("lost", "closed"))
        self.assertFalse(os.path.exists(host.ready["dir"]))
        host.home.remove()

    def test_kernel_dies_with_its_host_by_itself(self):
        """The lifeline alone ends a busy kernel when host and nursery die at the same moment."""
        host = HostProcess()
        client = host.client()
        ch = client.submit(client.open(), "import signal; print('on', flush=True)\nwhile True: pass")
        client.wait_output(ch, "on")
        nursery = int(open("/proc/%d/task/%d/children" % (host.ready["pid"], host.ready["pid"])).read().split()[0])
        os.kill(nursery, signal.SIGSTOP)
        os.kill(host.ready["pid"], signal.SIGKILL)
        wait_for(lambda: all(pid == nursery or not alive(pid) for pid in host.home.processes()), "the kernel to end")
        os.kill(nursery, signal.SIGCONT)
        wait_for(lambda: not host.home.processes(), "the nursery to end")
        host.home.remove()


if __name__ == "__main__":
    unittest.main()
