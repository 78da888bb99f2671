"""An installed package brings its configs along, wherever it is used from, and studies runs without the trainer."""

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent

SHOW = """
from grpo.config.hydra import compose_config
config = compose_config(["experiment=tiny"])
print(config.num_steps, config.model.source)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Returns a folder into which the wheel is installed, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    done = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    [wheel] = folder.glob("grpo_dynamics-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def needed(requirements, extra, found):
    """Adds to `found` the distributions that pip would install for these requirements, as (name, extra)."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for wanted in ("", *requirement.extras):
                if (requirement.name, wanted) not in found:
                    found.add((requirement.name, wanted))
                    needed(distribution(requirement.name).requires or (), wanted, found)


def linked(site, folder):
    """Returns a folder of the wheel's files and those of all that it needs, as pip would without an extra."""
    [metadata] = site.glob("grpo_dynamics-*.dist-info")
    needed(PathDistribution(metadata).requires, "", found := set())
    folder.mkdir()
    for entry in site.iterdir():
        (folder / entry.name).symlink_to(entry)
    for name in {name for name, _ in found}:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(installed.locate_file(top))
    return folder


def grpo(site, words, here):
    """Runs a command with the packages in a folder alone. Python's `-S` leaves out those of this environment."""
    program = f"import sys; sys.path.insert(0, {str(site)!r}); from grpo.cli import main; code = main(sys.argv[1:]); "
    program += "print(sorted({'torch', 'transformers', 'pyarrow'} & {*sys.modules}), file=sys.stderr); sys.exit(code)"
    return subprocess.run([sys.executable, "-I", "-S", "-c", program, *words], cwd=here, capture_output=True, text=True)


@pytest.mark.slow
def test_the_wheel_studies_the_log_of_another_framework_without_torch(site, tmp_path):
    """The log is TRL's. Its reward falls from .5 to 0 at step 30, and its KL runs off."""
    history = [
        {
            "step": step,
            "reward": 0.5 if step < 30 else 0.0,
            "reward_std": 0.3,
            "kl": 0.01 * step,
            "completion_length": 90,
        }
        for step in range(1, 61)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    light = linked(site, tmp_path / "light")
    assert not (light / "torch").exists()
    size = sum(file.stat().st_size for file in files_below(light))
    assert size < 300 * 2**20
    done = grpo(light, ["dynamics", "diagnose", "trainer_state.json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert "verdict: much of what the model could do i" in done.stdout
    done = grpo(light, ["report", "trainer_state.json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trainer_state_dynamics.html").exists()


@pytest.mark.slow
def test_a_command_that_needs_the_trainer_names_its_extra(site, tmp_path):
    done = grpo(linked(site, tmp_path / "light"), ["train", "experiment=tiny"], tmp_path)
    assert done.returncode == 2
    assert "which is not installed here: in a clone of grpo: pip install '.[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def files_below(folder):
    """Yields the files below a folder, also those behind links."""
    for path, _, names in os.walk(folder, followlinks=True):
        yield from (Path(path, name) for name in names if "__pycache__" not in path)


@pytest.mark.slow
def test_a_wheel_holds_the_configs_and_composes_them_from_any_folder(site, tmp_path):
    shipped = {
        str(file.relative_to(site / "grpo")) for file in (site / "grpo" / "configs").rglob("*") if file.is_file()
    }
    assert shipped == {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*") if path.is_file()}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert shown.stdout.split() == ["40", "tiny"], shown.stderr[-2000:]


def test_a_trainer_prepares_the_environment_before_packages_read_it():
    code = (
        "from grpo import Trainer; from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_PROGRESS_BARS)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert shown.stdout.split() == ["True"], shown.stderr[-2000:]
