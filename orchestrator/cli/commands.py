"""The commands by name, imported when they are called: `winnow --help` takes no second."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import typer
import typer.core
import typer.main

Command = typer.core.TyperCommand | typer.core.TyperGroup
COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "init": (
            "init:init",
            "Write a first job file: an example to change, or the job for your own rows.",
        ),
        "validate": ("validate:validate", "Check a job file and print every problem."),
        "render": (
            "render:render",
            "Print the job with all defaults, where each value is set, and what `auto` means.",
        ),
        "schema": ("schema:schema", "Print the JSON Schema of job files, for editors and checks."),
        "plan": (
            "plan:plan",
            "Show every candidate with its memory verdict, and every one skipped with the reason.",
        ),
        "run": ("run:run", "Sweep, train, publish and deploy what the job file asks for."),
        "sweep": (
            "run:sweep",
            "Probe and try candidates, choose a winner, and stop before training it in full.",
        ),
        "train": (
            "run:train",
            "Train and publish as the train section says, without a sweep and without an endpoint.",
        ),
        "deploy": (
            "deploy:deploy",
            "Deploy a published version of the job's model as the serve section says.",
        ),
        "serve": (
            "serve:serve",
            "Serve a published model here until interrupted: no cluster, no autoscaling.",
        ),
        "tune-serve": (
            "tune_serve:tune_serve",
            "Measure every engine on every kind of device; print the cheapest options within the "
            "SLO.",
        ),
        "load": (
            "load:load",
            "Send sentences to an endpoint and print latencies, timed from when each request was "
            "due.",
        ),
        "export": (
            "export:export",
            "Write a model as an ONNX graph with its tokenizer, or as a Triton model repository.",
        ),
        "status": (
            "status:status",
            "Show the local cluster or the one at an address, its queue and the newest runs.",
        ),
        "endpoints": (
            "endpoints:endpoints",
            "List every version that a cluster serves, with its route, state and replicas.",
        ),
        "undeploy": (
            "endpoints:undeploy",
            "Take the endpoint of one model down; its versions stay published.",
        ),
        "ls": (
            "ls:ls",
            "List the runs of a storage with state, owner, winner, metric and cost, newest first.",
        ),
        "queue": (
            "queue:queue",
            "List the runs that hold devices of a cluster or wait for them, the next one first.",
        ),
        "compare": (
            "compare:compare",
            "Compare winners, metrics, times, costs and the differing job fields of runs.",
        ),
        "logs": (
            "logs:logs",
            "Print what a run said: its notices and the events of its journal.",
        ),
        "watch": (
            "watch:watch",
            "Show a run as winnow run does, until it ends; the exit code is 0 if it completes.",
        ),
        "cancel": (
            "cancel:cancel",
            "Let a run save a checkpoint and end; --resume goes on with it later.",
        ),
        "rm": (
            "rm:rm",
            "Delete an ended run, or a version that neither serves nor has an alias.",
        ),
        "ui": ("ui:ui", "Show runs, models and endpoints in a browser, until interrupted."),
        "gc": ("gc:gc", "List the unused files of a storage; --delete removes them."),
        "report": (
            "report:report",
            "Show the receipt of a run and the path of its HTML report; --json prints its content.",
        ),
        "accuracy": (
            "accuracy:accuracy",
            "Compare predicted with actual time and memory over all receipts, by accelerator.",
        ),
        "hardware": (
            "hardware:hardware",
            "List every known accelerator with memory, precisions and price, and the live nodes.",
        ),
        "doctor": (
            "doctor:doctor",
            "Check driver, GPUs, disk, shared memory, network and clocks, and print remedies.",
        ),
        "up": (
            "cluster:up",
            "Start the local Ray cluster, unless it is up; --simulate adds simulated accelerators.",
        ),
        "down": (
            "cluster:down",
            "Stop the local Ray cluster with its endpoints, and the dashboard beside it.",
        ),
        "submit": (
            "submit:submit",
            "Send the job and its folder to a Ray cluster; the same job and data are sent only "
            "once.",
        ),
        "manifests": (
            "manifests:manifests",
            "Write a RayJob, a RayCluster and a RayService, each a folder for `kubectl apply -k`.",
        ),
        "models": ("models:app", "Published model versions."),
        "token": (
            "token:app",
            "Add and revoke bearer tokens of an endpoint or of the dashboard, without a restart.",
        ),
    }
)
"""Module and function, or typer app, of each command, and the first sentence of its help."""


class LazyCommands(typer.core.TyperGroup):
    """A group that imports a command when it is asked for, and lists all without importing any."""

    _lists = False
    """Whether the group's own help is being written, for which names and sentences are enough."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Command | None:
        """Returns a command; None for a name that is none."""
        if cmd_name not in COMMANDS:
            return None
        place, summary = COMMANDS[cmd_name]
        if self._lists:
            return typer.core.TyperCommand(cmd_name, help=summary)
        return imported(cmd_name, place)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help of the group."""
        self._lists = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists = False


def imported(name: str, place: str) -> Command:
    """Returns the command at `module:function` or `module:app` in this package."""
    module, _, attribute = place.partition(":")
    found: Any = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command(name)(found)
    made: Any = typer.main.get_command(alone)
    assert isinstance(made, Command)
    return made
