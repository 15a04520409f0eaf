"""The events that training reports to its caller while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field

from jobs.spec.train import Precision
from jobs.training.harness import HarnessProgress, HarnessResult
from jobs.training.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class Started:
    """Data and model are ready; the first step follows."""

    total_steps: int
    first_step: int
    """Number of finished steps: 0, or the step of the checkpoint that training resumes from."""
    train_rows: int
    eval_rows: int
    labels: tuple[str, ...]
    mode: str = ""
    """`captured`, or `eager: ` with the reason."""
    left_out: tuple[int, int] = (0, 0)
    """Training and evaluation rows that are skipped, with nothing to learn within max_length."""
    cut: tuple[int, int] = (0, 0)
    """Training and evaluation rows that are cut off at max_length, where the task counts them."""
    remarks: tuple[str, ...] = ()
    """Deviations from the job or from its base model, with reasons."""
    capture_s: float = 0.0  # seconds of capturing or compiling when the session was built


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Some rows of a split are tokenised."""

    split: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class BaseScored:
    """The base has scored some rows, with which the loss compares the model."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """One optimizer step is done."""

    step: int
    """1-based."""
    loss: float
    """Mean over the samples, or the trained tokens, of the global batch."""
    samples: int
    """Samples of the global batch."""
    tokens: int
    """Tokens of the global batch without padding."""
    padded_tokens: int
    """Tokens of the global batch with padding."""
    seconds: float
    """Duration of this step on the device's clock."""
    elapsed_s: float = 0.0
    """Time since the start of the first step of this process."""
    lr: float = 0.0
    """Learning rate of the step."""
    gradient_norm: float = 0.0
    """Norm of all gradients before clipping; not finite where fp16 overflowed."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The model was evaluated on all evaluation rows."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Values by metric name, with the mean `loss`."""
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stopped:
    """Training ended before its last step, because it reached its time limit."""

    step: int


@dataclass(frozen=True, slots=True)
class BestKept:
    """Training ended, and its result has the weights of an earlier evaluation, the best one."""

    step: int
    """Step after which training ended."""
    best_step: int
    """Step of the weights."""
    metric: str
    evaluations: int
    """Evaluations after the best one."""
    is_early: bool
    """Whether training ended because of them, before its last step."""

    def __str__(self) -> str:
        """Returns the event as a clause."""
        kept = f"the model is that of step {self.best_step}, the best by {self.metric}"
        if not self.is_early:
            return kept
        times = f"{self.evaluations} evaluation{'s' if self.evaluations > 1 else ''}"
        return f"ended early after step {self.step}, {times} without a better one: {kept}"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Training was interrupted on request, and saved a checkpoint."""

    step: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is completely written."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Proving:
    """The check of the saved model in a process without this project's code is still running."""

    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Proven:
    """The saved model was scored in a process without this project's code."""

    rows: int
    difference: float
    """Largest difference of a score from its value in training."""
    refusal: str
    """Why the model must not be published; empty if its scores equal those of training."""
    seconds: float


BUSY_SHARE = 0.15
"""Share of a node's CPUs that others use, above which a measurement counts as disturbed."""


