"""This module keeps transformers' classes of models as they are when vLLM starts in the learner's process.

vLLM runs a model that it has no code for (SmolLM3, Olmo 3) by transformers' own. It then changes the class of that
model for the whole process: into one that vLLM compiles and that wants vLLM's configuration. The learner's model is of
the same class, and could not be called any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel


class ModelClasses:
    """Records the classes of models that this process has, as they are when this is made: before the engine starts."""

    def __init__(self):
        self._before = {cls: (cls.__bases__, dict(vars(cls))) for cls in _subclasses(PreTrainedModel)}

    def part(self, engine_model: nn.Module) -> None:
        """Undoes what the engine has changed, and gives the modules of its own model classes that keep the change.
        Called once the engine has started."""
        for cls, (bases, attributes) in self._before.items():
            if cls.__bases__ == bases:
                continue
            added = tuple(base for base in cls.__bases__ if base not in bases)
            changed = {name: value for name, value in vars(cls).items() if attributes.get(name) is not value}
            cls.__bases__ = bases
            for name in changed:
                setattr(cls, name, attributes[name]) if name in attributes else delattr(cls, name)
            engines_own = type(cls)(cls.__name__, (cls, *added), {"__module__": cls.__module__, **changed})
            for module in engine_model.modules():
                if type(module) is cls:
                    module.__class__ = engines_own


def _subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
