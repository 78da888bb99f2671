"""A command refuses wrong words, values and folders before it imports anything that takes seconds."""

import subprocess
import sys

import pytest

# Runs a command in a process of its own, and fails it if it has imported any of these.
COMMAND = """
import sys
from grpo.cli import main
code = main(sys.argv[1:])
heavy = [name for name in ("numpy", "scipy", "matplotlib", "pandas", "torch") if name in sys.modules]
sys.exit(code if not heavy else f"imported {heavy}")
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report {} watch=abc", "watch='abc' is not valid: it must be a number of seconds above 0"),
        ("report {}/nowhere", "there is no folder {}/nowhere"),
        ("samples {} limit=abc", "limit='abc' is not valid: it must be a whole number of at least 0"),
        ("samples {}/nowhere", "{}/nowhere has no samples.jsonl: give the folder of a run"),
        ("export {} {}/x dtype=int4", "dtype='int4' is not valid: it must be bfloat16, float16 or float32"),
        (
            "sweep sweep=seeds hydra/launcher=slurm output_dir={}/s",
            "the variant run: hydra/launcher is not read here: output_dir is a run's folder, and grpo sweep runs",
        ),
        ("export {}/nowhere {}/x", "{}/nowhere is no checkpoint, and has none in checkpoints/"),
        ("export {}/step /proc/x", "/proc/x cannot be written to, since /proc is"),
        ("report {} {}/step output=/proc/x", "output=/proc/x cannot be written to, since /proc is"),
        ("dynamics whatif {} dynamics.group_size=4 output=/proc/x", "output=/proc/x cannot be written to, since /proc"),
        ("dynamics fit {} last_step=abc", "last_step='abc' is not valid: it must be a whole number"),
        ("dynamics forecast {}/nowhere", "there is no file or folder {}/nowhere"),
        ("dynamics diagnose {} depth=1", "unknown key 'depth'; choose one of: column, scale"),
        ("dynamics plan {} largest=0", "largest='0' is not valid: it must be a whole number above 0"),
        (
            "dynamics plan {} mean_exponent=50",
            "mean_exponent='50' is not valid: it must be a number between -10 and 10",
        ),
        ("dynamics plan {} exponent=nan", "exponent='nan' is not valid: it must be a number between -10 and 10"),
        ("dynamics plan {} ddof=2", "ddof='2' is not valid: it must be 0 (population σ) or 1 (sample σ)"),
        ("dynamics plan {} machine={}/prove.json", "{}/prove.json is no file that `grpo prove` has written"),
        (
            "dynamics replay {} dynamics=fixed",
            "dynamics=fixed decides nothing, and replay shows what dynamics=adaptive would have decided: leave it out",
        ),
        ("dynamics whatif {} group_sise=4", "unknown key group_sise; did you mean dynamics.group_size?; whatif takes "),
        ("dynamics whatif {} steps=1 tokens=2", "give one budget, not steps=1 and tokens=2"),
        ("dynamics whatif {}/log.json dynamics.group_size=4", "{}/log.json is no run's folder: whatif reads a run of "),
        ("dynamics replay {} dynamics.adaptive.smalest_group=4", "did you mean dynamics.adaptive.smallest_group?"),
        ("dynamics fit {} now", "grpo dynamics fit reads one path, and 'now' is no KEY=VALUE"),
    ],
)
def test_wrong_words_are_reported_before_anything_heavy_is_imported(words, message, tmp_path):
    (tmp_path / "log.json").write_text("{}")
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "state.json").write_text("{}")
    arguments = [word.format(tmp_path, tmp_path) for word in words.split()]
    ran = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True)
    assert ran.returncode == 2, ran.stderr
    assert message.format(tmp_path) in ran.stderr
