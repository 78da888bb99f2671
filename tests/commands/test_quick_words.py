"""A command refuses wrong words, values and folders before it imports anything that takes seconds."""

import json
import shlex
import subprocess
import sys

import pytest

# Runs commands one after another, and prints what each of them returns and says, and which of these it has imported.
COMMANDS = """
import contextlib, io, json, sys
from grpo.cli import main
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    heavy = [name for name in ("numpy", "scipy", "matplotlib", "pandas", "torch") if name in sys.modules]
    print(json.dumps([code, said.getvalue(), heavy]))
"""

WRONG = [
    ("report {} watch=abc", "watch='abc' is not valid: it must be a number of seconds above 0"),
    ("report {}/nowhere", "there is no folder {}/nowhere"),
    ("report {}/a=1", "{}/a=1 is the folder of no sweep, and of no run that has finished a round"),
    ("samples {}/a=1", "{}/a=1 has no samples.jsonl: give the folder of a run"),
    ("audit {}/a=1", "{}/a=1 has no config.json: give the folder of a run"),
    ("dynamics diagnose {}/a=1 depth=1", "unknown key 'depth'; choose one of: column, scale"),
    ("export {}/a=1 {}/x", "{}/a=1 has no checkpoint in checkpoints/: give a run's folder"),
    ("samples {} limit=abc", "limit='abc' is not valid: it must be a whole number of at least 0"),
    ("samples {}/nowhere", "there is no folder {}/nowhere: give the folder of a run"),
    ("export {} {}/x dtype=int4", "dtype='int4' is not valid: it must be bfloat16, float16 or float32"),
    (
        "sweep sweep=seeds hydra/launcher=slurm output_dir={}/s",
        "the variant run: hydra/launcher is not read here: output_dir is a run's folder, and grpo sweep runs",
    ),
    ("export {}/nowhere {}/x", "there is no folder {}/nowhere: give a run's folder, or one of its checkpoints"),
    ("export base/model {}/x", "base/model: give a run's folder, or one of its checkpoints"),
    ("export {}/step /proc/x", "/proc/x cannot be written to, since /proc is"),
    ("report {} {}/step output=/proc/x", "output=/proc/x cannot be written to, since /proc is"),
    ("dynamics whatif {} dynamics.group_size=4 output=/proc/x", "output=/proc/x cannot be written to, since /proc"),
    ("dynamics fit {} last_step=abc", "last_step='abc' is not valid: it must be a whole number"),
    (
        "dynamics diagnose https://wandb.ai/me/runs/abc",
        "is an address: export the run's history as CSV there, and give",
    ),
    ("dynamics forecast {}/nowhere", "there is no file or folder {}/nowhere"),
    ("dynamics diagnose {} depth=1", "unknown key 'depth'; choose one of: column, scale"),
    ("dynamics plan {} largest=0", "largest='0' is not valid: it must be a whole number above 0"),
    ("dynamics plan {} mean_exponent=50", "mean_exponent='50' is not valid: it must be a number between -10 and 10"),
    ("dynamics plan {} exponent=nan", "exponent='nan' is not valid: it must be a number between -10 and 10"),
    ("dynamics plan {} ddof=2", "ddof='2' is not valid: it must be 0 (population σ) or 1 (sample σ)"),
    ("dynamics plan {} machine={}/prove.json", "{}/prove.json is no file that `grpo prove` has written"),
    (
        "dynamics replay {} dynamics=fixed",
        "dynamics=fixed decides nothing, and replay shows what dynamics=adaptive would have decided: leave it out",
    ),
    (
        "dynamics replay {} learner.learning_rate=1e-3",
        "learner.learning_rate=1e-3 is nothing that the schedule decides by: replay takes keys of dynamics, normal",
    ),
    ("dynamics whatif {} group_sise=4", "unknown key group_sise; did you mean dynamics.group_size?; whatif takes "),
    ("dynamics whatif {} steps=1 tokens=2", "give one budget, not steps=1 and tokens=2"),
    ("dynamics whatif {} steps=0.5", "steps='0.5' is not valid: it must be a whole number above 0"),
    ("dynamics whatif {}/log.json dynamics.group_size=4", "{}/log.json is no run's folder: whatif reads a run of "),
    ("dynamics replay {} dynamics.adaptive.smalest_group=4", "did you mean dynamics.adaptive.smallest_group?"),
    ("dynamics fit {} now", "grpo dynamics fit reads one path, and 'now' is no KEY=VALUE"),
    ("dynamics fitt x", "grpo dynamics has no 'fitt'"),
    ("sweep sweep=nope", "there is no sweep 'nope'"),
    ("sweep sweep=seeds output_dir=a,b", "output_dir=a,b: a sweep has one folder, whose name stays the same"),
    ("sweep sweep=seeds output_dir=a/${start:}", "output_dir=a/${start:}: a sweep has one folder, whose name stays"),
    ("prove part=atention", "part=atention is unknown: choose among attention, learner"),
    ("prove part=attention part=learner", "part= is given twice: leave out 'part=learner' or the one before it"),
    ("prove attention", "a part is written part=attention"),
    ("report {} --output x", "--output is no KEY=VALUE: write it as output=VALUE"),
    ("prove size=70b", "size=70b is unknown: choose one of tiny, 1.5b, 7b"),
    ("prove part=attention ways=ZeRO-3", "ways= are those of the part learner, which part= leaves out"),
    ("prove model=qwen2_5_1_5b", "prove measures models of its own with random weights: leave out model=qwen2_5_1_5b"),
    ("prove learner.zero_stag=3", "unknown config key learner.zero_stag; did you mean learner.zero_stage?"),
    ("prove learner.zero_stage=7", "learner.zero_stage=7 is unknown: choose one of 0 | 1 | 2 | 3"),
    ("train 'task.reward.parts=[{name: maths}]'", "unknown part 'maths'; choose from math"),
]
# These may import numpy, as those that read data do, but not torch.
WITHOUT_TORCH = [
    (
        "train objective.name=nosuch:loss",
        "objective.name=nosuch:loss cannot be imported: ModuleNotFoundError: there is",
    ),
    ("train objective.kl.estimator={}/torn.py:f", "torn.py:f cannot be imported: SyntaxError: "),
    ("train normalization.name={}/none.py:f", "none.py:f cannot be imported: FileNotFoundError"),
    ("train task=tiny_arithmetic task.data.options={maximum:3}", "unknown maximum; known are min, max, operators"),
    ("train task=arithmetic task.data.options={maximum:3}", "unexpected keyword argument 'maximum'; correct"),
    ("serve", "needs rollout.servers.port"),
    ("train 'task.reward.parts=[{weight: 1}]'", "task.reward.parts has a part without a name"),
    ("train task=file task.data.path={}/sums.jsonl task.data.question_column=q", "(task.data.question_column)"),
    ("train 'task.reward.parts=[{name: \"nowhere:f\"}]'", "cannot import 'nowhere:f'"),
    ("train 'task.reward.parts=[{name: \"{}/own.py:f\"}]'", "takes (prompt, response); write it as"),
    (
        "train 'task.reward.parts=[{name: http, server: {url: \"http://127.0.0.1:9\", key_variable: NO_SUCH_KEY}}]'",
        "takes its key from NO_SUCH_KEY, which is not set",
    ),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    (folder / "log.json").write_text("{}")
    (folder / "step").mkdir()
    (folder / "a=1").mkdir()
    (folder / "step" / "state.json").write_text("{}")
    (folder / "sums.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    (folder / "torn.py").write_text("import torch\ndef f(:\n")
    (folder / "own.py").write_text("def f(prompt, response): return 1.0\n")
    commands = json.dumps([shlex.split(words.replace("{}", str(folder))) for words, _ in (*WRONG, *WITHOUT_TORCH)])
    ran = subprocess.run([sys.executable, "-c", COMMANDS], input=commands, capture_output=True, text=True, check=True)
    return folder, [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("place", range(len(WRONG)), ids=lambda place: WRONG[place][0])
def test_wrong_words_are_reported_before_anything_heavy_is_imported(place, answers):
    folder, all_answers = answers
    code, said, heavy = all_answers[place]
    assert (code, heavy) == (2, []) and WRONG[place][1].replace("{}", str(folder)) in said


@pytest.mark.parametrize("place", range(len(WITHOUT_TORCH)), ids=lambda place: WITHOUT_TORCH[place][0])
def test_mistakes_in_data_and_reward_are_reported_without_torch(place, answers):
    code, said, heavy = answers[1][len(WRONG) + place]
    assert code == 2 and "torch" not in heavy and WITHOUT_TORCH[place][1] in said
