"""This environment of verifiers asks sums. A test installs it beside verifiers."""

import itertools

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: int


class Task(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) in str(trace.nodes[-1].message.content))

    @vf.reward(weight=0.5)
    async def talked(self, trace: vf.Trace) -> float:
        return float(len(trace.calls) > 0)


class Taskset(vf.Taskset[Task, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count():
            yield Task(Data(prompt=f"{number} + 1 =", answer=number + 1), self.config.task)


__all__ = ["Taskset"]
