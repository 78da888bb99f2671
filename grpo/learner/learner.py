"""The learner takes gradient steps on batches and computes log-probabilities of groups."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from grpo.algorithm.balance import imbalance
from grpo.algorithm.loss import METRICS, policy_loss, tokens_of
from grpo.algorithm.token_losses import Tokens
from grpo.config.errors import UserError
from grpo.config.folder import REFERENCE_FILE
from grpo.config.optimizer import chosen_optimizer, learning_rate_factor
from grpo.config.parts import LearnerSettings
from grpo.interfaces import Bucket
from grpo.learner.collective import TorchCollective
from grpo.learner.engine import check_passed_on, dither, optimizer_settings, quiet, sharded_loading, start_engine
from grpo.learner.flops import flop_count
from grpo.learner.fused_head import choose_head
from grpo.learner.fused_layers import choose_layers
from grpo.learner.group_logprobs import Scoring, spoil_unless, to_device, with_selection
from grpo.learner.loading import fitting_layout, load_policy
from grpo.learner.offloading import LearnerStates
from grpo.learner.policy import DTYPES, Policy
from grpo.learner.reference import AdapterReference, CopyReference, reference_logprobs
from grpo.learner.resharding import SHARDS, Layout, load_resharded, only_plain_data, saved_layout, to_the_end
from grpo.learner.sequence_parallel import SequenceGroup
from grpo.learner.step_products import Products, StepProducts
from grpo.learner.varlen import choose_kernel
from grpo.learner.weights import weight_buckets
from grpo.models.files import ModelFiles
from grpo.types import Batch, GroupWithLogprobs, Mean, MicroBatch, RolloutGroup, ScoredGroup, StepReport
from grpo.types import metrics as m
from grpo.types.weights import MERGED

# A checkpoint holds the optimizer's settings of the last step under this name.
LAST_STEP = "last_step"


class DeepSpeedLearner:
    """Implements `interfaces.Learner` on DeepSpeed ZeRO 1–3. All methods are collective."""

    def __init__(
        self, settings: LearnerSettings, files: ModelFiles, device: torch.device, checkpoint: str | Path | None = None
    ):
        """Loads the model in `files`. Call `grpo.learner.engine.init_distributed` before. `checkpoint` is the one
        that `load` will read: UserError is raised where it does not fit the model."""
        self._settings = settings
        self._device = device
        learner = settings.learner
        check_passed_on(learner)
        together = learner.sequence_parallel
        self._together = SequenceGroup(together, settings.longest_wait_seconds) if together > 1 else None
        self.collective = TorchCollective(device, together=self._together)
        # A learner that continues its own run loads its checkpoint, and not the weights that the run started with.
        model = dataclasses.replace(settings.model, start="") if checkpoint else settings.model
        chunk = learner.logit_chunk_tokens
        choose_kernel(device)
        loading = sharded_loading(learner, learner.precision)
        policy = load_policy(files, model, learner.precision, chunk, settings.seed, self._together, loading)
        if learner.gradient_checkpointing:
            policy.language_model.gradient_checkpointing_enable({"use_reentrant": False})
        if not policy.in_trees and self.collective.rank == 0:
            print(f"{files.path} is computed one completion a row: over packed trees its layers are not exact")
        policy.train()
        if checkpoint:
            saved_layout(checkpoint, self._layout(policy))
        self._flops = flop_count(policy.language_model, policy.head.weight)
        self.engine = start_engine(policy, learner)
        if learner.dither and not checkpoint:
            dither(self.engine, settings.seed)
        self._products = StepProducts(self.engine.optimizer.optimizer)
        self.policy = self.engine.module
        self.reference = self._reference(files)
        heads = tuple(policy.head for policy in (policy, *self._frozen_policies))
        choose_head(heads, device, learner.fused, files.config.get_text_config().vocab_size, self.collective)
        models = [policy.language_model for policy in (policy, *self._frozen_policies)]
        choose_layers(models, device, learner.fused, self.collective)
        row_tokens = learner.micro_batch_tokens
        self._logprobs = Scoring(self.layout, row_tokens, self.collective, device, self.cost)
        self.num_steps = 0
        self._skipped_in_a_row = 0

    def cost(self, before: int, tokens: int) -> float:
        """Returns the floating-point operations of a run of inputs, see `grpo.learner.flops.FlopCount.of_run`."""
        return self._flops.of_run(before, tokens)

    @property
    def layout(self) -> str:
        """Says how rows are packed, see `grpo.learner.loading.fitting_layout`."""
        return fitting_layout(self._settings.learner.layout, self.policy.in_trees)

    def _reference(self, files: ModelFiles) -> AdapterReference | CopyReference | None:
        kl, learner = self._settings.objective.kl, self._settings.learner
        if not kl.coefficient:
            return None
        if self._settings.model.lora.rank:
            return AdapterReference(self.policy)
        precision = "float32" if kl.refresh_every and kl.refresh_rate < 1 else learner.precision
        model, chunk = self._settings.model, learner.logit_chunk_tokens
        # A second copy of the weights would serve backward passes, and a reference has none.
        loading = sharded_loading(dataclasses.replace(learner, hpz_partition_size=0), precision)
        reference_policy = load_policy(files, model, precision, chunk, together=self._together, loading=loading)
        return CopyReference(reference_policy, learner, kl, self._device)

    def states(self) -> LearnerStates:
        """Returns this learner's states on its device, which may be offloaded between two calls of other methods."""
        return LearnerStates(self.engine, self._device, self._frozen_policies, self._settings.sends_base)

    @property
    def _frozen_policies(self) -> list[Policy]:
        return [self.reference.policy] if isinstance(self.reference, CopyReference) else []

    # --- log-probabilities ---------------------------------------------------------------------

    def add_logprobs(self, steps: Sequence[Sequence[ScoredGroup]]) -> list[list[GroupWithLogprobs]]:
        """Adds old log-probabilities to every step but the first, which is taken with the old policy itself.

        With several passes in a round the first step gets them too. With `old_logprobs=sampler` no step does. With the
        KL in the reward every step does in any case. Reference log-probabilities are added where there is a KL term.
        """
        groups = [scored.group for step in steps for scored in step]
        num_first, passes = len(steps[0]), self._settings.passes
        old = [() for _ in groups]
        if self._settings.objective.kl.in_reward:
            old = self._logprobs(groups, self._current)
        elif self._settings.objective.old_logprobs == "learner" and (len(steps) > 1 or passes > 1):
            # A second pass over the samples needs the old log-probabilities of the first step too.
            num_without = num_first if passes == 1 else 0
            old[num_without:] = self._logprobs(groups[num_without:], self._current)
        reference = [() for _ in groups]
        if self.reference is not None:
            reference = self._logprobs(groups, self._from_reference)
        logprobs = iter(zip(old, reference, strict=True))
        return [[GroupWithLogprobs(scored, *next(logprobs)) for scored in step] for step in steps]

    def logprobs(self, groups: Sequence[RolloutGroup]) -> list[tuple[torch.Tensor, ...]]:
        """Returns log π of the current weights: one float32 CPU tensor [completion tokens] per completion of each
        group."""
        return self._logprobs(groups, self._current)

    def _current(self, micro: MicroBatch) -> torch.Tensor:
        with torch.no_grad():
            return self.engine(micro, self._settings.temperature, entropies=False)[0]

    def _from_reference(self, micro: MicroBatch) -> torch.Tensor:
        return reference_logprobs(self.reference, micro, self._settings.temperature)

    # --- one step ------------------------------------------------------------------------------

    def step(self, batch: Batch) -> StepReport:
        """Runs backward passes over the batch's micro-batches, then takes one optimizer step.

        Each micro-batch's loss is already divided by denominators of the whole step, so gradients add
        up. DeepSpeed divides their sum by the number of ranks; the factor `world_size` undoes that, here
        and nowhere else. Non-finite gradients leave the weights alone: the step is reported as not
        applied, and too many in a row raise UserError.
        """
        objective = self._settings.objective
        if batch.entropy_coefficient is not None:
            objective = dataclasses.replace(objective, entropy_coefficient=batch.entropy_coefficient)
        # The sums stay on the device, so that the host prepares the next micro-batch while the device computes this
        # one.
        sums = torch.zeros(len(METRICS), dtype=torch.float64, device=self._device)
        whole_loss = torch.zeros((), dtype=torch.float64, device=self._device)
        together = self._settings.learner.sequence_parallel
        for micro in with_selection(batch.micro_batches, self._tokens_now, objective, self.collective, together):
            micro_on_device = to_device(micro, self._device)
            logprobs, entropies = self.engine(micro_on_device, self._settings.temperature)
            loss, metrics = policy_loss(logprobs, entropies, micro_on_device, objective)
            spoil_unless(loss.isfinite(), logprobs)
            self.engine.backward(loss * self.collective.world_size, scale_wrt_gas=False)
            sums += metrics
            whole_loss += loss.detach()
        tokens = sum(micro.targets.numel() for micro in batch.micro_batches)
        work = [self._flops.of(micro) / together for micro in batch.micro_batches]
        settings = self._set_optimizer(batch.learning_rate_factor)
        self.engine.step()
        products = self._products.take(settings, self._device)
        self.num_steps += 1
        applied = not self.engine.optimizer.overflow
        self._count_skipped(applied)
        if isinstance(self.reference, CopyReference) and self.reference.due(self.num_steps):
            self.reference.refresh(self._buckets(MERGED, self._settings.learner.precision))
        # Ranks that compute a row together all have its loss.
        part = whole_loss.item() / together
        own_sums = [*torch.cat((products, sums)).tolist(), part, tokens, sum(work)]
        *totals, whole_loss, tokens, flops = self.collective.sum(own_sums)
        products, totals = Products(*totals[: len(products)]), totals[len(products) :]
        gradient_norm = float(self.engine.get_global_grad_norm())
        means = {name: Mean(total, tokens) for name, total in zip(METRICS, totals, strict=True)}
        if not batch.fresh:
            # These samples made the steps with which their gradient would be multiplied, so even noise would agree.
            products = Products()
        means |= products.means(gradient_norm, self._products.path_steps)
        means[m.LOSS] = Mean(whole_loss, 1)
        if not batch.old_known:
            # The current policy stood in for that of the round's start, so its steps since then would count as a
            # mismatch between the engines.
            means |= {name: Mean(0.0, 0.0) for name in METRICS if name.startswith(m.MISMATCH)}
        # From stage 2 on, ranks exchange gradients in every micro-batch.
        in_step = self._settings.learner.zero_stage >= 2
        means[m.IMBALANCE] = imbalance(self.collective.gather(work), in_step)
        means[m.LOGPROBS_IMBALANCE] = self._logprobs.take_imbalance()
        return StepReport(self.num_steps, applied, gradient_norm, settings["lr"], flops, means)

    def _tokens_now(self, micro: MicroBatch) -> Tokens:
        """Returns a micro-batch's tokens as the objective sees them under the current weights, without gradient."""
        micro_on_device = to_device(micro, self._device)
        with torch.no_grad():
            return tokens_of(
                *self.engine(micro_on_device, self._settings.temperature), micro_on_device, self._settings.objective
            )

    def _set_optimizer(self, factor: float) -> dict[str, Any]:
        """Sets the learning rate, the schedule's times `factor`. Sets the optimizer's other settings as they are
        configured now, whatever a loaded checkpoint had. Returns all of them."""
        learner = self._settings.learner
        rate = learner.learning_rate * factor * learning_rate_factor(self.num_steps, learner, self._settings.num_steps)
        settings = {"lr": rate, **optimizer_settings(learner)}
        for group in self.engine.optimizer.param_groups:
            group |= settings
        return settings

    def _count_skipped(self, applied: bool) -> None:
        self._skipped_in_a_row = 0 if applied else self._skipped_in_a_row + 1
        limit = self._settings.learner.max_skipped_steps
        if self._skipped_in_a_row >= limit:
            raise UserError(
                f"gradients were NaN or Inf in {limit} steps in a row (step {self.num_steps}); the weights are as "
                f"before these steps: lower learner.learning_rate, or use learner.precision=float32"
            )

    # --- state ---------------------------------------------------------------------------------

    def weight_buckets(self, form: str = MERGED) -> Iterator[Bucket]:
        return self._buckets(form, self._settings.sent_precision)

    def _buckets(self, form: str, precision: str) -> Iterator[Bucket]:
        bucket_bytes = self._settings.bucket_mib * 2**20
        return weight_buckets(self.policy, bucket_bytes, DTYPES[precision], form)

    def save(self, directory: str) -> None:
        """Writes all that `load` reads into a folder, where every rank finds it afterwards. Only a rank that could not
        write its part raises."""
        first = self.collective.rank == 0
        with to_the_end(self.engine) as attempt:
            client_state = {LAST_STEP: self._products.settings}
            self.engine.save_checkpoint(
                directory, tag=SHARDS, client_state=client_state, save_latest=False, exclude_frozen_parameters=True
            )
            if first:
                attempt(self._layout(self.policy).write, directory)
            if isinstance(self.reference, CopyReference) and self.reference.differs:
                state = self.reference.state()
                if first:
                    attempt(save_file, state, Path(directory, REFERENCE_FILE))
            if path := self._products.state():
                attempt(save_file, path, self._path_file(directory))
            # Otherwise another rank could read what the first one still writes.
            self.collective.barrier()

    def rewind(self, directory: str) -> None:
        """Restores weights and optimizer state as `save` wrote them, while the count of steps goes on."""
        steps = self.num_steps
        self.load(directory)
        self.engine.global_steps = self.num_steps = steps
        self._skipped_in_a_row = 0

    def _path_file(self, directory: str) -> Path:
        return Path(directory, SHARDS, f"path-{self.collective.rank}.safetensors")

    def _layout(self, policy: Policy) -> Layout:
        learner = self._settings.learner
        trained_parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        count = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in trained_parameters)
        optimizer = chosen_optimizer(learner).name
        return Layout(self.collective.world_size, max(1, learner.zero_stage), learner.precision, count, optimizer)

    def load(self, directory: str) -> None:
        """Restores weights and optimizer state that `save` wrote, also with another number of ranks or in another
        precision. Raises UserError where they do not fit."""
        own_layout = self._layout(self.policy)
        saved_shards = saved_layout(directory, own_layout)
        try:
            with only_plain_data(), quiet():
                if saved_shards == own_layout:
                    _, own_state = self.engine.load_checkpoint(directory, tag=SHARDS)
                else:
                    own_state = load_resharded(self.engine, directory, self.collective)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            # DeepSpeed checks what it reads by assertions, or not at all.
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"{directory} is no checkpoint of this model, or not of this version ({reason}): set model.path as it "
                "was"
            ) from error
        self.num_steps = self.engine.global_steps
        path = self._path_file(directory)
        same = saved_shards == own_layout and path.exists()
        self._products.go_on(own_state.get(LAST_STEP, {}), load_file(path) if same else {})
        reference = Path(directory, REFERENCE_FILE)
        if isinstance(self.reference, CopyReference) and reference.exists():
            self.reference.restore(load_file(reference))
