"""Each configuration that cannot run is refused in one line, which names the key and says what would do."""

import pytest

from grpo.config import UserError
from grpo.config.hydra import compose_config
from grpo.config.validate import validate

# The words of a command, with two blanks between them, and a part of the line that refuses them.
REFUSED = r"""
normalization.exponent=nan → must be a finite number
learner.learning_rate=inf → must be a finite number
objective.kl.coefficient=-1 → objective.kl.coefficient=-1.0 must not be negative
learner.max_gradient_norm=-1 → must not be negative
learner.learning_rate=1000 → learner.learning_rate=1000 is about the change that AdamW makes
learner.weight_decay=1e6 → learner.weight_decay=1e+06 times learner.learning_rate=1e-06 takes 100% of
learner.adam_epsilon=0 → learner.adam_epsilon=0.0 must be above 0
task=tiny_arithmetic  task.reward.parts=[{name: reasoning_gym}] → reasoning_gym grades answers to its own gen
normalization.exponent=50 → normalization.exponent=50 must lie between -10 and 10
evaluation.num_problems=-1 → must not be negative
limits.tokens=-1 → must not be negative
seed=-1 → must not be negative
model.lora.alpha=0 → model.lora.alpha=0.0 must be above 0
rollout.kv_cache_gib=0 → rollout.kv_cache_gib=0.0 must be above 0
learner.deadline_seconds=0 → learner.deadline_seconds=0.0 must be above 0
model.lora.rank=-1 → must not be negative
task.reward.parts=[{name: math, weight: nan}] → task.reward.parts[].weight=nan must be a finite number
task.reward.parts=[{name: math, weight: 1.5e6}] → weight=1.5e+06 must be 0, or lie between 1e-6 and 1e6
task.reward.parts=[{name: math, weight: 1e300}] → weight=1e+300 must be 0, or lie between 1e-6 and 1e6
+task.reward.by_source={gsm8k: {parts: [{name: number, weight: nan}]}} → task.reward.by_source.gsm8k.parts[].weight=nan
task.reward.parts=[{name: http, server: {url: 'http://a', scale: 5}}] → 'http': server.scale belong to a judge, and no
+task.reward.by_source={gsm8k: {parts: [{name: http, server: {retries: -1}}]}} → gsm8k.parts[].server.retries=-1
learner.betas=[0.9,1] → learner.betas=[0.9, 1.0] must be two numbers of at least 0 and below 1
learner.betas=[0.9] → must be two numbers
rollout.gpu_memory_fraction=1.5 → must lie between 0 and 1
rollout.servers.port=65536 → rollout.servers.port=65536 is no port: the last one is 65535
foo=1 → unknown config key foo; `grpo config WORD` searches all keys
output_dir=${start:x} → output_dir: ${start:} takes nothing after its colon
output_dir=${nowhere} → output_dir: there is no key nowhere
output_dir=${oc.env:GRPO_NO} → output_dir: the environment variable GRPO_NO is not set
num_steps=${oc.decode:abc} → num_steps: ${oc.decode:abc} is abc, and num_steps takes a whole number
num_steps=${num_steps} → num_steps: its ${…} leads back to itself
output_dir=${hydra:runtime.cwd} → output_dir: ${hydra:…} is not known here
num_steps=??? → num_steps: ??? stands for a value that has to be given
num_steps=2.5 → num_steps=2.5: it takes a whole number
dry_run=maybe → dry_run=maybe: it takes true or false
output_dir={a: 1} → output_dir={a: 1}: it takes text
dynamics.adaptive=true → dynamics.adaptive=true: it takes keys and values, {KEY: VALUE}; `grpo config
learner.betas=[a,b] → learner.betas=[a,b]: each entry takes a number, not a
task.reward.parts=[{name: number, weight: abc}] → weight: abc}]: weight takes a number, not abc
task.reward.parts=[{fn: number}] → task.reward.parts has no key fn
+num_steps=5 → num_steps is there already: leave out the + before it
+experiment=tiny → experiment is chosen twice: leave out the + before it
++experiment=tiny → a group takes no ++ before it: write experiment=tiny
task=mixed  task@task.sets.a=arithmetic → a set is added by a + before it: write +task@task.sets.a=arithmetic
task=mixed  +task@task.sets.a=arithmetic  +task@task.sets.a=gsm8k → two sets have the name a: give each a name of its
~num_steps → ~num_steps: every run has num_steps, so it cannot be removed; num_steps=VALUE changes it
~objective → ~objective: every run has objective, so it cannot be removed
~num_stesp → unknown config key num_stesp; did you mean num_steps?
hydra.searchpath=[pkg://grpo_nowhere] → hydra.searchpath: there is no Python package grpo_nowhere
hydra.searchpath=[s3://groups] → hydra.searchpath: s3://groups is no folder: write file://FOLDER
--help=num → --help takes no value
grpo  train → cannot read 'grpo': the name of a command stands once, first: leave it out here
mine.py → cannot read 'mine.py': grpo starts no script of your own
{question} → a blank has cut a word in two: put the whole word in quotes
--config-name=nope → there is no nope.yaml in the folder that --config-dir names
--experiment  tiny → --config-dir DIR, --config-name NAME; a choice is written experiment=NAME
--dry-run → unknown flag --dry-run: there are --help, --cfg job, --config-dir DIR, --config-name NAME; a
experiment=tiny  task=gsm8k → task.prompt.max_tokens=512 plus rollout.sampling.max_tokens=6 is more
experiment=tiny  task.reward.parts=[] → task.reward.parts is empty: name a reward
task.prompt.examples=[["1 + 1", 2]] → task.prompt.examples=[["1 + 1", 2]]: each entry takes text, not 2
task.prompt.examples=[{q: a}] → task.prompt.examples=[{q: a}]: each entry takes a list, [a,b]
output_dir= → output_dir is empty: name a folder
rollout=vllm_server  rollout.servers.urls=[notaurl] → urls: 'notaurl' is no address of a server, such
task.episode=a.py:b  task.gateway=0.0.0.0 → task.gateway=0.0.0.0 stands for all addresses of this machine, and programs
task.episode=a.py:b  task.gateway=:: → task.gateway=:: stands for all addresses of this machine
task.episode=a.py:b  task.gateway='*' → task.gateway=* stands for all addresses of this machine
task.prompt.template=Solve. → lacks {question}, where the problem is put
task=null → task=null: a group takes the name of one of its choices, such as task=file
learner=1e-5 → learner=1e-5: a group takes the name of one of its choices, such as task=file
hardware=8 → hardware=8: a group takes the name of one of its choices, such as task=file
learner=[1] → a group takes the name of one of its choices, such as task=file
task=d/mine.jsonl → there is no task=d/mine.jsonl: problems of a file are given as task=file task.data.path=d/mine.js
experiment=my/mine.yaml → one of your own is DIR/experiment/NAME.yaml, and chosen by --config-dir DIR experiment=NAME
model=Qwen/Qwen3-0.6B → there is no model=Qwen/Qwen3-0.6B: a model of the hub or of a folder is given as
seed=1,2 → 'seed=1,2' gives several values: put one text in quotes
seed=99999999999999999999 → must be at most 4294967295
seed=null → it takes no null
learner.betas=0.9 → it takes a list, [a,b]
num_steps=(40) → cannot read 'num_steps=(40)': num_steps takes a whole number
learner={learning_rate: 1e-4 → cannot read 'learner={learning_rate: 1e-4': it lacks } at its end
learner.betas=[0.9,0.99 → it lacks ] at its end
task.reward.parts=[{name: math → it lacks }] at its end
learner.betas=(.9,.99) → a list is written in brackets, 'learner.betas=[.9,.99]'
model.lora.target_modules=[q_proj,v_proj] → it takes one text, not a list; `grpo config
dynamics.group_size =4 → 'dynamics.group_size ' is no key
output_dir=Übung → in quotes, 'output_dir="Übung"'
output_dir=runs/G=16 → cannot read 'output_dir=runs/G=16': put a value with special characters in quotes
learner.learning_rates=1 → unknown config key learner.learning_rates; did you mean
objective=drgrpo → there is no objective=drgrpo
objective=qwen3_8b → there is no objective=qwen3_8b, but model=qwen3_8b: choose one of
normalization=gspo → there is no normalization=gspo, but objective=gspo: choose one of
evaluation.sampling.temperature=0.6 → unknown config key evaluation.sampling.temperature; here it is evaluation.temper
experiment=nope → there is no experiment=nope: choose one of alphabet_sort_qwen3_4b, 
learner.learning_rate=abc → learner.learning_rate=abc: it takes a number
learner.learning_rate=None → it takes a number; leave it out for its default, or write null where a key may have none
evaluation.top_k=none → it takes a whole number; leave it out for its default, or write null where
task=mawps → task.data.path
objective.kl.coefficient=0.1  objective.kl.refresh_every=1 → so the KL of the next one is 0: raise it, or lower
objective.correction.floor=3 → must lie between 0 and objective.correction.cap=2.0
objective.correction.floor=-1 → objective.correction.floor=-1.0 must not be negative
objective.correction.cap=0.5 → objective.correction.cap=0.5 must lie below and above 1
objective.correction.floor=1.5 → objective.correction.floor=1.5 and objective.correction.cap=2.0 must
objective.correction.veto=1 → objective.correction.veto=1.0 must lie in [0, 1)
objective.correction.veto=1e-4  objective.old_logprobs=sampler → floor and veto need the weights of a
objective.correction.floor=0.5  objective.correction.level=none → floor and veto need the weights of a
rollout.sampling.top_p=0 → rollout.sampling.top_p
rollout.sampling.top_p=1.5 → rollout.sampling.top_p
rollout.sampling.top_k=-1 → rollout.sampling.top_k
rollout.sampling.temperature=2.5 → rollout.sampling.temperature
evaluation.top_p=0 → evaluation.top_p
evaluation.top_p=1.5 → evaluation.top_p
evaluation.top_k=-1 → evaluation.top_k
evaluation.temperature=2.5 → evaluation.temperature
evaluation.max_tokens=0 → evaluation.max_tokens
evaluation.temperature=0  evaluation.samples_per_problem=4 → evaluation.temperature=0 gives a problem the same
learner.deepspeed={zero_optimization: 3} → zero_optimization=3 takes keys and values, {KEY: VALUE}
rollout.engine_args.speculative_config=3 → speculative_config=3 takes keys and values, {KEY: VALUE}
weight_sync.max_mismatch=-0.1 → weight_sync.max_mismatch=-0.1 must not be negative
dynamics.group_size=1  normalization.scope=group → dynamics.group_size=1 leaves every advantage zero
dynamics.group_size=1  normalization.scope=batch → dynamics.group_size=1 leaves every advantage zero
output_dir=s3://bucket/run → output_dir=s3://bucket/run is an address
output_dir=https://files.example/run → output_dir=https://files.example/run is an address
task.curriculum.name=anneal  task.curriculum.easy=0.1  task.curriculum.hard=0.9 → easy=0.1 must be above
task.curriculum.name=anneal  task.curriculum.hard=0.9 → easy=0.9 must be above task.curriculum.hard=0.9
output_dir=~nosuchuser/x → this machine has no user nosuchuser, so write the folder in full
output_dir=C:\\runs → is a path of Windows
output_dir=C:/runs → is a path of Windows
output_dir=runs\\mine → is a path of Windows
task.name= → task.name is empty: name the task, such as task.name=sums
tracking.project= → tracking.project is empty: name the project, such as tracking.project=grpo
output_dir=" " → output_dir is empty: name a folder, such as output_dir=runs/mine
tracking=wandb_offline  tracking.project=me/math → tracking.project=me/math: W&B takes no name with /
tracking=wandb_offline  tracking.tags=[""] → tracking.tags: W&B takes tags of 1 to 64 characters, not ''
output_dir=$HOME/runs → output_dir=$HOME/runs holds a $, and no shell has put a variable's value there
evaluation.top_k=1  evaluation.samples_per_problem=4 → evaluation.top_k=1 gives a problem the same completion
rollout=vllm_server  rollout.servers.host=http://127.0.0.1 → is no name or address alone: leave out its protocol
task.episode=calculator  task.gateway=10.0.0.5:8000 → task.gateway=10.0.0.5:8000 is no name or address alone
rollout=vllm_server  hardware.server_nodes=1  hardware.shell=ssh  hardware.hosts=[a] → hosts names 1 machines
hardware.hosts=["http://a"] → is no name or address alone
hardware.hosts=[a:22] → is no name or address alone
task.reward.correct_at=0 → task.reward.correct_at=0 calls all answers right: 
task.reward.correct_at=99 → task.reward.correct_at=99 is never reached: 
task.prompt.template="{{question}}" → would put braces around the problem: write {question}
task.curriculum.width=15 → task.curriculum.width
hardware.hosts=[a,b,a] → hardware.hosts names a twice
hardware.hosts=[me@a] → is no name or address alone
hardware.hosts=[""] → is no name or address alone
rollout.budget.enabled=true  dynamics.group_size=4 → needs rollout.budget.pilot=4 < dynamics.group_size=4 <=
rollout.budget.enabled=true  dynamics.group_size=64 → dynamics.group_size=64 <= rollout.budget.largest=32: change one of
rollout.budget.enabled=true  normalization=dapo → rollout.budget.enabled and rollout.refill.enabled are both true
rollout.budget.enabled=true  dynamics=adaptive  rollout.budget.largest=6  dynamics.group_size=6 → smallest_group=8 is
pipeline=continuous → pipeline=continuous samples while the learner works, which only servers can: add
pipeline=continuous  rollout=vllm_server  dynamics.refresh_interval=6 → rollout.max_staleness=3 is too low for rounds of
pipeline=continuous  rollout=vllm_server  dynamics=adaptive → rounds of 8 optimizer steps, which need 7: set it to 15 to
pipeline=continuous  rollout=vllm_server  rollout.budget.enabled=true → rollout.budget.enabled=true asks each prompt
pipeline=continuous  rollout=vllm_server  task.curriculum.name=online → choose another curriculum or pipeline=off
pipeline=continuous  rollout=vllm_server  objective.correction.level=none → objective.correction.level=token
objective.kl.coefficient=1e9 → objective.kl.coefficient=1e+09 must be at most 1000
objective.entropy_coefficient=1e9 → objective.entropy_coefficient=1e+09 must be at most 1000
dynamics.group_size=100000 → dynamics.group_size=100000 must be at most 16384
rollout.budget.largest=100000 → rollout.budget.largest=100000 must be at most 16384
learner.micro_batch_tokens=1 → learner.micro_batch_tokens=1 must be at least 16
learner.learning_rate=0 → learner.learning_rate=0 trains nothing: leave it out
learner.learning_rate=0.5 → learner.learning_rate=0.5 is about the change that AdamW makes
rollout.gpu_memory_fraction=0 → rollout.gpu_memory_fraction=0.0 must be above 0
rollout.sampling.stop=[""] → rollout.sampling.stop holds an empty text, which stops nothing: leave it out
rollout=vllm_server  rollout.servers.urls=[http://a:1,http://a:1] → names http://a:1 twice, and a server has one address
rollout=transformers  learner.offload_states=true → makes room for vLLM in the learner's process
rollout.group_deadline_seconds=3600 → would never give up a group, since rollout.deadline_seconds=1800 ends the run
gpu_ids=0,1 → unknown config key gpu_ids
num_generations=4,8 → unknown config key num_generations; here it is dynamics.group_size
model.lora.rank=4  model.lora.alpha=1e9 → model.lora.alpha=1e+09 must be at most 16384
weight_sync.bucket_mib=1e9 → weight_sync.bucket_mib=1e+09 must be at most 65536
objective.entropy_target=100 → objective.entropy_target=100 must be at most 20
evaluation.samples_per_problem=100000 → evaluation.samples_per_problem=100000 must be at most 16384
rollout.max_concurrent=1e7 → rollout.max_concurrent=1e+07 must be at most 100000
hardware.gpu_memory_gib=1e9  dry_run=true → hardware.gpu_memory_gib=1e+09 must be at most 10000
checkpoint.grace_seconds=1e9 → checkpoint.grace_seconds=1e+09 must be at most 86400
evaluation.pass_at=[] → evaluation.pass_at=[] must name each k of pass@k once, e.g. [1] or [1,4]
evaluation.pass_at=[1,1] → evaluation.pass_at=[1, 1] must name each k of pass@k once
evaluation.suite=[math500,math500] → evaluation.suite=['math500', 'math500'] names a set twice
num_steps=99999999999999999999 → num_steps=99999999999999999999… is too large: give at most 18 digits
"""

