//! What a coordinator does by itself: offer, withdraw, plan.
#![expect(clippy::wildcard_enum_match_arm, reason = "only some cases matter to the model")]

use std::collections::BTreeMap;

use serde_json::json;
use shuntyard_core::{
    apply::{Answer, Fact},
    labels::Requirement,
};
use shuntyard_protocol::{EventId, JobId, RunId, agent::ToAgent};
use shuntyard_server::parts::{fact, look, turn, withdrawn};
use shuntyard_store::{Claimed, Delivery, Instance, NewEvent, NewJob, NewRun};

use super::{DEAD_AFTER, DELIVERY_LEASE, DELIVERY_LEASE_ALONE, Failed, QUEUE_MAX, Session};
use crate::world::{Event, Tick, World};

impl World {
    pub(in crate::world) fn tick(&mut self, c: usize, life: u32, tick: Tick) {
        let coordinator = &mut self.coordinators[c];
        if !coordinator.up || coordinator.life != life {
            return;
        }
        coordinator.poked.remove(&tick);
        let result = match tick {
            Tick::Dispatch => self.dispatch(c),
            Tick::Gates => self.turn_gates(c),
            Tick::Period => {
                let after = self.rng.range(2000, 8000);
                self.at(self.now + after, Event::Tick { coordinator: c, life, tick });
                self.poke_dispatch(c);
                self.beat(c)
                    .and_then(|()| self.expire(c))
                    .and_then(|()| self.inbox(c))
                    .and_then(|()| self.turn_gates(c))
            }
        };
        // A failed tick is tried again with the next period.
        if let Err(failed) = result {
            self.trace(format_args!("coordinator{c}: a tick ends early: {failed:?}"));
        }
    }

    /// Says that it lives, and frees what the dead had taken.
    fn beat(&mut self, c: usize) -> Result<(), Failed> {
        self.set_clock(c);
        let now = self.db_time(c);
        let instance = Instance {
            id: self.coordinators[c].instance,
            name: format!("coordinator{c}"),
            url: None,
            software: "sim".to_owned(),
            started_at: now,
            beat_at: now,
        };
        self.call(c, "beat", async |store| store.beat(&instance).await)?;
        let adopted = self.call(c, "adopt deliveries", async |store| {
            store.adopt_deliveries(now - DEAD_AFTER, now).await
        })?;
        if adopted > 0 {
            self.trace(format_args!("coordinator{c}: adopts {adopted} deliveries"));
        }
        Ok(())
    }

    fn turn_gates(&mut self, c: usize) -> Result<(), Failed> {
        if !self.gated {
            return Ok(());
        }
        let woken = self.call(c, "list woken gates", async |store| store.woken_gates().await)?;
        for gate in woken {
            let now = self.db_time(c);
            let done = self.call(c, "turn a gate", async |store| turn(store, gate, now).await)?;
            self.trace(format_args!("coordinator{c}: turns gate {gate} → {done}"));
        }
        Ok(())
    }

    fn dispatch(&mut self, c: usize) -> Result<(), Failed> {
        loop {
            let rooms = |session: &Session| session.slots.saturating_sub(session.held.len());
            let sessions = &self.coordinators[c].sessions;
            if sessions.values().all(|session| rooms(session) == 0) {
                return Ok(());
            }
            let classes =
                self.call(c, "list queued classes", async |store| store.queued_classes().await)?;
            let mut offered = false;
            for class in classes {
                let requirement =
                    Requirement::new(&class.runs_on).expect("the labels of a plan compile");
                let able = self.coordinators[c].sessions.iter();
                let able: Vec<usize> = able
                    .filter(|(_, session)| {
                        rooms(session) > 0 && requirement.admits(&session.labels)
                    })
                    .map(|(&agent, _)| agent)
                    .collect();
                let free: usize =
                    able.iter().map(|agent| rooms(&self.coordinators[c].sessions[agent])).sum();
                let Ok(limit @ 1..) = u32::try_from(free) else { continue };
                let (now, instance) = (self.db_time(c), self.coordinators[c].instance);
                let until = now + self.timers.offer;
                let claimed = self.call(c, "claim jobs", async |store| {
                    store.claim(&[class.id], limit, instance, until, now).await
                })?;
                for job in claimed {
                    offered = true;
                    self.offer(c, &able, &job)?;
                }
            }
            if !offered {
                return Ok(());
            }
        }
    }

    fn offer(&mut self, c: usize, able: &[usize], job: &Claimed) -> Result<(), Failed> {
        let hosts = &self.hosts;
        let sessions = &mut self.coordinators[c].sessions;
        let mut rooms: Vec<(bool, usize, usize)> = able
            .iter()
            .filter_map(|&agent| {
                let session = sessions.get(&agent)?;
                let free = session.slots.checked_sub(session.held.len()).filter(|n| *n > 0)?;
                Some((job.refused.contains(&hosts[agent].agent), usize::MAX - free, agent))
            })
            .collect();
        rooms.sort_unstable();
        if let Some(&(_, _, agent)) = rooms.first()
            && let Some(session) = sessions.get_mut(&agent)
        {
            session.held.insert(job.id);
            let link = session.link;
            self.trace(format_args!(
                "coordinator{c}: offers {} to agent{agent}",
                self.name(job.id)
            ));
            let frame = ToAgent::Offer { id: job.id, name: job.title.clone() };
            return if self.tell(c, link, &frame, b"") { Ok(()) } else { Err(Failed::Crashed) };
        }
        let now = self.db_time(c);
        let fact = Fact::OfferExpired { id: job.id, agent: None };
        self.call(c, "put a job back", async |store| store.apply(vec![fact], now).await).map(drop)
    }

