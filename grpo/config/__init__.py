"""The configuration is a tree of dataclasses, which Hydra fills from `configs/` and from `key=value` words.

The comment above a field is its documentation: meaning, unit, example. `grpo config` prints it (`grpo.config.keys`).
YAML under `configs/` holds differences only. `grpo.config.hydra.compose_config` turns words into these classes, and no
other room names Hydra.
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
from grpo.config.run import CheckpointConfig, DynamicsConfig, EvaluationConfig, TrackingConfig, TrainConfig
from grpo.config.task import (
    CurriculumConfig,
    DataConfig,
    PromptConfig,
    RewardConfig,
    RewardPartConfig,
    RewardServerConfig,
    SelectionConfig,
    TaskConfig,
)

__all__ = [
    "AggregationConfig",
    "BudgetConfig",
    "CheckpointConfig",
    "CorrectionConfig",
    "CurriculumConfig",
    "DataConfig",
    "DynamicsConfig",
    "EvaluationConfig",
    "KlConfig",
    "LearnerConfig",
    "LoraConfig",
    "ModelConfig",
    "NormalizationConfig",
    "ObjectiveConfig",
    "PromptConfig",
    "RefillConfig",
    "RewardConfig",
    "RewardPartConfig",
    "RewardServerConfig",
    "RolloutConfig",
    "SamplingConfig",
    "SelectionConfig",
    "TaskConfig",
    "TokenSelectionConfig",
    "TrackingConfig",
    "TrainConfig",
    "UserError",
    "WeightSyncConfig",
]
