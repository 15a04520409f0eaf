"""Forty faults, ten in each package, chosen before the suite was made shorter.

At least half are of kinds that were mended in the past: see CHANGELOG.md and docs/decisions/.
`benchmarks/planted_faults.py` plants them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """An edit of one file after which the product does something wrong."""

    name: str
    """Unique; begins with the name of the package that the fault is planted in."""
    path: str
    old: str
    """Text that the file has once."""
    new: str
    wrong: str
    """What the product does then."""
    past: bool
    """Whether it is of a kind that was mended before."""
    tests: tuple[str, ...]
    """Tests that catch it, the cheapest first."""


FAULTS = [
    Fault(
        name="jobs-order-of-sums-not-settled",
        path="jobs/training/engine/engine.py",
        old="SETTLING_STEPS = 2\n",
        new="SETTLING_STEPS = 0\n",
        wrong=(
            "Three workers that resume add their gradients up in another order than an"
            " uninterrupted run, so the weights are not bit-identical (only the kills see it)."
        ),
        past=True,
        tests=(
            "tests/jobs/training/test_kill.py"
            "::test_kills_before_during_and_after_a_checkpoint_change_nothing",
            "tests/jobs/training/test_kill.py::test_kills_at_random_moments_change_nothing",
        ),
    ),
    Fault(
        name="jobs-embedding-rows-always-alone",
        path="jobs/training/engine/sparse_embedding.py",
        old="        self._is_covered = not uncovered.item() > 0\n",
        new="        self._is_covered = True\n",
        wrong=(
            "Workers exchange only the rows in use of an embedding that also scores tokens, so the"
            " gradients of all other rows stay different on each worker."
        ),
        past=True,
        tests=(
            "tests/jobs/training/test_exchange.py"
            "::test_only_rows_in_use_are_exchanged_unless_others_have_gradients_too",
        ),
    ),
    Fault(
        name="jobs-onednn-out-of-memory-unknown",
        path="jobs/training/out_of_memory.py",
        old=(
            '    "could not create a primitive",'
            "  # oneDNN, which says no more when its buffers do not fit\n"
        ),
        new="",
        wrong=(
            "Training on a CPU whose memory runs out inside oneDNN ends the run as a bug instead of"
            " going on with a smaller micro batch."
        ),
        past=True,
        tests=("tests/jobs/training/test_memory.py::test_what_torch_says_when_memory_runs_out",),
    ),
    Fault(
        name="jobs-named-secrets-not-masked",
        path="jobs/errors.py",
        old="    _named.update(names)\n",
        new="    _named.update(name for name in names if SECRET_NAME.search(name))\n",
        wrong=(
            "The value of a variable that a job lists under `secrets` stays readable in error"
            " messages and journals unless its name happens to look like a key's."
        ),
        past=True,
        tests=(
            "tests/orchestrator/stages/test_simulated_sweep.py"
            "::test_what_a_job_keeps_secret_reaches_its_workers_and_not_their_words",
        ),
    ),
    Fault(
        name="jobs-manifest-own-hash-unchecked",
        path="jobs/storage/manifest.py",
        old="    if own != _own(manifest):\n",
        new="    if not own:\n",
        wrong=(
            "A manifest that was altered on the disk is taken as it is: its step, metrics, labels"
            " and list of files are no longer checked against its own hash."
        ),
        past=True,
        tests=(
            "tests/jobs/storage/test_objects.py::test_a_flipped_bit_in_any_file_is_found_and_named",
        ),
    ),
    Fault(
        name="jobs-published-model-names-its-base",
        path="jobs/training/model/base.py",
        old=(
            "    model.config.architectures = [type(model).__name__]"
            "  # other servers go by it, not by weights\n"
        ),
        new="",
        wrong=(
            "A published classifier's configuration names the architecture of its base model, so"
            " other servers load it as an embedder."
        ),
        past=True,
        tests=("tests/serve/engines/test_engines.py::test_a_published_model_says_what_it_is",),
    ),
    Fault(
        name="jobs-swap-writes-in-place",
        path="jobs/storage/files.py",
        old=(
            "    with replacing(path) as partial:\n"
            "        opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)\n"
            '        with os.fdopen(opened, "wb") as handle:\n'
            "            handle.write(content)\n"
        ),
        new=(
            "    path.parent.mkdir(parents=True, exist_ok=True)\n"
            '    with path.open("wb") as handle:\n'
            "        handle.write(content)\n"
        ),
        wrong=(
            "An alias or lease is written over itself, so a kill or a full disk in the middle"
            " leaves it empty or gone instead of as it was."
        ),
        past=False,
        tests=(
            "tests/orchestrator/records/test_every_call.py"
            "::test_cut_or_refused_at_every_call_it_is_the_old_state_or_the_new",
        ),
    ),
    Fault(
        name="jobs-resume-restarts-learning-rate",
        path="jobs/training/engine/batch_plan.py",
        old=(
            "            self._load(epoch)\n"
            "        self.host_step = step\n"
            "        self._step.fill_(min(step, self.total_steps - 1))"
            "  # a probe may outlast a short run\n"
        ),
        new=(
            "            self._load(epoch)\n"
            "            self._step.fill_(min(step, self.total_steps - 1))"
            "  # a probe may outlast a short run\n"
            "        self.host_step = step\n"
        ),
        wrong=(
            "A run that resumes within its first epoch goes on with the learning rates of the"
            " first steps."
        ),
        past=False,
        tests=(
            "tests/jobs/training/test_loop.py::test_training_resumes_bit_identically",
            "tests/jobs/training/test_leaving.py"
            "::test_it_leaves_with_a_checkpoint_and_resumes_exactly",
        ),
    ),
    Fault(
        name="jobs-interval-ignores-windows",
        path="jobs/training/step_times.py",
        old="        _half_width(_window_means(rest, times.windows), 1, 0.0),\n",
        new="        _half_width(rest, 1, 0.0),\n",
        wrong=(
            "A probe whose windows differ, as on a machine that was disturbed for a while, reports"
            " an interval that is many times too narrow and ends too early."
        ),
        past=False,
        tests=(
            "tests/jobs/training/test_step_times.py"
            "::test_windows_that_differ_widen_the_interval_more_than_their_single_steps_do",
        ),
    ),
    Fault(
        name="jobs-percent-read-as-share",
        path="jobs/spec/quantities.py",
        old="Bound(comparison, float(share[1]) / (100 if share[2] else 1))",
        new="Bound(comparison, float(share[1]))",
        wrong="An error rate limit of `<0.5%` lets half of all requests fail, as it is read as 0.5.",
        past=False,
        tests=(
            "tests/jobs/spec/test_quantities.py"
            "::test_bounds_hold_percentages_as_shares_and_durations_in_seconds",
        ),
    ),
    Fault(
        name="cluster-open-cluster-elsewhere-joined",
        path="cluster/access.py",
        old="    if host not in LOOPBACK:\n",
        new="    if host is None:\n",
        wrong=(
            "`--insecure-local` joins a cluster on another machine that lets anyone run code,"
            " instead of refusing it."
        ),
        past=True,
        tests=("tests/cluster/test_access.py::test_an_open_cluster_elsewhere_is_always_refused",),
    ),
    Fault(
        name="cluster-aws-cheapest-offer-counts",
        path="cluster/aws.py",
        old=(
            "    return max(prices, default=None) or None"
            "  # offers at 0 are for reserved machines\n"
        ),
        new=(
            "    return min(prices, default=None) or None"
            "  # offers at 0 are for reserved machines\n"
        ),
        wrong=(
            "Machines that AWS lists with a reserved offer at 0 USD have no on-demand price after"
            " `--refresh-prices`."
        ),
        past=False,
        tests=(
            "tests/cluster/test_prices.py"
            "::test_prices_of_whole_machines_are_shared_among_their_devices",
        ),
    ),
    Fault(
        name="cluster-replica-ignores-its-label",
        path="cluster/discovery.py",
        old="    return _sku(marks, marks.get(labels.SKU) or nvml.detect_sku())\n",
        new="    return _sku(marks, nvml.detect_sku())\n",
        wrong=(
            "A replica on a labelled node does not know what it is on, so the target of requests"
            " that the job gives for that accelerator never scales it."
        ),
        past=False,
        tests=(
            "tests/serve/test_endpoint.py"
            "::test_replicas_follow_the_demand_down_to_none_and_no_request_is_lost",
        ),
    ),
    Fault(
        name="cluster-token-readable-by-group",
        path="cluster/exposure.py",
        old="            if mode & (stat.S_IRWXG | stat.S_IRWXO):\n",
        new="            if mode & stat.S_IRWXO:\n",
        wrong="`winnow doctor --security` says nothing of a token file that its group can read.",
        past=False,
        tests=("tests/cluster/test_exposure.py::test_tokens_that_others_can_read_are_found",),
    ),
    Fault(
        name="cluster-replaced-haproxy-keeps-posts",
        path="cluster/ingress.py",
        old="use_backend winnow_next if {{ stopping }}",
        new="use_backend winnow_next if {{ stopping }} METH_GET",
        wrong=(
            "A prediction on a connection that outlived its HAProxy is answered by the one that was"
            " replaced, from replicas that are gone."
        ),
        past=True,
        tests=(
            "tests/cluster/test_ingress.py"
            "::test_a_connection_that_outlives_its_haproxy_is_answered_by_the_next",
        ),
    ),
    Fault(
        name="cluster-haproxy-statistics-open",
        path="cluster/ingress.py",
        old=r"sed -i -e 's/bind \\*:/bind 127.0.0.1:/' -e",
        new="sed -i -e",
        wrong="HAProxy's statistics page answers strangers from every network.",
        past=True,
        tests=(
            "tests/serve/test_endpoint.py::test_grpc_follows_the_route_and_loses_nothing",
            "tests/infra/test_outsider.py::test_a_stranger_is_refused_at_every_port",
        ),
    ),
    Fault(
        name="cluster-replicas-stand-back",
        path="cluster/local.py",
        old=(
            '        "RAY_worker_niceness": "0",'
            "  # Ray's 15 slows replicas too; training lowers its own priority\n"
        ),
        new="",
        wrong=(
            "Endpoints of the local cluster run at a niceness of 15, so training beside them takes"
            " their cores."
        ),
        past=True,
        tests=(
            "tests/serve/test_endpoint.py"
            "::test_limits_batching_and_replicas_change_without_a_restart",
        ),
    ),
    Fault(
        name="cluster-any-label-selects",
        path="cluster/inventory.py",
        old="    if all(node.labelled for node in nodes):\n",
        new="    if any(node.labelled for node in nodes):\n",
        wrong=(
            "Replicas are looked for by a label that some of their nodes do not carry, so those"
            " nodes never hold one."
        ),
        past=True,
        tests=(
            "tests/cluster/test_inventory.py"
            "::test_a_label_means_every_node_that_has_it_and_ids_only_these",
        ),
    ),
    Fault(
        name="cluster-wide-norms-not-counted",
        path="cluster/memory_estimate.py",
        old=(
            "        wide = 4 * WIDE_NORMS if element < 4 else 0\n"
            "        layer = elements * element + (MASKS + wide) * shape.hidden\n"
        ),
        new="        layer = elements * element + MASKS * shape.hidden\n",
        wrong=(
            "Memory of 16-bit training is foretold more than a tenth too low, so a micro batch that"
            " does not fit is planned."
        ),
        past=True,
        tests=(
            "tests/cluster/test_memory.py"
            "::test_memory_before_a_run_is_within_a_tenth_of_what_fits_took",
        ),
    ),
    Fault(
        name="cluster-moved-to-nodes-that-are-gone",
        path="cluster/placement.py",
        old="    return replace(placement, node_ids=tuple(node.id for node in usable))\n",
        new="    return placement\n",
        wrong=(
            "Training whose nodes were lost and came back under new ids waits for the ids that are"
            " gone instead of taking the nodes that are there now."
        ),
        past=True,
        tests=(
            "tests/orchestrator/stages/test_elastic.py"
            "::test_nodes_to_avoid_are_taken_only_where_nothing_else_is_left",
        ),
    ),
    Fault(
        name="serve-batches-under-way-lost-at-close",
        path="serve/batching/batcher.py",
        old="        while self._in_flight:\n            self._finish(self._in_flight.popleft())\n        self._deliver()",
        new="        self._deliver()",
        wrong="A replica that ends never answers the batch that its GPU has begun with: those requests are lost.",
        past=True,
        tests=("tests/serve/test_batcher.py::test_batches_under_way_are_answered_when_it_closes",),
    ),
    Fault(
        name="serve-waits-in-vain-after-every-batch",
        path="serve/batching/waiting.py",
        old="        self._pause = doubled if is_in_vain else self._pause // 2",
        new="        self._pause = 0",
        wrong="The engine waits after every batch for clients that never come back at once, and delays everybody.",
        past=False,
        tests=(
            "tests/serve/test_batcher.py::test_a_wait_in_vain_is_followed_by_a_pause_that_doubles_and_another_by_one_of_half",
        ),
    ),
    Fault(
        name="serve-pipelined-answers-out-of-order",
        path="serve/http/fast_path.py",
        old="        and (before is None or before.response_complete)\n",
        new="",
        wrong="Requests sent one behind the other on one connection get their answers in another order, so a client takes one text's label for another's.",
        past=False,
        tests=(
            "tests/serve/test_connection.py::test_requests_in_one_packet_are_answered_in_their_order",
        ),
    ),
    Fault(
        name="serve-replaced-haproxy-keeps-old-routes",
        path="serve/deploy/haproxy_client.py",
        old="            if not any(_is_replaced(pid, path.parent) for path, pid in updated.items()):\n                return",
        new="            return",
        wrong="A HAProxy that read the routes just before they changed takes over with the old ones, and sends requests to a version that is gone.",
        past=True,
        tests=(
            "tests/serve/test_edge.py::test_a_haproxy_that_read_the_routes_before_they_changed_is_told",
        ),
    ),
    Fault(
        name="serve-gate-compares-versions-the-wrong-way-round",
        path="serve/tasks/text_classification/endpoint.py",
        old="        return compare(answers[0], answers[1], right), texts",
        new="        return compare(answers[1], answers[0], right), texts",
        wrong="A rollout lets a version with a tenth of its labels wrong take over, and stops one that is better.",
        past=False,
        tests=(
            "tests/serve/test_endpoint.py::test_a_worse_version_and_a_slow_one_are_stopped_while_the_old_one_answers",
        ),
    ),
    Fault(
        name="serve-front-passes-requests-on-to-strangers",
        path="serve/frontends/worker.py",
        old='            self._url.copy_with(raw_path=target + scope["query_string"]),',
        new='            self._url.join((target + scope["query_string"]).decode("ascii")),',
        wrong="A front sends a request whose path begins with two slashes to the host that the path names, token and all, instead of to its replica.",
        past=True,
        tests=(
            "tests/serve/test_fronts.py::test_hostile_requests_are_answered_here_or_by_the_replica",
        ),
    ),
    Fault(
        name="serve-replicas-listen-on-every-network",
        path="serve/deploy/ray_serve_patches.py",
        old="        replica.add_port_to_grpc_server = _on_loopback(_add_port)\n",
        new="",
        wrong="Replicas of a local cluster take Ray Serve's calls between replicas from every network instead of from this machine alone.",
        past=True,
        tests=("tests/serve/test_endpoint.py::test_grpc_follows_the_route_and_loses_nothing",),
    ),
    Fault(
        name="serve-revoked-tokens-stay-accepted",
        path="serve/http/auth.py",
        old="            self._file_state, self._known = state, {**known, **self._fixed}",
        new="            self._file_state, self._known = state, {**self._known, **known}",
        wrong="A token that was revoked in the tokens file is accepted until the replica is started anew.",
        past=False,
        tests=("tests/serve/test_access.py::test_tokens_change_without_a_restart",),
    ),
    Fault(
        name="serve-more-short-texts-than-a-graph-takes",
        path="serve/engines/packing.py",
        old="        return shape in self.static_shapes and inputs <= capacity(shape)",
        new="        return shape in self.static_shapes",
        wrong="Several texts of a word each that come at once end in a 500 for all of their batch.",
        past=True,
        tests=(
            "tests/serve/engines/test_engines.py::test_more_inputs_than_the_graph_of_their_shape_takes",
        ),
    ),
    Fault(
        name="serve-405-without-allow",
        path="serve/http/guard.py",
        old='        raise HttpError(405, "method_not_allowed", message, headers={"allow": "POST"})',
        new='        raise HttpError(405, "method_not_allowed", message)',
        wrong="Who asks for predictions by another method than POST is refused with a 405 that does not name the one allowed.",
        past=True,
        tests=("tests/serve/test_fuzz.py::test_answers_are_those_of_the_document",),
    ),
    Fault(
        name="orchestrator-alias-moves-lost",
        path="orchestrator/records/aliases.py",
        old=(
            "        if objects.swap(_key(name, alias), content, found.tag if found else None):\n"
            "            return made\n"
            "        time.sleep(random.uniform(0, LONGEST_PAUSE_S))"
        ),
        new="        objects.write(_key(name, alias), content)\n        return made",
        wrong="Of two promotions or rollbacks at the same time one is overwritten, though both were told that they are done.",
        past=False,
        tests=(
            "tests/orchestrator/records/test_aliases.py::test_killed_processes_leave_a_history_that_is_one_after_another",
        ),
    ),
    Fault(
        name="orchestrator-latest-points-to-half-a-version",
        path="orchestrator/records/registry.py",
        old=(
            '        storage.objects.put_folder(f"models/{spec.name}/{identity}", partial)\n'
            "    except (shutil.Error, OSError) as error:\n"
            '        raise files.failed(partial.parent, "written", files.first_of(error)) from None\n'
            "    finally:\n"
            "        shutil.rmtree(partial, ignore_errors=True)\n"
            "    aliases.move(storage.objects, spec.name, LATEST, lambda _: identity, operation=run_id)\n"
        ),
        new=(
            "        aliases.move(storage.objects, spec.name, LATEST, lambda _: identity, operation=run_id)\n"
            '        storage.objects.put_folder(f"models/{spec.name}/{identity}", partial)\n'
            "    except (shutil.Error, OSError) as error:\n"
            '        raise files.failed(partial.parent, "written", files.first_of(error)) from None\n'
            "    finally:\n"
            "        shutil.rmtree(partial, ignore_errors=True)\n"
        ),
        wrong="A run that is killed, or whose disk fills, while it publishes leaves the newest version of the model pointing to one that is not there.",
        past=False,
        tests=(
            "tests/orchestrator/records/test_every_call.py::test_cut_or_refused_at_every_call_it_is_the_old_state_or_the_new",
        ),
    ),
    Fault(
        name="orchestrator-lost-lease-goes-unnoticed",
        path="orchestrator/records/lease.py",
        old=(
            "            if tag is None:\n"
            "                self._is_lost = True\n"
            "            else:\n"
            "                self._holder, self._tag, self._beaten = holder, tag, began"
        ),
        new=(
            "            if tag is not None:\n"
            "                self._holder, self._tag, self._beaten = holder, tag, began"
        ),
        wrong="A process that was paused while another took its run over goes on with it when it wakes, so that two own one run.",
        past=False,
        tests=(
            "tests/orchestrator/records/test_lease.py::test_a_silent_owner_elsewhere_is_followed_and_refused_when_it_wakes",
        ),
    ),
    Fault(
        name="orchestrator-journal-ends-at-a-damaged-line",
        path="orchestrator/records/journal.py",
        old="            damaged.append(number)\n",
        new="            damaged.append(number)\n            break\n",
        wrong="Whatever a journal holds after a torn or altered line is lost, so that a resumed sweep does finished probes and trials again.",
        past=True,
        tests=(
            "tests/orchestrator/records/test_runs.py::test_values_of_one_stage_add_up_and_a_torn_last_line_is_left_out",
            "tests/orchestrator/records/test_journal.py::test_two_thousand_damaged_journals_lose_what_was_damaged_and_nothing_else",
        ),
    ),
    Fault(
        name="orchestrator-nodes-stay-after-their-job",
        path="orchestrator/stages/nodes.py",
        old="        del self._requests[key]\n        self._send()\n",
        new="        del self._requests[key]\n",
        wrong="Nodes that a job asked Ray's autoscaler for stay, and cost money, when the job has ended or was killed.",
        past=True,
        tests=(
            "tests/infra/test_autoscaler.py::test_nodes_come_for_a_job_and_go_after_it",
            "tests/infra/test_autoscaler.py::test_nodes_go_when_the_job_that_asked_for_them_is_killed",
        ),
    ),
    Fault(
        name="orchestrator-devices-of-a-hung-group-not-released",
        path="orchestrator/stages/group.py",
        old=(
            "    if thread.is_alive():\n"
            "        for placement_group in groups:\n"
            "            release(placement_group)  # its workers die, and fit() returns\n"
            "        thread.join(timeout=END_TIMEOUT_S)"
        ),
        new=(
            "    thread.join(timeout=END_TIMEOUT_S)\n"
            "    if not thread.is_alive():\n"
            "        for placement_group in groups:\n"
            "            release(placement_group)"
        ),
        wrong="A worker group that hangs, or is left early, keeps its devices, and whatever comes next waits for them in vain.",
        past=True,
        tests=(
            "tests/orchestrator/stages/test_simulated_sweep.py::test_a_worker_that_answers_ray_and_never_moves_is_taken_to_hang",
        ),
    ),
    Fault(
        name="orchestrator-aws-key-in-logs-of-trials",
        path="orchestrator/stages/tuning.py",
        old='if not name.startswith("AWS_")}',
        new='if not name.startswith("AWS_SESSION")}',
        wrong="Ray Tune writes the driver's AWS secret key into Ray's logs and onto the command lines of trials.",
        past=True,
        tests=(
            "tests/orchestrator/test_secrets.py::test_secrets_appear_in_no_file_and_no_output_of_a_run",
        ),
    ),
    Fault(
        name="orchestrator-resumed-winner-looked-for-on-gone-nodes",
        path="orchestrator/sweeping.py",
        old="    recorded = select.relocate(recorded, plan)  # a new cluster knows none of the old nodes\n",
        new="",
        wrong="A run that is resumed on a new cluster waits for its winner's devices on nodes that are gone, and then trains another candidate.",
        past=True,
        tests=(
            "tests/orchestrator/test_availability.py::test_a_recorded_winner_is_looked_for_on_the_nodes_of_a_new_cluster",
        ),
    ),
    Fault(
        name="orchestrator-ties-not-broken-by-quality",
        path="orchestrator/decisions/select.py",
        old="    return first, quality, loss, cost, time",
        new="    return first, cost, time",
        wrong="Of trials on the cheapest candidate, which all tie in cost and time, the first one wins instead of the one that learnt best.",
        past=False,
        tests=(
            "tests/orchestrator/decisions/test_select.py::test_the_objective_decides_among_what_keeps_the_limits",
        ),
    ),
    Fault(
        name="orchestrator-failed-second-timing-ends-the-sweep",
        path="orchestrator/probing.py",
        old="    except (TrainingError, ClusterError) as error:\n",
        new="    except ClusterError as error:\n",
        wrong="A sweep that has measured every candidate fails because the optional second timing of the best one does.",
        past=True,
        tests=(
            "tests/orchestrator/stages/test_simulated_sweep.py::test_a_second_timing_that_fails_leaves_the_first_and_the_sweep_goes_on",
        ),
    ),
]
