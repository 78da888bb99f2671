r"""This script gives hostile answers to the "math" reward: how long each takes, and whether anything was executed. Then
it runs hostile programs in the sandbox, and lets others try to fake their tests.

python benchmarks/hostile.py [SECONDS]          (the limit, 5)
"""

import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from grpo.config import RewardConfig, RewardPartConfig
from grpo.sandbox.sandbox import Limits, Sandbox
from grpo.tasks.grader_pool import GraderPool

MARK = Path(tempfile.mkdtemp()) / "executed"
CALL = f"__import__('os').system('touch {MARK}')"
HOSTILE = {
    "power tower": "9^{9^{9^{9}}}",
    "power tower, flat": "9^9^9^9",
    "power tower, python": "9**9**9**9",
    "factorial tower": "100!!!!!",
    "factorial of a factorial": "((100!)!)!",
    "1 MB of digits": "9" * 10**6,
    "1 MB of digits with commas": ",".join(["999"] * 250_000),
    "1 MB of nested braces": "{" * 500_000 + "}" * 500_000,
    "20,000 nested \\frac": r"\frac{1}{" * 20_000 + "2" + "}" * 20_000,
    "300 nested \\frac": r"\frac{1}{1+" * 300 + "2" + "}" * 300,
    "20,000 parentheses": "(" * 20_000 + "1" + ")" * 20_000,
    "300 parentheses": "(" * 300 + "1" + ")" * 300,
    "python call": CALL,
    "python call in text": rf"\text{{{CALL}}}",
    "python call as sum": f"1+{CALL}",
    "python call after number": f"5; {CALL}",
    "lambda": "(lambda: [].__class__.__base__.__subclasses__())()",
    "integral": r"\int_0^{10^{100}} \frac{\sin(x^{x})}{x^{100}+1} dx",
    "sum to 10^100": r"\sum_{n=1}^{10^{100}} \frac{1}{n^{n}}",
    "limit": r"\lim_{x\to\infty} \frac{x^{x^{x}}}{\Gamma(x)!}",
    "product": r"\prod_{n=1}^{10^{9}} n!",
    "binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
    "expansion": r"(a+b+c+d+e)^{10^5}",
    "equation system": r"x^{7}-x+\sin(x^{5})=y^{9}+\cos(xy)",
    "log of huge": r"\log_{2}(10^{10^{10}})",
    "huge exponent decimal": "1e999999999",
    "decimal to huge power": r"1.0000001^{10^{10}}",
    "long matrix": r"\begin{pmatrix}" + r"\\".join(["1 & 2 & 3"] * 5000) + r"\end{pmatrix}",
    "long sum": "+".join(["1"] * 20_000),
    "unicode soup": "".join(chr(code) for code in range(0x2000, 0x2FFF) if code not in range(0x2028, 0x202A)),
    "1 MB of spaces": "5" + " " * 10**6 + "5",
    "1 MB of text commands": r"\text{a}" * 125_000,
    "1 MB of letters": "a" * 10**6,
    "100 kB of '-'": "-" * 100_000 + "5",
    "100 kB of '$'": "$" * 100_000 + "5",
    "200 kB of '\\left('": r"\left(" * 33_000 + "5",
}


