//! What is left to do for an attempt whose supervisor died: end what survived, say that it is
//! lost, and send what is in its spool.

use std::time::Duration;

use rustix::process::Signal;
use shuntyard_protocol::{
    Outcome, Timestamp,
    agent::{AttemptFact, End, FromAgent},
};
use tokio::io::DuplexStream;

use crate::{
    attempt::AttemptDir,
    clock, sandbox,
    spool::DirDisk,
    uplink::Uplink,
    wire::{self, FromSupervisor, ToSupervisor},
};

/// Of a dead supervisor's log, the end is repeated in the agent's.
const WORDS_BYTES_MAX: usize = 2048;
/// Rounds of killing what a supervisor left behind.
const ROUNDS: u32 = 500;
const ROUND_PAUSE: Duration = Duration::from_millis(10);

/// Speaks for a dead supervisor until nothing is left to say.
pub(super) async fn serve(dir: &AttemptDir, stream: DuplexStream) -> anyhow::Result<()> {
    let cleaned = dir.clone();
    tokio::task::spawn_blocking(move || end_leftovers(&cleaned)).await?;
    let settings = dir.settings()?;
    let mut uplink = Uplink::open(dir, settings.spool_quota_bytes)?;
    if uplink.spool.end().is_none() {
        let words = last_words(dir);
        tracing::warn!(attempt = %dir.id, words, "a supervisor ended before its attempt");
    }
    if uplink.key.is_some() && uplink.spool.end().is_none() {
        let at = Timestamp(clock::wall().0.saturating_add(settings.offset_ms));
        uplink.spool.append_fact(&AttemptFact::Ended(lost(&uplink, at)))?;
        uplink.spool.sync()?;
    }
    let (read, write) = tokio::io::split(stream);
    let mut reader = wire::reader(read);
    let mut writer = wire::writer(write);
    let hello = FromSupervisor::Hello { key: uplink.key.clone(), running: false };
    wire::send(&mut writer, &hello, &[]).await?;
    wire::send(&mut writer, &FromSupervisor::Idle {}, &[]).await?;
    loop {
        if uplink.key.is_none() && uplink.link.is_some() {
            let reason = "its supervisor ended before it began".into();
            let frame = uplink.up(FromAgent::Abandon { id: dir.id, reason });
            if let Some(frame) = frame {
                wire::send(&mut writer, &frame, &[]).await?;
            }
            uplink.finish = true;
        }
        let abandoned = uplink.key.is_none() && uplink.finish;
        if abandoned || uplink.is_done() {
            dir.mark_done()?;
            wire::send(&mut writer, &FromSupervisor::Done {}, &[]).await?;
            return Ok(());
        }
        if let Some((frame, payload)) = uplink.take()? {
            wire::send(&mut writer, &frame, &payload).await?;
            continue;
        }
        let Some((frame, _)) = wire::receive(&mut reader).await? else { return Ok(()) };
        match frame {
            ToSupervisor::Online(online) => uplink.online(&online)?,
            ToSupervisor::Offline {} => uplink.offline(),
            ToSupervisor::Down { frame } => uplink.acknowledge(&frame)?,
            ToSupervisor::CancelAll { .. } | ToSupervisor::Unknown => {}
        }
    }
}

/// The end of what a supervisor wrote on its stderr.
fn last_words(dir: &AttemptDir) -> String {
    let bytes = std::fs::read(dir.log_path()).unwrap_or_default();
    let from = bytes.len().saturating_sub(WORDS_BYTES_MAX);
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}

fn lost(uplink: &Uplink<DirDisk>, at: Timestamp) -> End {
    // What a command had written and nobody had read is gone: those streams end nowhere known.
    let mut torn: Vec<u32> = uplink.spool.open_steps().iter().map(|step| step + 1).collect();
    if torn.is_empty() {
        torn.push(0);
    }
    End {
        at,
        outcome: Outcome::Lost,
        reason: Some("its supervisor ended".into()),
        outputs: None,
        ends: uplink.spool.ends().clone(),
        torn,
    }
}

/// Kills what is left of an attempt whose supervisor is gone. Blocks until it is.
pub(super) fn end_leftovers(dir: &AttemptDir) {
    let mark = dir.mark();
    let init = dir.processes().and_then(|processes| processes.init);
    for _ in 0..ROUNDS {
        // The kernel ends the init with its supervisor; this is for the moment in between.
        let init = init.iter().filter(|init| init.lives()).map(|init| init.pid);
        let marked = sandbox::table();
        let marked = marked
            .iter()
            .filter(|(pid, process)| !process.zombie && sandbox::has_variable(**pid, &mark))
            .map(|(pid, _)| *pid);
        let left: Vec<i32> = init.chain(marked).collect();
        if left.is_empty() {
            return;
        }
        for pid in left {
            sandbox::signal(pid, Signal::KILL);
        }
        std::thread::sleep(ROUND_PAUSE);
    }
    tracing::error!(attempt = %dir.id, "something of an ended attempt cannot be killed");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shuntyard_protocol::{JobId, agent::AttemptId};

    use super::*;

    #[test]
    fn of_a_long_log_the_end_is_repeated() {
        let temp = tempfile::tempdir().unwrap();
        let id = AttemptId { job: JobId::mint(Timestamp(1), [1; 10]), attempt: 1 };
        let dir = AttemptDir::new(Path::new(temp.path()), id);
        assert_eq!(last_words(&dir), "");
        std::fs::create_dir_all(dir.root()).unwrap();
        let last = "x".repeat(WORDS_BYTES_MAX);
        std::fs::write(dir.log_path(), format!("early{last}")).unwrap();
        assert_eq!(last_words(&dir), last);
    }
}
