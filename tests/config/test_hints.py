"""Words of other frameworks lead to the key, the choice or the command that they mean here."""

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.aliases import ALIASES, VALUES
from grpo.config.complaints import paths
from grpo.config.hints import hint
from grpo.config.hydra import compose_config

# Words as people type them, and the key, choice or sentence that answers each of them.
WORDS = """
NUM_STEPS → num_steps
alpha → normalization.exponent is the α of the advantages, and model.lora.alpha the scale of adapters
data.return_raw_chat → tokens of every turn are kept exactly
actor_rollout_ref.rollout.agent.num_workers → task.limits.at_once
samples → evaluation.samples_per_problem is how often a problem is asked by grpo eval and solve-rates
objective.kl.coef beta actor_rollout_ref.actor.use_kl_loss → objective.kl.coefficient
actor_rollout_ref.actor.kl_loss_coef algorithm.kl_ctrl.kl_coef init_kl_coef objective.beta → objective.kl.coefficient
checkpoint.every save_every checkpoint.interval save_strategy save_steps trainer.save_freq → checkpoint.every_rounds
ckpt.interval → checkpoint.every_rounds
evaluation.n num_generations_eval actor_rollout_ref.rollout.val_kwargs.n → evaluation.samples_per_problem
evaluation.interval eval_strategy eval_steps trainer.test_freq evaluation.every → evaluation.every_rounds
rollout.servers.count vllm_num_engines → rollout.servers.replicas
task.data.file task.data.name dataset_name data.train_files prompt_data data.path → task.data.path
task.reward.function custom_reward_function.path custom_reward_function.name reward_model.enable → task.reward.parts
task.reward.weights reward_weights reward_funcs reward_model.reward_manager remote_rm_url → task.reward.parts
model.lora.dropout disable_dropout lora_dropout → nothing has dropout here
checkpoint.best save_only_model → grpo export RUN DIRECTORY
data.val_files dataset_test_split → evaluation.suite=[test.parquet] asks all problems of a file
loss_type=dr_grpo → objective=dr_grpo
loss_type=grpo → objective=grpo
loss_type=dapo → objective=dapo
loss_type=cispo → objective=cispo
loss_type=bnpo → objective.aggregation.level
actor_rollout_ref.model.path model_name model_name_or_path pretrain model.name → model.path
dataset_split dataset_train_split → task.data.split
gpus num_gpus nproc trainer.n_gpus_per_node num_processes → hardware.ranks_per_node
push_to_hub hub_model_id → grpo export RUN DIRECTORY upload=USER/NAME
hub_token → the environment variable HF_TOKEN
model_init_kwargs → model.config
cast_lm_head_to_fp32 → model.head_precision
num_generations actor_rollout_ref.rollout.n n_samples_per_prompt rollouts_per_example → dynamics.group_size
dynamics.group → dynamics.group_size
max_prompt_length data.max_prompt_length task.prompt.max_length → task.prompt.max_tokens
max_completion_length actor_rollout_ref.rollout.response_length data.max_response_length → rollout.sampling.max_tokens
rollout.sampling.max_new_tokens → rollout.sampling.max_tokens
shuffle_dataset → task.curriculum.name
generation_batch_size → dynamics.prompts_per_step
per_device_train_batch_size gradient_accumulation_steps → completions make a step on all devices together
data.train_batch_size → dynamics.refresh_interval × prompts_per_step
critic.model.path critic.optim.lr → there is no critic here
k → evaluation.pass_at=[K] measures pass@K
actor_rollout_ref.actor.ppo_mini_batch_size rollout_batch_size → dynamics.prompts_per_step
dynamics.prompts dynamics.batch_size → dynamics.prompts_per_step
steps_per_generation dynamics.tau → dynamics.refresh_interval
min_p repetition_penalty → rollout.sampling.extra gives it to vLLM for `grpo eval` alone
generation_kwargs → rollout.sampling.extra
use_vllm vllm_mode colocate_all_models actor_rollout_ref.rollout.name → rollout.engine
vllm_enable_sleep_mode vllm_enable_sleep actor_rollout_ref.rollout.free_cache_engine → rollout.sleep
actor_rollout_ref.actor.fsdp_config.param_offload → learner.offload_states
hardware.nodes trainer.nnodes num_machines → hardware.learner_nodes
output logging_dir run_name trainer.experiment_name trainer.default_local_dir save_path → output_dir
reward_model.overlong_buffer.len → task.reward.overlong_buffer
actor_rollout_ref.rollout.mode async_train → pipeline
vllm_server_base_url vllm_server_host vllm_server_port → rollout.servers.urls
vllm_server_timeout → rollout.servers.start_seconds
vllm_gpu_memory_utilization actor_rollout_ref.rollout.gpu_memory_utilization → rollout.gpu_memory_fraction
rollout.gpu_memory → rollout.gpu_memory_fraction
vllm_max_model_length max_seq_length seq_len → model.max_length
vllm_tensor_parallel_size → rollout.servers.tensor_parallel
actor_rollout_ref.rollout.tensor_model_parallel_size → rollout.tensor_parallel
reward_model.model.path → task.reward.parts
data.seed → seed
num_iterations → dynamics.passes
epsilon objective.clip_ratio → each bound is set by itself here, as objective.clip_low and objective.clip_high
epsilon_high → objective.clip_high
delta → objective.dual_clip
sapo_temperature_neg → objective.temperature_negative
importance_sampling_level=token → objective.ratio
importance_sampling_level=sequence → objective=gspo
multi_objective_aggregation → normalization.parts
scale_rewards=none → normalization=dr_grpo
scale_rewards=batch → normalization.scope=batch
scale_rewards=group algorithm.norm_adv_by_std_in_grpo normalization.alpha normalization.std → normalization.exponent
mask_truncated_completions → task.reward.overlong
sync_ref_model → objective.kl.refresh_every
ref_model_mixup_alpha → objective.kl.refresh_rate
top_entropy_quantile → objective.selection.share
max_tool_calling_iterations → task.limits.turns
vllm_importance_sampling_correction → objective.correction.level
use_bias_correction_kl → objective.kl.by_ratio
log_completions → tracking.completions
num_completions_to_print → tracking.samples_per_round
model_revision → model.revision
dtype torch_dtype bf16 fp16 mixed_precision → learner.precision
attn_implementation flash_attn → the way to compute attention is chosen
use_peft lora_r model.lora.r actor_rollout_ref.model.lora_rank max_lora_rank → model.lora.rank
lora_alpha → model.lora.alpha
lora_target_modules actor_rollout_ref.model.target_modules → model.lora.target_modules
lora_modules_to_save use_dora → adapters are plain LoRA here
use_rslora → rank-stabilized LoRA is a larger scale: set model.lora.alpha
load_in_4bit load_in_8bit → no weights are quantized here
dataset_config → task.data.subset
overwrite_output_dir → a run never overwrites another
do_train → `grpo train` trains
do_eval eval_on_start trainer.val_before_train evaluation.problems → evaluation.num_problems
per_device_eval_batch_size → rollout.max_concurrent
auto_find_batch_size → learner.micro_batch_tokens
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu → learner.micro_batch_tokens
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu micro_train_batch_size → learner.micro_batch_tokens
lr actor_rollout_ref.actor.optim.lr actor_learning_rate learner.lr learner.learning_rates → learner.learning_rate
learner.lerning_rate → learner.learning_rate
adam_beta1 → learner.betas
max_grad_norm actor_rollout_ref.actor.grad_clip learner.grad_norm → learner.max_gradient_norm
num_train_epochs trainer.total_epochs → num_steps = epochs × problems ÷ dynamics.prompts_per_step
max_steps num_stesp → num_steps
lr_scheduler_type → learner.schedule
warmup_ratio learner.warmup → learner.warmup_steps
logging_steps logging_first_step → every round is logged
save_total_limit max_ckpt_num → checkpoint.keep_last
data_seed random_state seeds → seed
local_rank → `grpo launch` starts and numbers the ranks
dataloader_num_workers → problems are read once
load_best_model_at_end metric_for_best_model → the best checkpoint is kept
fsdp actor_rollout_ref.actor.strategy → the learner shards by DeepSpeed ZeRO
optim deepspeed_config_file → learner.deepspeed
report_to trainer.logger use_wandb → tracking.wandb
resume_from_checkpoint → checkpoint.resume=true output_dir=RUN goes on
torch_compile → the learner is not compiled
neftune_noise_alpha → GRPO has no such thing here
use_liger_kernel → there is no such kernel here
use_cpu → device
actor_rollout_ref.actor.entropy_coeff objective.entropy_coef → objective.entropy_coefficient
actor_rollout_ref.model.enable_gradient_checkpointing use_gradient_checkpointing → learner.gradient_checkpointing
data.filter_overlong_prompts → task.prompt.too_long
data.image_key → models are trained on text only
data.prompt_key task.data.question → task.data.question_column
algorithm.adv_estimator=grpo advantage_estimator=group_norm → normalization=grpo
algorithm.adv_estimator=rloo → normalization.leave_one_out=true
algorithm.gamma trainer.critic_warmup critic_learning_rate → there is no critic here
algorithm.use_kl_in_reward objectiv.kl.place → objective.kl.place
algorithm.filter_groups.enable dynamic_filtering → rollout.refill.enabled
trainer.project_name wandb_project wandb.project → tracking.project
max_samples → task.data.limit
kl_estimator → objective.kl.estimator
adam_offload → learner.offload_optimizer
max_async_level → rollout.max_staleness
main_process_port → hardware.first_port
learner.zero → learner.zero_stage
deepspeed_config adafactor → learner.deepspeed
sequence_len max_len → model.max_length
sample_packing pad_to_multiple_of dynamic_batch → learner.layout
tf32 load_in_16bit bf16_full_eval → learner.precision
val_set_size → task.data.held_out_fraction
policy_loss_type actor_rollout_ref.actor.policy_loss.loss_mode → objective.name
vllm_importance_sampling_mode → objective.correction.mode
no_advantage_std_norm → normalization.exponent
enable_prefix_caching actor_rollout_ref.rollout.load_format → rollout.engine_args
actor_rollout_ref.model.override_config rope_scaling → model.config
unsloth_vllm_standby deepspeed_enable_sleep → learner.offload_states
unsloth_num_chunks → learner.logit_chunk_tokens
ring_attn_size sequence_parallel_degree → learner.sequence_parallel
auto_resume_from_checkpoints → checkpoint.resume
trainer.esi_redundant_time → checkpoint.grace_seconds
eval_n_samples_per_prompt → evaluation.samples_per_problem
zpg → learner.hpz_partition_size
fsdp_auto_wrap_policy dp_shard_size → the learner shards by DeepSpeed ZeRO
peft_use_dora loftq_config exclude_modules → adapters are plain LoRA here
full_finetuning unfrozen_parameters → all weights are trained, or adapters with model.lora.rank
ray_kwargs.ray_init.num_cpus hybrid_engine → there is no Ray here
kl_target algorithm.kl_ctrl.horizon → objective.kl.coefficient stays as it is
enable_ema → no average of the weights is kept
special_tokens.pad_token disable_fast_tokenizer processing_class → the tokenizer is that of the model's folder
cut_cross_entropy liger_rope → there is no such kernel here
vllm_structured_outputs_regex → the sampler draws from the whole policy
device_map → `dry_run=true` shows the memory
train_on_inputs router_aux_loss_coef → GRPO has no such thing here
trainer.balance_batch → gradients are exact sums over all ranks
rollout.temperature sampling.temperature → rollout.sampling.temperature
evaluation.max_new_tokens → evaluation.max_tokens
task.prompt.system_prompt → task.prompt.system
task.data.answer → task.data.answer_column
correction.mode off_policy_mask_threshold → objective.correction.mode
trainer.default_hdfs_dir → checkpoint.upload
trainer.validation_data_dir → evaluations.jsonl in the run's folder
adaptive.cost → dynamics.adaptive.cost
hf_checkpoint → model.path
rm_type custom_rm_path → task.reward.parts
rollout_num_gpus → rollout.servers.replicas
use_tis → objective.correction.level
num_steps_per_rollout → dynamics.refresh_interval
sglang_mem_fraction_static → rollout.servers.gpu_memory_fraction
rollout_max_response_len → rollout.sampling.max_tokens
dynamic_sampling_filter_path → rollout.refill.enabled
actor.fsdp_config.model_dtype → learner.precision
adapter → model.lora.rank
environment.id → task.episode
num_epoch → a run is counted in optimizer steps
"""


