"""The configuration is a tree of dataclasses, which Hydra fills from `configs/` and from `key=value` words.

The comment above a field is its documentation: meaning, unit, example. `grpo config` prints it (`grpo.config.keys`).
YAML under `configs/` holds differences only. `grpo.config.hydra.compose_config` turns words into these classes, and no
other room names Hydra.

The dataclasses:
run, task, engines, loss, sweep   every key with its meaning
aliases            what words of other frameworks are here
folder             the names of all files in a run's folder; which runs a folder holds
start              the name of a new run's folder

From words to a configuration:
hydra, flags       composing; Hydra's own flags, and a configuration file of the user's
directory          the YAML groups that come with grpo
rewording          words that Hydra would misunderstand
complaints, hints  what Hydra and OmegaConf complain of, in plain words; what an unknown key may mean
saved              a saved configuration read again, compared with the present one; the model of an earlier run
leaves             every key of a configuration with its value; the keys in which two differ
plain_json, plain_yaml   JSON and YAML that may come from a stranger
keys, tab_completion   what `grpo config`, `--help` and the Tab key show

Checks before anything starts:
validate           the whole; its parts are validate_loss, validate_task and ranges, which has the values of each key
trl_trainer        names of TRL's trainer in Python, and what stands here for them
unread, surprises  words that have no effect; settings that are possible and rarely meant
credentials, pass_through    keys and passwords; settings for vLLM, DeepSpeed and transformers
errors             UserError and its kinds

Computed from a configuration:
memory_estimate    batch table and memory
placement          which GPUs learn and which serve
parts              what a learner and a sampler need of it
optimizer          which optimizer learns, its own settings, and the learning rate of each step
"""

from grpo.config.engines import (
    BudgetConfig,
    LearnerConfig,
    LoraConfig,
    ModelConfig,
    RefillConfig,
    RolloutConfig,
    SamplingConfig,
    WeightSyncConfig,
)
from grpo.config.errors import UserError
from grpo.config.loss import (
    AggregationConfig,
    CorrectionConfig,
    KlConfig,
    NormalizationConfig,
    ObjectiveConfig,
    TokenSelectionConfig,
)
from grpo.config.run import CheckpointConfig, DynamicsConfig, EvaluationConfig, GateConfig, TrackingConfig, TrainConfig
from grpo.config.task import (
    CurriculumConfig,
    DataConfig,
    LimitsConfig,
    PromptConfig,
    RewardConfig,
    RewardPartConfig,
    RewardServerConfig,
    SelectionConfig,
    TaskConfig,
)
