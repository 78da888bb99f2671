"""These tables say what words of other frameworks are here: keys, choices, commands, or nothing, with the reason.

The words are those of TRL, Hugging Face's Trainer and Accelerate, verl, OpenRLHF, unsloth, prime-rl, vLLM, and of slime
and Megatron. A word with a dot is taken before one without: evaluation.n before n.
"""

import re

# A key here, and its names elsewhere.
_NAMES = """
model.path: actor_rollout_ref.model.path base_model critic.model.path model.name model_id model_name model_name_or_path
    pretrain pretrained_model_name_or_path tokenizer_name base_model_config hf_checkpoint ref_load
model.revision: model_revision revision_of_model
model.start: adapter_name_or_path lora_adapter_path lora_model_dir resume_lora
model.max_length: cutoff_len max_length max_model_len max_model_length max_seq_len max_seq_length seq_len
    vllm_max_model_length sequence_len max_len rollout_max_context_len
model.head_precision: cast_lm_head_to_fp32
model.config: model_init_kwargs override_config overrides_of_model_config rope_scaling
model.lora.rank: adapter lora.r lora_r lora_rank max_lora_rank model.lora.r peft_config use_peft r
model.lora.alpha: lora_alpha
model.lora.target_modules: lora_target_modules lora_target_linear
task.data.path: data.file data_path dataset dataset_name dataset_path prompt_data task.data.file task.data.files
    task.data.name train_data train_dataset train_file train_files datasets datasets.path dataset_mixer
    rollout_data_path
task.data.subset: dataset_config dataset_config_name subset_name
task.data.split: dataset_split dataset_train_split prompt_split train_split
task.data.question_column: input_key prompt_key question_key prompt_column
task.data.answer_column: answer_key label_key solution_key data.answer data.solution
task.data.source_column: reward_fn_key
task.data.limit: max_samples max_train_samples train_max_samples
task.curriculum.name: shuffle shuffle_dataset shuffle_merged_datasets rollout_shuffle
task.prompt.template: prompt_template input_template
task.prompt.system: system_message system_prompt
task.prompt.chat: apply_chat_template
task.prompt.chat_template_kwargs: apply_chat_template_kwargs enable_thinking
task.prompt.examples: few_shot
task.prompt.max_tokens: max_prompt_length prompt_length prompt_max_len prompt.max_length rollout_max_prompt_len
task.prompt.too_long: filter_overlong_prompts truncation excess_length_strategy
task.prompt.chat_template: chat_template custom_chat_template chat_template_path
task.prompt.tool_parser: tool_call_parser tool_parser multi_turn.format
task.episode: tools environment_factory environment env rollout_func agent agent_loop tool_config_path tool_functions
    multi_turn multi_turn.enable agent_func_path agent_path custom_generate_function_path default_agent_loop
    agent_loop_config_path interaction_config_path multi_turn.interaction_config_path environment.id
task.limits.at_once: agent.num_workers
task.limits.program_characters: max_tool_response_length multi_turn.max_tool_response_length
task.limits.turns: max_turns max_tool_calling_iterations max_assistant_turns multi_turn.max_assistant_turns
    max_steps_per_episode
task.reward.parts: code_reward custom_reward_function custom_reward_function.name custom_reward_function.path
    remote_rm_url reward_fn reward_model.sandbox_fusion.url sandbox_fusion sandbox_fusion.url reward_funcs
    reward_function reward_functions reward_manager reward_model reward_model.enable reward_model.path reward_weights
    task.reward.function task.reward.functions task.reward.name task.reward.path task.reward.weights
    reward_model_name_or_path reward_pretrain reward_model.model.path rm_type rm_url custom_rm_path reward_key
task.reward.extract: answer_format
task.reward.overlong: mask_truncated_completions overlong_penalty_factor overlong_buffer.enable penalty_factor
task.reward.overlong_buffer: overlong_buffer overlong_buffer.len overlong_buffer_len
normalization.name: adv_estimator advantage_estimator
normalization.exponent: norm_adv_by_std_in_grpo normalization.alpha normalization.std normalize_reward scale_rewards
    std_normalization no_advantage_std_norm
normalization.parts: multi_objective_aggregation
normalization.leave_one_out: use_rloo
objective.ratio: importance_sampling_level
objective.clip_low: clip_ratio_low epsilon_low
objective.clip_high: clip_ratio_high epsilon_high eps_clip_high
objective.dual_clip: clip_ratio_c delta
objective.temperature_positive: sapo_temperature_pos tau_pos
objective.temperature_negative: sapo_temperature_neg tau_neg
objective.entropy_coefficient: ent_coef entropy_bonus entropy_coef entropy_coeff entropy_loss_coef
objective.entropy_step: entropy_coef_delta
objective.aggregation.level: loss_agg_mode loss_type
objective.selection.share: top_entropy_quantile
objective.selection.low: clip_cov_lb
objective.selection.high: clip_cov_ub
objective.selection.penalty: ppo_kl_coef
objective.kl.coefficient: beta init_kl_coef kl_beta kl_coef kl_coeff kl_loss_coef use_kl_loss
objective.kl.estimator: kl_estimator kl_loss_type kl_penalty use_kl_estimator_k3
objective.kl.place: use_kl_in_reward
objective.kl.by_ratio: use_bias_correction_kl
objective.kl.refresh_every: ref_model_sync_steps sync_ref_model
objective.kl.refresh_rate: ref_model_mixup_alpha
objective.correction.level: rollout_is vllm_importance_sampling_correction enable_vllm_is_correction use_tis
objective.correction.cap: rollout_is_threshold tis_imp_ratio_cap vllm_importance_sampling_cap
    vllm_importance_sampling_clip_max vllm_is_truncated_threshold tis_clip
dynamics.group_size: g group_size n n_samples n_samples_per_prompt num_generations num_rollouts num_samples
    rollouts_per_example rollouts_per_prompt samples_per_prompt
dynamics.refresh_interval: steps_per_generation dynamics.tau num_steps_per_rollout
dynamics.passes: num_iterations ppo_epochs
dynamics.prompts_per_step: batch_size generation_batch_size ppo_mini_batch_size rollout_batch_size global_batch_size
pipeline: async_train rollout.mode
rollout.engine: colocate_actor_ref colocate_all_models rollout.name use_vllm vllm_mode fast_inference
    cache_implementation use_transformers_paged colocate
rollout.servers.replicas: num_servers servers.count servers.number vllm_num_engines rollout_num_engines rollout_num_gpus
rollout.tensor_parallel: actor_rollout_ref.rollout.tensor_model_parallel_size
rollout.servers.tensor_parallel: tensor_model_parallel_size tensor_parallel_size vllm_tensor_parallel_size
    rollout_num_gpus_per_engine
rollout.servers.urls: base_url vllm_server_base_url vllm_server_host vllm_server_port
rollout.servers.start_seconds: vllm_server_timeout
rollout.sampling.temperature: temperature rollout_temperature
rollout.sampling.top_p: top_p rollout_top_p
rollout.sampling.top_k: top_k rollout_top_k
rollout.sampling.max_tokens: generate_max_len max_completion_length max_new_tokens max_response_length max_tokens
    response_length rollout_max_response_len
rollout.sampling.stop: stop_strings rollout_stop
rollout.sampling.extra: generation_kwargs do_sample ignore_eos vllm_sampling_params
rollout.refill.enabled: dynamic_filtering dynamic_sampling filter_groups filter_groups.enable use_dynamic_sampling
    dynamic_filtering_reward_range dynamic_sampling_filter_path
rollout.refill.max_waves: max_num_gen_batches over_sampling_batch_size
rollout.gpu_memory_fraction: gpu_memory_utilization vllm_gpu_memory_utilization
rollout.engine_args: max_num_batched_tokens enable_chunked_prefill enable_prefix_caching float8_kv_cache load_format
    swap_space vllm_model_impl
rollout.max_concurrent: eval_batch_size max_num_seqs per_device_eval_batch_size val_batch_size vllm_generate_batch_size
    sglang_server_concurrency
rollout.max_staleness: async_level max_async_level off_policy_steps async_queue_size
learner.zero_stage: stage zero
learner.sequence_parallel: context_parallel_size cp_size sequence_parallel_size ulysses_sequence_parallel_size
    ring_attn_size ring_head_stride sequence_parallel_degree
learner.offload_optimizer: adam_offload optimizer_offload offload_optimizer_device
rollout.sleep: free_cache_engine vllm_enable_sleep vllm_enable_sleep_mode enable_sleep_mode
learner.offload_states: offload param_offload deepspeed_enable_sleep fsdp_offload_params offload_param_device
    ref_reward_offload unsloth_vllm_standby
learner.precision: bf16 dtype fp16 mixed_precision torch_dtype bf16_full_eval downcast_bf16 fp16_opt_level
    half_precision_backend load_in_16bit tf32 model_dtype
learner.gradient_checkpointing: activation_checkpointing enable_gradient_checkpointing use_gradient_checkpointing
    gradient_checkpointing_kwargs gradient_checkpointing_use_reentrant recompute_granularity recompute_method
    recompute_num_layers
learner.learning_rate: actor_learning_rate learning_rate lr
learner.schedule: lr_scheduler lr_scheduler_type scheduler lr_scheduler_kwargs warmup_style lr_decay_style
learner.warmup_steps: lr_warmup_ratio lr_warmup_steps lr_warmup_steps_ratio warmup_ratio warmup_steps
learner.min_lr_fraction: min_lr min_lr_ratio
learner.betas: adam_beta1 adam_beta2 adam_betas
learner.adam_epsilon: adam_eps adam_epsilon
learner.weight_decay: l2 weight_decay
learner.max_gradient_norm: grad_clip gradient_clipping max_grad_norm max_norm grad_norm clip_grad
learner.deepspeed: deepspeed_config_file optim optimizer adafactor deepspeed_config zero3_init_flag
learner.micro_batch_tokens: auto_find_batch_size log_prob_micro_batch_size_per_gpu micro_batch_size
    micro_rollout_batch_size micro_train_batch_size ppo_max_token_len_per_gpu ppo_micro_batch_size
    ppo_micro_batch_size_per_gpu use_dynamic_bsz unsloth_grpo_mini_batch max_tokens_per_gpu use_dynamic_batch_size
learner.layout: packing packing_samples padding_free use_remove_padding dynamic_batch eval_sample_packing
    pad_to_multiple_of pad_to_sequence_len sample_packing
evaluation.num_problems: do_eval eval_on_start eval_samples max_eval_samples num_eval_samples val_before_train
evaluation.samples_per_problem: evaluation.n num_generations_eval val_kwargs.n eval_n_samples_per_prompt
    n_samples_per_eval_prompt
evaluation.every_rounds: eval.interval eval_every eval_freq eval_interval eval_steps eval_strategy evaluation.every
    evaluation.freq evaluation.interval test_freq eval_delay evals_per_epoch
evaluation.temperature: val_kwargs val_kwargs.temperature eval_temperature evaluation.sampling.temperature
evaluation.top_p: val_kwargs.top_p evaluation.sampling.top_p eval_top_p
evaluation.greedy: val_kwargs.do_sample
evaluation.suite: benchmarks eval_prompt_data
checkpoint.every_rounds: checkpoint.every checkpoint.interval ckpt.interval save_every save_freq save_interval
    save_steps save_strategy saves_per_epoch
checkpoint.keep_last: checkpoint.keep max_actor_ckpt_to_keep max_ckpt_num save_total_limit
checkpoint.upload: default_hdfs_dir
checkpoint.resume: auto_resume auto_resume_from_checkpoints load_checkpoint resume resume_mode
tracking.wandb: logger report_to use_wandb wandb
tracking.tensorboard: tensorboard_dir
tracking.project: project_name wandb.project wandb_project mlflow_experiment_name
tracking.entity: wandb_entity wandb_org
tracking.group: wandb_group
tracking.completions: log_completions rollout_data_dir
tracking.samples_per_round: log_val_generations num_completions_to_print num_examine
tracking.profile_rounds: profile profiler global_profiler global_profiler.tool
num_steps: iterations max_steps num_episodes num_training_steps steps total_steps total_training_steps train_steps
    training_steps num_rollout
hardware.learner_nodes: actor_num_nodes hardware.nodes nnodes num_machines num_nodes
hardware.ranks_per_node: actor_num_gpus_per_node gpus gpus_per_node n_gpus n_gpus_per_node nproc nproc_per_node num_gpus
    num_processes world_size
hardware.hosts: hostfile main_process_ip
hardware.first_port: main_process_port master_port
seed: data.seed data_seed random_seed random_state rollout_seed
output_dir: checkpoint_dir ckpt_path default_local_dir experiment_name logging_dir out_dir output output_directory
    run_name save_dir save_path wandb.name wandb_run_name wandb_name
device: accelerator no_cuda use_cpu
normalization.mean_exponent: normalization.beta
evaluation.max_tokens: eval_max_new_tokens eval_max_response_len
task.data.held_out_fraction: val_set_size
objective.name: loss_mode policy_loss_type
objective.correction.mode: off_policy_mask_threshold vllm_importance_sampling_mode
learner.hpz_partition_size: zpg
learner.logit_chunk_tokens: entropy_from_logits_with_chunking unsloth_logit_chunk_multiplier unsloth_num_chunks
learner.deadline_seconds: ddp_timeout
dynamics.adaptive.stop_patience: early_stopping_patience
checkpoint.grace_seconds: esi_redundant_time
tracking.mlflow: mlflow_tracking_uri use_mlflow
objective.correction.floor: tis_clip_low
rollout.servers.gpu_memory_fraction: mem_fraction_static sglang_mem_fraction_static
"""
ALIASES = {name: key for key, names in re.findall(r"^(\S+): (.+(?:\n .+)*)", _NAMES, re.M) for name in names.split()}

