//! `concurrency` of a workflow, `concurrencyGroup` of a job.

use shuntyard_protocol::plan::Concurrency;

use super::{Describer, options::Options};
use crate::raw::Raw;

/// Most slots of a group.
const SLOTS: (i32, i32) = (1, 1000);

impl<'a> Describer<'a> {
    /// A name, or an object that says more.
    pub(super) fn concurrency(
        &mut self,
        options: &Options<'a>,
        key: &'static str,
    ) -> Option<Concurrency> {
        let raw = options.get(key)?;
        let of = format!("{}: \"{key}\"", options.of);
        let Raw::Object(_) = raw else {
            let group = self.group(options, key, raw)?;
            return Some(Concurrency { group, cancel_in_progress: false, max: 1 });
        };
        let known = ["group", "cancelInProgress", "max"];
        let inner = self.options(of, options.at, Some(raw), &known, &[]);
        let cancel_in_progress = self.flag(&inner, "cancelInProgress").unwrap_or(false);
        let max = self.integer(&inner, "max", SLOTS).map_or(1, i32::unsigned_abs);
        let Some(group) = inner.get("group") else {
            self.fault(
                options.at,
                format!("{}: \"group\" is missing: {{ group: \"deploy\" }}", inner.of),
            );
            return None;
        };
        let group = self.group(&inner, "group", group)?;
        Some(Concurrency { group, cancel_in_progress, max })
    }

    /// A job may say `concurrency` as well, as its workflow does.
    pub(super) fn job_concurrency(&mut self, options: &Options<'a>) -> Option<Concurrency> {
        let [group, same] = ["concurrencyGroup", "concurrency"];
        if options.get(group).is_some() && options.get(same).is_some() {
            self.fault(
                options.at,
                format!("{}: \"{group}\" and \"{same}\" are the same; write one", options.of),
            );
        }
        let key = if options.get(group).is_some() { group } else { same };
        self.concurrency(options, key)
    }

    fn group(&mut self, options: &Options<'a>, key: &str, raw: &'a Raw) -> Option<String> {
        match raw {
            Raw::Text(text) => Some(text.clone()),
            Raw::Function { .. } => {
                let message =
                    format!("{}: \"{key}\" as a function is not supported yet", options.of);
                self.fault(options.at, message);
                None
            }
            other => {
                self.wrong(options, key, "the name of a concurrency group", other);
                None
            }
        }
    }
}
