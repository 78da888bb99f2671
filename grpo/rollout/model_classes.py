"""This module protects transformers' model classes from the changes of a vLLM engine in the same process.

vLLM runs a model for which it has no code (SmolLM3, Olmo 3) by transformers' own code. It then changes the model's
class for the whole process into a class that vLLM compiles and that wants vLLM's configuration. The learner's model is
of the same class, and could not be called any more.
"""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel


class ModelClasses:
    """Records the model classes of this process as they are before the engine starts, when this object is made."""

    def __init__(self):
        self._before = {cls: (cls.__bases__, dict(vars(cls))) for cls in _subclasses(PreTrainedModel)}

    def part(self, engine_model: nn.Module) -> None:
        """Undoes the engine's changes of classes, and moves the engine's own modules to subclasses with these changes.
        Called once the engine has started."""
        for cls, (bases, attributes) in self._before.items():
            if cls.__bases__ == bases:
                continue
            added_bases = tuple(base for base in cls.__bases__ if base not in bases)
            changed_attributes = {name: value for name, value in vars(cls).items() if attributes.get(name) is not value}
            cls.__bases__ = bases
            for name in changed_attributes:
                setattr(cls, name, attributes[name]) if name in attributes else delattr(cls, name)
            engines_own = type(cls)(
                cls.__name__, (cls, *added_bases), {"__module__": cls.__module__, **changed_attributes}
            )
            for module in engine_model.modules():
                if type(module) is cls:
                    module.__class__ = engines_own


def _subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
