"""Each of the eighteen points of the attack has its tests, `tox run -e robust` runs them all, and CI too."""

import ast
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.robust.hostile.corpus import corpus

FAST, STORE, HERE = "tests/fast", "tests/properties/test_campaign_store.py", "tests/robust"
READERS, SETTINGS, FOLDER = f"{FAST}/test_readers.py", f"{FAST}/test_settings.py", f"{HERE}/test_run_folder.py"
CHECKPOINT = f"{FAST}/test_checkpoint.py"
ATTACK = f"{HERE}/test_hostile.py::test_an_attack_fails_by_name_and_the_run_goes_on"
POINTS: dict[str, tuple[str, ...]] = {
    "1 an ended run leaves the badge of the run before": (
        f"{FOLDER}::test_old_artefacts_are_marked_as_soon_as_a_run_takes_the_folder",
        f"{FOLDER}::test_what_a_run_that_is_ended_leaves_does_not_look_green",
    ),
    "2 generate exits with 0 where every completion failed": (
        f"{READERS}::test_the_command_fails_where_a_completion_failed_and_says_why",
    ),
    "3 the suite's own errors exit with the code of a failed case": (
        f"{FOLDER}::test_an_error_that_nobody_foresaw_ends_with_three",
        f"{HERE}/test_shards.py::test_a_judge_that_is_killed_among_several_ends_the_run_with_three",
        f"{STORE}::test_exit_codes_tell_what_ended_a_campaign",
    ),
    "4 a found failure is lost behind a cut line": (f"{STORE}::test_what_is_written_after_a_cut_line_is_read",),
    "5 a saved failure is overwritten": (f"{STORE}::test_a_failure_is_named_by_its_content_and_stays_after_triage",),
    "6 an adapter forges its verdict": (
        f"{ATTACK}[sends_a_pickle]",
        f"{ATTACK}[sends_a_verdict]",
        f"{ATTACK}[hides_an_object_in_a_type]",
        f"{HERE}/test_bytes.py::test_the_type_of_an_array_carries_nothing_along",
    ),
    "7 a grandchild holds the line of answers": (
        f"{ATTACK}[leaves_a_child_with_the_line]",
        f"{HERE}/test_killed.py::test_what_an_adapter_has_detached_ends_with_a_judge_that_is_killed",
    ),
    "8 a lone surrogate ends the run": (f"{ATTACK}[raises_a_surrogate]", f"{ATTACK}[has_a_surrogate_for_a_name]"),
    "9 garbage, escapes, a removed folder, a killed judge, two runs in one folder, no --resume": (
        f"{ATTACK}[writes_text]",
        f"{ATTACK}[prints_escapes]",
        f"{HERE}/test_bytes.py::test_what_is_no_message_is_refused_before_memory_is_taken",
        f"{FOLDER}::test_a_folder_that_is_removed_in_the_middle_is_told_and_ends_with_three",
        f"{FOLDER}::test_two_runs_into_one_folder_are_one_too_many",
        f"{FOLDER}::test_a_resumed_run_ends_with_the_verdicts_of_an_undisturbed_one",
        f"{HERE}/test_killed.py::test_a_judge_that_is_killed_at_any_moment_leaves_nothing_green_nothing_alive_and_nothing_lost",
    ),
    "10 more memory is taken than stated": (
        f"{FAST}/test_memory_stated.py::test_the_peak_of_a_process_is_what_was_stated",
        f"{READERS}::test_what_cannot_be_done_is_refused_before_work",
    ),
    "11 a config eats memory": (f"{CHECKPOINT}::test_a_config_is_refused_by_name_and_field",),
    "12 raw tracebacks": (
        f"{CHECKPOINT}::test_a_config_is_refused_by_name_and_field",
        f"{READERS}::test_files_that_are_no_json_are_refused_by_name",
        f"{READERS}::test_a_tokenizer_that_panics_is_refused_by_name",
    ),
    "13 nonsense is accepted in silence": (
        f"{READERS}::test_numbers_and_types_that_mean_nothing_are_refused",
        f"{SETTINGS}::test_nonsense_is_refused_by_name",
    ),
    "14 a callback stays on the engine": (f"{SETTINGS}::test_the_engine_keeps_no_callback_of_a_call",),
    "15 a method that cannot be used fails inside the run": (
        f"{FAST}/test_cli.py::test_a_method_that_cannot_be_used_is_refused_before_the_prompt_is_printed",
    ),
    "16 a drafter with a wrong root corrupts the output": (
        f"{READERS}::test_a_drafter_that_proposes_what_cannot_be_is_refused",
    ),
    "17 a dead Redis ends a campaign, a useless database is accepted": (
        f"{STORE}::test_a_campaign_goes_on_when_redis_dies_and_sends_its_failure_later",
        f"{STORE}::test_a_database_that_cannot_be_used_is_refused_before_any_example",
    ),
    "18 joint by lag ends with an error at padding": (f"{FAST}/test_joint.py::test_padding_does_not_lag_where_slot_0_does",),
}
SERVE = f"{FAST}/serve"
SERVER: dict[str, tuple[str, ...]] = {
    "a long stop string, or many, stop the engine": (
        f"{SERVE}/test_writer.py::test_a_long_stop_string_or_many_take_no_longer_than_the_text",
        f"{SERVE}/test_bounds.py::test_what_is_at_its_bound_is_taken",
    ),
    "one body stops the event loop": (
        f"{SERVE}/test_bounds.py::test_a_body_that_holds_too_much_is_refused_at_once_with_one_short_error",
        f"{SERVE}/test_bounds.py::test_in_a_context_that_has_room_for_all_of_it_the_first_wrong_item_is_the_error",
        f"{SERVE}/test_bounds.py::test_the_event_loop_and_the_engine_neither_read_nor_tokenize_nor_write",
        f"{SERVE}/test_slow_clients.py::test_a_body_in_chunks_of_one_byte_is_refused_before_it_costs_much",
    ),
    "half-sent requests shut everybody out and fill the log": (
        f"{SERVE}/test_slow_clients.py::test_a_request_that_does_not_arrive_in_time_is_ended",
        f"{SERVE}/test_slow_clients.py::test_of_many_half_sent_requests_the_oldest_are_closed_and_others_are_answered",
        f"{SERVE}/test_slow_clients.py::test_of_one_kind_of_line_one_a_second_is_written",
    ),
    "a long prompt stops all others": (
        f"{FAST}/test_reading.py::test_a_prompt_in_pieces_leaves_the_bits_of_a_whole_one",
        f"{FAST}/test_reading.py::test_who_runs_waits_for_a_long_prompt_as_long_as_for_its_own_steps_and_a_piece",
        f"{FAST}/test_reading.py::test_of_several_clients_the_one_with_the_fewest_in_slots_is_next",
        f"{SERVE}/test_clients.py::test_one_client_leaves_room_in_the_queue_for_others",
        f"{SERVE}/test_clients.py::test_of_too_many_connections_those_of_the_client_with_the_most_are_closed",
    ),
    "a page of another site reaches a server without a key": (
        f"{SERVE}/test_clients.py::test_without_a_key_a_request_for_another_name_is_refused",
        f"{SERVE}/test_clients.py::test_behind_a_proxy_the_client_is_whom_the_proxy_names",
    ),
    "a folder's template or tokenizer fills memory": (
        f"{SERVE}/test_template.py::test_a_template_that_takes_too_much_is_ended_and_the_next_chat_is_rendered",
        f"{SERVE}/test_template.py::test_others_are_answered_while_a_template_does_not_end",
        f"{SERVE}/test_template.py::test_a_config_that_is_no_template_is_refused_by_name",
        f"{FAST}/test_tokenizers.py::test_a_tokenizer_that_lengthens_a_text_without_bound_is_refused_by_name",
    ),
    "hostile requests": (f"{SERVE}/test_hostile.py::test_a_hostile_request_is_refused_shortly_and_costs_the_engine_nothing",),
    "SIGTERM does not end it": (
        f"{SERVE}/test_stopping.py::test_an_idle_server_ends_at_once_with_zero_whatever_is_half_sent",
        f"{SERVE}/test_stopping.py::test_an_engine_that_hangs_does_not_keep_the_process",
        f"{SERVE}/test_stopping.py::test_an_event_loop_that_hangs_does_not_keep_the_process",
        f"{SERVE}/test_stopping.py::test_a_second_signal_ends_it_at_once",
    ),
    "one text has two token lists": (
        f"{FAST}/test_tokenizers.py::test_what_a_file_stores_for_batches_changes_no_prompt",
        f"{FAST}/test_tokenizers.py::test_a_padding_of_ten_thousand_million_takes_no_memory",
        f"{SERVE}/test_chat.py::test_a_chat_has_the_tokens_of_the_same_completion_in_any_order",
    ),
    "an empty key serves without a key": (
        f"{SERVE}/test_keys.py::test_a_key_that_was_not_filled_in_is_refused",
        f"{SERVE}/test_keys.py::test_an_address_that_others_reach_needs_a_key_or_a_word",
        f"{SERVE}/test_keys.py::test_of_two_keys_none_counts",
    ),
}
"""What stopped a server, or opened it to everybody. `tests/robust/test_server.py` measures what each costs a neighbour."""
RUN = (Path(__file__).parent / "reproductions.txt").read_text().split()
"""What `tox run -e robust` hands to pytest."""


def test_every_point_is_there() -> None:
    assert [int(point.partition(" ")[0]) for point in POINTS] == list(range(1, 19))


@pytest.mark.parametrize("identity", sorted({identity for named in (POINTS | SERVER).values() for identity in named}))
def test_a_reproduction_exists_and_is_run_by_the_environment_and_by_ci(identity: str) -> None:
    path, _, called = identity.partition("::")
    name, _, attack = called.rstrip("]").partition("[")
    assert not attack or corpus()[attack].quick, "CI leaves it out"
    source = ast.parse((ROOT / path).read_text())
    (found,) = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == name]
    marks = [ast.unparse(mark) for mark in found.decorator_list]
    assert "pytest.mark.robust" not in marks, "CI leaves it out"
    assert any(identity.startswith(argument) for argument in RUN)


def test_the_environment_runs_them() -> None:
    assert "pytest @tests/robust/reproductions.txt" in (ROOT / "tox.ini").read_text()