# A program that reaches what it tries to reach prints IN.
IN = "reached it"
SECRET = "a secret of the parent"
C = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
PROGRAMS = {
    "fork bomb": "import os\nwhile True:\n    if not os.fork(): print(IN)",
    "vfork bomb": C + "libc.vfork() < 0 or print(IN)",
    "clone by number": C + "libc.syscall(56, 17, 0, 0, 0, 0) < 0 or print(IN)",
    "clone3 by number": C + "libc.syscall(435, ctypes.create_string_buffer(88), 88) < 0 or print(IN)",
    "posix_spawn": "import os; os.posix_spawn('/bin/sh', ['sh', '-c', 'echo ' + IN], {})",
    "thread bomb": "import threading, time\nn = 0\nwhile n < 1000:\n"
    "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); n += 1\nprint(IN)",
    "daemon": "import os\nif os.fork() == 0:\n    os.setsid(); os.fork() or print(IN)",
    "environment": f"import os; {SECRET!r} in str(os.environ) and print(IN)",
    "environment by the C library": C + "libc.getenv.restype = ctypes.c_char_p; libc.getenv(b'SECRET') and print(IN)",
    "own memory": f"import gc; [print(IN) for o in gc.get_objects() if isinstance(o, str) and o == {SECRET!r}[::-1]]",
    "environment by /proc": "import glob; [open(f).read() for f in glob.glob('/proc/*/environ')] and print(IN)",
    "mount /proc": C + "os.mkdir('p'); libc.mount(b'p', b'/tmp/p', b'proc', 0, None) or print(IN)",
    "home": "import os; os.path.exists(HOME + '/.bashrc') and print(IN)",
    "project": "import os; os.path.exists(PROJECT + '/pyproject.toml') and print(IN)",
    "passwords": "open('/etc/passwd') and print(IN)",
    "disks": "import os; any(n.startswith(('sd', 'vd', 'nvme')) for n in os.listdir('/dev')) and print(IN)",
    "link out": "import os; os.symlink('/etc', 'e'); open('e/passwd') and print(IN)",
    "hard link": "import os; os.link(os.__file__, 'x') or print(IN)",
    "path out": "open('/tmp/../../../etc/passwd') and print(IN)",
    "chroot trick": "import os; os.mkdir('c'); os.chroot('c'); print(IN)",
    "old root": "import os; os.listdir('/old') and print(IN)",
    "write to root": "open('/x', 'w') and print(IN)",
    "write to Python": "import os; open(os.__file__, 'a') and print(IN)",
    "remount": C + "libc.mount(None, b'/', None, 32 | 4096, None) or print(IN)",
    "new users": C + "libc.unshare(0x10000000) or print(IN)",
    "setuid": "import os; os.setuid(0); print(IN)",
    "make a device": "import os, stat; os.mknod('d', stat.S_IFBLK | 0o600, os.makedev(254, 0)); print(IN)",
    "localhost": "import socket; socket.create_connection(('127.0.0.1', PORT)) and print(IN)",
    "outside": "import socket; socket.create_connection(('1.1.1.1', 53), 2) and print(IN)",
    "abstract socket": "import socket; socket.socket(1).connect('\\0grpo-hostile'); print(IN)",
    "host of the machine": "import socket; socket.socket(40, 1).connect((2, 1)); print(IN)",
    "raw socket by number": C + "libc.syscall(41, 17, 3, 0) < 0 or print(IN)",
    "signal to the parent": "import os; os.kill(PARENT, 9); print(IN)",
    "signals to all": "import os; os.kill(-1, 9); print(IN)",
    "signals to the first process": "import os; [os.kill(1, n) for n in range(1, 65) if n not in (32, 33)]",
    "trace": C + "libc.ptrace(16, 1, 0, 0) < 0 or print(IN)",
    "another's memory": C + "libc.process_vm_readv(1, ctypes.create_string_buffer(16), 1, "
    "ctypes.create_string_buffer(16), 1, 0) < 0 or print(IN)",
    "keys of the session": C + "libc.syscall(250, 0, -3, 0) < 0 or print(IN)",
    "shared memory": C + "libc.shmget(0, 2**30, 0o1600) < 0 or print(IN)",
    "unnamed file": "import os; os.memfd_create('x'); print(IN)",
    "fill the disk": "f = open('x', 'wb')\nfor _ in range(200): f.write(bytes(10**6))\nprint(IN)",
    "many files": "for n in range(10**5): open(f'{n}', 'w').close()\nprint(IN)",
    "memory bomb": "x = [bytearray(10**8) for _ in range(20)]; print(IN)",
    "memory bomb by threads": "from threading import Thread\nx = []\n"
    "ts = [Thread(target=lambda: x.append(bytearray(10**8))) for _ in range(20)]\n"
    "[t.start() for t in ts]; [t.join() for t in ts]\nlen(x) == 20 and print(IN)",
    "limits of the first process": "import resource as r; r.prlimit(1, r.RLIMIT_CPU, (0, 0))\nwhile True: pass",
    "no limits": "import resource\nfor n in range(16):\n    try: resource.setrlimit(n, (-1, -1))\n"
    "    except (OSError, ValueError): pass\nx = bytearray(2 * 10**9); print(IN)",
    "endless output": "while True: print('x' * 10**5)",
    "endless errors": "import sys\nwhile True: sys.stderr.write('x' * 10**5)",
    "endless loop": "while True: pass",
    "endless loop in C": "9 ** 9 ** 9 ** 9",
    "sleeps with closed streams": "import os, time; os.closerange(0, 99); time.sleep(10**6)",
    "ignores signals": "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except OSError: pass\nwhile True: pass",
    "deep recursion": "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "crash": C + "libc.strlen(1)",
    "writes answers": "import os\nfor n in range(2, 64):\n    try: "
    'os.write(n, b\'{"out": "reached it", "error_out": "", "ended": ""}\\n\')\n    except OSError: pass',
}
TESTS = "assert f(1) == 2\nassert f(2) == 3\nassert f([5]) == [6]"
FAKES = {
    "exit": "import sys; sys.exit(0)",
    "exit in a function": "def f(x): raise SystemExit(0)",
    "exit at once": "import os\ndef f(x): os._exit(0)",
    "equal to all": "class A:\n    __eq__ = lambda *_: True\n    __ne__ = lambda *_: False\ndef f(x): return A()",
    "a number that is equal to all": "class A(int):\n    __eq__ = lambda *_: True\ndef f(x): return A(7)",
    "a list that is equal to all": "class A(list):\n    __eq__ = lambda *_: True\ndef f(x): return A([7])",
    "patched builtins": "import builtins\nfor n in dir(builtins): setattr(builtins, n, lambda *a, **k: True)\n"
    "def f(x): return 7",
    "prints that it passed": "def f(x):\n    print('passed', flush=True); return 7",
    "reports by every descriptor": "import os\ndef f(x):\n    for n in range(64):\n        try: "
    'os.write(n, b\'{"error": "", "unreadable": false}\\n\')\n        except OSError: pass\n    return 7',
    "answers before it is asked": "import os\ndef f(x): return 7\nfor n in range(3, 64):\n    try: "
    'os.write(n, b\'["value", ["list", []]]\\n\' * 9)\n    except OSError: pass',
    "looks for the tests": "import gc\ndef f(x):\n    found = [o for o in gc.get_objects() if 'assert f(' in str(o)]\n"
    "    return {1: 2, 2: 3}.get(str(x), [6]) if found else 7",
    "looks up the stack": "import sys\ndef f(x):\n    g = sys._getframe()\n    while g:\n"
    "        if 'assert f(' in str(g.f_locals): return {1: 2, 2: 3}.get(str(x), [6])\n"
    "        g = g.f_back\n    return 7",
    "kills the tests": "import os\ndef f(x): os.kill(-1, 9)",
    "interrupts the tests": "import os\ndef f(x):\n    for p in {2, 3, 4} - {os.getpid()}:\n"
    "        try: os.kill(p, 2)\n        except OSError: pass\n    return 7",
    "raises what tests may catch": "def f(x): raise AssertionError",
    "changes the arguments": "def f(x):\n    if isinstance(x, list): x[:] = [6]\n    return 7",
    "endless": "def f(x):\n    while True: pass",
    "endless answer": "def f(x): return 'x' * 10**9",
    "deep answer": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
}


