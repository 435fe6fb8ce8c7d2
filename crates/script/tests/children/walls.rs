//! Every denial, tried from inside the child.

use std::{
    fs::File,
    os::fd::AsRawFd,
    process::{Command, Stdio},
};

use shuntyard_script::Probe;

use crate::{NOW, bundle, launcher};

#[test]
fn everything_outside_the_walls_is_denied() {
    // Without close-on-exec, this descriptor reaches the child.
    let leak = File::open("/etc/passwd").unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    assert!(leak.as_raw_fd() > 2);
    let output = Command::new(launcher("probe").program)
        .arg("probe")
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let probe: Probe = serde_json::from_slice(&output.stdout).unwrap();
    let possible: Vec<_> = probe.denied.iter().filter(|(_, denied)| !**denied).collect();
    assert!(possible.is_empty(), "{possible:?}");
    assert!(output.status.success());
    assert_eq!(probe.layers.missing(), Vec::<&str>::new(), "{:?}", probe.layers);
    assert!(probe.layers.seccomp && probe.layers.rlimits && probe.layers.descriptors);
}

#[test]
fn an_environment_is_a_missing_wall() {
    let output = Command::new(launcher("probe").program)
        .arg("probe")
        .env_clear()
        .env("SECRET", "x")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let probe: Probe = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(probe.layers.missing(), ["empty environment"]);
}

#[test]
fn a_missing_wall_refuses_untrusted_authors_before_anything_runs() {
    use shuntyard_script::{EvaluateError, Launcher, Require, evaluate};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let program = launcher("evaluate").program;
    let args = ["-c", "SECRET=x exec \"$0\" evaluate"].map(Into::into);
    let args = args.into_iter().chain([program.into()]).collect();
    let leaky = Launcher { program: "/bin/sh".into(), args };
    let files = bundle(&[("workflows/a.ts", "throw new Error('ran')")]);
    let result = runtime.block_on(evaluate(&leaky, &files, NOW, Require::Walls));
    assert!(
        matches!(&result, Err(EvaluateError::MissingLayers(missing)) if missing == &["empty environment"]),
        "{result:?}"
    );
    let result = runtime.block_on(evaluate(&leaky, &files, NOW, Require::Nothing));
    assert!(
        matches!(&result, Err(EvaluateError::Faults(faults)) if faults[0].message == "Error: ran"),
        "{result:?}"
    );
}
