"""The files to copy for Kubernetes and SkyPilot start commands that grpo accepts, on machines that find one another."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from grpo.cli import main
from grpo.config.hydra import compose_config
from grpo.config.validate import validate
from grpo.launch.membership import place_of

FOLDER = Path(__file__).resolve().parents[2] / "launch"
OBJECTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
JOBS = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "TrainJob"}


def words_of(job):
    assert job["trainer"]["command"] == ["grpo"] and job["trainer"]["args"][0] == "launch"
    return job["trainer"]["args"][1:]


@pytest.mark.parametrize("name", ["grpo", "grpo-served"])
def test_a_trainjob_has_as_many_pods_as_its_words_need(name):
    config, job = compose_config(words_of(JOBS[name])), JOBS[name]
    validate(config, config.hardware.ranks)
    count = job["trainer"]["numNodes"]
    environment = {"PET_NNODES": str(count), "PET_MASTER_ADDR": "grpo-node-0-0.grpo", "PET_MASTER_PORT": "29400"}
    for index in range(count):
        place = place_of(environment | {"PET_NODE_RANK": str(index)}, "pod", config.hardware)
        assert (place.index, place.first, place.port) == (index, "grpo-node-0-0.grpo", 29400)


def test_the_parts_of_the_file_for_kubernetes_name_one_another():
    claim, runtime = OBJECTS[:2]
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    mounted = {volume["mountPath"]: volume["name"] for volume in pod["containers"][0]["volumeMounts"]}
    assert mounted == {"/runs": "runs", "/dev/shm": "shm"}
    for job in JOBS.values():
        assert job["runtimeRef"]["name"] == runtime["metadata"]["name"]
        config = compose_config(words_of(job))
        assert config.output_dir.startswith("/runs/") and config.checkpoint.resume == "auto"
        # Kubernetes ends a pod when its grace is over.
        assert 0 < config.checkpoint.grace_seconds < pod["terminationGracePeriodSeconds"]
    keys = [
        name for name, job in JOBS.items() if any(each["name"] == "GRPO_SERVER_KEY" for each in job["trainer"]["env"])
    ]
    assert keys == ["grpo-served"] and JOBS["grpo-served"]["suspend"]


def test_the_image_is_not_roots_caches_in_one_place_and_takes_no_runs_along():
    image = (FOLDER / "Dockerfile").read_text()
    variables = dict(word.split("=", 1) for word in re.findall(r"[A-Z_]+=\S+", image.split("ENV PATH")[1]))
    assert {name: path for name, path in variables.items() if not path.startswith("/cache")} == {"USER": "grpo"}
    assert {"XDG_CACHE_HOME", "HF_HOME", "FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR"} <= variables.keys()
    assert re.search(r"^USER 1000", image, re.MULTILINE) and "chmod 1777 runs /cache" in image
    left_out = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert {".git", ".venv*", "runs", "outputs", ".airgap"} <= {*left_out}


def test_skypilots_machines_start_one_run():
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    program, command, *words = shlex.split(task["run"].replace("$SKYPILOT_NUM_NODES", str(task["num_nodes"])))
    assert (program, command) == (".venv/bin/grpo", "launch")
    config = compose_config(words)
    validate(config, config.hardware.ranks)
    variables = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    assert place_of(variables, "box", config.hardware).first == "10.0.0.1"
    [folder] = task["volumes"]
    assert config.output_dir.startswith(f"{folder}/")


def test_a_dry_run_of_them_shows_the_machines(capsys):
    assert main(["launch", *words_of(JOBS["grpo-served"]), "model.max_length=2048", "dry_run=true"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "machine 0 │ 8 learner ranks" in printed and "machine 2 │ 8 vLLM servers" in printed