def main(seconds: str = "5") -> None:
    limit = float(seconds)
    of_answers(limit)
    of_programs(limit)
    of_fakes(limit)


def of_programs(limit: float) -> None:
    table = Table("program", "ended", "its last line", "seconds", title=f"programs, limit {limit:g} s, 1 GiB")
    os.environ["SECRET"] = SECRET
    port, abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    abstract.bind("\0grpo-hostile")
    abstract.listen()
    names = {"IN": IN, "PORT": port.getsockname()[1], "PARENT": os.getpid(), "HOME": str(Path.home())}
    given = "\n".join(f"{name} = {value!r}" for name, value in (names | {"PROJECT": os.getcwd()}).items())
    most, reached, over = [0], [], threading.Event()
    threading.Thread(target=_watch_memory, args=(most, over), daemon=True).start()
    for name, program in PROGRAMS.items():
        start = time.monotonic()
        with Sandbox(Limits(limit, 1.0, 1000)) as sandbox:
            run = sandbox.run(f"{given}\n{program}")
        lines = (run.error_out or run.out).strip().splitlines()
        table.add_row(name, run.ended, lines[-1][:60] if lines else "", f"{time.monotonic() - start:.2f}")
        reached += [name] if IN in run.out else []
    over.set()
    Console().print(table)
    time.sleep(0.5)
    left = [child.pid for child in psutil.Process().children(recursive=True)]
    print(f"{len(reached)} of {len(PROGRAMS)} reached what they tried {reached}; left behind: {left}")
    print(f"memory of all processes of a sandbox at most {most[0] / 2**30:.2f} GiB")


def _watch_memory(most: list[int], over: threading.Event) -> None:
    while not over.wait(0.05):
        total = 0
        for child in psutil.Process().children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        most[0] = max(most[0], total)


def of_fakes(limit: float) -> None:
    table = Table("program", "what the tests say", "seconds", title="programs that fake their tests")
    passed = []
    for name, program in FAKES.items():
        start = time.monotonic()
        with Sandbox(Limits(limit, 1.0, 1000)) as sandbox:
            error = sandbox.test(program, TESTS)
        table.add_row(name, error[:60], f"{time.monotonic() - start:.2f}")
        passed += [] if error else [name]
    Console().print(table)
    print(f"{len(passed)} of {len(FAKES)} passed {passed}")


def of_answers(limit: float) -> None:
    table = Table("answer", "outcome", "seconds", title=f"limit {limit:g} s")
    reward = RewardConfig(parts=[RewardPartConfig(name="math")], timeout_seconds=limit)
    with GraderPool(reward) as pool:
        for name, form in HOSTILE.items():
            pool.grade([(r"\boxed{5}", "5", {})])  # a worker that was killed has been replaced: not counted
            start = time.monotonic()
            (grade,) = pool.grade([(f"So \\boxed{{{form}}}.", "5", {})])
            table.add_row(name, grade.outcome, f"{time.monotonic() - start:.2f}")
    Console().print(table)
    print("executed:", MARK.exists())


if __name__ == "__main__":
    main(*sys.argv[1:])