    fn expire(&mut self, c: usize) -> Result<(), Failed> {
        let now = self.db_time(c);
        let overdue = look(&self.timers, now);
        let due =
            self.call(c, "look for what is due", async |store| store.due(overdue, 500, now).await)?;
        let facts: Vec<Fact> = due.iter().map(|due| fact(due, overdue)).collect();
        if facts.is_empty() {
            return Ok(());
        }
        let life = self.coordinators[c].life;
        // Between the look and the commit anything may happen.
        let after = self.think(c);
        self.at(self.now + after, Event::Expire { coordinator: c, life, facts });
        Ok(())
    }

    pub(in crate::world) fn expired(&mut self, c: usize, life: u32, facts: Vec<Fact>) {
        if !self.coordinators[c].up || self.coordinators[c].life != life {
            return;
        }
        let (now, sent) = (self.db_time(c), facts.clone());
        let done = self.call(c, "apply what is due", async |store| store.apply(sent, now).await);
        for (fact, answer) in facts.into_iter().zip(done.unwrap_or_default()) {
            self.trace_answer(c, &fact, &answer);
            if answer != Answer::Done {
                continue;
            }
            if let Some(id) = withdrawn(&fact) {
                self.send_to_holder(c, id, &ToAgent::Superseded { id });
                self.freed(c, id);
            }
        }
        self.poke_dispatch(c);
    }

    /// One batch after the other.
    fn inbox(&mut self, c: usize) -> Result<(), Failed> {
        if self.coordinators[c].planning.is_some() {
            return Ok(());
        }
        let (now, instance) = (self.db_time(c), self.coordinators[c].instance);
        let alone = self.coordinators.len() == 1;
        let lease = if alone { DELIVERY_LEASE_ALONE } else { DELIVERY_LEASE };
        let taken = self.call(c, "take deliveries", async |store| {
            store.lease_deliveries(instance, 16, lease, now).await
        })?;
        if taken.is_empty() {
            return Ok(());
        }
        let batch = self.scheduled;
        self.coordinators[c].planning = Some((batch, taken.len()));
        for delivery in taken {
            // Planning takes its time, sometimes more than the lease.
            let long = if self.rng.chance(400) { 100_000 } else { 2000 };
            let after = self.rng.range(0, long);
            let delivery = Box::new(delivery);
            self.at(self.now + after, Event::Plan { coordinator: c, batch, delivery });
        }
        Ok(())
    }

    pub(in crate::world) fn plan(&mut self, c: usize, batch: u64, delivery: &Delivery) {
        let Some((_, left)) = self.coordinators[c].planning.filter(|(of, _)| *of == batch) else {
            return;
        };
        let now = self.db_time(c);
        let n = usize::from(delivery.body[0]);
        let work = self.works[n].clone();
        let event = NewEvent {
            id: EventId::mint(now, self.rng.bytes()),
            org: delivery.org.clone(),
            source: delivery.source_id,
            kind: "push".to_owned(),
            event_key: (n % 2 == 0).then(|| format!("push {n}")),
            ref_name: None,
            branch: None,
            commit: None,
            actor: None,
            title: Some(n.to_string()),
            body: json!({}),
        };
        let mut runs = Vec::new();
        for (workflow, flow) in work {
            let run = RunId::mint(now, self.rng.bytes());
            let jobs = flow.jobs.into_iter().map(|job| NewJob {
                id: JobId::mint_in(run, now, self.rng.bytes()),
                name: job.name,
                title: job.title,
                matrix: None,
                spec: serde_json::to_value(&job.spec).expect("a plan is JSON"),
                runs_on: job.runs_on,
                priority: 0,
                retry: job.retry,
                continue_on_error: job.continue_on_error,
                needs: job.needs,
                concurrency: job.concurrency,
            });
            let jobs: Vec<NewJob> = jobs.collect();
            runs.push(NewRun {
                id: run,
                workflow: workflow.clone(),
                file: format!("{workflow}.ts"),
                plan_key: None,
                timeout_ms: None,
                concurrency: flow.concurrency,
                env: BTreeMap::new(),
                jobs,
            });
        }
        let of = delivery.id;
        let created = self.call(c, "create runs", async |store| {
            store.create_runs(&event, runs, Some((of, "runs")), QUEUE_MAX, now).await
        });
        // What goes wrong with one ends the batch: the others are asked for again.
        let left = if created.is_ok() { left - 1 } else { 0 };
        self.coordinators[c].planning = (left > 0).then_some((batch, left));
        if let Ok(created) = created {
            let fresh = created.fresh;
            self.trace(format_args!("coordinator{c}: delivery {n} made {fresh} runs"));
        }
    }

    fn trace_answer(&self, c: usize, fact: &Fact, answer: &Answer) {
        let (what, id) = match fact {
            Fact::OfferExpired { id, .. } => ("offer expired", id),
            Fact::StartExpired { id } => ("start expired", id),
            Fact::Overdue { id, .. } => ("overdue", id),
            Fact::Lost { id, .. } => ("lost", id),
            _ => return,
        };
        self.trace(format_args!("coordinator{c}: {what} {} → {answer:?}", self.name(*id)));
    }
}
