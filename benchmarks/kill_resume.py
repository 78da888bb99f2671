"""This script ends a run by kill -9 again and again, and checks that it still asks the prompts of an undisturbed run.

    python benchmarks/kill_resume.py FOLDER [KILLS] [SEED]

Runs the tiny experiment twice: once undisturbed, and once killed at most KILLS times (20), at moments drawn from SEED,
and resumed after each kill. Kills stop when the run reaches its end; another SEED kills another run. Then compares the
streams of prompt ids and the metrics of every step. Resumable: an undisturbed run that FOLDER holds is not made again.
Writes FOLDER/kill_resume.json, and exits with 1 if anything differs.
"""

import json
import random
import signal
import sys
import time
from pathlib import Path

from benchmarks.runs import SMALL, facts, grpo, start, stream

STEPS = 120
OVERRIDES = [
    *SMALL,
    f"num_steps={STEPS}",
    "dynamics.refresh_interval=2",
    "checkpoint.every_rounds=1",
    "evaluation.num_problems=0",
]


def undisturbed(folder: Path) -> Path:
    output = folder / "undisturbed"
    if not (output / "report.done").exists():
        done = grpo("train", *OVERRIDES, f"output_dir={output}", timeout=1200)
        assert done.returncode == 0, done.stderr[-2000:]
        (output / "report.done").touch()
    return output


def killed(folder: Path, kills: int, seed: int) -> tuple[Path, list[dict]]:
    """Kills and resumes a run at most `kills` times, then lets it end. Four of five kills come within 2.5 s after the
    next step, the others within 20 s of the start. Returns the run's folder, and the seconds and step of each kill."""
    output, draw, log = folder / f"killed-{seed}", random.Random(seed), []
    while len(log) < kills:
        resume = ["checkpoint.resume=true"] if any(output.glob("checkpoints/step-*")) else []
        began, before = time.monotonic(), last_step(output)
        process = start("train", *OVERRIDES, f"output_dir={output}", *resume)
        wait = draw.uniform(0.0, 2.5)
        if draw.random() < 0.8:
            while process.poll() is None and last_step(output) <= before:
                time.sleep(0.02)
        else:
            wait = draw.uniform(0.0, 20.0)
        time.sleep(wait)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        log.append({"after_seconds": round(time.monotonic() - began, 2), "step": last_step(output)})
        print(log[-1], flush=True)
    done = grpo("train", *OVERRIDES, f"output_dir={output}", "checkpoint.resume=true", timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    return output, log


def last_step(output: Path) -> int:
    rows = stream_rows(output)
    return rows[-1]["step"] if rows else 0


def stream_rows(output: Path) -> list[dict]:
    path = output / "prompts.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def main(folder: str, kills: str = "20", seed: str = "0") -> int:
    root = Path(folder)
    reference = undisturbed(root)
    output, log = killed(root, int(kills), int(seed))
    result = {
        "kills": len(log),
        "moments": log,
        "prompts": sum(len(ids) for _, ids in stream(output)),
        "same_prompt_stream": stream(output) == stream(reference),
        "same_facts_every_step": facts(output) == facts(reference),
    }
    (root / "kill_resume.json").write_text(json.dumps(result, indent=1))
    print(json.dumps({key: value for key, value in result.items() if key != "moments"}))
    return int(not (result["same_prompt_stream"] and result["same_facts_every_step"]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
