"""The notebook trains adapters and draws their curve, cell by cell in a namespace, as a kernel runs it."""

import json
from pathlib import Path

import pytest

from tests import warm

NOTEBOOK = Path(__file__).resolve().parent.parent / "launch" / "notebook.ipynb"
FEWER = {
    '"num_steps=60"': '"num_steps=2", "dynamics.prompts_per_step=4", "dynamics.group_size=4"',
    '"evaluation.every_rounds=10"': '"evaluation.num_problems=4", f"output_dir={folder}/run"',
}
KERNEL = """
import sys

import matplotlib

# Graders import this script too.
if __name__ == "__main__":
    matplotlib.use("Agg")
    names = {"__name__": "__main__", "folder": sys.argv[1]}
    for number, cell in enumerate(CELLS):
        exec(compile(cell, f"/tmp/ipykernel_7/{number}.py", "exec"), names)
    print([*names["result"].metrics.index], [len(line.get_xdata()) for line in names["axes"].get_lines()])
"""


def cells():
    """Returns the source of each cell with code."""
    read = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in read if cell["cell_type"] == "code"]


def test_the_notebook_holds_no_outputs():
    assert all(cell.get("outputs", []) == [] for cell in json.loads(NOTEBOOK.read_text())["cells"])


@pytest.mark.slow
def test_the_notebook_trains_adapters_draws_a_curve_and_exports_the_adapter(tmp_path):
    fewer = cells()
    for long, short in FEWER.items():
        assert sum(long in cell for cell in fewer) == 1, long
        fewer = [cell.replace(long, short) for cell in fewer]
    (tmp_path / "kernel.py").write_text(f"CELLS = {fewer!r}\n{KERNEL}")
    done = warm.run([tmp_path / "kernel.py", tmp_path], timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    # Evaluations come before and after training.
    assert done.stdout.splitlines()[-1] == "[1, 2] [2, 2]"
    adapter = tmp_path / "run" / "adapter"
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {file.name for file in adapter.iterdir()}
