"""These tests run hostile programs in a sandbox."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from grpo.sandbox import sandbox as sandbox_module
from grpo.sandbox.sandbox import Limits, Run, Sandbox, UnreadableTests, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
CTYPES = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture(scope="module")
def sandbox():
    os.environ["MY_SECRET"] = "s3cr3t"
    with Sandbox(Limits(300.0, 1.0, 3000)) as sandbox:
        yield sandbox
    del os.environ["MY_SECRET"]


@pytest.mark.parametrize(
    ("program", "out"),
    [
        ("6 * 7", "42\n"),
        ("print('a')\nNone", "a\n"),
        ("import threading; threading.Thread(target=lambda: print('late')).start()", "late\n"),
        ("import dataclasses\n@dataclasses.dataclass\nclass A:\n    a: int\nA(1)", "A(a=1)\n"),
        ("import numpy; int(numpy.arange(4).sum())", "6\n"),
        ("len(str(10**5000))", "5001\n"),
        ("__name__", "'__main__'\n"),
    ],
)
def test_a_program_runs_as_python_runs_it(sandbox, program, out):
    assert sandbox.run(program, last_value=True) == Run(out, "", "")


def test_packages_may_be_installed_below_the_folder_that_is_a_program_s_scratch(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("VALUE = 7")
    tmp_path.chmod(0o755)
    packages = sandbox_module._packages()
    monkeypatch.setattr(sandbox_module, "_packages", lambda: [*packages, str(tmp_path)])
    assert str(tmp_path).startswith("/tmp/")
    with Sandbox(Limits(10.0, 1.0, 3000)) as sandbox:
        run = sandbox.run("import mine, os\nopen('/tmp/a', 'w')\nprint(mine.VALUE, sorted(os.listdir('/tmp')))")
        # The checkout and its environment may lie below /tmp too.
        shown = {"a", *(Path(path).parts[2] for path in (*packages, tmp_path) if str(path).startswith("/tmp/"))}
        assert run == Run(f"7 {sorted(shown)}\n", "", "")
        assert "Read-only" in sandbox.run(f"open('{tmp_path}/mine.py', 'w')").error_out


def test_a_program_reads_its_input(sandbox):
    assert sandbox.run("print(sum(map(int, input().split())))", "3 4\n") == Run("7\n", "", "")


def test_an_error_shows_the_lines_of_the_program_alone(sandbox):
    run = sandbox.run("def f():\n    return 1 / 0\nf()")
    assert run.ended == "1"
    assert run.error_out.splitlines()[1:3] == ['  File "<program>", line 3, in <module>', "    f()"]
    assert "program.py" not in run.error_out


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import os; os.fork()", "PermissionError"),
        ("import subprocess; subprocess.run(['/bin/true'])", "PermissionError"),
        ("import time; from threading import Thread\n"
         "for _ in range(99): Thread(target=time.sleep, args=(9,), daemon=True).start()", "can't start new thread"),
        ("import socket; socket.create_connection(('127.0.0.1', 22))", "PermissionError"),
        ("import socket; socket.socket(socket.AF_UNIX).connect('\\0agent')", "PermissionError"),
        ("import socket; socket.socket(socket.AF_VSOCK)", "PermissionError"),
        ("import os; os.kill(CALLER, 9)", "ProcessLookupError"),
        (f"open({__file__!r})", "FileNotFoundError"),
        (f"import os; os.symlink({__file__!r}, 'link'); open('link')", "FileNotFoundError"),
        ("import os; os.listdir('/proc/self')", "FileNotFoundError"),
        ("open('/new', 'w')", "Read-only file system"),
        ("import os; open(os.__file__, 'a')", "Error: [Errno"),
        ("import os; f = open('full', 'wb'); os.unlink('full')\nwhile True: f.write(bytes(10**6))", "OSError"),
        ("bytearray(2 * 10**9)", "MemoryError"),
        ("import os; os.memfd_create('x')", "PermissionError"),
        ("import os; os.setuid(0)", "PermissionError"),
        ("import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "not allowed to raise maximum limit"),
    ],
)  # fmt: skip
def test_a_program_cannot_leave_its_sandbox(sandbox, program, error):
    run = sandbox.run(program.replace("CALLER", str(os.getpid())))
    assert run.ended == "1" and error in run.error_out


@pytest.mark.parametrize(
    "call",
    [
        *("unshare(0x10000000)", "ptrace(16, 1, 0, 0)", "shmget(0, 4096, 0o1600)"),
        *(
            "vfork()",
            "syscall(430, b'tmpfs', 0)",
            "mount(b'x', b'/tmp', b'tmpfs', 0, 0)",
            "syscall(250, 0, -3, 1)",
            "syscall(425, 8, 0)",
            "prlimit64(libc.getppid(), 9, None, None)",
        ),
    ],
)
def test_the_kernel_refuses_other_ways_out(sandbox, call):
    assert sandbox.run(f"{CTYPES}print(libc.{call}, ctypes.get_errno())").out == "-1 1\n"


def test_a_program_has_no_capabilities(sandbox):
    header = "import struct; header = struct.pack('II', 0x20080522, 0)\nsets = ctypes.create_string_buffer(24)\n"
    run = sandbox.run(f"{CTYPES}{header}libc.capget(header, sets), sets.raw == bytes(24)", last_value=True)
    assert run.out == "(0, True)\n"


def test_secrets_of_the_environment_are_not_there(sandbox):
    program = f"{CTYPES}libc.getenv.restype = ctypes.c_char_p\nimport os\nlibc.getenv(b'MY_SECRET'), *os.environ"
    assert sandbox.run(program, last_value=True).out == (
        "(None, 'HOME', 'PATH', 'LANG', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS')\n"
    )


def test_a_program_finds_no_other_process_to_end(sandbox):
    """The first process inside has no handlers, so the kernel keeps such signals from it."""
    program = "import os\nfor number in (2, 9, 15, 19): os.kill(1, number)\nprint(os.getppid())\nos.kill(-1, 9)"
    run = sandbox.run(program)
    assert run.out == "1\n" and "No such process" in run.error_out
    assert sandbox.run("1", last_value=True).out == "1\n"


def test_a_program_that_writes_too_much_is_stopped(sandbox):
    run = sandbox.run("while True: print('x' * 1000)")
    assert (run.ended, run.out) == ("output", ("x" * 1000 + "\n")[:1001] * 2 + "x" * 998)


@pytest.mark.parametrize("program", ["while True: pass", "import os, time; os.close(1); os.close(2); time.sleep(99)"])
def test_a_program_that_does_not_end_is_stopped(program):
    with Sandbox(Limits(1.0, 1.0, 100)) as sandbox:
        assert sandbox.run(program).ended == "seconds"
        # The limit is that of all programs together.
        assert sandbox.run("1").ended == "seconds"


TESTS = "assert f(1) == 2\nassert f(2) == 3"


CASE = "import unittest\nclass Sums(unittest.TestCase):\n    def test_one(self): self.assertEqual(f(1), 2)\n"
FORMS = [
    CASE,
    f"{CASE}unittest.main()",
    f"{CASE}if __name__ == '__main__': unittest.main()",
    "class TestSums:\n    def setup_method(self): self.one = 1\n    def test_one(self): assert f(self.one) == 2",
    "class TestA:\n    def setup_method(self, method): self.one = 1\n    def test_one(self): assert f(self.one) == 2",
    CASE.replace("(1)", "(self.one)") + "    @classmethod\n    def setUpClass(cls): cls.one = 1",
    "async def test_one(): assert f(1) == 2",
    "if True:\n    def test_one(): assert f(1) == 2",
    "from solution import f as candidate\nassert candidate(1) == 2",
    "def test_one():\n    from solution import f\n    assert f(1) == 2",
    "try:\n    from solution import f\nexcept ImportError: pass\nassert f(1) == 2",
    "import solution\nassert solution.f(1) == 2",
    "from solution import *\nassert f(1) == 2",
    "for x in (1, 2):\n    if f(x) != x + 1: raise AssertionError",
]
"""These tests of f(x) = x + 1 are written in forms of several sets."""


@pytest.mark.parametrize("tests", FORMS)
def test_a_wrong_program_fails_tests_of_every_form(tests):
    with Sandbox(Limits(60.0, 1.0, 1000)) as sandbox:
        assert sandbox.test("def f(x): return 0", tests).startswith("AssertionError")


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("def check(candidate):\n    assert candidate(1) == 2", "nothing in them is run"),
        ("x = 1", "nothing in them is run"),
        (CASE.replace("    def", "    @unittest.skip('later')\n    def"), "nothing in them is run"),
        ("from . import f\ndef test_one(): assert f(1) == 2", "they import ., which is not installed"),
        ("def test_one(): assert f(1) == 2\ndef test_two(two): assert f(1) == two", "test_two needs arguments"),
        ("def test_one(two): assert f(1) == two", "test_one needs arguments, which nothing gives it"),
        ("import nosuchpackage\nassert f(1) == 2", "they import nosuchpackage, which is not installed"),
        ("from main import f\nassert f(1) == 2", "they import main, which is not installed"),
        ("from unittest.mock import patch\nwith patch('os.getpid'): assert f(1) == 2", "they use patch"),
        ("import io, sys\nsys.stdout = io.StringIO()\nf(1)\nassert not sys.stdout.getvalue()", "they use sys.stdout"),
    ],
)
def test_tests_that_judge_nothing_are_not_passed(tests, reason):
    for program in ("def f(x): return x + 1", "def f(x): return 0"):
        with Sandbox(Limits(60.0, 1.0, 1000)) as sandbox, pytest.raises(UnreadableTests, match=reason):
            sandbox.test(program, tests)


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return x + 1", TESTS),
        ("def f(x): return x + 1", f"def check(candidate):\n    {TESTS.splitlines()[0]}\ncheck(f)"),
        ("def f(x): return x + 1", "from solution import f\ndef test_one():\n    assert f(1) == 2"),
        ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
        ("def order(values): values.sort()", "a = [3, 1, 2]\norder(a)\nassert a == [1, 2, 3]"),
        ("def each(f, values): return [*map(f, values)]", "assert each(lambda v: v * 2, [1, 2]) == [2, 4]"),
        ("def f(): raise ValueError('no')", "try:\n    f()\nexcept ValueError as e:\n    assert str(e) == 'no'"),
        ("def f(): yield from (1, 2)", "assert list(f()) == [1, 2]"),
        ("def f(): return 1, {2: [3]}, {4}, b'5', 6j, None, float('inf')",
         "assert f() == (1, {2: [3]}, {4}, b'5', 6j, None, float('inf'))"),
        ("class Node:\n    def __init__(self, value): self.value, self.next = value, None\n"
         "def length(node): return 1 + (length(node.next) if node.next else 0)",
         "root = Node(1)\nroot.next = Node(2)\nassert root.next.value == 2 and length(root) == 2"),
        ("def f(): return 0.5", "assert math.isclose(f(), 0.5)"),
        ("class Node:\n    def __init__(self): self.next = None\ndef f(): return Node()",
         "node = f()\nassert node and not node.next\nwhile node:\n    node = node.next"),
        ("class Empty:\n    def __len__(self): return 0\ndef f(): return Empty()", "assert not f()"),
        ("from fractions import Fraction\ndef f(): return Fraction(1, 2)", "assert f() == 0.5 == 1 / f().denominator"),
        ("from decimal import Decimal\ndef f(x): return x + Decimal('.1')",
         "from decimal import Decimal\nassert str(f(Decimal('1.40'))) == '1.50'"),
        ("from datetime import *\ndef f(day): return day + timedelta(1), datetime(2024, 2, 28, tzinfo=timezone.utc)",
         "from datetime import *\nday, moment = f(date(2024, 2, 28))\nassert day == date(2024, 2, 29)\n"
         "assert moment.isoformat() == '2024-02-28T00:00:00+00:00'"),
        ("import numpy as np\ndef f(n): return np.zeros((n, 0, 2), np.int8)",
         "import numpy as np\nassert f(3).shape == (3, 0, 2) and f(1).dtype == np.int8 and type(f(1)) is np.ndarray"),
        ("def f(a):\n    a[0] = 9\n    return float(a.mean())",
         "import numpy as np\na = np.array([1.0, 2.0, 3.0])\nassert f(a) == 14 / 3 and a[0] == 9"),
        ("import numpy as np\ndef f(): return np.array([1, 2])", "assert f() == [1, 2]"),
        ("def patch(x): return x + 1", "from unittest.mock import patch as unused\nassert patch(1) == 2"),
        ("def f(): return range(1, 9, 3)", "assert f() == range(1, 9, 3)"),
        ("def f(queue):\n    queue.popleft()\n    return queue",
         "from collections import deque\nqueue = deque([1, 2])\nassert f(queue) == queue == deque([2])"),
        ("from collections import namedtuple\ndef f(): return namedtuple('Point', 'x y')(1, 2)",
         "assert f() == (1, 2) and f().y == 2"),
        ("def f():\n    n = 0\n    while True:\n        n += 1\n        yield n",
         "from itertools import islice\nassert list(islice(f(), 3)) == [1, 2, 3]"),
        ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, other): return V(self.x + other.x)\n"
         "    def __repr__(self): return f'V({self.x})'",
         "assert (V(1) + V(2)).x == 3 and repr(V(1)) == 'V(1)'"),
        *(("def f(x): return x + 1", tests) for tests in FORMS),
        ("class Odd(ValueError): pass\ndef f(): raise Odd('no')",
         "try:\n    f()\nexcept ValueError as e:\n    assert str(e) == 'no'"),
    ],
)  # fmt: skip
def test_a_right_program_passes(program, tests):
    with Sandbox(Limits(60.0, 1.0, 1000)) as sandbox:
        assert sandbox.test(program, tests) == ""


@pytest.mark.parametrize(
    "program",
    [
        "def f(x): return x",
        "print('ok')\nimport sys; sys.exit(0)\ndef f(x): return x + 1",
        "import os; os._exit(0)",
        "import os\ndef f(x): os._exit(0)",
        "def f(x): raise SystemExit(0)",
        "class Any:\n    __eq__ = lambda *_: True\ndef f(x): return Any()",
        "class Any(int):\n    __eq__ = lambda *_: True\ndef f(x): return Any(7)",
        "import builtins\nbuiltins.AssertionError = int\ndef f(x): return 7",
        # It writes to every descriptor as the process of the tests would.
        "import os\ndef f(x):\n    for n in range(64):\n        try:\n"
        "            os.write(n, b'{\"error\": \"\", \"unreadable\": false}\\n')\n"
        "        except OSError: pass\n    return 7",
        # It looks for what the tests compare with.
        "import gc\ndef f(x):\n    found = [o for o in gc.get_objects() if isinstance(o, str) and 'assert f(' in o]\n"
        "    return 2 if found else 7",
        "import os\ndef f(x):\n    os.kill(-1, 9)",
        # These pass for values of Python's own, and are made of what no such value is made of.
        "class Fraction:\n    __reduce_ex__ = lambda *_: (0, (7, 0))\nFraction.__module__ = 'fractions'\n"
        "def f(x): return Fraction()",
        "class ndarray:\n    ndim, shape = 1, (1,)\n    class dtype:\n        kind, str = 'i', 'O'\n"
        "    tolist = lambda _: [7]\n    __eq__ = lambda *_: True\ndef f(x): return ndarray()",
        "class date:\n    __eq__ = lambda *_: True\ndate.__module__ = 'datetime'\ndef f(x): return date()",
        "class pair(tuple):\n    _fields = ('1; import os',)\ndef f(x): return pair((2,))",
    ],
)  # fmt: skip
def test_a_program_cannot_fake_its_tests(program):
    with Sandbox(Limits(60.0, 1.0, 1000)) as sandbox:
        assert sandbox.test(program, TESTS) != ""


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def set(x): return 0\ndef f(x): return 7", "assert set(f([1])) == set([2])"),
        ("def all(found): return True", "assert all(f(x) == x + 1 for x in (1, 2))"),
        ("class math: isclose = lambda *_: True\ndef f(): return 7", "assert math.isclose(f(), 0.5)"),
        ("class Zero:\n    __sub__ = lambda *_: 0.0\ndef f(x): return Zero()", "assert abs(f(3) - 7) < 1e-6"),
        ("def f(x): return x.clear() or 7", "a = [1]\nf(a)\nassert a"),
        ("def f(g): return g.__globals__", "def g(): return 1\nassert f(g)"),
    ],
)
def test_a_program_cannot_change_what_tests_use(program, tests):
    with Sandbox(Limits(60.0, 1.0, 1000)) as sandbox:
        assert sandbox.test(program, tests) != ""


def test_tests_that_are_no_python_are_not_the_fault_of_the_program():
    with Sandbox(Limits(60.0, 1.0, 1000)) as sandbox, pytest.raises(UnreadableTests, match="never closed"):
        sandbox.test("def f(x): return x", "assert f(")


def test_a_user_whose_new_files_nobody_else_may_read_has_a_sandbox_too():
    before = os.umask(0o077)
    try:
        with Sandbox(Limits(60.0, 1.0, 1000)) as sandbox:
            assert sandbox.run("import decimal; print(decimal.Decimal(42))").out == "42\n"
    finally:
        os.umask(before)


def test_without_walls_a_program_has_its_limits_all_the_same():
    with Sandbox(Limits(60.0, 1.0, 1000), closed=False) as sandbox:
        assert sandbox.run(f"print(open({__file__!r}).read()[3:8])").out == "These\n"
        assert "PermissionError" in sandbox.run("import os; os.fork()").error_out
        assert sandbox.run("import os; dict(os.environ).get('PYTHONPATH')", last_value=True).out == ""


def test_a_sandbox_ends_with_its_caller():
    """The caller is killed while a program runs."""
    program = (
        "from grpo.sandbox.sandbox import *\nsandbox = Sandbox(Limits(300.0, 1.0, 100))\n"
        "print('ready', flush=True)\nsandbox.run('while True: pass')"
    )
    caller = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert caller.stdout.readline() == "ready\n"
    inside = psutil.Process(caller.pid).children(recursive=True)
    caller.kill()
    caller.communicate()
    assert inside and psutil.wait_procs(inside, timeout=30)[1] == []


@pytest.mark.skipif(not shutil.which("unshare"), reason="this machine lacks unshare")
def test_a_machine_without_namespaces_is_refused_in_one_line():
    """Inside a namespace that may have no further ones, the kernel refuses them."""
    program = "from grpo.sandbox.sandbox import *\nrequire_sandbox('the tool python', 'task.limits.sandbox', True)"
    inside = f'echo 0 > /proc/sys/user/max_user_namespaces; exec {sys.executable} -c "{program}"'
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", inside],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    line = done.stderr.strip().splitlines()[-1]
    assert "UserError: the tool python runs what the model writes, and this machine has no sandbox for it (" in line
    assert "task.limits.sandbox=none runs it with your own rights, and the model may then read your files" in line
