"""This episode is struck as its problem says."""

import asyncio
import mmap
import os
import resource
import signal
import subprocess
import time


async def struck(chat, problem):
    """Asks once, and is then struck as the problem's answer says."""
    await chat(list(problem.messages))
    word = problem.answer
    if word == "orphan":
        subprocess.run(["sh", "-c", "setsid sleep 611 >&- 2>&- &"])
        word = "mother"
    if word in ("itself", "group", "mother"):
        os.kill({"itself": os.getpid(), "group": -os.getpgid(0), "mother": os.getppid()}[word], signal.SIGKILL)
        time.sleep(60)
    if word == "memory":
        bytearray(2**40)
    if word == "reserves":
        mmap.mmap(-1, 2**36, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
    if word == "limits":
        return {"reward": 1.0, "gib": resource.getrlimit(resource.RLIMIT_DATA)[1] / 2**30}
    if word == "leaves":
        return {"reward": 1.0, "started": subprocess.Popen(["sleep", "600"], start_new_session=True).pid}
    if word == "daemon":
        shell = subprocess.run(["sh", "-c", "setsid sleep 600 >&- 2>&- & echo $!"], capture_output=True, text=True)
        # Longer than the process that forks needs to look around.
        await asyncio.sleep(1.0)
        started = int(shell.stdout)
        return {"reward": 1.0, "started": started, "lived": os.path.exists(f"/proc/{started}/exe")}
    return 1.0
