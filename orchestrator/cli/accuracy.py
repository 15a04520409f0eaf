"""`winnow accuracy`: the prediction errors of past runs."""

from jobs.errors import RunError
from jobs.storage.storage import open_storage
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    AsJson,
    StorageOption,
    out,
    print_json,
    table,
)
from orchestrator.records import runs
from orchestrator.records.accuracy import accuracy as summarise
from orchestrator.records.receipt import Receipt


def accuracy(storage: StorageOption = DEFAULT_STORAGE, as_json: AsJson = False) -> None:
    """Compare predicted with actual time and memory over all receipts, by accelerator."""
    found = [run.read("receipt", Receipt) for run in runs.every(open_storage(storage))]
    receipts = [receipt for receipt in found if receipt]
    rows = summarise(receipts)
    if as_json:
        print_json({"rows": rows, "receipts": len(receipts)})
        return
    if not rows:
        raise RunError(
            f"no receipt in {storage} has a prediction to compare; run a job with a sweep first"
        )
    columns = ("accelerator", "fits", "time off", "bias", "in interval", "memory off", "probed")
    shown = table(*columns, left=("accelerator",))
    for row in rows:
        shares = (row.memory_mape, row.probed_memory_mape)
        shown.add_row(
            row.sku,
            str(row.fits),
            f"{row.mape:.1%}",
            f"{row.bias:+.1%}",
            f"{row.coverage:.0%}",
            *("–" if share is None else f"{share:.1%}" for share in shares),
        )
    console = out()
    console.print(shown)
    left = len(receipts) - rows[0].fits
    if left:
        console.print(f"{left} receipts left out: resumed, stopped early, simulated or no sweep")
    noisy = sum(bool(receipt.disturbances) for receipt in receipts)
    if noisy:
        console.print(f"{noisy} receipts are of a machine that other processes used too")
