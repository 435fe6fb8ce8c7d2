//! What an agent's frames ask of the store, and what the store's answers mean for the agent. Pure:
//! the link and the simulation share it.

use std::collections::BTreeMap;

use shuntyard_core::{
    apply::{Answer, Cancel, Fact, KeyHash},
    timers::Timers,
};
use shuntyard_protocol::{
    AgentId, Timestamp,
    agent::{
        AttemptFact, AttemptId, AttemptKey, Chunk, FACTS_PER_FRAME_MAX, FromAgent, NumberedFact,
        Renewal, Renewed, SLOTS_MAX, ToAgent,
    },
};
use shuntyard_store::{LogAnswer, LogAppend};

use crate::secrets::sha256;

/// Which frame a fact came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    Reserve(AttemptId),
    /// Refuse and abandon: nothing is answered.
    Withdraw(AttemptId),
    Begin(AttemptId),
    /// With the beat.
    Renew(AttemptId, u64),
    /// Whether it is the attempt's last.
    Fact(AttemptId, bool),
}

/// What a frame asks for.
#[derive(Clone, PartialEq)]
pub enum Ask {
    Fact(About, Fact),
    Log(LogAppend),
    /// Offer nothing more to this agent.
    Drain,
}

/// What is to be done after a commit, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Send(ToAgent),
    /// Send what the attempt needs to run, or `superseded` if that is no longer there.
    Start(AttemptId),
    /// It takes no slot any more.
    Freed(AttemptId),
}

/// What an agent must never send, or the store never answer: the link ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Breach(String);

/// Who sends, when, and by what rules.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    pub agent: AgentId,
    /// Database time.
    pub now: Timestamp,
    pub timers: &'a Timers,
    /// Derives the key of an attempt.
    pub key: &'a dyn Fn(AttemptId) -> AttemptKey,
}

/// What is stored of a key.
pub fn key_hash(key: &AttemptKey) -> KeyHash {
    sha256(key.0.as_bytes())
}

/// What a frame asks for, in order. A frame of a later version asks for nothing.
///
/// # Errors
/// [`Breach`] when it is longer than a frame may be, torn, or out of place.
pub fn asks(frame: FromAgent, payload: &[u8], by: &Sender<'_>) -> Result<Vec<Ask>, Breach> {
    let agent = by.agent;
    Ok(match frame {
        FromAgent::Reserve { id } => {
            let start_by = by.now + by.timers.reservation;
            vec![Ask::Fact(About::Reserve(id), Fact::Reserved { id, agent, start_by })]
        }
        FromAgent::Refuse { id, reason } => {
            vec![Ask::Fact(About::Withdraw(id), Fact::Refused { id, agent, reason })]
        }
        FromAgent::Abandon { id, reason } => {
            vec![Ask::Fact(About::Withdraw(id), Fact::Abandoned { id, agent, reason })]
        }
        FromAgent::Begin { id } => {
            let key_hash = key_hash(&(by.key)(id));
            let release_at = by.now + by.timers.release;
            vec![Ask::Fact(About::Begin(id), Fact::Begin { id, agent, key_hash, release_at })]
        }
        FromAgent::Renew { renewals } => renewed(renewals, by)?,
        FromAgent::Log { id, key, chunks } => log(id, &key, chunks, payload)?,
        FromAgent::Facts { id, key, facts } => history(id, &key, facts)?,
        FromAgent::Draining {} => vec![Ask::Drain],
        FromAgent::Hello(_) => return Err(Breach("a second hello".to_owned())),
        FromAgent::Unknown => Vec::new(),
    })
}

fn renewed(renewals: Vec<Renewal>, by: &Sender<'_>) -> Result<Vec<Ask>, Breach> {
    if renewals.len() > SLOTS_MAX as usize {
        return Err(Breach(format!("{} renewals in one frame", renewals.len())));
    }
    let release_at = by.now + by.timers.release;
    let ask = |Renewal { id, key, beat }| {
        let fact = Fact::Renewed { id, key_hash: key_hash(&key), release_at };
        Ask::Fact(About::Renew(id, beat), fact)
    };
    Ok(renewals.into_iter().map(ask).collect())
}

