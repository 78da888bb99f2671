"""This module names the shapes of tensors. Each name of an axis has one size in all arguments and results of a call.

Tests check this at every call of a public function of this package (`tests/algorithm/shapes.py`). Nothing is checked
while a run trains.
"""

from typing import Annotated

from torch import Tensor

Scalar = Annotated[Tensor, ()]
Targets = Annotated[Tensor, ("targets",)]
"""One value for each completion token of a micro-batch."""

Completions = Annotated[Tensor, ("completions",)]
"""One value for each completion of a group."""

States = Annotated[Tensor, ("targets", "width")]
Embedding = Annotated[Tensor, ("vocabulary", "width")]
Bias = Annotated[Tensor, ("vocabulary",)]
Logits = Annotated[Tensor, ("targets", "vocabulary")]
Sums = Annotated[Tensor, ("metrics",)]
Mask = Annotated[Tensor, ("queries", "keys")]
