//! What the script may ask of the child: output, variables, commands, timers.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::mpsc::SyncSender, time::Duration};

use serde_json::Value;
use shuntyard_protocol::{
    frame::{self, LOG_PAYLOAD_BYTES_MAX},
    runner::{FromRunner, StepDone, StepError},
};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};

use super::{
    commands::{self, Exit, Spec, Stop},
    tasks,
};

/// Most commands that run at the same time.
pub(super) const COMMANDS_MAX: usize = 256;
/// Most timers that wait at the same time.
pub(super) const TIMERS_MAX: usize = 10_000;
/// Longest message of a failed step.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// What happened outside the script.
#[derive(Debug)]
pub(super) enum Event {
    Ended { step: u32, id: u32, exit: Exit },
    Timer { id: u32 },
}

/// Where frames are queued for the supervisor.
#[derive(Clone)]
pub(super) struct Output(SyncSender<Vec<u8>>);

impl Output {
    /// Queues a frame; waits while the queue is full. When nobody reads any more it is dropped:
    /// the loop is about to end then.
    pub(super) fn send(&self, header: &FromRunner, payload: &[u8]) {
        let Ok(body) = frame::encode(header, payload) else { return };
        let Ok(length) = u32::try_from(body.len()) else { return };
        let bytes = [&length.to_be_bytes()[..], &body].concat();
        drop(self.0.send(bytes));
    }

    /// Queues log bytes of a step.
    pub(super) fn bytes(&self, step: u32, bytes: &[u8]) {
        for part in bytes.chunks(LOG_PAYLOAD_BYTES_MAX) {
            self.send(&FromRunner::Output { step }, part);
        }
    }
}

/// The host of one job. Clones share it.
#[derive(Clone)]
pub(super) struct Host {
    output: Output,
    events: mpsc::Sender<Event>,
    running: Rc<RefCell<BTreeMap<u32, Running>>>,
    timers: Rc<RefCell<BTreeMap<u32, AbortHandle>>>,
    last_command: Rc<RefCell<u32>>,
}

struct Running {
    step: u32,
    stop: watch::Sender<Stop>,
}

impl Host {
    pub(super) fn new(output: SyncSender<Vec<u8>>, events: mpsc::Sender<Event>) -> Self {
        Self {
            output: Output(output),
            events,
            running: Rc::default(),
            timers: Rc::default(),
            last_command: Rc::default(),
        }
    }

    pub(super) fn send(&self, header: &FromRunner, payload: &[u8]) {
        self.output.send(header, payload);
    }

    pub(super) fn print(&self, step: u32, text: &str) {
        self.output.bytes(step, text.as_bytes());
    }

    /// Starts a command and returns its number.
    ///
    /// # Errors
    /// When too many run already.
    pub(super) fn spawn(&self, step: u32, spec: Spec) -> Result<u32, String> {
        if self.running.borrow().len() >= COMMANDS_MAX {
            return Err(format!("more than {COMMANDS_MAX} commands at the same time"));
        }
        *self.last_command.borrow_mut() += 1;
        let id = *self.last_command.borrow();
        let (stop, stopped) = watch::channel(Stop::No);
        self.running.borrow_mut().insert(id, Running { step, stop });
        let (output, events) = (self.output.clone(), self.events.clone());
        tasks::spawn(async move {
            let exit = commands::run(step, spec, output, stopped).await;
            drop(events.send(Event::Ended { step, id, exit }).await);
        });
        Ok(id)
    }

    pub(super) fn command_ended(&self, id: u32) {
        self.running.borrow_mut().remove(&id);
    }

    /// Asks the commands of a step to end, or ends them.
    pub(super) fn stop_commands(&self, step: u32, level: Stop) {
        for running in self.running.borrow().values().filter(|running| running.step == step) {
            running.stop.send_if_modified(|now| {
                let more = level > *now;
                *now = level.max(*now);
                more
            });
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.borrow().is_empty()
    }

    /// Ends every command at once.
    pub(super) fn kill_commands(&self) {
        for running in self.running.borrow().values() {
            running.stop.send_replace(Stop::Kill);
        }
    }

    /// # Errors
    /// When too many timers wait already.
    pub(super) fn start_timer(&self, id: u32, delay: Duration) -> Result<(), String> {
        if self.timers.borrow().len() >= TIMERS_MAX {
            return Err(format!("more than {TIMERS_MAX} timers at the same time"));
        }
        let events = self.events.clone();
        let task = tasks::spawn(async move {
            tokio::time::sleep(delay).await;
            drop(events.send(Event::Timer { id }).await);
        });
        self.timers.borrow_mut().insert(id, task.abort_handle());
        Ok(())
    }

    pub(super) fn stop_timer(&self, id: u32) {
        if let Some(timer) = self.timers.borrow_mut().remove(&id) {
            timer.abort();
        }
    }

    pub(super) fn timer_fired(&self, id: u32) {
        self.timers.borrow_mut().remove(&id);
    }

    pub(super) fn succeeded(&self, step: u32, outputs: Option<Value>) {
        self.send(&FromRunner::Done(StepDone { step, error: None, outputs }), &[]);
    }

    pub(super) fn failed(&self, step: u32, message: &str, exit_code: Option<i32>) {
        let error = StepError { message: cut(message).to_owned(), exit_code };
        self.send(&FromRunner::Done(StepDone { step, error: Some(error), outputs: None }), &[]);
    }
}

/// As much of a message as is told.
fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(ERROR_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bytes_max_bytes_of_a_message_are_told() {
        assert_eq!(cut(&"x".repeat(ERROR_BYTES_MAX)).len(), ERROR_BYTES_MAX);
        assert_eq!(cut(&"x".repeat(ERROR_BYTES_MAX + 1)).len(), ERROR_BYTES_MAX);
        let odd = format!("{}ü", "x".repeat(ERROR_BYTES_MAX - 1));
        assert_eq!(cut(&odd).len(), ERROR_BYTES_MAX - 1, "a character stays whole");
    }
}
