//! Frames, commits and replies.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use shuntyard_core::{
    apply::{Answer, Fact},
    mutant::{self, Mutant},
};
use shuntyard_protocol::{
    AgentId, Timestamp,
    agent::{AttemptFact, AttemptId, AttemptKey, End, FromAgent, NumberedFact, Spec, ToAgent},
    plan::Job,
};
use shuntyard_server::parts::{About, Ask, Reply, Sender, asks, log_reply, replies};
use shuntyard_store::{LogAnswer, LogAppend, SpecParts, Store, StoreError};

use super::{Failed, Item, attempt_key};
use crate::world::{Event, World, net::LinkId};

impl World {
    fn with_sender<T>(&self, c: usize, agent: AgentId, f: impl FnOnce(&Sender<'_>) -> T) -> T {
        let now = self.db_time(c);
        f(&Sender { agent, now, timers: &self.timers, key: &attempt_key })
    }

    /// Queues what a frame says.
    pub(in crate::world) fn take(
        &mut self,
        c: usize,
        agent: AgentId,
        link: LinkId,
        frame: FromAgent,
        payload: &[u8],
    ) {
        let asked = match self.with_sender(c, agent, |by| asks(frame, payload, by)) {
            Ok(asked) => asked,
            Err(breach) => return self.violated(format!("a frame is refused: {breach}")),
        };
        for ask in asked {
            let item = match ask {
                Ask::Fact(about, fact) => Item::Fact(about, fact),
                Ask::Log(log) => Item::Log(log),
                Ask::Drain => continue,
            };
            if mutant::on(Mutant::AckBeforeCommit) {
                self.ack_early(c, link, &item);
            }
            self.coordinators[c].batch.push((link, item));
        }
        let coordinator = &mut self.coordinators[c];
        if !coordinator.batch.is_empty() && !coordinator.flushing {
            coordinator.flushing = true;
            let life = coordinator.life;
            let after = self.think(c);
            self.at(self.now + after, Event::Flush { coordinator: c, life });
        }
    }

    fn ack_early(&mut self, c: usize, link: LinkId, item: &Item) {
        let frame = match item {
            Item::Fact(About::Fact(id, _), Fact::Attempt { seq, .. }) => {
                ToAgent::FactAck { id: *id, seq: *seq }
            }
            Item::Fact(..) => return,
            Item::Log(log) => {
                let to = log.from + log.bytes.len() as u64;
                ToAgent::LogAck { id: log.id, to: BTreeMap::from([(log.stream, to)]) }
            }
        };
        self.tell(c, link, &frame, b"");
    }

    /// Commits what has queued up.
    pub(in crate::world) fn flush(&mut self, c: usize, life: u32) {
        let coordinator = &mut self.coordinators[c];
        if !coordinator.up || coordinator.life != life {
            return;
        }
        coordinator.flushing = false;
        let batch = std::mem::take(&mut coordinator.batch);
        let links: BTreeSet<LinkId> = batch.iter().map(|(link, _)| *link).collect();
        let (mut facts, mut logs) = (Vec::new(), Vec::new());
        let (mut asked, mut streams) = (Vec::new(), Vec::new());
        for (link, item) in batch {
            match item {
                Item::Fact(about, fact) => {
                    asked.push((link, about));
                    facts.push(fact);
                }
                Item::Log(log) => {
                    streams.push((link, log.id, log.stream));
                    logs.push(log);
                }
            }
        }
        let (now, apart) = (self.db_time(c), self.one_by_one);
        let what = format!("commit {} facts and {} chunks", facts.len(), logs.len());
        let done = self.call(c, &what, async |store| {
            if apart {
                return commit_apart(store, facts, logs, now).await;
            }
            let (facts, logs) = store.commit(facts, logs, now).await;
            Ok((facts?, logs?))
        });
        let (answers, ends) = match done {
            Ok(done) => done,
            Err(Failed::Crashed) => return,
            Err(Failed::Unavailable) => {
                // Nobody knows what was committed: the agents must ask again.
                return links.into_iter().for_each(|link| self.close(c, link));
            }
        };
        for ((link, about), answer) in asked.into_iter().zip(answers) {
            self.trace_reply(c, about, &answer);
            let agent = self.net.get(link).map_or(0, |link| link.agent);
            let agent = self.hosts[agent].agent;
            match self.with_sender(c, agent, |by| replies(about, answer, by)) {
                Ok(replies) => replies.into_iter().for_each(|reply| self.reply(c, link, reply)),
                Err(breach) => return self.violated(format!("an answer does not fit: {breach}")),
            }
        }
        for ((link, id, stream), answer) in streams.into_iter().zip(ends) {
            self.trace(format_args!(
                "coordinator{c}: log {} stream {stream} → {answer:?}",
                self.name(id)
            ));
            match log_reply(id, stream, answer) {
                Ok(frame) => {
                    self.tell(c, link, &frame, b"");
                }
                Err(breach) => return self.violated(format!("a log is refused: {breach}")),
            }
        }
    }

    fn reply(&mut self, c: usize, link: LinkId, reply: Reply) {
        match reply {
            Reply::Send(frame) => {
                self.tell(c, link, &frame, b"");
            }
            Reply::Freed(id) => self.freed(c, id),
            Reply::Start(id) => {
                let ids = [id.job];
                let parts = self
                    .call(c, "read what a start needs", async |store| store.specs_for(&ids).await);
                let parts = parts.map(|mut parts| parts.remove(&id.job));
                let frame = match parts {
                    Err(Failed::Crashed) => return,
                    Err(Failed::Unavailable) => return self.close(c, link),
                    Ok(Some(parts)) if parts.job.attempt == id.attempt => {
                        ToAgent::Start(Box::new(spec(id, &parts)))
                    }
                    Ok(_) => {
                        self.freed(c, id);
                        ToAgent::Superseded { id }
                    }
                };
                self.tell(c, link, &frame, b"");
            }
        }
    }

    fn trace_reply(&self, c: usize, about: About, answer: &Answer) {
        let (what, id) = match about {
            About::Reserve(id) => ("reserve", id),
            About::Withdraw(id) => ("withdraw", id),
            About::Begin(id) => ("begin", id),
            About::Renew(id, _) => ("renew", id),
            About::Fact(id, true) => ("end", id),
            About::Fact(id, false) => ("fact", id),
        };
        self.trace(format_args!("coordinator{c}: {what} {} → {answer:?}", self.name(id)));
    }
}

/// One transaction for each fact and chunk.
async fn commit_apart(
    store: &Store,
    facts: Vec<Fact>,
    logs: Vec<LogAppend>,
    now: Timestamp,
) -> Result<(Vec<Answer>, Vec<LogAnswer>), StoreError> {
    let (mut answers, mut ends) = (Vec::new(), Vec::new());
    for fact in facts {
        answers.extend(store.apply(vec![fact], now).await?);
    }
    for log in logs {
        ends.extend(store.append_logs(vec![log], now).await?);
    }
    Ok((answers, ends))
}

fn spec(id: AttemptId, parts: &SpecParts) -> Spec {
    let job: Job = serde_json::from_value(parts.job.spec.clone()).expect("a plan was stored");
    Spec {
        id,
        run: parts.run.id,
        org: parts.run.org.clone(),
        source: parts.run.source.clone(),
        workflow: parts.run.workflow.clone(),
        file: parts.run.file.clone(),
        job: parts.job.name.clone(),
        title: parts.job.title.clone(),
        try_no: parts.job.try_no,
        run_number: parts.run.number,
        matrix: None,
        event: json!({}),
        code: None,
        checkout: job.checkout,
        env: BTreeMap::new(),
        timeout_ms: 6 * 3600 * 1000,
        grace_ms: 10_000,
        steps: job.steps,
        parallels: Vec::new(),
        single: false,
        needs: BTreeMap::new(),
        run_url: None,
    }
}

/// The frame of somebody who knows an attempt's id, but not its key.
pub(in crate::world) fn forged(id: AttemptId, seq: u64, end: End) -> FromAgent {
    let facts = vec![NumberedFact { seq, fact: AttemptFact::Ended(end) }];
    FromAgent::Facts { id, key: AttemptKey("forged".to_owned()), facts }
}
