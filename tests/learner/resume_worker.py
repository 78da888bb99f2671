"""This program reads checkpoints into learners of other settings, on two ranks. test_resume.py runs it by torchrun.

Usage: resume_worker.py MODEL_DIRECTORY OUTPUT_FILE. Rank 0 writes a JSON object of facts.
"""

import gc
import json
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from grpo.host import environment

environment.prepare()

from grpo.config import ModelConfig, UserError
from grpo.config.parts import LearnerSettings
from grpo.learner.engine import init_distributed
from grpo.learner.export import Folder, export
from grpo.learner.learner import DeepSpeedLearner
from grpo.learner.loading import load_policy
from grpo.learner.resharding import Layout
from grpo.learner.weights import weight_buckets
from grpo.run.checkpoints import CheckpointStore
from tests.learner.learner_worker import DEVICE, config_for, take_step, weights
from tests.learner.models import files_of
from tests.learner.resume_cases import CHANGES, CRAFTED, LATER, LORA, REFUSED, STARTS


def saved(learner, config):
    """Saves a checkpoint after one step and returns its folder."""
    take_step(learner, config)
    folder = learner.collective.gather(tempfile.mkdtemp())[0]
    learner.save(folder)
    return folder


def change_facts(model, before, after):
    """Returns the largest difference of a weight after loading under changed settings, and the number and gradient norm
    of the next step, without and with loading."""
    first, then = config_for(**before), config_for(**after)
    learner = DeepSpeedLearner(LearnerSettings.of(first), files_of(model), DEVICE)
    folder = saved(learner, first)
    there = sorted(path.name for path in Path(folder).iterdir())
    start, straight = weights(learner), take_step(learner, first)
    learner.engine.destroy()
    learner = DeepSpeedLearner(LearnerSettings.of(then), files_of(model), DEVICE, folder)
    learner.load(folder)
    away = (weights(learner) - start).abs().max().item()
    report = take_step(learner, then)
    learner.engine.destroy()
    left = sorted(path.name for path in Path(folder).iterdir())
    return {
        "away": away,
        "steps": [straight.step, report.step],
        "norms": [straight.gradient_norm, report.gradient_norm],
        "left": left == there,
    }


def start_facts(model, before, after):
    """Returns the largest difference of a weight between a learner and one that starts from its checkpoint ("away") or
    from its exported model ("lost"), and the KL of the start to its reference."""
    first = config_for(**before)
    learner = DeepSpeedLearner(LearnerSettings.of(first), files_of(model), DEVICE)
    folder = saved(learner, first)
    there, exported = weights(learner), Path(folder, "model")
    target = Folder(exported, SimpleNamespace(save_pretrained=lambda folder: None), {"README.md": ""})
    export(learner.policy, first.learner.precision, target, learner.collective)
    learner.engine.destroy()
    read = load_policy(files_of(exported), ModelConfig(path=str(exported)), first.learner.precision, 64)
    named = [tensor for bucket in weight_buckets(read, 2**20, there.dtype) for _, tensor in bucket]
    lost = (torch.cat([tensor.flatten() for tensor in named]) - there).abs().max().item()
    learner = DeepSpeedLearner(
        LearnerSettings.of(config_for(**after, model__start=folder, objective__kl__coefficient=0.1)),
        files_of(model),
        DEVICE,
    )
    away = (weights(learner) - there).abs().max().item()
    distance = take_step(learner, first).means["policy/reference_kl"].value
    learner.engine.destroy()
    return {"away": away, "lost": lost, "steps": learner.num_steps, "kl": distance}


def adapted_facts(model, stage):
    """Returns whether a run of adapters goes on bit for bit, and how many bytes its checkpoint takes."""
    config = config_for(stage, **LORA)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    take_step(learner, config)
    folder = learner.collective.gather(tempfile.mkdtemp())[0]
    learner.save(folder)
    size = sum(file.stat().st_size for file in Path(folder).rglob("*_model_states.pt"))
    straight = take_step(learner, config).gradient_norm, weights(learner)
    learner.engine.destroy()
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE, folder)
    learner.load(folder)
    again = take_step(learner, config).gradient_norm, weights(learner)
    learner.engine.destroy()
    return {"same": again[0] == straight[0] and torch.equal(again[1], straight[1]), "bytes": size}


def said(action):
    """Returns the message of a UserError, or "" if none is raised. Any other exception ends this worker."""
    try:
        action()
    except UserError as error:
        return str(error)
    return ""


