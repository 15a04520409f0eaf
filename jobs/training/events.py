"""What training tells its caller while it runs, and what it leaves behind."""

from dataclasses import dataclass, field

from jobs.spec.train import Precision
from jobs.training.step_times import StepTimes


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
    remarks: tuple[str, ...] = ()
    """What is done otherwise than the job or its base suggest, and why."""


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
class Stopped:
    """Training ended before its last step because its time was up."""

    step: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Training was asked to leave and did, with a checkpoint of where it was."""

    step: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete on disk."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Proving:
    """The saved model is being scored in a process without our code."""

    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Proven:
    """The saved model was scored in a process without our code."""

    rows: int
    difference: float
    """The largest between a score there and in training."""
    refusal: str
    """Why the model must not be published; empty if its scores are those of training."""
    seconds: float


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
    others_cpu_share: float = 0.0
    """Share of the main worker's node that neither training nor Ray kept busy meanwhile, 0 to 1."""
    throttled_share: float | None = None
    """Share of readings in which heat or hardware held the GPU's clock back; None where NVML does
    not say."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a run costs beside its steps, each timed once."""

    setup_s: float
    """Reading tokenised data and building the model; capture and compiling apart."""
    capture_s: float
    """Capturing and compiling steps."""
    first_use_s: float
    """By how much the first steps and the first judging took longer than later ones."""
    eval_s: float
    """One evaluation over all rows, in the precision of training."""
    final_eval_s: float
    """The last one, in the precision of the endpoint."""
    save_s: float
    """How long a checkpoint holds up training."""
    final_save_s: float
    """A checkpoint until it is written and verified, as the last one is waited for."""
    metering_s: float
    """Measuring communication at the end."""


@dataclass(frozen=True, slots=True)
class Probed:
    """How fast one candidate is."""

    candidate: str
    """Id of the candidate."""
    times: StepTimes
    """Steps after warm-up."""
    steps_of_width: dict[int, int]
    """Of the whole run: padded width to how many steps have it."""
    overheads: Overheads | None
    """None when the candidate was given up early, or steps alone were to be timed."""
    is_given_up: bool
    """Whether something better was known, so that timing ended early."""
    is_steady: bool
    """Whether warm-up ended because steps were equally fast, and not by its limit."""
    speed: Metered | None
    """None when it was given up before a step was timed."""
    train_rows: int
    eval_rows: int
    probe_s: float
    """The whole probe of this candidate."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions and hardware that the times hold for."""


@dataclass(frozen=True, slots=True)
class WorkersReady:
    """The workers are up and know one another; nothing is read yet."""


@dataclass(frozen=True, slots=True)
class HardwareMeasured:
    """What devices reach by themselves, the slowest one's of several."""

    workers: int
    tflops: dict[Precision, float]
    """Dense matrix products by precision."""
    bandwidth_gb_per_s: float
    """Of device memory, read and written."""
    host_gb_per_s: float | None
    """From pinned host memory; None for a CPU."""
    all_reduce_gb_per_s: float | None
    """Bus bandwidth of a sum over all workers; None for one."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A candidate did not fit."""

    candidate: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointSkipped:
    """A checkpoint was torn or altered, so an earlier one is taken."""

    message: str


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A complete checkpoint: where it is and what the model scored when it was taken."""

    path: str
    step: int
    """Optimizer steps done."""
    metrics: dict[str, float]
    """Of exactly this state; empty when it was not judged."""


Event = (
    Tokenised
    | Started
    | Stepped
    | Evaluated
    | Stopped
    | Saved
    | Proving
    | Proven
    | Metered
    | WorkersReady
    | Probed
    | HardwareMeasured
    | OutOfMemory
    | CheckpointSkipped
    | Interrupted
)
