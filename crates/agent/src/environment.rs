//! The environment of a command: built from named parts, never inherited.

use std::collections::BTreeMap;

use shuntyard_protocol::agent::Spec;

use crate::attempt::MARK;

type Env = BTreeMap<String, String>;

/// Host variables that commands see by default; `LC_*` as well.
const HOST_VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "ALL_PROXY",
];

/// Path of a command on a host that says nothing.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The part of the host's environment that commands may see.
pub(crate) fn allowed(host: &Env, pass: &[String]) -> Env {
    let mut env: Env = host
        .iter()
        .filter(|(name, _)| {
            HOST_VARIABLES.contains(&name.as_str())
                || name.starts_with("LC_")
                || pass.iter().any(|passed| passed == *name)
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    env.entry("PATH".into()).or_insert_with(|| PATH_DEFAULT.into());
    env
}

/// Names that nobody but the agent sets. `CI` is not one: a test suite may want to unset it.
pub(crate) fn is_locked(name: &str) -> bool {
    name.starts_with("SHUNT_") || name.starts_with("KICI_")
}

/// The variables that tell a command where it is, under both prefixes.
pub(crate) fn facts(spec: &Spec, workspace: &str) -> Env {
    let mut env = Env::from([("CI".to_owned(), "true".to_owned())]);
    let mut set = |name: &str, value: &str| {
        env.insert(format!("SHUNT_{name}"), value.to_owned());
        env.insert(format!("KICI_{name}"), value.to_owned());
    };
    set("RUN", &spec.run.to_string());
    set("RUN_NUMBER", &spec.run_number.to_string());
    set("ORG", &spec.org);
    set("SOURCE", &spec.source);
    set("WORKFLOW", &spec.workflow);
    set("JOB", &spec.job);
    set("JOB_ID", &spec.id.job.to_string());
    set("ATTEMPT", &spec.try_no.to_string());
    set("WORKSPACE", workspace);
    if let Some(url) = &spec.run_url {
        set("RUN_URL", url);
    }
    if let Some(code) = &spec.code {
        set("COMMIT", &code.commit);
        if let Some(name) = &code.ref_name {
            set("REF", name);
            if let Some(branch) = name.strip_prefix("refs/heads/") {
                set("BRANCH", branch);
            }
            if let Some(tag) = name.strip_prefix("refs/tags/") {
                set("TAG", tag);
            }
        }
    }
    env.insert(MARK.to_owned(), spec.id.to_string());
    env
}

/// The parts of a step's environment, weakest first.
pub(crate) struct Parts<'a> {
    pub host: &'a Env,
    pub facts: &'a Env,
    pub job: &'a Env,
    pub step: &'a Env,
    /// By earlier steps.
    pub set: &'a Env,
    /// Directories that earlier steps put in front of `PATH`, latest first.
    pub paths: &'a [String],
}

/// The environment, and the names that somebody set in vain because they are locked.
pub(crate) fn build(parts: &Parts<'_>) -> (Env, Vec<String>) {
    let mut env = parts.host.clone();
    env.extend(parts.facts.clone());
    let mut refused = Vec::new();
    for layer in [parts.job, parts.step, parts.set] {
        for (name, value) in layer {
            if is_locked(name) {
                refused.push(name.clone());
            } else {
                env.insert(name.clone(), value.clone());
            }
        }
    }
    if !parts.paths.is_empty() {
        let path = env.get("PATH").map_or(PATH_DEFAULT, String::as_str);
        let joined = parts.paths.iter().map(String::as_str).chain([path]);
        env.insert("PATH".into(), joined.collect::<Vec<_>>().join(":"));
    }
    (env, refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn only_named_host_variables_pass() {
        let host = env(&[("HOME", "/h"), ("LC_ALL", "C"), ("TOKEN", "t"), ("EXTRA", "e")]);
        let passed = allowed(&host, &["EXTRA".into()]);
        let names: Vec<_> = passed.keys().map(String::as_str).collect();
        assert_eq!(names, ["EXTRA", "HOME", "LC_ALL", "PATH"]);
    }

    #[test]
    fn later_layers_win_and_locked_names_do_not_move() {
        let (built, refused) = build(&Parts {
            host: &env(&[("PATH", "/bin"), ("A", "host")]),
            facts: &env(&[("SHUNT_RUN", "r"), ("CI", "true")]),
            job: &env(&[("A", "job"), ("B", "job")]),
            step: &env(&[("B", "step"), ("SHUNT_RUN", "evil")]),
            set: &env(&[("C", "set"), ("KICI_JOB", "evil")]),
            paths: &["/late".into(), "/early".into()],
        });
        let expected = [
            ("A", "job"),
            ("B", "step"),
            ("C", "set"),
            ("CI", "true"),
            ("PATH", "/late:/early:/bin"),
            ("SHUNT_RUN", "r"),
        ];
        assert_eq!(built, env(&expected));
        assert_eq!(refused, ["SHUNT_RUN", "KICI_JOB"]);
    }
}