ROWS = [line.split(" → ") for line in WORDS.strip().splitlines()]


@pytest.mark.parametrize(("typed", "meant"), [(typed, meant) for words, meant in ROWS for typed in words.split()])
def test_a_word_of_another_framework_leads_to_what_is_meant(typed, meant):
    key, _, value = typed.partition("=")
    keys = paths(TrainConfig())
    assert key not in keys
    answer = hint(key, keys, value)
    if " " in meant:
        assert answer.startswith(": ")
        assert meant in answer
    else:
        assert answer in (f"; here it is {meant}", f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("key", "listed"),
    [
        ("objective.aggregation.name", "; objective.aggregation has level, constant_length"),
        ("objective.banana", "; `grpo config objective` lists its keys"),
    ],
)
def test_an_unknown_key_of_a_section_leads_to_the_keys_of_that_section(key, listed):
    assert hint(key, paths(TrainConfig())) == listed


@pytest.mark.parametrize("key", ["foo", "use_tiger_stripes", "my_own_thing", "q", "banana.stripes"])
def test_a_word_that_is_like_no_other_leads_nowhere(key):
    assert hint(key, paths(TrainConfig())) == "; `grpo config WORD` searches all keys"


def test_a_misspelt_experiment_is_named():
    assert hint("expriment", paths(TrainConfig()), "tiny") == "; did you mean experiment?"


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
