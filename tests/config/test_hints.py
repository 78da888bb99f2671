"""Words of other frameworks lead to the key, the choice or the command that they mean here."""

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.aliases import ALIASES, VALUES
from grpo.config.complaints import paths
from grpo.config.hints import hint
from grpo.config.hydra import compose_config

# A word as people type it, and the key, choice or sentence that answers it.
WORDS = """
alpha normalization.exponent is the α of the advantages, and model.lora.alpha the scale of adapters
samples evaluation.samples_per_problem is how often a problem is asked by grpo eval and solve-rates
objective.kl.coef objective.kl.coefficient
checkpoint.every checkpoint.every_rounds
save_every checkpoint.every_rounds
checkpoint.interval checkpoint.every_rounds
evaluation.n evaluation.samples_per_problem
evaluation.interval evaluation.every_rounds
rollout.servers.count rollout.servers.replicas
task.data.file task.data.path
task.data.name task.data.path
task.reward.function task.reward.parts
model.lora.dropout nothing has dropout here
checkpoint.best grpo export RUN DIRECTORY
data.val_files evaluation.suite=[test.parquet] asks all problems of a file
loss_type=dr_grpo objective=dr_grpo
loss_type=grpo objective=grpo
loss_type=dapo objective=dapo
loss_type=cispo objective=cispo
loss_type=bnpo objective.aggregation.level
actor_rollout_ref.model.path model.path
custom_reward_function.path task.reward.parts
custom_reward_function.name task.reward.parts
dataset_split task.data.split
model_name model.path
gpus hardware.ranks_per_node
num_gpus hardware.ranks_per_node
nproc hardware.ranks_per_node
push_to_hub grpo export RUN DIRECTORY upload=USER/NAME
hub_model_id grpo export RUN DIRECTORY upload=USER/NAME
hub_token the environment variable HF_TOKEN
model_init_kwargs model.config
disable_dropout nothing has dropout here
cast_lm_head_to_fp32 model.head_precision
num_generations dynamics.group_size
num_generations_eval evaluation.samples_per_problem
max_prompt_length task.prompt.max_tokens
max_completion_length rollout.sampling.max_tokens
shuffle_dataset task.curriculum.name
generation_batch_size dynamics.prompts_per_step
steps_per_generation dynamics.refresh_interval
min_p rollout.sampling.extra
generation_kwargs rollout.sampling.extra
repetition_penalty rollout.sampling.extra
use_vllm rollout.engine
vllm_mode rollout.engine
vllm_enable_sleep_mode learner.offload_states
vllm_enable_sleep learner.offload_states
colocate_all_models rollout.engine
hardware.nodes hardware.learner_nodes
output output_dir
reward_model.overlong_buffer.len task.reward.overlong_buffer
reward_model.enable task.reward.parts
task.reward.weights task.reward.parts
actor_rollout_ref.rollout.mode pipeline
vllm_server_base_url rollout.servers.urls
vllm_server_host rollout.servers.host
vllm_server_port rollout.servers.port
vllm_server_timeout rollout.servers.start_seconds
vllm_gpu_memory_utilization rollout.gpu_memory_fraction
vllm_max_model_length model.max_length
vllm_tensor_parallel_size rollout.servers.tensor_parallel
beta objective.kl.coefficient
num_iterations dynamics.passes
epsilon objective.clip_low
epsilon_high objective.clip_high
delta objective.dual_clip
sapo_temperature_neg objective.temperature_negative
importance_sampling_level=token objective.ratio
importance_sampling_level=sequence objective=gspo
reward_weights task.reward.parts
multi_objective_aggregation normalization.parts
scale_rewards=none normalization=dr_grpo
scale_rewards=batch normalization.scope=batch
scale_rewards=group normalization.exponent
mask_truncated_completions task.reward.overlong
sync_ref_model objective.kl.refresh_every
ref_model_mixup_alpha objective.kl.refresh_rate
top_entropy_quantile objective.selection.share
max_tool_calling_iterations a completion is one answer here
vllm_importance_sampling_correction objective.correction.level
use_bias_correction_kl objective.kl.by_ratio
log_completions tracking.completions
num_completions_to_print tracking.samples_per_round
model_name_or_path model.path
model_revision model.revision
dtype learner.precision
torch_dtype learner.precision
attn_implementation the way to compute attention is chosen
use_peft model.lora.rank
lora_r model.lora.rank
model.lora.r model.lora.rank
lora_alpha model.lora.alpha
lora_dropout nothing has dropout here
lora_target_modules model.lora.target_modules
lora_modules_to_save adapters are plain LoRA here
use_dora adapters are plain LoRA here
use_rslora adapters are plain LoRA here
load_in_4bit no weights are quantized here
load_in_8bit no weights are quantized here
dataset_name task.data.path
dataset_config task.data.subset
dataset_train_split task.data.split
dataset_test_split evaluation.suite=[test.parquet] asks all problems of a file
reward_funcs task.reward.parts
overwrite_output_dir a run never overwrites another
do_train `grpo train` trains
do_eval evaluation.num_problems
eval_strategy evaluation.every_rounds
eval_steps evaluation.every_rounds
eval_on_start evaluation.num_problems
per_device_train_batch_size dynamics.prompts_per_step
per_device_eval_batch_size rollout.max_concurrent
gradient_accumulation_steps learner.micro_batch_tokens
lr learner.learning_rate
adam_beta1 learner.betas
max_grad_norm learner.max_gradient_norm
num_train_epochs num_steps
max_steps num_steps
lr_scheduler_type learner.schedule
warmup_ratio learner.warmup_steps
logging_dir output_dir
logging_steps every round is logged
logging_first_step every round is logged
save_strategy checkpoint.every_rounds
save_steps checkpoint.every_rounds
save_total_limit checkpoint.keep_last
save_only_model grpo export RUN DIRECTORY
data_seed seed
bf16 learner.precision
fp16 learner.precision
local_rank `grpo launch` starts and numbers the ranks
dataloader_num_workers problems are read once
run_name output_dir
load_best_model_at_end the best checkpoint is kept
metric_for_best_model the best checkpoint is kept
fsdp the learner shards by DeepSpeed ZeRO
optim learner.deepspeed
report_to tracking.wandb
resume_from_checkpoint checkpoint.resume
torch_compile the learner is not compiled
neftune_noise_alpha GRPO has no such thing here
use_liger_kernel there is no such kernel here
use_cpu device
auto_find_batch_size learner.micro_batch_tokens
actor_rollout_ref.rollout.n dynamics.group_size
actor_rollout_ref.rollout.name rollout.engine
actor_rollout_ref.rollout.response_length rollout.sampling.max_tokens
actor_rollout_ref.rollout.gpu_memory_utilization rollout.gpu_memory_fraction
actor_rollout_ref.rollout.tensor_model_parallel_size rollout.servers.tensor_parallel
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu learner.micro_batch_tokens
actor_rollout_ref.rollout.val_kwargs.n evaluation.samples_per_problem
actor_rollout_ref.rollout.free_cache_engine learner.offload_states
actor_rollout_ref.actor.optim.lr learner.learning_rate
actor_rollout_ref.actor.ppo_mini_batch_size dynamics.prompts_per_step
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu learner.micro_batch_tokens
actor_rollout_ref.actor.use_kl_loss objective.kl.coefficient
actor_rollout_ref.actor.kl_loss_coef objective.kl.coefficient
actor_rollout_ref.actor.entropy_coeff objective.entropy_coefficient
actor_rollout_ref.actor.fsdp_config.param_offload learner.offload_states
actor_rollout_ref.actor.strategy the learner shards by DeepSpeed ZeRO
actor_rollout_ref.actor.grad_clip learner.max_gradient_norm
actor_rollout_ref.model.enable_gradient_checkpointing learner.gradient_checkpointing
actor_rollout_ref.model.lora_rank model.lora.rank
actor_rollout_ref.model.target_modules model.lora.target_modules
data.train_files task.data.path
data.train_batch_size dynamics.prompts_per_step
data.max_prompt_length task.prompt.max_tokens
data.max_response_length rollout.sampling.max_tokens
data.filter_overlong_prompts task.prompt.too_long
data.image_key models are trained on text only
data.prompt_key task.data.question_column
algorithm.adv_estimator=grpo normalization=grpo
algorithm.adv_estimator=rloo normalization.leave_one_out=true
algorithm.norm_adv_by_std_in_grpo normalization.exponent
algorithm.gamma there is no critic here
algorithm.kl_ctrl.kl_coef objective.kl.coefficient
algorithm.use_kl_in_reward objective.kl.place
algorithm.filter_groups.enable rollout.refill.enabled
trainer.n_gpus_per_node hardware.ranks_per_node
trainer.nnodes hardware.learner_nodes
trainer.total_epochs num_steps
trainer.save_freq checkpoint.every_rounds
trainer.test_freq evaluation.every_rounds
trainer.logger tracking.wandb
trainer.project_name tracking.project
trainer.experiment_name output_dir
trainer.val_before_train evaluation.num_problems
trainer.default_local_dir output_dir
trainer.critic_warmup there is no critic here
critic.model.path model.path
reward_model.reward_manager task.reward.parts
pretrain model.path
prompt_data task.data.path
save_path output_dir
max_ckpt_num checkpoint.keep_last
n_samples_per_prompt dynamics.group_size
rollout_batch_size dynamics.prompts_per_step
micro_train_batch_size learner.micro_batch_tokens
max_samples task.data.limit
actor_learning_rate learner.learning_rate
critic_learning_rate there is no critic here
init_kl_coef objective.kl.coefficient
kl_estimator objective.kl.estimator
advantage_estimator=group_norm normalization=grpo
flash_attn the way to compute attention is chosen
adam_offload learner.offload_optimizer
vllm_num_engines rollout.servers.replicas
async_train pipeline
remote_rm_url task.reward.parts
use_wandb tracking.wandb
wandb_project tracking.project
dynamic_filtering rollout.refill.enabled
max_seq_length model.max_length
max_lora_rank model.lora.rank
use_gradient_checkpointing learner.gradient_checkpointing
random_state seed
max_async_level rollout.max_staleness
rollouts_per_example dynamics.group_size
seq_len model.max_length
ckpt.interval checkpoint.every_rounds
wandb.project tracking.project
model.name model.path
mixed_precision learner.precision
num_processes hardware.ranks_per_node
num_machines hardware.learner_nodes
main_process_port hardware.first_port
deepspeed_config_file learner.deepspeed
learner.lr learner.learning_rate
learner.learning_rates learner.learning_rate
learner.lerning_rate learner.learning_rate
learner.warmup learner.warmup_steps
learner.zero learner.zero_stage
learner.grad_norm learner.max_gradient_norm
rollout.gpu_memory rollout.gpu_memory_fraction
rollout.temperature rollout.sampling.temperature
rollout.sampling.max_new_tokens rollout.sampling.max_tokens
evaluation.max_new_tokens evaluation.max_tokens
evaluation.problems evaluation.num_problems
evaluation.every evaluation.every_rounds
dynamics.group dynamics.group_size
dynamics.prompts dynamics.prompts_per_step
dynamics.batch_size dynamics.prompts_per_step
dynamics.tau dynamics.refresh_interval
objective.beta objective.kl.coefficient
objective.clip_ratio objective.clip_low
objective.entropy_coef objective.entropy_coefficient
normalization.alpha normalization.exponent
normalization.std normalization.exponent
task.prompt.system_prompt task.prompt.system
task.prompt.max_length task.prompt.max_tokens
task.data.question task.data.question_column
task.data.answer task.data.answer_column
correction.mode objective.correction.mode
data.path task.data.path
sampling.temperature rollout.sampling.temperature
adaptive.cost dynamics.adaptive.cost
objectiv.kl.place objective.kl.place
num_stesp num_steps
seeds seed
"""