# The same for a run of eight ranks.
REFUSED_OF_EIGHT = r"""
normalization.scope=bach → normalization.scope='bach' is unknown: choose one of group | batch
dynamics.group_size=0 → dynamics.group_size=0 must be above 0
dynamics.group_size=1 → leaves every advantage zero
dynamics.prompts_per_step=12 → cannot be shared evenly by the 8 learner ranks: use 8 or 16
dynamics.adaptive.smallest_group=99 → =99 must lie between 2 and dynamics.adaptive.largest_group=8
dynamics.adaptive.fewest_prompts=64 → must lie between dynamics.adaptive.fewest_prompts=64 and
dynamics.adaptive.most_prompts=4 → and dynamics.adaptive.most_prompts=4; 0 sets no bound
model.max_length=50 → is more than model.max_length=50: lower one of the two, or raise model.max_length to
model.max_length=-1 → model.max_length=-1 must not be negative
normalization.min_std=10 → normalization.min_std=10 silences every group, since rewards of these parts
evaluation.pass_at=[8] → must hold numbers between 1 and evaluation.samples_per_problem=1
objective.dual_clip=0.5 → must be 0 (off) or above 1
objective.aggregation.level=constant → needs objective.aggregation.constant_length
task.data.held_out_fraction=1.5 → must lie in [0, 1)
checkpoint.resume=maybe → checkpoint.resume='maybe' is unknown: choose one of false | true | auto
checkpoint.resume=true → checkpoints holds no checkpoint: name the run's folder by output_dir=RUN, or start without
checkpoint.upload=:// → checkpoint.upload=:// is no address: give one such as s3://bucket/run
checkpoint.upload=runs/copy → is no address: give one such as s3://bucket/run or file:///mnt/run
checkpoint.keep_last=0 → checkpoint.keep_last=0 must be above 0
checkpoint.keep_every=70 → =70 must be a multiple of checkpoint.every_rounds=50
learner.hpz_partition_size=4 → set learner.zero_stage=3
model.path=some/model → add model=huggingface
dynamics.prompts_per_step=4 → by the 8 learner ranks: use 8
learner=zero3  learner.hpz_partition_size=1 → hpz_partition_size=1 must be above 1 and divide the 8 learner ranks
learner=zero3  learner.hpz_partition_size=3 → hpz_partition_size=3 must be above 1 and divide the 8 learner ranks
objective.name=grpo → objective.name=grpo is a choice of the whole group: write objective=grpo
normalization.name=dapo → normalization.name=dapo is a choice of the whole group: write normalization=dapo
learner.sequence_parallel=3 → learner.sequence_parallel=3 does not divide the number of learner ranks, 8
rollout.tensor_parallel=3 → rollout.tensor_parallel=3 does not divide the number of learner ranks, 8
rollout.tensor_parallel=2  rollout=vllm_server → : use rollout.servers.tensor_parallel
"""


def rows(table):
    return [line.split(" → ") for line in table.strip("\n").split("\n")]


@pytest.mark.parametrize(
    ("words", "message", "ranks"),
    [*((*row, 1) for row in rows(REFUSED)), *((*row, 8) for row in rows(REFUSED_OF_EIGHT))],
)
def test_a_configuration_that_cannot_run_is_one_line_that_names_the_key(words, message, ranks, tmp_path):
    # Beside `tmp_path` there may be runs of other tests, which could be resumed.
    own = [] if "output_dir" in words or words.startswith("--") else [f"output_dir={tmp_path}/runs/new"]
    with pytest.raises(UserError) as error:
        validate(compose_config([*words.split("  "), *own]), ranks)
    assert message in str(error.value) and "\n" not in str(error.value)
