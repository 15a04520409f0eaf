"""`winnow manifests`: writes a job's KubeRay manifests."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.storage.files import write_atomically
from orchestrator.cli.options import AsJson, JobFile, Settings, out, print_json
from orchestrator.kubernetes.manifests import Options, documents_of
from orchestrator.kubernetes.objects import to_text
from orchestrator.kubernetes.pods import UI_SECRET
from orchestrator.loading import load_job


def manifests(
    job: JobFile,
    image: Annotated[str, typer.Option(help="Image with Ray and Winnow, preferably by digest.")],
    settings: Settings = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path("k8s"),
    namespace: Annotated[str | None, typer.Option(help="Namespace of all objects.")] = None,
    queue: Annotated[str | None, typer.Option(help="Kueue's local queue for the job.")] = None,
    claim: Annotated[str | None, typer.Option(help="PersistentVolumeClaim at /mnt/winnow.")] = None,
    redis: Annotated[
        str | None, typer.Option(help="Redis for the head's state, instead of RocksDB.")
    ] = None,
    has_ui: Annotated[
        bool,
        typer.Option("--ui", help="Serve the dashboard on the head of the cluster that stays up."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a RayJob, a RayCluster and a RayService, each a folder for `kubectl apply -k`."""
    spec = load_job(job, settings, is_elsewhere=True)
    options = Options(image, namespace, queue, claim, redis, has_ui)
    found = documents_of(spec, options)
    for name, documents in found.items():
        write_atomically(folder / name, to_text(*documents).encode())
    folders = sorted({name.partition("/")[0] for name in found})
    if as_json:
        print_json({"folder": str(folder), "files": sorted(found)})
        return
    out().print(f"wrote {len(found)} files to {folder}; then, one after the other:", markup=False)
    if "priority" in folders:
        at = folder / "priority"
        out().print(f"  kubectl apply -k {at}  (once, by an administrator)", markup=False)
    for name in ("job", "endpoint"):
        if name in folders:
            out().print(f"  kubectl apply -k {folder / name}", markup=False)
    if has_ui:
        out().print(
            "the dashboard needs tokens: winnow token add NAME --file tokens --scope operate, then"
            f" kubectl create secret generic {UI_SECRET} --from-file=tokens",
            markup=False,
        )
    out().print(f"or a cluster that stays up: kubectl apply -k {folder / 'cluster'}", markup=False)