@pytest.mark.parametrize("line", WORDS.strip().splitlines())
def test_a_word_of_another_framework_leads_to_what_is_meant(line):
    typed, _, meant = line.partition(" ")
    key, _, value = typed.partition("=")
    keys = paths(TrainConfig())
    assert key not in keys
    answer = hint(key, keys, value)
    if " " in meant:
        assert answer.startswith(": ")
        assert meant in answer
    else:
        assert answer in (f"; here it is {meant}", f"; did you mean {meant}?")


@pytest.mark.parametrize("key", ["foo", "use_tiger_stripes", "objective.banana", "model.lora.x", "my_own_thing", "q"])
def test_a_word_that_is_like_no_other_leads_nowhere(key):
    assert hint(key, paths(TrainConfig())) == "; `grpo config WORD` searches all keys"


@pytest.mark.parametrize(("name", "value", "word"), [(n, v, w) for n, of in VALUES.items() for v, w in of.items()])
def test_every_word_that_answers_a_value_composes(name, value, word):
    with pytest.raises(UserError) as error:
        compose_config([f"{name}={value}"])
    assert str(error.value) == f"unknown config key {name}; here it is {word}"
    compose_config(word.split())


def test_every_alias_leads_to_a_key():
    keys = paths(TrainConfig())
    assert [key for key in ALIASES.values() if key not in keys] == []
    assert [name for name in ALIASES if name in keys] == []
