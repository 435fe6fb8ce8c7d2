//! The program as a user starts it: real processes, real git, and killed without warning.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests measure real time and fail by panicking"
)]

mod api;
mod cancel;
mod commands;
mod concurrency;
mod crashes;
mod dev;
mod examples;
mod gate;
mod logs;
mod machine;
mod output;
mod owner;
mod runs;
mod signin;
mod starting;
mod web;
mod webhooks;
mod world;

/// Each number on a line of its own.
fn numbered<N: ToString>(numbers: impl Iterator<Item = N>) -> String {
    numbers.map(|number| number.to_string() + "\n").collect()
}

/// Makes a test on each database of a function that takes one.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite { $(
            #[tokio::test]
            async fn $name() {
                super::$name(crate::world::Db::Sqlite).await;
            }
        )+ }
        mod postgres { $(
            #[tokio::test]
            async fn $name() {
                super::$name(crate::world::Db::Postgres).await;
            }
        )+ }
    };
}
pub(crate) use on_both;