fn history(id: AttemptId, key: &AttemptKey, facts: Vec<NumberedFact>) -> Result<Vec<Ask>, Breach> {
    if facts.len() > FACTS_PER_FRAME_MAX {
        return Err(Breach(format!("{} facts in one frame", facts.len())));
    }
    let key_hash = key_hash(key);
    let ask = |NumberedFact { seq, fact }| {
        let about = About::Fact(id, matches!(fact, AttemptFact::Ended(_)));
        Ask::Fact(about, Fact::Attempt { id, key_hash, seq, fact })
    };
    Ok(facts.into_iter().map(ask).collect())
}

fn log(
    id: AttemptId,
    key: &AttemptKey,
    chunks: Vec<Chunk>,
    payload: &[u8],
) -> Result<Vec<Ask>, Breach> {
    let key_hash = key_hash(key);
    let mut rest = payload;
    let mut asks = Vec::with_capacity(chunks.len());
    for Chunk { stream, from, len, marks } in chunks {
        let (bytes, behind) = rest
            .split_at_checked(len as usize)
            .ok_or_else(|| Breach("a log frame ends early".to_owned()))?;
        rest = behind;
        let bytes = bytes.to_vec();
        asks.push(Ask::Log(LogAppend { id, key_hash, stream, from, marks, bytes }));
    }
    Ok(asks)
}

/// What follows from the answer to a fact.
///
/// # Errors
/// [`Breach`] when the store's answer does not fit the frame.
pub fn replies(about: About, answer: Answer, by: &Sender<'_>) -> Result<Vec<Reply>, Breach> {
    let release_in_ms = u64::try_from(by.timers.release.as_millis()).unwrap_or(u64::MAX);
    Ok(match (about, answer) {
        (About::Reserve(id), Answer::Committed) => vec![Reply::Start(id)],
        (About::Withdraw(id), _) => vec![Reply::Freed(id)],
        (About::Begin(id), Answer::Begun { cancel, .. }) => {
            let key = (by.key)(id);
            let begun = Reply::Send(ToAgent::Begun { id, key, release_in_ms });
            std::iter::once(begun).chain(wish(id, cancel)).collect()
        }
        (About::Renew(id, beat), Answer::Renewed { cancel, .. }) => {
            let renewals = vec![Renewed { id, beat, release_in_ms }];
            let renewed = Reply::Send(ToAgent::Renewed { renewals });
            std::iter::once(renewed).chain(wish(id, cancel)).collect()
        }
        // Unanswered, the supervisor's fence closes by itself.
        (About::Renew(..), Answer::Expired) => Vec::new(),
        (About::Fact(id, ended), Answer::Acked { seq }) => {
            let freed = ended.then_some(Reply::Freed(id));
            freed.into_iter().chain([Reply::Send(ToAgent::FactAck { id, seq })]).collect()
        }
        (About::Fact(id, _), Answer::Gap { have }) => {
            vec![Reply::Send(ToAgent::FactAck { id, seq: have })]
        }
        (
            About::Reserve(id) | About::Begin(id) | About::Renew(id, _) | About::Fact(id, _),
            Answer::Superseded | Answer::Stale | Answer::Unknown,
        ) => vec![Reply::Freed(id), Reply::Send(ToAgent::Superseded { id })],
        // It would be sent for ever: the attempt ends instead, and is lost at its release.
        (About::Fact(id, _), Answer::Failed { .. }) => {
            vec![Reply::Send(ToAgent::Superseded { id })]
        }
        (about, answer) => return Err(Breach(format!("{about:?} was answered {answer:?}"))),
    })
}

fn wish(id: AttemptId, cancel: Option<Cancel>) -> Option<Reply> {
    cancel.map(|Cancel { force, reason, .. }| Reply::Send(ToAgent::Cancel { id, force, reason }))
}

/// What the agent is told about a chunk of a log.
///
/// # Errors
/// [`Breach`] when it can never be stored.
pub fn log_reply(id: AttemptId, stream: u32, answer: LogAnswer) -> Result<ToAgent, Breach> {
    match answer {
        LogAnswer::Acked { to } | LogAnswer::Gap { have: to } => {
            Ok(ToAgent::LogAck { id, to: BTreeMap::from([(stream, to)]) })
        }
        LogAnswer::Superseded => Ok(ToAgent::Superseded { id }),
        LogAnswer::Failed { reason } => Err(Breach(format!("log of {id}: {reason}"))),
    }
}