_ESTIMATORS = {
    **{name: f"normalization={name}" for name in ("grpo", "dr_grpo", "reinforce_plus_plus")},
    "group_norm": "normalization=grpo",
    "rloo": "normalization.leave_one_out=true",
}
# A word and its value elsewhere → what to write here.
VALUES = {
    "loss_type": {name: f"objective={name}" for name in ("grpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo")},
    "scale_rewards": {
        **dict.fromkeys(("none", "false", "False"), "normalization=dr_grpo"),
        "batch": "normalization.scope=batch",
    },
    "adv_estimator": _ESTIMATORS,
    "advantage_estimator": _ESTIMATORS,
    "algorithm": {name: f"normalization={name} objective={name}" for name in ("grpo", "dr_grpo", "dapo")},
    "importance_sampling_level": {"sequence": "objective=gspo"},
}

# Advice instead of a key, and below it the words that get this advice.
_INSTEAD = """
`grpo export RUN DIRECTORY upload=USER/NAME` sends a model to the hub
    push_to_hub hub_model_id hub_strategy hub_private_repo upload hub_always_push hub_revision
each bound is set by itself here, as objective.clip_low and objective.clip_high
    clip_eps clip_range clip_ratio cliprange eps_clip eps_clip_low_high epsilon
rollout.refill.enabled replaces groups of equal rewards, and it samples no more than it needs
    filter_groups.metric gen_batch_size
the environment variable HF_TOKEN holds the key to the hub
    hub_token hf_token token
every round is logged, in metrics.jsonl and by the trackers
    logging_steps logging_strategy logging_first_step log_every log_interval log_freq disable_tqdm
    include_num_input_tokens_seen include_tokens_per_second log_level log_unique_prompts logging_nan_inf_filter perf
    skip_memory_metrics trackio_space_id wandb_log_model wandb_watch
the best checkpoint is kept besides checkpoint.keep_last, and `grpo export RUN DIRECTORY` takes it
    load_best_model_at_end metric_for_best_model greater_is_better checkpoint.best save_best keep_best
`grpo export RUN DIRECTORY` writes a run's model, and checkpoint.export_every writes some while it trains
    save_only_model save_model save_merged export_path disable_ds_ckpt save_hf_ckpt save_method save_safetensors
    save_contents checkpoint.contents use_ds_universal_ckpt zero3_save_16bit_model
no weights are quantized here, since learner and engine have no weights of 4 bits in common that a CPU can prove
(grpo/learner/README.md): learner.precision is bfloat16 or float32, and model.lora.rank saves memory
    load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_4bit_compute_dtype use_bnb_nested_quant quantization qlora
    bnb_4bit_quant_storage qat quantization_method
nothing has dropout here, since learner and sampler would then compute different models
    lora_dropout lora.dropout dropout disable_dropout attention_dropout
rank-stabilized LoRA is a larger scale: set model.lora.alpha to its alpha times the square root of the rank
    use_rslora rslora rs_lora peft_use_rslora
adapters are plain LoRA here: model.lora has rank, alpha and target_modules
    use_dora lora_modules_to_save modules_to_save lora_bias lora_target_parameters lora_task_type exclude_modules
    init_lora_weights layers_to_transform loftq_config lora_fan_in_fan_out peft_use_dora
the way to compute attention is chosen and proved by the run itself
    attn_implementation flash_attn use_flash_attention_2 flash_attention use_sdpa eager_attention sdp_attention
    xformers_attention
there is no such kernel here: learner.logit_chunk_tokens bounds the memory of logits
    use_liger_kernel use_liger_loss use_fused_kernels cut_cross_entropy liger_glu_activation liger_rms_norm liger_rope
    lora_mlp_kernel lora_o_kernel lora_qkv_kernel plugins use_liger
the learner is not compiled, and rollout.enforce_eager=false compiles the sampler
    torch_compile compile deepcompile jit_mode_eval torch_compile_backend torch_compile_mode torchdynamo
    use_torch_compile
the learner shards by DeepSpeed ZeRO: choose learner=zero1, zero2 or zero3
    fsdp fsdp_config fsdp_size strategy fsdp2 distributed_type use_deepspeed accelerator_config dp_shard_size
    forward_prefetch fsdp_auto_wrap_policy fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap fsdp_version
    parallelism_config reshard_after_forward wrap_policy
there is no critic here: every token of a completion has the advantage of its group
    gamma lam lambd gae_lambda critic_learning_rate critic_warmup critic_pretrain value_coef vf_coef cliprange_value
    critic critic_num_nodes save_value_network use_pf_ppo value_clip value_head_prefix
the reference is the model that training begins with, and objective.kl.refresh_every moves it
    ref_model reference_model ref_pretrain ref_model_path
evaluation.samples_per_problem is how often a problem is asked by grpo eval and solve-rates, dynamics.group_size how
often by training, and limits.samples ends a run
    samples
dynamics.prompts_per_step is verl's ppo_mini_batch_size, and dynamics.refresh_interval × prompts_per_step its
train_batch_size
    train_batch_size
dynamics.prompts_per_step × dynamics.group_size completions make a step on all devices together
    per_device_train_batch_size gradient_accumulation_steps
a run is counted in optimizer steps: num_steps = epochs × problems ÷ dynamics.prompts_per_step
    epochs max_epochs num_epoch num_epochs num_train_epochs total_epochs
rollout.sampling.extra gives it to vLLM for `grpo eval` alone: training draws from the policy, which the learner
follows, by temperature, top_p and top_k
    min_p repetition_penalty frequency_penalty presence_penalty
evaluation.pass_at=[K] measures pass@K, and normalization.k belongs to normalization=pass_at_k
    k pass_at_k
normalization.exponent is the α of the advantages, and model.lora.alpha the scale of adapters
    alpha
models are trained on text only
    image_key images video_key limit_images
a run never overwrites another: name a new output_dir, or go on with checkpoint.resume=true
    overwrite_output_dir overwrite force
`grpo train` trains, and `grpo eval` evaluates
    do_train do_predict rl val_only
`grpo.Trainer(…, after_round=FUNCTION)` calls a function after each round
    callbacks callback
`grpo train my.yaml` begins with a configuration file of your own
    config config_file config_path
`grpo launch` starts and numbers the ranks
    local_rank node_rank machine_rank ddp_backend rdzv_endpoint compute_environment deepspeed_multinode_launcher
    enable_cpu_affinity main_training_function rdzv_backend same_network
problems are read once, without workers; task.reward.workers grade answers
    dataloader_num_workers num_workers dataset_num_proc preprocessing_num_workers dataloader_prefetch_factor
    dataloader_drop_last dataloader_persistent_workers dataloader_pin_memory dataset_prepared_path dataset_streaming
    filter_overlong_prompts_workers launch_reward_fn_async
evaluation.suite=[test.parquet] asks all problems of a file, and [math500] those of a known set
    val_files test_files val_file eval_file eval_dataset eval_data dataset_test_split eval_split validation_file
checkpoint.resume=true output_dir=RUN goes on from the newest checkpoint in a run's folder
    resume_from_checkpoint resume_from_path
tokens of every turn are kept exactly, and no conversation is encoded again (grpo/episodes/README.md)
    return_raw_chat return_raw_input_ids tokenization_sanity_check_mode multi_turn.tokenization_sanity_check_mode
task.limits.turns counts the model's turns, and all calls of a turn run together
    max_user_turns multi_turn.max_user_turns max_parallel_calls multi_turn.max_parallel_calls
GRPO has no such thing here
    neftune_noise_alpha label_smoothing_factor group_by_length remove_unused_columns aux_loss_coef eval_table_size
    include_inputs_for_metrics label_names length_column_name past_index prediction_loss_only ptx_coef
    router_aux_loss_coef train_on_inputs
learner.betas, adam_epsilon and weight_decay are the settings of AdamW, and learner.deepspeed names another
    optim_args optimizer_kwargs
there is no Ray here: `grpo launch` starts the ranks, also with hardware.shell=each in a job of Ray
    hybrid_engine num_cpus ray_init ray_kwargs ray_scope ray_wait_register_center_timeout use_legacy_worker_impl
    vllm_sync_with_ray
learner ranks hold the reference too, and answers are graded on their machines
    ref_num_gpus_per_node ref_num_nodes reward_num_nodes
all weights are trained, or adapters with model.lora.rank, and no other part of a model
    finetune_language_layers finetune_vision_layers freezing_actor_steps full_finetuning unfrozen_parameters
the tokenizer is that of the model's folder
    disable_fast_tokenizer fix_tokenizer model_type processing_class special_tokens special_tokens.pad_token
    tokenizer_type
runs use NVIDIA GPUs or CPUs
    tpu_env tpu_num_cores tpu_use_cluster tpu_use_sudo use_ms
objective.kl.coefficient stays as it is, and no controller changes it
    horizon kl_horizon kl_target
no average of the weights is kept: objective.kl.refresh_rate moves the reference slowly
    ema_beta enable_ema
weights travel by NCCL or gloo, at hardware.first_port
    vllm_group_port vllm_sync_backend
gradients are exact sums over all ranks, which get equal work
    average_tokens_across_devices balance_batch ddp_bucket_cap_mb ddp_find_unused_parameters eval_accumulation_steps
    eval_use_gather_object
log-probabilities of sampler and learner are always kept, and compared
    calculate_log_probs
`dry_run=true` shows the memory: learner.offload_states, offload_optimizer and gradient_checkpointing save some
    actor_init_on_gpu device_map enable_activation_offload layered_summon torch_empty_cache_steps use_shm
a checkpoint holds all that a run needs, and a resumed run goes on with the next prompt
    del_local_ckpt_after_load ignore_data_skip max_ckpt_mem restore_callback_states_from_checkpoint save_on_each_node
evaluations.jsonl in the run's folder keeps a completion of every problem evaluated
    validation_data_dir
the sampler draws from the whole policy, since the learner could not follow a grammar
    guided_decoding vllm_guided_decoding_regex vllm_structured_outputs_regex
a reward function of your own may clip what it returns
    reward_clip_range
`grpo.Trainer(dataset=rows)` takes rows that a program has made
    custom_cls custom_cls.path
seed decides prompts and samples, so that a run repeats on a CPU
    full_determinism
weights are gathered bucket by bucket: weight_sync.bucket_mib
    ds3_gather_for_generation
"""
ELSEWHERE = {
    name: " ".join(advice.split())
    for advice, names in re.findall(r"((?:^\S.*\n)+)((?:^ .+\n)+)", _INSTEAD, re.M)
    for name in names.split()
}
