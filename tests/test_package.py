"""An installed package brings its configs along, wherever it is used from."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SHOW = """
from grpo.config.hydra import compose_config
config = compose_config(["experiment=tiny"])
print(config.num_steps, config.model.source)
"""


@pytest.mark.slow
def test_a_wheel_holds_the_configs_and_composes_them_from_any_folder(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    done = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    [wheel] = tmp_path.glob("grpo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name.removeprefix("grpo/") for name in archive.namelist() if name.startswith("grpo/configs/")}
        archive.extractall(tmp_path / "site")
    assert shipped == {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*") if path.is_file()}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert shown.stdout.split() == ["40", "tiny"], shown.stderr[-2000:]


def test_a_trainer_prepares_the_environment_before_packages_read_it():
    code = (
        "from grpo import Trainer; from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_PROGRESS_BARS)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert shown.stdout.split() == ["True"], shown.stderr[-2000:]
