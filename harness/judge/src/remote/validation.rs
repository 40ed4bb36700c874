//! What a validation over HTTP found, and its verdict.

use serde::{Deserialize, Serialize};

use super::RemoteVerdict;
use crate::verdict::Verdict;

/// Two states that were compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// Name, such as `cold | warm`.
    pub name: String,
    /// What the rows are.
    pub rows: String,
    /// What shows that the states were what they are called.
    pub evidence: String,
    /// Why the states are not proven; the comparison is inconclusive then, unless it fails.
    pub unproven: Option<String>,
    /// The checks.
    pub result: RemoteVerdict,
}

/// A comparison that the servers do not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotCompared {
    /// Name, as in [`Compared::name`].
    pub name: String,
    /// The kind of rows that are missing, as in [`Compared::rows`].
    pub rows: String,
    /// What the server said instead.
    pub why: String,
}

/// A server compared with itself on an altered context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planted {
    /// What was altered.
    pub name: String,
    /// The kind of rows, as in [`Compared::rows`].
    pub rows: String,
    /// Whether a pass needs it to be rejected; the others are shown, seen or not.
    pub required: bool,
    /// The checks.
    pub result: RemoteVerdict,
}

impl Planted {
    /// Whether the rules rejected it.
    pub fn is_rejected(&self) -> bool {
        self.result.verdict.is_fail()
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteValidation {
    /// Comparisons.
    pub compared: Vec<Compared>,
    /// Altered contexts.
    pub planted: Vec<Planted>,
    /// Comparisons that fell away. The verdict is about the others, so a reader must see these.
    #[serde(default)]
    pub not_compared: Vec<NotCompared>,
}

impl RemoteValidation {
    /// Fail when a comparison fails; pass when all pass, all states are proven, and every altered
    /// context that must be seen was. A check that could not have failed on this server has shown
    /// nothing about it.
    pub fn verdict(&self) -> Verdict {
        let (mut broken, mut open) = (Vec::new(), Vec::new());
        for compared in &self.compared {
            let name = &compared.name;
            match &compared.result.verdict {
                Verdict::Pass => {}
                Verdict::Fail { reasons } => {
                    broken.push(format!("{name}: {}", reasons.join("; ")));
                }
                Verdict::Inconclusive { why } => open.push(format!("{name}: {}", why.join("; "))),
            }
            if let Some(why) = &compared.unproven {
                open.push(format!("{name}: {why}"));
            }
        }
        let required = || self.planted.iter().filter(|p| p.required);
        let missed = required().filter(|p| !p.is_rejected());
        open.extend(missed.map(|p| {
            let (rows, name) = (&p.rows, &p.name);
            format!("{rows}: the limits do not see `{name}` on this server")
        }));
        if self.compared.is_empty() {
            open.push("nothing was compared".to_owned());
        }
        if required().next().is_none() {
            open.push("no altered context was tried, so the checks may be unable to fail".into());
        }
        Verdict::from_findings(broken, open)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Precision, PromptDeltas, RemoteLimits, RemoteStats, RowDelta, judge};
    use super::*;

    fn result(kl: f64) -> RemoteVerdict {
        let row = |position| RowDelta {
            position,
            kl,
            unseen: 0.1,
            delta_logprob: Some(0.0),
            delta_p: Some(0.0),
            flip: None,
            decidable: true,
            overlap: 1.0,
            concordance: Some(1.0),
            not_finite: false,
        };
        let prompt = |name: &str| PromptDeltas::new(name, (0..4).map(row).collect());
        let stats = RemoteStats::of(&[prompt("a"), prompt("b")]);
        judge(stats, &RemoteLimits::of(Precision::Bf16)).unwrap()
    }

    fn good() -> RemoteValidation {
        RemoteValidation {
            compared: vec![Compared {
                name: "cold | warm".into(),
                rows: "generated".into(),
                evidence: String::new(),
                unproven: None,
                result: result(0.0),
            }],
            planted: vec![Planted {
                name: "a block replaced".into(),
                rows: "generated".into(),
                required: true,
                result: result(3.0),
            }],
            not_compared: Vec::new(),
        }
    }

    #[test]
    fn a_pass_needs_proof_of_states_and_of_sensitivity() {
        assert_eq!(good().verdict(), Verdict::Pass);
        let mut unproven = good();
        unproven.compared[0].unproven = Some("the usage has no cached tokens".into());
        assert_eq!(unproven.verdict().exit_code(), 3);
        let mut blind = good();
        blind.planted[0].result = result(0.0);
        assert_eq!(blind.verdict().exit_code(), 3);
        blind.planted[0].required = false;
        assert_eq!(blind.verdict().exit_code(), 3, "nothing required was tried");
        assert_eq!(RemoteValidation::default().verdict().exit_code(), 3);
        // A difference is a difference, also where the states are not proven.
        unproven.compared[0].result = result(1.0);
        assert!(unproven.verdict().is_fail());
    }
}
