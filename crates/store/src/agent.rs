//! Enrolled agents.

use shuntyard_protocol::{AgentId, InstanceId, Timestamp, TokenId, agent::Containment};

use crate::{
    Store,
    column::{containment_word, row},
    db::{Tx, again, on, read},
    error::{During, StoreError},
    token,
};

row! {
    pub struct Agent {
        pub id: AgentId,
        pub org: String,
        pub name: String,
        /// Ed25519, hex: its identity.
        pub public_key: String,
        pub token_id: Option<TokenId>,
        pub labels: Vec<String>,
        pub slots: u32,
        pub containment: Containment,
        pub boot_id: String,
        pub software: String,
        /// An admin wants it to be offered nothing more.
        pub draining: bool,
        /// The coordinator that it is connected to.
        pub instance_id: Option<InstanceId>,
        pub created_at: Timestamp,
        pub seen_at: Timestamp,
        pub revoked_at: Option<Timestamp>,
        pub revoked_by: Option<String>,
    }
}

/// What an agent says about itself whenever it connects.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSeen {
    pub name: String,
    pub labels: Vec<String>,
    pub slots: u32,
    pub containment: Containment,
    pub boot_id: String,
    pub software: String,
}

pub(crate) const ENROL: &str = "insert into agent (id, org, name, public_key, token_id, labels, \
    slots, containment, boot_id, software, draining, created_at, seen_at) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, false, $11, $11) returning *";
pub(crate) const BY_KEY: &str = "select * from agent where public_key = $1";
pub(crate) const BY_ID: &str = "select * from agent where id = $1";
pub(crate) const SEEN: &str = "update agent set name = $2, labels = $3, slots = $4, \
    containment = $5, boot_id = $6, software = $7, instance_id = $8, seen_at = $9 \
    where id = $1 and revoked_at is null";
pub(crate) const BEAT: &str = "update agent set seen_at = $2 where id = $1 and seen_at < $2";
pub(crate) const GONE: &str =
    "update agent set instance_id = null, seen_at = $3 where id = $1 and instance_id = $2";
pub(crate) const DRAINING: &str = "update agent set draining = $2 where id = $1";
pub(crate) const REVOKE: &str = "update agent set revoked_at = $2, revoked_by = $3 \
    where id = $1 and revoked_at is null";
pub(crate) const LIST: &str =
    "select * from agent where (org = $1 or $1 is null) order by name, id";

/// What became of an enrolment.
#[derive(Clone, Debug, PartialEq)]
pub enum Enrolled {
    /// The agent is known now; a repeated enrolment of the same key finds it again.
    Agent(Box<Agent>),
    /// The token is unknown, revoked, expired or used up.
    TokenRefused,
    /// The key was enrolled once and then revoked.
    KeyRevoked(Box<Agent>),
}

impl Store {
    /// Enrols a key with a token, in one transaction: of several that race for the token's last
    /// use exactly one wins. A key that is known needs no token and uses none.
    pub async fn enrol_agent(
        &self,
        id: AgentId,
        public_key: &str,
        token_hash: &[u8; 32],
        seen: &AgentSeen,
        now: Timestamp,
    ) -> Result<Enrolled, StoreError> {
        match again!(self.enrol_once(id, public_key, token_hash, seen, now)) {
            // Another connection enrolled the same key in the same instant: it is known now.
            Err(error) if error.is_duplicate() => {
                self.enrol_once(id, public_key, token_hash, seen, now).await
            }
            result => result,
        }
    }