def refused_facts(model, before, after, edit):
    """Returns the message for a checkpoint that does not fit, and whether the message comes before an engine starts."""
    first, then = config_for(**before), config_for(**after)
    learner = DeepSpeedLearner(LearnerSettings.of(first), files_of(model), DEVICE)
    folder = saved(learner, first)
    learner.engine.destroy()
    if edit and learner.collective.rank == 0:
        edit(Path(folder))
    learner.collective.barrier()
    made = []
    line = said(lambda: made.append(DeepSpeedLearner(LearnerSettings.of(then), files_of(model), DEVICE, folder)))
    early = bool(line)
    if made:
        line = said(lambda: made[0].load(folder))
        made[0].engine.destroy()
    # Whatever a name leads to.
    escaped = [path.name for path in Path(folder).parent.glob("escaped*")]
    left = sorted(path.name for path in Path(folder).iterdir() if path.name.startswith((".", "latest")))
    return {"line": line, "early": early, "escaped": escaped, "left": left}


def late_facts(model):
    """Returns for each rank whether it finds the layout once it has saved, though the first rank writes it late."""
    config, write = config_for(1), Layout.write

    def late(layout, directory):
        time.sleep(0.3)
        write(layout, directory)

    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    folder = learner.collective.gather(tempfile.mkdtemp())[0]
    Layout.write = late
    learner.save(folder)
    there = Path(folder, "layout.json").exists()
    Layout.write = write
    learner.engine.destroy()
    return learner.collective.gather(there)


def full_facts(model, stage, rank, limit):
    """Returns each rank's message, and the seconds until the last one, if files of `rank` may not grow beyond `limit`
    bytes. Also returns which checkpoints are left, and whether the learner goes on from the older one."""
    config = config_for(stage, objective__kl__coefficient=0.1, objective__kl__refresh_every=1)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    collective = learner.collective
    folder = Path(collective.gather(tempfile.mkdtemp())[0])
    store = CheckpointStore(folder, 2, collective)
    take_step(learner, config)
    store.save(1, learner.save, {})
    straight = take_step(learner, config).gradient_norm
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    if collective.rank == rank:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
    began = time.monotonic()
    line = said(lambda: store.save(2, learner.save, {}))
    lines, seconds = collective.gather(line), max(collective.gather(time.monotonic() - began))
    resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    left = sorted(path.name for path in folder.iterdir())
    learner.load(str(store.whole()))
    again = take_step(learner, config).gradient_norm
    # And once there is room, what is saved is whole.
    later = store.save(3, learner.save, {}) == store.whole()
    learner.engine.destroy()
    return {"lines": lines, "seconds": seconds, "left": left, "norms": [straight, again], "later": later}


def renamed(states, name):
    """Returns a function that renames one parameter to `name` in all shards of a checkpoint that match `states`."""

    def edit(folder):
        for file in folder.glob(f"learner/{states}"):
            state = torch.load(file, weights_only=False)
            groups = state.get("param_shapes", [])
            slices = state.get("optimizer_state_dict", {}).get("param_slice_mappings", [])
            for named in [state.get("module"), *([groups] if isinstance(groups, dict) else groups), *slices]:
                if named:
                    named[name] = named.pop(next(iter(named)))
            torch.save(state, file)

    return edit


def edited_layout(**values):
    def edit(folder):
        layout = json.loads((folder / "layout.json").read_text()) | values
        (folder / "layout.json").write_text(json.dumps(layout))

    return edit


def without_layout(folder):
    (folder / "layout.json").unlink()


EDITS = {"damaged layout": edited_layout(ranks="two"), "no layout": without_layout, "": None}


def of_each(part, model, cases):
    """Returns what `part` returns for each case."""
    facts = []
    for case in cases:
        facts.append(part(model, *case))
        # Every engine looks through all that there is for garbage, several times, also through what others left.
        gc.freeze()
    return facts


def main(model, output):
    init_distributed(DEVICE, 60)
    misfits = [(before, after, EDITS[edit]) for before, after, edit, _ in REFUSED]
    crafted = [
        ({"stage": stage}, {"stage": stage, "precision": "bfloat16"}, renamed(*edit)) for stage, *edit in CRAFTED
    ]
    facts = {
        "starts": of_each(start_facts, model, STARTS),
        "adapted": of_each(adapted_facts, model, [(stage,) for stage in (1, 2, 3)]),
        "changes": of_each(change_facts, model, CHANGES),
        "refused": of_each(refused_facts, model, misfits),
        "crafted": of_each(refused_facts, model, crafted),
        "full": of_each(full_facts, model, LATER),
        "late": late_facts(model),
    }
    if torch.distributed.get_rank() == 0:
        Path(output).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
