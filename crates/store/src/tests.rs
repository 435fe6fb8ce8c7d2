//! One list of cases for both databases.

mod attempts;
mod batches;
mod gates;
mod graph;
mod inbox;
mod logs;
mod outage;
mod pairs;
mod people;
mod placement;
mod rerun;
mod schema;
mod world;

use crate::{Database, testing::Postgres};

/// Each case is a test of its own with SQLite, and they share one server with PostgreSQL.
macro_rules! conformance {
    ($($module:ident::$case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                let folder = tempfile::tempdir().unwrap();
                let file = crate::Database::Sqlite(folder.path().join("shunt.db"));
                super::$module::$case(&super::world::World::open(file).await).await;
            })+

            /// What a simulation uses.
            #[tokio::test]
            async fn in_memory() {
                $(super::$module::$case(
                    &super::world::World::open(crate::Database::Memory).await).await;)+
            }
        }

        #[tokio::test]
        async fn postgres() {
            let server = Postgres::start("conformance");
            $(
                eprintln!("case {}", stringify!($case));
                let url = server.database(stringify!($case)).await;
                let world = world::World::open(Database::Postgres(url)).await;
                $module::$case(&world).await;
                world.store.close().await;
            )+
        }
    };
}

conformance![
    attempts::a_job_goes_from_the_queue_to_success,
    attempts::facts_that_come_twice_or_late_change_nothing,
    attempts::begin_after_the_release_of_a_start_is_refused,
    attempts::a_late_result_is_kept_on_its_attempt_only,
    attempts::a_try_that_failed_is_made_again_at_the_end_of_the_queue,
    attempts::what_one_batch_queues_stands_in_the_order_of_its_facts,
    attempts::a_cancelled_run_ends_when_its_attempts_have,
    attempts::what_is_overdue_is_found,
    attempts::a_run_that_takes_too_long_is_found_until_it_is_cancelled,
    attempts::an_agent_gets_its_attempts_back,
    batches::many_submitters_share_commits,
    batches::a_crowd_of_writers_keeps_the_counters_true,
    batches::a_fact_that_cannot_be_stored_is_parked_alone,
    batches::a_batch_means_what_its_facts_mean_one_by_one,
    batches::more_than_batch_max_facts_are_several_transactions,
    batches::changes_are_hinted,
    gates::runs_of_a_group_go_one_after_the_other,
    gates::woken_max_bounds_one_look,
    gates::jobs_wait_at_a_gate_once_they_are_ready,
    gates::a_run_that_goes_on_brings_its_jobs_to_their_gates,
    gates::the_newest_of_a_group_may_cancel_the_others,
    gates::deliveries_go_in_the_order_of_their_arrival,
    gates::a_group_belongs_to_its_source_unless_the_org_shares_it,
    gates::a_group_has_as_many_slots_as_was_said_last,
    gates::a_rerun_stands_at_the_end_of_the_line,
    gates::who_waits_too_long_is_found,
    gates::two_runs_in_two_transactions_never_share_the_last_slot,
    gates::two_upstreams_in_two_transactions_never_share_the_last_slot,
    graph::an_event_makes_its_runs_once,
    graph::a_full_queue_is_said_and_nothing_is_stored,
    graph::a_run_that_needs_what_it_has_not_is_refused,
    graph::a_run_may_have_more_than_rows_max_jobs,
    graph::skips_cascade_through_the_whole_graph,
    graph::a_fan_out_counts_as_one,
    graph::two_upstreams_in_two_transactions_never_leave_the_third_blocked,
    graph::upstream_outputs_reach_a_start,
    graph::runs_are_listed_by_page,
    inbox::a_delivery_is_stored_once,
    inbox::the_same_body_is_a_replay_for_thirty_days,
    inbox::deliveries_are_leased_retried_and_finished,
    inbox::deliveries_of_a_dead_coordinator_are_due_at_once,
    inbox::the_outbox_is_driven_in_order,
    logs::bytes_survive_whatever_they_are,
    logs::overlap_is_trimmed_and_gaps_are_refused,
    logs::long_logs_go_to_segments_and_read_back,
    logs::whatever_is_sent_how_often_the_log_is_whole,
    logs::an_old_attempt_completes_its_own_log,
    logs::the_end_of_a_stream_is_known,
    placement::orgs_share_by_weight_and_priority_rules_within,
    placement::age_lifts_a_job,
    placement::a_claim_finds_the_oldest_of_every_class,
    placement::one_claim_takes_so_many_jobs,
    placement::a_refused_job_keeps_its_place,
    placement::claims_at_the_same_time_share_the_queue,
    people::a_source_is_known_by_its_name,
    people::plans_are_kept_by_commit,
    people::a_token_enrols_as_often_as_it_may,
    people::tokens_end,
    people::a_lease_has_one_holder,
    people::instances_beat,
    people::what_operators_do_is_logged,
    people::the_first_cluster_row_stays,
    rerun::all_jobs_run_again,
    rerun::only_what_failed_and_what_is_behind_it_runs_again,
    rerun::what_was_cancelled_is_skipped_again_when_its_edge_says_so,
];
