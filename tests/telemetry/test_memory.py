import subprocess
import sys


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_peak_memory_keeps_what_was_given_back():
    shown = run(
        "from grpo.telemetry.hardware import peak_memory\n"
        "before = peak_memory()['memory/peak_rss_gib']\n"
        "block = bytearray(b'x') * 2**28; del block\n"
        "print(0.2 < peak_memory()['memory/peak_rss_gib'] - before < 0.3)"
    )
    assert shown == "True\n"


def test_asking_does_not_import_torch():
    shown = run(
        "import sys; from grpo.telemetry.hardware import peak_memory\n"
        "print(sorted(peak_memory()), 'torch' in sys.modules)"
    )
    assert shown == "['memory/peak_rss_gib'] False\n"
