"""These tables say what stands here for the names of TRL's trainer in Python. Words of its files are in `aliases`."""

ARGUMENTS = {
    "args": "words",
    "callbacks": "after_round=",
    "environment_factory": "episode=",
    "model": "the words 'model=huggingface' and 'model.path=NAME'",
    "processing_class": "no tokenizer, since the model's own is used",
    "resume_from_checkpoint": "the word 'checkpoint.resume=true'",
    "reward_funcs": "reward=",
    "rollout_func": "episode=",
    "tools": "episode=",
    "train_dataset": "dataset=",
}
"""The trainer takes what stands beside these arguments, and all else as words."""

METHODS = {
    "evaluate": "train() evaluates by evaluation.every_rounds, and `grpo eval` evaluates a model",
    "predict": "`grpo eval` evaluates a model",
    "save_model": "train() exports the model into its folder, Result.model, and `grpo export` does at any time",
    "save_state": "train() saves checkpoints by checkpoint.every_rounds",
    "push_to_hub": "train() exports the model into its folder, Result.model, from where it can be uploaded",
    "add_callback": "after_round= of Trainer takes a function of the step and the round's metrics",
}
