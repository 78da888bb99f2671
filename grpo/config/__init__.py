"""The configuration: dataclasses that document every field, registered with Hydra as schemas.

A field's comment says what it means, its unit and an example; YAML under `configs/` holds differences
only. `grpo.config.hydra.compose_config` turns overrides into these classes once; nobody else sees Hydra.
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
)
from grpo.config.run import CheckpointConfig, DynamicsConfig, EvaluationConfig, TrackingConfig, TrainConfig
from grpo.config.task import (
    CurriculumConfig,
    DataConfig,
    PromptConfig,
    RewardConfig,
    RewardPartConfig,
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
    "RolloutConfig",
    "SamplingConfig",
    "SelectionConfig",
    "TaskConfig",
    "TrackingConfig",
    "TrainConfig",
    "UserError",
    "WeightSyncConfig",
]
