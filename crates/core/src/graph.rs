//! The graph of a workflow's jobs, before fan-out.

use std::collections::BTreeMap;

use shuntyard_protocol::plan::Job;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("job '{job}' needs '{missing}', which does not exist")]
    Missing { job: String, missing: String },
    #[error("job '{job}' needs itself")]
    Itself { job: String },
    #[error("job '{job}' needs '{upstream}' twice")]
    Twice { job: String, upstream: String },
    #[error("needs go round in a circle: {}", .0.join(" → "))]
    Cycle(Vec<String>),
}

/// Checks that needs name existing jobs and form no cycle.
pub fn check(jobs: &[Job]) -> Result<(), GraphError> {
    let index: BTreeMap<&str, usize> =
        jobs.iter().enumerate().map(|(i, job)| (job.name.as_str(), i)).collect();
    let mut upstream = Vec::with_capacity(jobs.len());
    for job in jobs {
        let mut needs = Vec::with_capacity(job.needs.len());
        for need in &job.needs {
            let Some(&i) = index.get(need.job.as_str()) else {
                return Err(GraphError::Missing {
                    job: job.name.clone(),
                    missing: need.job.clone(),
                });
            };
            if need.job == job.name {
                return Err(GraphError::Itself { job: job.name.clone() });
            }
            if needs.contains(&i) {
                return Err(GraphError::Twice {
                    job: job.name.clone(),
                    upstream: need.job.clone(),
                });
            }
            needs.push(i);
        }
        upstream.push(needs);
    }
    match cycle(&upstream) {
        Some(path) => {
            Err(GraphError::Cycle(path.into_iter().map(|i| jobs[i].name.clone()).collect()))
        }
        None => Ok(()),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    New,
    Open,
    Closed,
}

/// The first cycle, its first node repeated at the end. Iterative: a chain may be thousands long.
pub(crate) fn cycle(upstream: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut marks = vec![Mark::New; upstream.len()];
    for root in 0..upstream.len() {
        if marks[root] != Mark::New {
            continue;
        }
        let mut path = vec![(root, 0)];
        marks[root] = Mark::Open;
        while let Some((node, next)) = path.last_mut() {
            let Some(&child) = upstream[*node].get(*next) else {
                marks[*node] = Mark::Closed;
                path.pop();
                continue;
            };
            *next += 1;
            match marks[child] {
                Mark::Closed => {}
                Mark::New => {
                    marks[child] = Mark::Open;
                    path.push((child, 0));
                }
                Mark::Open => {
                    let nodes = path.iter().map(|&(node, _)| node);
                    let mut cycle: Vec<_> = nodes.skip_while(|&node| node != child).collect();
                    cycle.push(child);
                    return Some(cycle);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use shuntyard_protocol::{Outcome, plan::Need};

    use super::*;

    fn jobs(edges: &[(&str, &[&str])]) -> Vec<Job> {
        let need = |name: &&str| Need { job: (*name).to_owned(), when: vec![Outcome::Success] };
        edges
            .iter()
            .map(|(name, needs)| Job {
                name: (*name).to_owned(),
                needs: needs.iter().map(need).collect(),
                ..Job::default()
            })
            .collect()
    }

    fn message(edges: &[(&str, &[&str])]) -> String {
        check(&jobs(edges)).unwrap_err().to_string()
    }

    #[test]
    fn a_diamond_is_fine() {
        assert_eq!(
            check(&jobs(&[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["b", "c"])])),
            Ok(())
        );
    }

    #[test]
    fn the_message_prints_the_cycle() {
        assert_eq!(message(&[("a", &["a"])]), "job 'a' needs itself");
        assert_eq!(
            message(&[("a", &["b"]), ("b", &["a"])]),
            "needs go round in a circle: a → b → a"
        );
        let inner = message(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]);
        assert_eq!(inner, "needs go round in a circle: b → c → b");
        assert_eq!(message(&[("a", &["x"])]), "job 'a' needs 'x', which does not exist");
        assert_eq!(message(&[("a", &[]), ("b", &["a", "a"])]), "job 'b' needs 'a' twice");
    }

    #[test]
    fn a_chain_of_thousands_needs_no_stack() {
        let names: Vec<String> = (0..5000).map(|i| format!("j{i}")).collect();
        let chain = |i: usize| Job {
            name: names[i].clone(),
            needs: names[..i]
                .last()
                .map(|n| Need { job: n.clone(), when: vec![] })
                .into_iter()
                .collect(),
            ..Job::default()
        };
        assert_eq!(check(&(0..names.len()).map(chain).collect::<Vec<_>>()), Ok(()));
    }
}
