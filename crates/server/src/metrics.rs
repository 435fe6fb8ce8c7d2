//! Figures for Prometheus. The registry is a value: several nodes live in one test process.

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};

use crate::app::App;

/// What a coordinator counts.
pub struct Metrics {
    registry: Registry,
    pub requests: Counter,
    pub deliveries: Counter,
    pub deliveries_refused: Counter,
    agents: Gauge,
    unverified: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("shunt");
        let metrics = Self {
            requests: Counter::default(),
            deliveries: Counter::default(),
            deliveries_refused: Counter::default(),
            agents: Gauge::default(),
            unverified: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("http_requests", "HTTP requests answered", metrics.requests.clone());
        registry.register("deliveries", "webhooks accepted", metrics.deliveries.clone());
        let help = "webhooks turned away";
        registry.register("deliveries_refused", help, metrics.deliveries_refused.clone());
        registry.register("agents_connected", "agents linked to this node", metrics.agents.clone());
        let help = "webhook bodies whose signature is not checked yet";
        let gauge = metrics.unverified.clone();
        registry.register_with_unit("webhook_unverified", help, Unit::Bytes, gauge);
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// The text that Prometheus reads.
    pub fn render(&self, app: &App) -> String {
        self.agents.set(i64::try_from(app.agents.connected()).unwrap_or(i64::MAX));
        self.unverified.set(i64::try_from(app.unverified.bytes()).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}