    async fn enrol_once(
        &self,
        id: AgentId,
        public_key: &str,
        token_hash: &[u8; 32],
        seen: &AgentSeen,
        now: Timestamp,
    ) -> Result<Enrolled, StoreError> {
        let during = "enrol an agent";
        let mut tx = self.inner.db.begin().await?;
        if let Some(known) = known(&mut tx, public_key).await? {
            return Ok(known);
        }
        let token: Option<token::Token> = on!(&mut tx, Db, c => sqlx::query_as(token::CONSUME)
            .bind(token_hash.to_vec()).bind(now.0).bind("enrol").fetch_optional(c).await)
        .during(during)?;
        let Some(token) = token else {
            // Perhaps it was this very key that has used the token up meanwhile.
            return Ok(known(&mut tx, public_key).await?.unwrap_or(Enrolled::TokenRefused));
        };
        let agent = on!(&mut tx, Db, c => sqlx::query_as(ENROL)
            .bind(id.uuid()).bind(&token.org).bind(&seen.name).bind(public_key)
            .bind(token.id.uuid()).bind(words(&seen.labels)).bind(i64::from(seen.slots))
            .bind(containment_word(seen.containment)).bind(&seen.boot_id).bind(&seen.software)
            .bind(now.0).fetch_one(c).await)
        .during(during)?;
        tx.commit().await?;
        Ok(Enrolled::Agent(Box::new(agent)))
    }

    pub async fn agent_by_key(&self, public_key: &str) -> Result<Option<Agent>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(BY_KEY).bind(public_key).fetch_optional(c).await
        })
        .during("read an agent")
    }

    pub async fn agent(&self, id: AgentId) -> Result<Option<Agent>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(BY_ID).bind(id.uuid()).fetch_optional(c).await
        })
        .during("read an agent")
    }

    /// Notes a registration with coordinator `instance`; false when the agent is revoked.
    pub async fn agent_seen(
        &self,
        id: AgentId,
        seen: &AgentSeen,
        instance: InstanceId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(SEEN)
            .bind(id.uuid()).bind(&seen.name).bind(words(&seen.labels)).bind(i64::from(seen.slots))
            .bind(containment_word(seen.containment)).bind(&seen.boot_id).bind(&seen.software)
            .bind(instance.uuid()).bind(now.0).execute(c).await.map(|done| done.rows_affected()))
        .during("note an agent")?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    /// Notes that an agent was heard of.
    pub async fn agent_beat(&self, id: AgentId, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(BEAT).bind(id.uuid()).bind(now.0)
            .execute(c).await.map(drop))
        .during("note an agent's beat")?;
        tx.commit().await
    }

    /// Notes that an agent's link to `instance` closed, unless it has gone elsewhere meanwhile.
    pub async fn agent_gone(
        &self,
        id: AgentId,
        instance: InstanceId,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(GONE).bind(id.uuid()).bind(instance.uuid())
            .bind(now.0).execute(c).await.map(drop))
        .during("note an agent's leaving")?;
        tx.commit().await
    }

    pub async fn set_agent_draining(&self, id: AgentId, draining: bool) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(DRAINING).bind(id.uuid()).bind(draining)
            .execute(c).await.map(drop))
        .during("drain an agent")?;
        tx.commit().await
    }

    /// False when it is unknown or was revoked before.
    pub async fn revoke_agent(
        &self,
        id: AgentId,
        by: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(REVOKE).bind(id.uuid()).bind(now.0).bind(by)
            .execute(c).await.map(|done| done.rows_affected()))
        .during("revoke an agent")?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    pub async fn agents(&self, org: Option<&str>) -> Result<Vec<Agent>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(LIST).bind(org).fetch_all(c).await)
            .during("list agents")
    }
}

/// What enrolling a key that was enrolled before comes to.
async fn known(tx: &mut Tx, public_key: &str) -> Result<Option<Enrolled>, StoreError> {
    let known: Option<Agent> = on!(tx, Db, c => {
        sqlx::query_as(BY_KEY).bind(public_key).fetch_optional(c).await
    })
    .during("enrol an agent")?;
    Ok(known.map(Box::new).map(|agent| match agent.revoked_at {
        Some(_) => Enrolled::KeyRevoked(agent),
        None => Enrolled::Agent(agent),
    }))
}

fn words(labels: &[String]) -> String {
    serde_json::to_string(labels).expect("a list of texts is JSON")
}