@dataclass(frozen=True, slots=True)
class Metered:
    """The speed of this process's steps, without evaluations and checkpoints."""

    mode: str
    """`captured`, or `eager: ` with the reason."""
    steps: int
    wall_s: float
    """Time from the first step's start to the last one's end, evaluations and checkpoints too."""
    samples_per_s: float
    tokens_per_s: float
    """Without padding."""
    padded_tokens_per_s: float
    padding_share: float
    """Share of the tokens that are padding."""
    step_s_p50: float
    step_s_p95: float
    step_s_p99: float
    capture_s: float  # of capturing and compiling, before the first step
    data_wait_share: float
    communication_share: float | None
    """Share of a step that gradient synchronisation adds; None on CPUs, which do not measure it."""
    peak_memory_gib: float
    gpu_utilization: float | None
    """0 to 1, read by NVML; None without a GPU."""
    power_w: float | None
    mfu: float | None
    """Model FLOP/s divided by the device's dense peak; None if the peak is unknown."""
    others_cpu_share: float = 0.0
    """Share of the main worker's node that other processes than training and Ray used, 0 to 1."""
    throttled_share: float | None = None
    """Share of readings in which the GPU's clock was reduced; None if NVML does not report it."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """Durations of a run's work beside its steps, each measured once."""

    setup_s: float
    """Reading tokenised data, building the model, and scoring rows with the base if needed."""
    capture_s: float
    """Capturing and compiling steps."""
    first_use_s: float
    """Extra time of the first steps and the first evaluation compared with later ones."""
    eval_s: float
    """An evaluation of all rows in the training precision."""
    final_eval_s: float
    """The last evaluation, in the precision of `evaluate.final_precision`."""
    save_s: float
    """Time that training waits for a checkpoint."""
    final_save_s: float
    """Time until a checkpoint is written and verified, which the end of a run waits for."""
    metering_s: float
    """Measuring communication at the end of a run."""
    scoring_s: float = 0.0
    """Scoring the rows that are saved with the last checkpoint."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The measured speed of one candidate."""

    candidate: str
    """Id of the candidate."""
    times: StepTimes
    """Steps after warm-up."""
    steps_of_width: dict[int, int]
    """Number of steps of the whole run by padded width."""
    overheads: Overheads | None
    """None if the probe stopped early or measured only steps."""
    is_given_up: bool
    """Whether the probe stopped early, because a better candidate was known."""
    is_steady: bool
    """Whether warm-up ended because steps were equally fast, and not at its limit."""
    speed: Metered | None
    """None if the probe stopped before a step was timed."""
    train_rows: int
    eval_rows: int
    probe_s: float
    """Duration of the whole probe of this candidate."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions and hardware for which the times are valid."""
    better: str = ""
    """Id of the known candidate for which the probe stopped early; empty if it did not."""


@dataclass(frozen=True, slots=True)
class Unprobed:
    """A candidate needs no probe, because one between it and a better one is slower than that."""

    candidate: str
    slower: str
    """Id of the one between."""
    better: str


@dataclass(frozen=True, slots=True)
class WorkersReady:
    """All workers have joined the process group; no data was read yet."""


@dataclass(frozen=True, slots=True)
class HardwareMeasured:
    """Measured rates of the devices; of several devices, the slowest."""

    workers: int
    tflops: dict[Precision, float]
    """Rate of dense matrix products by precision."""
    bandwidth_gb_per_s: float
    """Bandwidth of device memory, bytes read plus written."""
    host_gb_per_s: float | None
    """Bandwidth from pinned host memory to the device; None for a CPU."""
    all_reduce_gb_per_s: float | None
    """Bus bandwidth of an all-reduce over all workers; None for a single worker."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A device's or the host's memory is exhausted."""

    candidate: str
    """Id of the probed candidate; empty in a training run."""
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointSkipped:
    """A checkpoint is incomplete or altered, so an earlier one is used."""

    message: str


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A complete checkpoint: its path, its step and the metrics of its weights."""

    path: str
    step: int
    """Number of finished optimizer steps."""
    metrics: dict[str, float]
    """Evaluated with exactly these weights; empty if they were not evaluated."""
    base_weights: str = ""
    """Digest of the base's weights if its model is an adapter; else empty."""


_Steps = Tokenised | BaseScored | Started | Stepped | Evaluated | Stopped | BestKept | Interrupted
_Models = Saved | CheckpointSkipped | Proving | Proven | HarnessProgress | HarnessResult
_Probes = Probed | Unprobed | HardwareMeasured
Event = _Steps | _Models | _Probes | Metered | WorkersReady | OutOfMemory
Report = Callable[[Event], None]
"""Takes the events of a training run."""
