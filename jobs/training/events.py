"""What training tells its caller while it runs, and what it leaves behind."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Started:
    """Data and model are ready; the first step follows."""

    total_steps: int
    first_step: int
    """0, or the step that a checkpoint was taken after."""
    train_rows: int
    eval_rows: int
    labels: tuple[str, ...]
    mode: str = ""
    """`captured`, or `eager: ` and why."""
    left_out: int = 0
    """Training rows without a response within the longest length."""


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Some rows of a split are tokenised."""

    split: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """One optimizer step is done."""

    step: int
    """1-based."""
    loss: float
    """Mean over the samples of the global batch."""
    samples: int
    """Of the global batch."""
    tokens: int
    """Of the global batch, unpadded."""
    padded_tokens: int
    seconds: float
    """Of this step, on the device's clock."""
    elapsed_s: float = 0.0
    """Since the first step of this process began."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The model was judged on all evaluation rows."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Metric name to value, and `loss`."""
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete on disk."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Metered:
    """How fast the steps of this process were, evaluations and checkpoints left out."""

    mode: str
    """`captured`, or `eager: ` and why."""
    steps: int
    wall_s: float
    """From before the first step to after the last, with evaluations and checkpoints between."""
    samples_per_s: float
    tokens_per_s: float
    """Unpadded."""
    padded_tokens_per_s: float
    padding_share: float
    """Share of the tokens that only fill up rows."""
    step_s_p50: float
    step_s_p95: float
    step_s_p99: float
    capture_s: float
    """Capturing and compiling, before the first step."""
    data_wait_share: float
    communication_share: float | None
    """Share of a step that gradient sync adds; None on CPUs, where it is not measured."""
    peak_memory_gib: float
    gpu_utilization: float | None
    """0 to 1 through NVML; None without a GPU."""
    power_w: float | None
    mfu: float | None
    """Model FLOP/s over the device's dense peak; None where the peak is not known."""


@dataclass(frozen=True, slots=True)
class Probed:
    """How fast one candidate steps."""

    candidate: str
    """Id of the candidate."""
    step_seconds: tuple[float, ...]
    """Wall time of each counted optimizer step."""
    eval_samples_per_s: float
    """Evaluation rows per second over all workers, in the precision of training."""
    final_eval_samples_per_s: float
    """The same in the precision of the last evaluation."""
    peak_memory_gib: float
    """Largest over the workers: device memory on a GPU, resident memory on a CPU."""
    train_rows: int
    eval_rows: int
    setup_s: float
    """From the start of the worker function to the first step: data, model, process group."""
    probe_s: float
    """From the first step to the report."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A candidate did not fit."""

    candidate: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A complete checkpoint: where it is and what the model scored when it was taken."""

    path: str
    step: int
    """Optimizer steps done."""
    metrics: dict[str, float]
    """Of exactly this state; empty when it was not judged."""


Event = Tokenised | Started | Stepped | Evaluated | Saved | Metered | Probed | OutOfMemory
